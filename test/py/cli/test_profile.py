"""`flycc profile`: one account of the time as table, JSON, HTML and timeline; one clear error for what it cannot."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flycc import emulator
from flycc.cli.main import main
from flycc.cli.profile_svg import spread
from flycc.codegen import compile_kernel
from flycc.contracts import GemmProblem
from flycc.costmodel import neighbours
from flycc.emulator.trace import Trace
from flycc.emulator.trace_recorder import Recorder
from flycc.kernels import gemm
from flycc.tuning import launches

M, N, K = 192, 160, 256
PROBLEM, CONFIG = GemmProblem("bf16", M, N, K), gemm.GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3)
MATRICES = {"a": (M, K), "b": (K, N), "out": (M, N)}
NUMBERS = {**gemm.ABSENT, "m": M, "n": N, "k": K, "ld_a": K, "ld_b": N, "ld_out": N}
MODEL = """
import torch
from torch import nn

def example():
    layers = nn.Sequential(nn.Linear(64, 64).bfloat16(), nn.Tanh(), nn.Linear(64, 64).bfloat16())
    return layers.requires_grad_(False), (torch.ones(5, 64, dtype=torch.bfloat16),)

class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("first\\nsecond")

def raises():
    return Raises(), (torch.ones(2),)

def fails():
    return {}["key"]

def float64():
    return nn.Linear(8, 8).double(), (torch.ones(2, 8, dtype=torch.float64),)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GEMM's code object, the trace of the workgroups that a prediction needs, and a model."""
    path = tmp_path_factory.mktemp("profile")
    compiled = compile_kernel(gemm.kernel(PROBLEM, CONFIG))
    (path / "gemm.hsaco").write_bytes(compiled.elf)
    launch, types = (
        gemm.launch(PROBLEM, CONFIG),
        {"ptr": np.uint64, "i64": np.int64, "i32": np.int32, "f32": np.float32},
    )
    arguments = [
        np.zeros(MATRICES[name], np.uint16) if name in MATRICES else types[kind](NUMBERS.get(name, 0))
        for name, kind in gemm.KERNARG.fields
    ]
    recorder = Recorder()
    emulator.run(
        emulator.load(compiled.elf),
        compiled.symbol,
        launch.grid,
        launch.block,
        arguments,
        workgroups=neighbours(launch.grid),
        observers=(recorder,),
    )
    recorder.trace().save(path / "gemm.npz")
    (path / "model.py").write_text(MODEL)
    return path


def of_code(folder: Path) -> list[str]:
    launch = gemm.launch(PROBLEM, CONFIG)
    matrices = {name: f"zeros:{rows}x{columns}:bf16" for name, (rows, columns) in MATRICES.items()}
    arguments = [
        matrices.get(name, f"{'u64' if kind == 'ptr' else kind}:{NUMBERS.get(name, 0)}")
        for name, kind in gemm.KERNARG.fields
    ]
    sizes = ["--grid", ",".join(map(str, launch.grid)), "--block", ",".join(map(str, launch.block))]
    return [str(folder / "gemm.hsaco"), *sizes, *(w for a in arguments for w in ("--arg", a))]


def profile(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    report = tmp_path / "profile.json"
    assert main(["profile", *arguments, "--json", str(report)]) == 0
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def consistent(found: dict[str, Any]) -> None:
    """What must hold of any profile; sums of a few dozen floats are within 1e-9."""
    assert found["modelled"]
    assert sum(launch["share"] for launch in found["launches"]) == pytest.approx(1, abs=1e-9)
    for interval in (found["total_us"], *(launch["prediction"]["time"] for launch in found["launches"])):
        assert 0 < interval["low"] <= interval["typical"] <= interval["high"]
    times = [(launch["count"], launch["prediction"]["device_us"]["typical"]) for launch in found["launches"]]
    longest_first = [count * us for count, us in times]
    assert longest_first == sorted(longest_first, reverse=True)
    # One launch's floor, and every launch's time on the device.
    launched = found["total_us"]["typical"] - sum(longest_first)
    one = found["launches"][0]["prediction"]
    assert launched == pytest.approx(one["time"]["typical"] - one["device_us"]["typical"])
    for launch in found["launches"]:
        assert sum(launch["prediction"]["breakdown"].values()) == pytest.approx(1, abs=1e-9)


def test_a_code_object_and_its_trace_agree(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    found = profile(tmp_path, *of_code(folder))
    shown = capsys.readouterr().out
    consistent(found)
    prediction = found["launches"][0]["prediction"]
    assert prediction["flops"] >= 2 * M * N * K  # tiles are padded, never cut
    assert max(map(len, shown.splitlines())) <= 80
    assert f"modelled {prediction['time']['typical']:.1f} us" in shown
    for cause, share in prediction["breakdown"].items():
        assert share < 0.005 or re.search(rf"{share:.1%} +{cause}\b", shown)
    assert found["launches"] == profile(tmp_path, str(folder / "gemm.npz"))["launches"]


def test_a_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    page = tmp_path / "page.html"
    found = profile(tmp_path, f"{folder}/model.py:example", "--html", str(page))
    consistent(found)
    [launch] = found["launches"]
    assert launch["count"] == 2
    assert launch["sizes"] == {"m": 5, "n": 64, "k": 64}
    assert [(entry["count"], entry["what"]) for entry in found["on_pytorch"]] == [(1, "aten.tanh.default")]
    shown = capsys.readouterr().out
    assert "aten.tanh.default: no kernel family covers it" in shown
    assert max(len(line) for line in shown.splitlines() if str(tmp_path.parent) not in line) <= 80
    assert "aten.tanh.default" in page.read_text()


def test_a_model_that_is_too_large_to_emulate(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Its launches are profiled all the same, and the report says that PyTorch computed their results."""
    whole = profile(tmp_path, f"{folder}/model.py:example")
    monkeypatch.setattr(launches, "_WHOLE", 0)
    found = profile(tmp_path, f"{folder}/model.py:example")
    assert found["launches"] == whole["launches"]
    assert (whole["left_out"], found["left_out"]) == (0, 2)
    assert "too long to be emulated whole: 2." in capsys.readouterr().out


@given(st.floats(0, 20), st.floats(0, 20))
def test_the_timeline_shares_time_out_to_columns(a: float, b: float) -> None:
    """Each column gets what of it lies between the two places: sums of at most 20 roundings of numbers below 20."""
    first, last = sorted((a, b))
    columns = np.zeros(20)
    spread(columns, first, last)
    expected = [max(0.0, min(last, i + 1) - max(first, i)) for i in range(20)]
    np.testing.assert_allclose(columns, expected, rtol=0, atol=20 * 20 * 2**-53)


class Page(HTMLParser):
    """Checks that elements nest, and collects what the page refers to."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        assert "src" not in given
        self.ids += [given["id"]] if given.get("id") else []
        self.links += [given["href"]] if given.get("href") else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_html_page_stands_alone(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    found = profile(tmp_path, str(folder / "gemm.npz"), "--html", str(out))
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    assert not re.search(r"https?:|url\(|@import", text)
    assert not {"script", "link", "img", "iframe"} & page.tags
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    prediction = found["launches"][0]["prediction"]
    for cost in prediction["by_instruction"]:
        assert f"{cost['address']:x}" in page.text
        assert cost["text"] in page.text
    assert f"{prediction['time']['typical']:.1f} us" in page.text
    classes = set(re.findall(r'class="c-([\w-]+)"', text))
    assert classes
    assert all(f".c-{name} {{" in text for name in classes)  # every cause has its colour


def test_the_charts_are_well_formed_and_to_scale(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    profile(tmp_path, str(folder / "gemm.npz"), "--html", str(out))
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", out.read_text(), re.DOTALL)]
    assert len(charts) == 3  # the roofline and two timelines
    for chart in charts:
        _, _, width, height = map(float, chart.attrib["viewBox"].split())
        for shape in chart.iter("rect"):
            assert float(shape.attrib["x"]) >= 0
            assert float(shape.attrib["x"]) + float(shape.attrib["width"]) <= width + 0.3  # two decimals, and
            assert float(shape.attrib["y"]) + float(shape.attrib["height"]) <= height  # at least 0.2 wide
        for point in chart.iter("circle"):
            assert 0 <= float(point.attrib["cx"]) <= width
            assert 0 <= float(point.attrib["cy"]) <= height
        # Bars of one track do not overlap: the matrix pipes' and the waves' alike.
        rows: dict[str, list[tuple[float, float]]] = {}
        for shape in chart.iter("rect"):
            x = float(shape.attrib["x"])
            rows.setdefault(shape.attrib["y"], []).append((x, x + float(shape.attrib["width"])))
        for bars in rows.values():
            assert all(after[0] >= before[1] - 0.25 for before, after in pairwise(sorted(bars)))


def test_names_are_escaped(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """In HTML, and as they are in a terminal: neither is told anything by a name."""
    trace = Trace.load(folder / "gemm.npz")
    name = "<script>alert(1)</script> & \"quoted\" 'name' [red][/red]"
    odd = tmp_path / "<b>&'.npz"
    replace(trace, info={**trace.info, "kernel": name + "\x1b[31m"}).save(odd)
    profile(tmp_path, str(odd), "--html", str(tmp_path / "page.html"))
    page = Page((tmp_path / "page.html").read_text())
    assert "script" not in page.tags
    assert name + "\ufffd[31m" in page.text
    assert "\x1b" not in page.text
    assert str(odd) in page.text
    shown = capsys.readouterr().out
    assert name + "\ufffd[31m" in shown
    assert "\x1b" not in shown


def test_a_kernel_without_matrix_instructions(tmp_path: Path) -> None:
    """No roofline for it; the rest as for any."""
    with launches.watched_launches() as watched:
        torch.ops.flycc.rms_norm_fwd(torch.ones(3, 128).bfloat16(), None, None, 1e-6)
    [launch] = watched.values()
    launch.trace.save(tmp_path / "t.npz")
    out = tmp_path / "page.html"
    found = profile(tmp_path, str(tmp_path / "t.npz"), "--html", str(out))
    consistent(found)
    assert found["launches"][0]["prediction"]["flops"] == 0
    assert re.findall("<svg.*?<title>(.*?),", out.read_text()) == ["Timeline of every instruction"]


def test_the_timeline(folder: Path, tmp_path: Path) -> None:
    """Every wave's slices follow one another without a gap; a matrix pipe executes one instruction at a time."""
    out = tmp_path / "timeline.json"
    profile(tmp_path, str(folder / "gemm.npz"), "--perfetto", str(out))
    events = json.loads(out.read_text())["traceEvents"]
    names = {(e["pid"], e["name"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    by_track: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] > 0
            by_track.setdefault((event["pid"], event["tid"]), []).append(event)
    waves = 0
    for (process, _), slices in by_track.items():
        pipes = "matrix pipes" in names[process, "process_name"]
        waves += not pipes
        for before, after in pairwise(slices):
            end = before["ts"] + before["dur"]
            assert end <= after["ts"] if pipes else end == after["ts"]
    trace = Trace.load(folder / "gemm.npz")
    assert (
        waves == trace.info["waves_per_workgroup"]
    )  # the grid is so small that a compute unit gets one workgroup
    executed = sum(len(trace.steps_of(wave)) for wave in range(waves))
    assert sum(event.get("cat") == "instruction" for event in events) == executed


def test_binaries_need_neither_torch_nor_flydsl(folder: Path, tmp_path: Path) -> None:
    code = """
import sys
from flycc.cli.main import main
assert main(["profile", *sys.argv[1:]]) == 0
heavy = {"torch", "flydsl", "torch_mlir"} & set(sys.modules)
assert not heavy, heavy
"""
    options = [*of_code(folder), "--html", str(tmp_path / "page.html")]
    subprocess.run([sys.executable, "-c", code, *options], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nonesuch.hsaco", "--grid", "1", "--block", "64"], "nonesuch.hsaco: No such file"),
        (["gemm.hsaco"], "--grid is needed beside a code object"),
        (["gemm.hsaco", "--grid", "1"], "--block is needed beside a code object"),
        (["gemm.hsaco", "--grid", "1", "--block", "256"], "args: got 0, gemm_bf16"),
        (["gemm.hsaco", "--grid", "x", "--block", "64"], "--grid is 'x'; one to three"),
        (["gemm.npz", "--grid", "1"], "--grid is for a code object, and gemm.npz is none"),
        (["nonesuch.npz"], "nonesuch.npz"),
        (["model.npz"], "model.npz is not a trace"),
        (["model.py"], "'model.py' is not of the form FILE.py:FUNCTION"),
        (["model.py:example", "--arg", "i32:5"], "--arg is for a code object, and model.py:example is none"),
        (["model.py:nonesuch"], "model.py has no function 'nonesuch'"),
        (["model.py:float64"], "model.py:float64 launches no kernel of flycc; aten."),
        (["gemm.npz", "--html", "/nonesuch/x.html"], "--html /nonesuch/x.html: its folder is missing"),
        (
            ["gemm.npz", "--perfetto", "/nonesuch/x.json"],
            "--perfetto /nonesuch/x.json: its folder is missing",
        ),
        (["gemm.npz", "--html", "."], "--html .: is a folder"),
        (["gemm.npz", "--perfetto", "."], "--perfetto .: is a folder"),
        (["model.py:raises"], "model.py:raises raised ValueError at line "),
        (["model.py:fails"], "model.py:fails raised KeyError at line "),
        (["gemm.npz", "--json", "/nonesuch/x.json"], "--json /nonesuch/x.json: its folder is missing"),
    ],
)
def test_one_clear_error(
    arguments: list[str],
    why: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    (folder / "model.npz").write_text("no trace")
    monkeypatch.chdir(folder)
    assert main(["profile", *arguments]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert why in shown.err
