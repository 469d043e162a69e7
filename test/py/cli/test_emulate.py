"""`flycc emulate` and `flycc trace`: files in, files out, one clear error for what cannot be run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from flycc.cli.main import main
from flycc.codegen import compile_kernel
from flycc.contracts import GemmProblem
from flycc.emulator.trace import Trace
from flycc.kernels import gemm

M, N, K = 64, 128, 32
ARGUMENTS = len(gemm.KERNARG.fields)
OUT = gemm.KERNARG.names.index("out")
PROBLEM, CONFIG = GemmProblem("bf16", M, N, K), gemm.GemmConfig(64, 64, 32, 2, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GEMM's code object and its operands: small integers, of which products and sums are exact."""
    path = tmp_path_factory.mktemp("emulate")
    (path / "gemm.hsaco").write_bytes(compile_kernel(gemm.kernel(PROBLEM, CONFIG)).elf)
    rng = np.random.default_rng(7)
    for name, shape in (("a", (M, K)), ("b", (K, N))):
        values = rng.integers(-2, 3, shape).astype(ml_dtypes.bfloat16)
        np.save(path / f"{name}.npy", values.view(np.uint16))
    return path


def command(folder: Path, *options: str, b: str | None = None) -> list[str]:
    launch = gemm.launch(PROBLEM, CONFIG)
    files = {"a": str(folder / "a.npy"), "b": b or str(folder / "b.npy"), "out": f"zeros:{M}x{N}:bf16"}
    numbers = {**gemm.ABSENT, "m": M, "n": N, "k": K, "ld_a": K, "ld_b": N, "ld_out": N}
    arguments = [
        files.get(name, f"{'u64' if kind == 'ptr' else kind}:{numbers.get(name, 0)}")
        for name, kind in gemm.KERNARG.fields
    ]
    return [
        "emulate",
        str(folder / "gemm.hsaco"),
        "--grid",
        ",".join(map(str, launch.grid)),
        "--block",
        ",".join(map(str, launch.block)),
        *(word for argument in arguments for word in ("--arg", argument)),
        *options,
    ]


def test_computes_with_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out, report = tmp_path / "c.npy", tmp_path / "report.json"
    assert main(command(folder, "--out", f"{OUT}={out}", "--json", str(report), "--wave-order", "5")) == 0
    a, b, c = (
        np.load(path).view(ml_dtypes.bfloat16).astype(np.float64)
        for path in (folder / "a.npy", folder / "b.npy", out)
    )
    np.testing.assert_array_equal(c, a @ b)  # |sums| <= 128, exact in bf16
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    result = json.loads(report.read_text())
    assert f"{result['wave_instructions']:,}" in shown
    assert result["findings"] == []


def test_traces(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path, shown, report = (tmp_path / name for name in ("t.npz", "t.json", "summary.json"))
    assert main(command(folder, "--trace", str(path), "--trace-workgroup", "0,1")) == 0
    trace = Trace.load(path)
    assert {tuple(row)[:3] for row in trace.waves.tolist()} == {(0, 1, 0)}
    capsys.readouterr()
    assert main(["trace", str(path), "--perfetto", str(shown), "--json", str(report)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    events = json.loads(shown.read_text())["traceEvents"]
    assert sum(event.get("cat") == "instruction" for event in events) == trace.wave_instructions
    summary = json.loads(report.read_text())
    assert sum(summary["units"].values()) == summary["wave_instructions"] == trace.wave_instructions
    assert summary["units"]["MFMA"] > 0
    assert sum(entry["accesses"] for entry in summary["accesses"]) == len(trace.accesses)
    assert sum(entry["lines"] for entry in summary["accesses"]) == trace.accesses["line_count"].sum()
    assert sum(entry["clocks"] for entry in summary["accesses"]) == trace.accesses["clocks"].sum()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--grid", "8,8x"], "--grid is '8,8x'; one to three whole numbers"),
        (["--grid", "0"], "grid: got (0, 1, 1)"),
        (["--block", "2048"], "block: (2048, 1, 1) is 2048 work-items; gemm_bf16"),
        (["--kernel", "k"], "there is no kernel 'k'"),
        (["--arg", "i32:5"], f"args: got {ARGUMENTS + 1}, gemm_bf16"),
        (["--arg", "i32:x"], "--arg i32:x: invalid literal"),
        (["--arg", "u8:256"], "--arg u8:256: Python integer 256 out of bounds"),
        (["--arg", "zeros:3:f4"], "--arg zeros:3:f4: there is no type 'f4'"),
        (["--arg", "nonesuch.npy"], "--arg nonesuch.npy: [Errno 2]"),
        (["--arg", "nonesense"], "--arg nonesense is none of FILE.npy"),
        (["--out", "2=x.npy"], "--out 2=x.npy: argument 2 is no buffer"),
        (
            ["--out", f"{ARGUMENTS}=x.npy"],
            f"--out {ARGUMENTS}=x.npy: INDEX=FILE.npy is accepted, with INDEX below {ARGUMENTS}",
        ),
        (["--sanitize", "rase"], "sanitize: got ['rase']"),
        (["--wave-order", "sideways"], "wave_order: got 'sideways'"),
        (["--max-instructions", "100"], "executed more than 100 instructions"),
        (["--out", f"{OUT}=/nonesuch/x.npy"], "/nonesuch/x.npy"),
        (["--trace", "/nonesuch/x.npz"], "/nonesuch/x.npz"),
    ],
)
def test_one_clear_error(options: list[str], why: str, folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(command(folder, *options)) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert why in shown.err


def test_a_fault_is_an_error(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(command(folder, b=f"zeros:{K - 1}x{N}:bf16")) == 1
    shown = capsys.readouterr()
    assert "past the end of buffer" in shown.err
    assert shown.err.count("\n") == 1


def test_a_file_that_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "t.npz").write_text("no trace")
    assert main(["trace", str(tmp_path / "t.npz")]) == 1
    assert "is not a trace" in capsys.readouterr().err
    assert main(["trace", str(tmp_path / "nonesuch.npz")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_needs_neither_torch_nor_flydsl(folder: Path, tmp_path: Path) -> None:
    code = """
import sys
from flycc.cli.main import main
assert main(sys.argv[2:]) == 0
assert main(["trace", sys.argv[1]]) == 0
heavy = {"torch", "flydsl", "torch_mlir"} & set(sys.modules)
assert not heavy, heavy
"""
    trace = str(tmp_path / "t.npz")
    options = command(folder, "--trace", trace)
    subprocess.run([sys.executable, "-c", code, trace, *options], check=True, stdout=subprocess.DEVNULL)


def test_findings_are_shown_and_fail(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Our kernel is clean; with its barriers made s_nop, waves race for LDS."""
    assert main(command(folder, "--sanitize", "all")) == 0
    assert "findings      0" in capsys.readouterr().out
    data = (folder / "gemm.hsaco").read_bytes()
    barrier, nop = ((word << 16).to_bytes(4, "little") for word in (0xBF8A, 0xBF80))
    assert barrier in data
    broken = tmp_path / "racy.hsaco"
    broken.write_bytes(data.replace(barrier, nop))
    report = tmp_path / "report.json"
    options = command(folder, "--sanitize", "race,bounds", "--json", str(report))
    options[1] = str(broken)
    assert main(options) == 1
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    found = json.loads(report.read_text())["findings"]
    assert found
    assert {finding["sanitizer"] for finding in found} == {"race"}
    assert {finding["earlier"]["text"].split()[0][:3] for finding in found} <= {"ds_", "buf"}
    assert f"conflicts with {found[0]['earlier']['text']}" in " ".join(shown.split())
    assert "\nrace, " in shown
