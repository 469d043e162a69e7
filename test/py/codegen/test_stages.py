"""Lowering stage by stage: names, stopping, restarting from text, dumps, and errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flycc.codegen import GROUPS, CompileError, UnsupportedTarget, find_linker, lower, stage_names
from flycc.kernels.common.spec import KernelSpec

#: FlyDSL's own pipeline, as of the version that flycc is pinned to; a change here changes what is compiled.
FLYDSL_STAGES = (
    "fly-rewrite-func-signature",
    "fly-canonicalize",
    "fly-rocdl-expand-ops",
    "fly-layout-lowering",
    "fly-int-swizzle-simplify",
    "canonicalize",
    "fly-convert-atom-call-to-ssa-form",
    "fly-promote-regmem-to-vectorssa",
    "convert-fly-to-rocdl",
    "canonicalize.2",
    "convert-gpu-to-rocdl",
    "rocdl-attach-target",
    "convert-scf-to-cf",
    "convert-cf-to-llvm",
    "gpu-to-llvm",
    "convert-vector-to-llvm",
    "convert-arith-to-llvm",
    "convert-func-to-llvm",
    "reconcile-unrealized-casts",
)


def test_stage_names() -> None:
    assert stage_names() == ("fly", *FLYDSL_STAGES, "rocdl", "llvm", "isa", "hsaco")


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("fly", ["gpu.func @gemm_", "!fly.ptr<bf16, global>"]),
        ("rocdl", ["llvm.func @gemm_", "llvm.inreg", "rocdl.mfma.f32.16x16x32.bf16", 'chip = "gfx950"']),
        ("llvm", ["define amdgpu_kernel void @gemm_", "llvm.amdgcn.mfma.f32.16x16x32.bf16"]),
        ("isa", ["amdgcn-amd-amdhsa-unknown-gfx950", "v_mfma_f32_16x16x32_bf16", "s_endpgm"]),
    ],
)
def test_groups_stop_where_they_say(spec: KernelSpec, stage: str, expected: list[str]) -> None:
    text = lower(spec, stop_after=stage)
    assert isinstance(text, str)
    for part in expected:
        assert part in text


def test_every_stage_restarts_from_its_text(spec: KernelSpec) -> None:
    texts: dict[str, str | bytes] = {}
    elf = lower(spec, on_stage=texts.__setitem__)
    assert texts["hsaco"] == elf
    for stage in stage_names():
        if stage not in ("llvm", "isa", "hsaco"):
            text = texts[stage]
            assert isinstance(text, str)
            assert lower(text, start_after=stage) == elf, stage


def test_dump_directory_holds_every_stage(spec: KernelSpec, tmp_path: Path) -> None:
    elf = lower(spec, dump_dir=tmp_path / "dump")
    names = [path.name for path in sorted((tmp_path / "dump").iterdir())]
    assert [name.split("-", 1)[1].rsplit(".", 1)[0] for name in names] == list(stage_names())
    assert (tmp_path / "dump" / names[-1]).read_bytes() == elf


def test_the_target_is_never_guessed(spec: KernelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedTarget, match=r"gfx942.*gfx950"):
        lower(spec, target="gfx942")
    expected = lower(spec, stop_after="isa")
    monkeypatch.setenv("FLYDSL_GPU_ARCH", "gfx942")
    monkeypatch.setenv("ARCH", "gfx90a")
    monkeypatch.setenv("FLYDSL_COMPILE_OPT_LEVEL", "0")
    before, hook = dict(os.environ), sys.excepthook
    assert lower(spec, stop_after="isa") == expected
    assert (dict(os.environ), sys.excepthook) == (before, hook)


def test_unknown_stage_lists_the_stages(spec: KernelSpec) -> None:
    with pytest.raises(CompileError, match=r"no stage 'ptx'.*rocdl, llvm, isa, hsaco"):
        lower(spec, stop_after="ptx")


def test_stages_in_the_wrong_order() -> None:
    with pytest.raises(CompileError, match="cannot start after rocdl and stop after fly"):
        lower("module {}", start_after="rocdl", stop_after="fly")
    with pytest.raises(CompileError, match="cannot start after isa"):
        lower("s_endpgm", start_after="isa")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module {", "^parse: "),
        ("module {}", "expected one gpu.module in the module, found 0"),
    ],
)
def test_bad_modules(text: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        lower(text)


def test_a_failed_stage_does_not_print_the_module(spec: KernelSpec) -> None:
    text = lower(spec, stop_after="fly")
    assert isinstance(text, str)
    with pytest.raises(CompileError) as caught:
        lower(text, start_after="canonicalize.2")  # skips stages that the next one builds on
    assert len(str(caught.value.__cause__)) > len(text) / 2, "MLIR did not print the module"
    sentence = caught.value.reason.sentence
    assert len(sentence) < 400
    assert "\n" not in sentence
    assert "failed to legalize operation 'gpu.func'" in sentence


@pytest.mark.parametrize(
    "name", ['q"uo te', "br}a{ce", "it's", "back\\slash", "new\nline", "ünï", "b\udcff", "file"]
)
def test_any_cache_directory_compiles(
    spec: KernelSpec, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "file" is one that cannot be a directory. The linker is the one that needs a wrapper in the cache."""
    monkeypatch.delenv("ROCM_PATH", raising=False)
    rocdl = lower(spec, stop_after="rocdl")
    assert isinstance(rocdl, str)
    expected = lower(rocdl, start_after="rocdl")
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLYCC_CACHE_DIR", str(tmp_path / name))
    assert lower(rocdl, start_after="rocdl") == expected


def test_any_rocm_directory_links(spec: KernelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = lower(spec)
    tools = find_linker().toolkit(tmp_path / "tools")
    rocm = tmp_path / 'r"o{cm'
    rocm.symlink_to(tools)
    monkeypatch.setenv("ROCM_PATH", str(rocm))
    assert find_linker().origin == "ROCM_PATH"
    assert lower(spec) == expected


def test_groups_are_stages() -> None:
    assert set(GROUPS) <= set(stage_names())
