"""The options of the backend: what `torch.compile(..., backend="flycc", options={...})` takes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from flycc.contracts import FlyccError, Reason
from flycc.tuning import Autotune

Fallback = Literal["eager", "inductor"]
Target = Literal["gfx950"]
Mx = Literal["mxfp8", "mxfp4"]
ScalePlacement = Literal["exact", "relaxed"]


class OptionError(FlyccError, ValueError):
    """An option that flycc does not have, or a value it does not take."""


@dataclass(frozen=True, slots=True)
class Options:
    """Every option, with its default.

    `target`: the GPU that kernels are compiled for; never guessed from the machine.
    `fallback`: who runs the part of a graph that no kernel serves, PyTorch's eager operators or Inductor.
    `strict`: raise an error where flycc would otherwise leave an op of a family that has kernels (products of
    matrices, RMS norms, top-k), or a whole graph, to PyTorch.
    `autotune`: where kernels' configurations come from. "table": the user's and the shipped tuning tables, a closed
    form for other shapes. "model": as well, a search by the cost model for what is compiled and in no table of the
    user's, some seconds for each problem. "measure": the fastest of that search are timed on the GPU, if there is one.
    What is found is kept in the user's table. See docs/tuning.md.
    `mx`: run linear layers in this MX format, weights and activations, where no gradient is needed. See docs/mx.md.
    `mx_keep`: names of modules, or patterns of them as of files ("model.layers.0", "*.down_proj"), whose linear layers
    stay as they are.
    `scale_placement`: where block scales of products may stand. "exact": elsewhere than where the graph has them only
    if that provably keeps all bits, which is asked at run time where it depends on the scales. "relaxed": where kernels
    are fastest; results may differ by rounding, and scales of rows that are huge for one operand and tiny for the
    other may make infinities of what is finite. See docs/scale-placement.md.
    """

    target: Target = "gfx950"
    fallback: Fallback = "eager"
    strict: bool = False
    autotune: Autotune = "table"
    mx: Mx | None = None
    mx_keep: tuple[str, ...] = ()
    scale_placement: ScalePlacement = "exact"

    @classmethod
    def parse(cls, options: Mapping[str, Any] | None = None, mode: str | None = None) -> Options:
        """Check what a user wrote. Raises `OptionError`, which names the option and what it takes."""
        if mode not in (None, "default"):
            raise OptionError(
                Reason("option.mode", f"mode={mode!r} is not known to flycc; accepted: None, 'default'")
            )
        if options is None:
            return cls()
        if not isinstance(options, Mapping):
            raise OptionError(
                Reason("option.type", f"options must be a dict of option names, got {type(options).__name__}")
            )
        known = [field.name for field in fields(cls)]
        for name, value in options.items():
            if name not in known:
                close = difflib.get_close_matches(str(name), known, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise OptionError(
                    Reason("option.unknown", f"unknown option {name!r}{hint}; known: {', '.join(known)}")
                )
            if name in _CHOICES and not _is_one_of(value, _CHOICES[name]):
                accepted = ", ".join(map(repr, _CHOICES[name]))
                raise OptionError(
                    Reason(f"option.{name}", f"option {name!r} is {value!r}; accepted: {accepted}")
                )
        chosen = cls(**options)
        return replace(chosen, mx_keep=_names(chosen.mx_keep, chosen.mx))


#: What options take that take one of a few values.
_CHOICES: dict[str, tuple[Any, ...]] = {
    "target": get_args(Target),
    "fallback": get_args(Fallback),
    "strict": (True, False),
    "autotune": get_args(Autotune),
    "mx": (None, *get_args(Mx)),
    "scale_placement": get_args(ScalePlacement),
}


def _is_one_of(value: Any, choices: Sequence[Any]) -> bool:
    # `1 == True` in Python, so the type is compared too.
    return any(value == choice and type(value) is type(choice) for choice in choices)


def _names(keep: Any, mx: Mx | None) -> tuple[str, ...]:
    """The names of `mx_keep`, checked."""
    if not isinstance(keep, list | tuple) or not all(isinstance(name, str) for name in keep):
        sentence = f"option 'mx_keep' is {keep!r}; accepted: a list of names or patterns of modules"
        raise OptionError(Reason("option.mx_keep", sentence))
    if keep and mx is None:
        raise OptionError(Reason("option.mx_keep", "option 'mx_keep' is for option 'mx', which is not given"))
    return tuple(keep)
