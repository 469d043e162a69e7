"""`flycc bench sdpa`: what its figures say hangs together, and the Triton kernels that it compares with are right."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attention_reference import Attention

from flycc.benchmarks import sdpa
from flycc.cli.main import main
from flycc.emulator import load, run

BATCH, HEADS, LENGTH = 1, 2, 64


@pytest.mark.nightly
def test_figures_hang_together(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sdpa, "DIMS", (64,))
    monkeypatch.setattr(sdpa, "LENGTHS", (1024,))
    monkeypatch.setattr(sdpa, "DECODES", [(1, 8192)])
    assert main(["bench", "sdpa", "--json", str(tmp_path / "out.json")]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    figures = json.loads((tmp_path / "out.json").read_text())
    assert [(row["pass"], row["causal"]) for row in figures["shapes"]] == [
        (way, causal) for way in sdpa.WAYS for causal in (False, True)
    ]
    for row in figures["shapes"]:
        of_pass, share = {"forward": 4, "backward": 10}[row["pass"]], 0.5 if row["causal"] else 1
        flops = of_pass * share * row["batch"] * row["heads"] * row["length"] ** 2 * row["dim"]
        assert (row["triton"] is None) == (find_spec("triton") is None)
        for side in filter(None, (row["flycc"], row["triton"])):
            assert 0 < side["us"]["low"] <= side["us"]["typical"] <= side["us"]["high"]
            assert side["us"]["typical"] * side["tflops"]["typical"] * 1e6 == pytest.approx(flops)
            on_device = sum(launch["device_us"]["typical"] for launch in side["launches"])
            assert 0 < side["us"]["typical"] - on_device < 5
    (row,) = figures["decode"]
    for side in filter(None, (row["flycc"], row["triton"])):
        assert 0 < side["roof"] < 1


def _bits(x: torch.Tensor) -> np.ndarray:
    return x.contiguous().view(torch.int16).numpy().view(np.uint16).copy()


def _numbers(x: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16).double().view_as(like)


def _execute(made: Any, grid: tuple[int, int, int], args: list[Any]) -> None:
    hidden = [np.uint64(0), np.uint64(0)]
    run(load(made.elf), made.name, grid, (made.threads, 1, 1), [*args, *hidden], dynamic_lds=made.lds)


@pytest.mark.parametrize(("dim", "causal"), [(32, False), (48, True)])
def test_the_triton_kernels_are_right(dim: int, causal: bool) -> None:
    """Within the bounds of the reference; a dim that is padded with a mask."""
    pytest.importorskip("triton")
    from flycc.benchmarks.triton_attention import Config, Pass, arguments, compiled

    tile, shape = Config(32, 32, 4, 2), (BATCH, HEADS, LENGTH, dim)
    torch.manual_seed(seed := torch.seed())
    print("seed", seed)
    q, k, v, grad = (torch.randn(shape).bfloat16() for _ in range(4))
    problem = Attention(q, k, v, dim**-0.5, upper=0 if causal else None)
    known: dict[str, Any] = {"q": _bits(q), "k": _bits(k), "v": _bits(v), "grad": _bits(grad)}
    known["scale"] = np.float32(dim**-0.5 * math.log2(math.e))
    passes: tuple[Pass, ...] = ("forward", "sums", "backward_kv", "backward_q")
    for of in passes:
        args = arguments(of, HEADS, LENGTH, LENGTH, dim) | known
        args = {name: args[name] for name in arguments(of, 1, 1, 1, 1)}
        _execute(compiled(of, tile, dim, causal), (LENGTH // 32, HEADS, 1), [*args.values()])
        known |= args
    out, lse = problem.forward()
    assert ((_numbers(known["out"], out) - out).abs() <= problem.bound()).all()
    in_base_e = torch.from_numpy(known["lse"]).double().view_as(lse) * math.log(2)
    assert ((in_base_e - lse).abs() <= problem.lse_bound()).all()
    exact, bounds = problem.backward(grad), problem.backward_bounds(grad)
    for name, gradient, bound in zip(("dq", "dk", "dv"), exact, bounds, strict=True):
        assert ((_numbers(known[name], gradient) - gradient).abs() <= bound).all(), name


def test_triton_decode_is_right() -> None:
    pytest.importorskip("triton")
    from flycc.benchmarks.triton_attention import compiled_combine, compiled_decode

    heads, group, keys, dim, parts = 2, 4, 256, 64, 2
    torch.manual_seed(seed := torch.seed())
    print("seed", seed)
    q = torch.randn(1, heads * group, 1, dim).bfloat16()
    k, v = (torch.randn(1, heads, keys, dim).bfloat16() for _ in range(2))
    problem = Attention(q, k, v, dim**-0.5)
    rows, scale = heads * parts * group, np.float32(dim**-0.5 * math.log2(math.e))
    mixed, highest, total = (np.zeros(size, np.float32) for size in ((rows, dim), rows, rows))
    out, sizes = np.zeros(q.shape, np.uint16), (np.int32(keys), np.int32(keys // parts))
    operands = [_bits(q), _bits(k), _bits(v), mixed, highest, total, *sizes, scale]
    _execute(compiled_decode(64, 4, 2, group, dim, True), (parts, heads, 1), operands)
    join = compiled_combine(group, dim, parts)
    _execute(join, (group, heads, 1), [mixed, highest, total, out, np.int32(parts)])
    exact, _ = problem.forward()
    assert ((_numbers(out, exact) - exact).abs() <= problem.bound()).all()
