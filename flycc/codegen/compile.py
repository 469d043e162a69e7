"""From a kernel's specification to its code object, through a memo and the on-disk cache."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from flycc.codegen import worker
from flycc.codegen.cache import CodeObjectCache
from flycc.codegen.errors import CompileError
from flycc.codegen.linker import find_linker
from flycc.codegen.stages import lower, require_target
from flycc.contracts import Reason
from flycc.kernels.common.spec import KernargLayout, KernelSpec

_HERE = Path(__file__).parent
#: Our own part in the bytes: which stages run, and with which options.
_STAGE_SOURCES = (_HERE / "stages.py", _HERE / "flydsl.py")

_memo: dict[tuple[Path, str, KernelSpec], Compiled] = {}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A code object. `seconds` says what each step took: "cache", "trace", "lower"."""

    elf: bytes = field(repr=False)
    symbol: str
    kernarg: KernargLayout
    from_cache: bool
    seconds: dict[str, float]


def compile_kernel(
    spec: KernelSpec, *, target: str = "gfx950", cache: CodeObjectCache | None = None
) -> Compiled:
    """The code object of `spec`, from this process's memo, from `cache` (None: the default one), or made now.

    Raises UnsupportedTarget, MissingLinker, or CompileError.
    """
    require_target(target)
    cache = cache or CodeObjectCache()
    known = _memo.get((cache.root, target, spec))
    if known is None:
        known = _memo[cache.root, target, spec] = _load_or_make(spec, target, cache)
    return known


def _load_or_make(spec: KernelSpec, target: str, cache: CodeObjectCache) -> Compiled:
    started = perf_counter()
    key = cache_key(spec, target)
    elf = cache.get(key)
    seconds = {"cache": perf_counter() - started}
    if elf is not None:
        return Compiled(elf, spec.symbol, spec.kernarg, True, seconds)
    worker.start()
    started = perf_counter()
    traced = lower(spec, target=target, stop_after="fly")
    assert isinstance(traced, str)
    seconds["trace"] = perf_counter() - started
    made, stages = worker.lower_apart(traced, target=target)
    if f"{spec.symbol}.kd".encode() not in made:
        raise CompileError(Reason("codegen.symbol", f"the code object lacks the kernel {spec.symbol}"))
    seconds["lower"] = sum(stages.values())
    cache.put(key, made, {"family": spec.family, "symbol": spec.symbol, "target": target, "spec": spec.key})
    return Compiled(made, spec.symbol, spec.kernarg, False, seconds)


def cache_key(spec: KernelSpec, target: str) -> str:
    """A digest of everything the code object's bytes depend on."""
    parts = {
        "family": spec.family,
        "symbol": spec.symbol,
        "spec": spec.key,
        "target": target,
        "sources": [_digest(path) for path in (*spec.sources, *_STAGE_SOURCES)],
        "flydsl": version("flydsl"),
        "linker": find_linker().identity,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"
