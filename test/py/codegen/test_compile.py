"""compile_kernel: deterministic bytes, cache, memo, and the light import."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from flycc.codegen import CodeObjectCache, UnsupportedTarget, compile_kernel
from flycc.codegen import compile as compile_module
from flycc.codegen.compile import cache_key
from flycc.kernels.common.spec import KernelSpec

CHILD = """
import hashlib, sys
from pathlib import Path
from flycc.codegen import CodeObjectCache, compile_kernel
from flycc.contracts import GemmProblem
from flycc.kernels import gemm
problem = GemmProblem("bf16", 1, 64, 256, trans_b=True)
spec = gemm.kernel(problem, gemm.choose(problem))
compiled = compile_kernel(spec, cache=CodeObjectCache(Path(sys.argv[1])))
print(hashlib.sha256(compiled.elf).hexdigest(), compiled.from_cache)
print("flydsl" in sys.modules, "torch" in sys.modules)
"""


def in_another_process(cache: CodeObjectCache) -> list[str]:
    command = [sys.executable, "-c", CHILD, str(cache.root)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "_memo", {})


def test_same_bytes_in_two_processes_and_a_light_warm_start(
    spec: KernelSpec, cache: CodeObjectCache, tmp_path: Path
) -> None:
    here = compile_kernel(spec, cache=cache)
    assert not here.from_cache
    assert {"cache", "trace", "lower"} == here.seconds.keys()
    digest = hashlib.sha256(here.elf).hexdigest()
    cold = in_another_process(CodeObjectCache(tmp_path / "other"))
    assert cold[:2] == [digest, "False"]
    assert in_another_process(cache) == [digest, "True", "False", "False"]


def test_memo_and_cache(spec: KernelSpec, cache: CodeObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_kernel(spec, cache=cache)
    assert compile_kernel(spec, cache=cache) is first
    monkeypatch.setattr(compile_module, "_memo", {})
    again = compile_kernel(spec, cache=cache)
    assert (again.elf, again.from_cache) == (first.elf, True)


def test_damaged_entry_is_compiled_again(
    spec: KernelSpec, cache: CodeObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    elf = compile_kernel(spec, cache=cache).elf
    (object_,) = cache.root.glob("objects/*.elf")
    object_.write_bytes(elf[:-1])
    monkeypatch.setattr(compile_module, "_memo", {})
    with pytest.warns(RuntimeWarning, match="damaged cache entry"):
        repaired = compile_kernel(spec, cache=cache)
    assert (repaired.elf, repaired.from_cache) == (elf, False)
    assert object_.read_bytes() == elf


def test_key_depends_on_everything_that_changes_the_bytes(
    spec: KernelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "kernel.py"
    source.write_text("a = 1\n")
    edited = dataclasses.replace(spec, sources=(source,))
    keys = [cache_key(spec, "gfx950"), cache_key(spec, "gfx951"), cache_key(edited, "gfx950")]
    source.write_text("a = 2\n")
    keys.append(cache_key(edited, "gfx950"))
    keys.append(cache_key(dataclasses.replace(spec, key="another"), "gfx950"))
    monkeypatch.setattr(compile_module, "version", lambda package: "0.5.99")
    keys.append(cache_key(spec, "gfx950"))
    assert len(set(keys)) == len(keys)


def test_unsupported_target(spec: KernelSpec, cache: CodeObjectCache) -> None:
    with pytest.raises(UnsupportedTarget, match="gfx1100"):
        compile_kernel(spec, target="gfx1100", cache=cache)
