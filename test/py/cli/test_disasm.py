"""`flycc disasm`: its text assembles to the same bytes, its errors are one line, and it needs no torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flycc.cli import disasm
from flycc.cli.main import main
from flycc.codegen import compile_kernel
from flycc.contracts import GemmProblem
from flycc.emulator import Kernel, load
from flycc.kernels import gemm

PROBLEM = GemmProblem("bf16", 512, 512, 512)


@pytest.fixture(scope="module")
def elf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disasm") / "gemm.hsaco"
    path.write_bytes(compile_kernel(gemm.kernel(PROBLEM, gemm.choose(PROBLEM))).elf)
    return path


def only_kernel(path: Path) -> Kernel:
    (kernel,) = load(path.read_bytes()).kernels.values()
    return kernel


@pytest.mark.skipif(shutil.which("llvm-mc-22") is None, reason="LLVM 22's assembler is not installed")
def test_text_assembles_to_the_same_bytes(elf: Path, tmp_path: Path) -> None:
    kernel = only_kernel(elf)
    source, unit, code = (tmp_path / name for name in ("k.s", "k.o", "k.bin"))
    source.write_text("\n".join([*disasm.summary(kernel), *disasm.text(kernel), ""]))
    options = ["--triple=amdgcn", "--mcpu=gfx950", "--filetype=obj"]
    subprocess.run(["llvm-mc-22", *options, str(source), "-o", str(unit)], check=True)
    subprocess.run(
        ["llvm-objcopy-22", "-O", "binary", "--only-section=.text", str(unit), str(code)], check=True
    )
    assert code.read_bytes() == kernel.code.code(kernel.descriptor)


def test_branches_go_to_labels(elf: Path) -> None:
    kernel = only_kernel(elf)
    shown = disasm.text(kernel)
    labels = [line for line in shown if line.startswith("L_")]
    branches = [line for line in disasm.lines(kernel) if line.target is not None]
    assert len(branches) > 1
    assert set(labels) == {f"L_{branch.target:x}:" for branch in branches}


def test_bytes_that_are_no_instruction_stay_visible(
    elf: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    data = bytearray(elf.read_bytes())
    kernel = only_kernel(elf)
    at = data.index(kernel.code.code(kernel.descriptor)) + 8
    data[at : at + 4] = b"\xff" * 4
    broken = tmp_path / "broken.hsaco"
    broken.write_bytes(data)
    assert main(["disasm", str(broken)]) == 0
    assert "  .long 0xffffffff " in capsys.readouterr().out


def test_json_holds_every_word(elf: Path, tmp_path: Path) -> None:
    assert main(["disasm", str(elf), "--json", str(tmp_path / "out.json")]) == 0
    (entry,) = json.loads((tmp_path / "out.json").read_text())["kernels"]
    kernel = only_kernel(elf)
    words = [word for line in entry["instructions"] for word in line["words"]]
    assert b"".join(word.to_bytes(4, "little") for word in words) == kernel.code.code(kernel.descriptor)
    assert entry["descriptor"]["lds_bytes"] == kernel.descriptor.lds_bytes


@pytest.mark.parametrize(
    ("content", "options", "why"),
    [
        (None, [], "No such file"),
        (b"#!/bin/sh\n" + bytes(99), [], "not an ELF file"),
        (b"\x7fELF", [], "truncated"),
        ("elf", ["--kernel", "nonesuch"], "there is no kernel 'nonesuch'; it holds gemm_bf16"),
    ],
)
def test_one_clear_error(
    content: bytes | str | None,
    options: list[str],
    why: str,
    elf: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(elf.read_bytes() if isinstance(content, str) else content)
    assert main(["disasm", str(path), *options]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert why in shown.err


def test_needs_neither_torch_nor_flydsl(elf: Path) -> None:
    code = """
import sys
from flycc.cli.main import main
main(["disasm", sys.argv[1]])
heavy = {"torch", "flydsl", "torch_mlir"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code, str(elf)], check=True, stdout=subprocess.DEVNULL)


def test_output_may_be_cut_short(elf: Path) -> None:
    command = [sys.executable, "-m", "flycc.cli.main", "disasm", str(elf)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
