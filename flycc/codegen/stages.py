"""Lowering as a list of named stages: a traced kernel, or a module's text, down to an ELF.

fly                            the traced module
fly-rewrite-func-signature ... FlyDSL's pipeline, one stage a fragment
rocdl                          what it ends in: the LLVM dialect with ROCDL intrinsics
llvm                           LLVM IR
isa                            gfx950 assembly
hsaco                          the linked ELF code object
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from flycc.codegen import flydsl
from flycc.codegen.cache import cache_root
from flycc.codegen.errors import CompileError, UnsupportedTarget
from flycc.codegen.linker import find_linker
from flycc.contracts import Reason
from flycc.kernels.common.spec import KernelSpec

TARGETS = ("gfx950",)

#: Kernel arguments that a wave finds in SGPRs when it starts: all of the 16 SGPRs that can be set then, but for the two
#: with the address of the arguments (LLVM AMDGPU guide, "Preloaded Kernel Arguments").
_PRELOADED_DWORDS = 14

#: The stages to stop at by name, in order; between "fly" and "rocdl" there are FlyDSL's own.
GROUPS = ("fly", "rocdl", "llvm", "isa", "hsaco")

#: Called after each stage with its name and its result: text, or the ELF's bytes.
Observer = Callable[[str, str | bytes], None]


def stage_names(target: str = "gfx950") -> tuple[str, ...]:
    """Every stage, in order. Imports FlyDSL."""
    require_target(target)
    with flydsl.session(target):
        return _stage_names(flydsl.fragments(target)[0])


def lower(
    kernel: KernelSpec | str,
    *,
    target: str = "gfx950",
    start_after: str = "fly",
    stop_after: str = "hsaco",
    dump_dir: Path | None = None,
    on_stage: Observer | None = None,
    seconds: dict[str, float] | None = None,
) -> str | bytes:
    """The result of stage `stop_after`: text, or bytes for "hsaco".

    `kernel` is a spec to trace, or the text of a module as stage `start_after` (of those up to "rocdl") left
    it. `dump_dir` gets one file per stage. `seconds`, if given, is filled with the time each stage took.
    Raises UnsupportedTarget, MissingLinker, or CompileError.
    """
    require_target(target)
    clock = seconds if seconds is not None else {}
    with flydsl.session(target):
        passes, _ = flydsl.fragments(target)
        names = _stage_names(passes)
        pipelines = dict(zip(names[1:], passes, strict=False))
        for name in (start_after, stop_after):
            _require_stage(name, names)
        first, last = names.index(start_after), names.index(stop_after)
        if last < first or first > names.index("rocdl"):
            raise CompileError(
                Reason("codegen.stage", f"cannot start after {start_after} and stop after {stop_after}")
            )
        publish = _publisher(dump_dir, on_stage)
        started = perf_counter()
        text = flydsl.trace(kernel) if isinstance(kernel, KernelSpec) else kernel
        traced = text is not kernel
        clock["trace"] = perf_counter() - started
        # A trace that nothing follows is parsed where it goes on: in the worker.
        module = None if traced and last == first else flydsl.parse(text)
        result: str | bytes = text
        for number, name in enumerate(names[first : last + 1], first):
            started = perf_counter()
            if name in pipelines and number > first:
                flydsl.run(name, module, pipelines[name])
            if name == "rocdl":
                flydsl.preload_arguments(module, _PRELOADED_DWORDS)
            needed = publish is not None or number == last
            if name == "llvm":
                result = flydsl.llvm_ir(module) if needed else ""
            elif name == "isa":
                result = flydsl.serialize(name, module, "isa", Path()).decode() if needed else ""
            elif name == "hsaco":
                with find_linker().plain_toolkit(cache_root() / "linkers") as toolkit:
                    result = flydsl.serialize(name, module, "fatbin", toolkit)
            elif needed and not (traced and number == first):
                result = str(module)
            clock[name] = perf_counter() - started
            if publish is not None:
                publish(number, name, result)
        return result


def require_target(target: str) -> None:
    """Raises UnsupportedTarget unless code can be generated for `target`."""
    if target not in TARGETS:
        raise UnsupportedTarget(
            Reason("codegen.target", f"target {target!r}: flycc generates code for {', '.join(TARGETS)}")
        )


def _stage_names(passes: list[str]) -> tuple[str, ...]:
    names: list[str] = ["fly"]
    for fragment in passes:
        name = _fragment_name(fragment)
        repeats = sum(other.split(".")[0] == name for other in names)
        names.append(f"{name}.{repeats + 1}" if repeats else name)
    return (*names, *GROUPS[1:])


def _fragment_name(fragment: str) -> str:
    """The pass a fragment is for: `gpu.module(cse,...,convert-gpu-to-rocdl{...})` is the conversion."""
    passes = re.findall(r"[\w-]+(?=[{,()]|$)", re.sub(r"\{[^}]*\}", "", fragment))
    return "convert-gpu-to-rocdl" if "convert-gpu-to-rocdl" in passes else passes[0]


def _require_stage(name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise CompileError(Reason("codegen.stage", f"no stage {name!r}; the stages are {', '.join(names)}"))


def _publisher(dump_dir: Path | None, on_stage: Observer | None) -> Callable[[int, str, Any], None] | None:
    if dump_dir is None and on_stage is None:
        return None
    suffixes = {"llvm": "ll", "isa": "s", "hsaco": "hsaco"}

    def publish(number: int, name: str, result: str | bytes) -> None:
        if dump_dir is not None:
            dump_dir.mkdir(parents=True, exist_ok=True)
            data = result.encode() if isinstance(result, str) else result
            (dump_dir / f"{number:02d}-{name}.{suffixes.get(name, 'mlir')}").write_bytes(data)
        if on_stage is not None:
            on_stage(name, result)

    return publish
