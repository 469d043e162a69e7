"""What layers of a graph are called in the model, and which of them `mx_keep` names."""

from __future__ import annotations

import difflib
import itertools
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.fx import Node

from flycc.contracts import Reason

#: What was said of a model and must not be said again.
_said: WeakKeyDictionary[nn.Module, set[Reason]] = WeakKeyDictionary()


class Names:
    """The names of weights in the modules that run.

    After a graph break a graph begins within a submodule, and so do the names in it. What the modules are that run
    around it the stack says: frames of their methods. Dynamo runs such a graph for all submodules of one class, with
    their parameters, so that a layer in it has many names.
    """

    def __init__(self, weights: Mapping[Node, Tensor]) -> None:
        self.modules = list(_running())
        by_tensor: dict[int, set[tuple[nn.Module, str]]] = defaultdict(set)
        for module in self.modules:
            for name, tensor in itertools.chain(
                module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
            ):
                by_tensor[id(tensor)].add((module, name.removesuffix(".weight")))
        self._of = {weight: by_tensor[id(tensor)] for weight, tensor in weights.items()}
        self._alike: dict[tuple[nn.Module, str], list[str]] = {}

    def of(self, weight: Node, within: str, module: str) -> set[str]:
        """The names of a layer in the running modules, by its `weight`, which the graph calls `within`.

        Those of its `module` too, as the graph calls it: it is in the same part of the model.
        """
        names: set[str] = set()
        for running, name in self._of.get(weight, ()):
            names.add(_plain(name))
            if name == within or name.endswith(f".{within}"):
                for part in self._like(running, name.removesuffix(within).strip(".")):
                    names |= {_plain(f"{part}.{each}".strip(".")) for each in (within, module)}
        return names

    def _like(self, model: nn.Module, name: str) -> list[str]:
        """The names of submodules of `model` that the code of the one of that name may run for."""
        if (model, name) not in self._alike:
            kind = type(model.get_submodule(name))
            modules = model.named_modules(remove_duplicate=False)
            self._alike[model, name] = [each for each, module in modules if type(module) is kind]
        return self._alike[model, name]

    def unknown(self, keep: Sequence[str], graph: Collection[str]) -> list[Reason]:
        """What to say of each pattern that fits no module of the model; without one, no layer of the `graph`."""
        modules = {
            _plain(name)
            for module in self.modules
            for name, _ in module.named_modules(remove_duplicate=False)
        }
        reasons = []
        for pattern in keep:
            if kept_by({*modules, *graph}, [pattern]) is not None:
                continue
            close = difflib.get_close_matches(pattern, graph, n=3, cutoff=0.4) or sorted(graph)[:3]
            where = "of the model" if self.modules else "of this graph"
            sentence = (
                f"mx_keep {pattern!r} fits no linear layer {where}; layers of it are {', '.join(close)}"
            )
            reasons += self.once(Reason("mx.keep", sentence), about=pattern)
        return reasons

    def once(self, reason: Reason, about: str = "") -> list[Reason]:
        """[reason], or [] if that was said of the model before, or of `about`."""
        if not self.modules:
            return [reason]
        said = _said.setdefault(self.modules[-1], set())
        key = Reason(reason.code, about or reason.sentence)
        new = [] if key in said else [reason]
        said.add(key)
        return new

    def evaluates(self) -> bool:
        """Whether the model is in eval mode."""
        return bool(self.modules) and not self.modules[-1].training


def kept_by(names: Collection[str], keep: Sequence[str]) -> str | None:
    """The first pattern that fits one of the `names`, or a module that it is in."""
    return next((pattern for pattern in keep if any(_fits(name, pattern) for name in names)), None)


def _fits(name: str, pattern: str) -> bool:
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def _plain(name: str) -> str:
    """`name` without what torch.compile puts into it for a compiled submodule."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _running() -> Iterator[nn.Module]:
    """The modules whose methods are on the stack, innermost first."""
    seen: set[int] = set()
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        frame = outer
        if "self" not in frame.f_code.co_varnames:
            continue
        module = frame.f_locals.get("self")
        if isinstance(module, OptimizedModule):
            module = module._orig_mod
        if isinstance(module, nn.Module) and id(module) not in seen:
            seen.add(id(module))
            yield module
