"""Attention, forward, backward and decode: what flycc chooses, modelled, beside Triton and published rates.

bf16, 16 heads of 16 sequences, fewer for wide heads so that an operand has less than 2 GB. Triton's kernels are
compiled here and modelled in the same way, the best of a few tiles. Operations are counted as everybody does:
4 * queries * keys * dim of a head forward, 10 backward, half of that if causal, whatever a kernel repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal

from flycc.benchmarks import products
from flycc.cli.output import console, table
from flycc.contracts import Reason
from flycc.contracts.sdpa import SdpaBackwardProblem, SdpaProblem
from flycc.costmodel import MI350, Prediction
from flycc.kernels import attention
from flycc.tuning.modelled import model, total

Way = Literal["forward", "backward"]

HEADS = 16
DIMS = (64, 128, 192, 256, 512)
LENGTHS = (1024, 2048, 4096, 8192, 16384)
WAYS: tuple[Way, ...] = ("forward", "backward")
#: Of which figures are published, and that the targets are about.
DIM, TARGET_LENGTH = 128, 8192
#: By pass and causality, published TFLOP/s at `DIM` and `LENGTHS`, 16 heads of 16 sequences, on an MI355X.
PUBLISHED: dict[tuple[Way, bool], Sequence[float]] = {
    ("forward", False): (953, 1148, 1228, 1283, 1304),
    ("forward", True): (634, 861, 1048, 1146, 1188),
    ("backward", False): (734, 914, 1027, 1104, 1119),
}
#: The same of Triton's forward kernel, least and most over these lengths.
PUBLISHED_TRITON = {False: (687, 988), True: (333, 750)}
TARGETS: dict[tuple[Way, bool], float] = {
    ("forward", False): 1150, ("forward", True): 1050, ("backward", False): 950
}  # fmt: skip
#: Sequences and their keys of a decode step: a query for each of 32 heads, of which 4 share keys and values.
DECODES = [(batch, keys) for keys in (8192, 16384, 32768) for batch in (1, 4, 16, 64)]
KV_HEADS, GROUP = 8, 4
#: Share of HBM's bandwidth that a decode step that is large enough is to reach, and what is large enough.
ROOF, LARGE_BYTES = 0.8, 1 << 29


def measure() -> dict[str, Any]:
    """Everything, as plain data; times are in us and modelled, but those called published."""
    cases = [
        (way, dim, n, causal) for way in WAYS for dim in DIMS for causal in (False, True) for n in LENGTHS
    ]
    rows = [figure(*case) for case in products.tracked(cases, "attention")]
    decodes = [decode(*case) for case in products.tracked(DECODES, "decode")]
    found = {way: products.summary(_of(rows, way)) for way in WAYS} | {"all": products.summary(rows)}
    return {
        "modelled": True,
        "shapes": rows,
        "decode": decodes,
        "summary": found,
        "targets": list(_targets(rows, decodes, found)),
    }


def _of(rows: Iterable[Mapping[str, Any]], way: Way) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["pass"] == way]


def _targets(
    rows: Sequence[Mapping[str, Any]], decodes: Sequence[Mapping[str, Any]], found: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    rates = {
        (row["pass"], row["causal"]): row["flycc"]["tflops"]["typical"]
        for row in rows
        if row["flycc"] and (row["dim"], row["length"]) == (DIM, TARGET_LENGTH)
    }
    for (way, causal), bound in TARGETS.items():
        name = f"TFLOP/s {way}{' causal' if causal else ''}, {DIM}, {TARGET_LENGTH}"
        yield products.target(name, rates.get((way, causal)), bound)
    yield products.speedup_target(found["all"], "triton", "geomean", 1.3)
    shares = [row["flycc"]["roof"] for row in decodes if row["flycc"] and row["bytes"] >= LARGE_BYTES]
    yield products.target("least share of HBM's rate of large decodes", min(shares, default=None), ROOF)
    spills = [launch["scratch_bytes"] for row in rows if row["flycc"] for launch in row["flycc"]["launches"]]
    yield products.target("most bytes of a lane's registers spilled", max(spills, default=None), 0, "at_most")


def batch(dim: int) -> int:
    """Sequences of a shape."""
    return min(16, 2048 // dim)


def figure(way: Way, dim: int, length: int, causal: bool) -> dict[str, Any]:
    """One shape, forward or backward."""
    heads = batch(dim) * HEADS
    flops = (4 if way == "forward" else 10) * heads * length**2 * dim / (2 if causal else 1)
    row = {
        "pass": way,
        "dim": dim,
        "length": length,
        "causal": causal,
        "batch": batch(dim),
        "heads": HEADS,
        "flycc": _flycc(_problem(way, dim, length, causal), flops),
        "triton": _triton(way, heads, dim, length, causal, flops),
    }
    rates = PUBLISHED.get((way, causal), ()) if dim == DIM else ()
    known = {"anchor": flops / rates[LENGTHS.index(length)] / 1e6} if rates and length in LENGTHS else {}
    return _compared(row, known)


def decode(sequences: int, keys: int) -> dict[str, Any]:
    """One step of decoding."""
    heads = KV_HEADS * GROUP
    least = 2 * 2 * sequences * DIM * (KV_HEADS * keys + heads)
    problem = SdpaProblem("bf16", sequences, heads, KV_HEADS, 1, keys, DIM, DIM)
    row: dict[str, Any] = {
        "batch": sequences,
        "keys": keys,
        "bytes": least,
        "triton": _triton_decode(sequences, keys),
    }
    row["flycc"] = _flycc(problem, 4 * sequences * heads * keys * DIM)
    for side in filter(None, (row["flycc"], row["triton"])):
        side["tb_per_s"] = least / side["us"]["typical"] * 1e-6
        side["roof"] = side["tb_per_s"] / MI350.hbm_tb_s
    return _compared(row, {})


def _compared(row: dict[str, Any], known: Mapping[str, float]) -> dict[str, Any]:
    if row["flycc"] is None:
        return {**row, "published_us": dict(known), "speedup": {}}
    return products.with_speedups(row, known)


def _problem(way: Way, dim: int, length: int, causal: bool) -> SdpaProblem | SdpaBackwardProblem:
    forward = SdpaProblem(
        "bf16", batch(dim), HEADS, HEADS, length, length, dim, dim, upper=causal, lse=way == "backward"
    )
    return forward if way == "forward" else SdpaBackwardProblem(forward)


def _flycc(problem: SdpaProblem | SdpaBackwardProblem, flops: float) -> dict[str, Any] | None:
    """None where no kernel computes the problem."""
    config = _choice(problem)
    if config is None or isinstance(config, Reason):
        return None
    predictions = model(problem, config)  # type: ignore[arg-type]
    return {
        "config": str(config),
        **products.timed(total(predictions), flops),
        "launches": products.launches(problem, config, predictions),
    }


def _choice(problem: SdpaProblem | SdpaBackwardProblem) -> Any:
    """The configuration of the kernels' own choice, or why there is none; None where there are no kernels to model."""
    if isinstance(problem, SdpaBackwardProblem):
        return attention.plan_backward(problem)
    return attention.chosen(problem)


def _triton(way: Way, heads: int, dim: int, length: int, causal: bool, flops: float) -> dict[str, Any] | None:
    if not find_spec("triton"):
        return None
    from flycc.benchmarks.triton_attention import Shape, best_backward, best_forward

    shape = Shape(heads, length, dim, causal)
    launches = best_forward(shape) if way == "forward" else best_backward(shape)
    return _of_triton(launches, flops)


def _triton_decode(sequences: int, keys: int) -> dict[str, Any] | None:
    if not find_spec("triton"):
        return None
    from flycc.benchmarks.triton_attention import Decode, best_decode

    launches = best_decode(Decode(sequences, KV_HEADS, GROUP, keys, DIM))
    return _of_triton(launches, 4 * sequences * KV_HEADS * GROUP * keys * DIM)


def _of_triton(launches: Sequence[Any], flops: float) -> dict[str, Any]:
    predictions: list[Prediction] = [launch.prediction for launch in launches]
    return {
        **products.timed(total(predictions), flops),
        "launches": [
            {
                "config": str(launch.config),
                **products.kernel_figures(launch.compiled.elf, launch.compiled.name, launch.prediction),
            }
            for launch in launches
        ],
    }


def show(figures: Mapping[str, Any]) -> None:
    """The tables a person reads."""
    for way in WAYS:
        rows = [(_name(row), row) for row in _of(figures["shapes"], way)]
        _show_rates(f"{way}, bf16: modelled TFLOP/s", rows)
        for side in ("flycc", "triton"):
            _show_kernels(f"{way}: {side}'s kernels", rows, side)
    rows = [(f"{row['batch']} x {row['keys']}", row) for row in figures["decode"]]
    _show_decode(rows)
    for name, found in figures["summary"].items():
        for peer, of in found["speedup"].items():
            console.print(
                f"{name}, over {peer}: geomean {of['geomean']:.2f}, least {of['least']:.2f} of {of['shapes']}"
            )
    _show_credibility(figures["shapes"])
    if find_spec("triton"):
        console.print(
            "Triton's tiles: the best of two or fewer, not a full tuning. Its causal grids give an XCD every eighth "
            "block of all heads: the fewer blocks a head has, the less even."
        )
    products.show_targets(figures["targets"])


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['dim']} {row['length'] // 1024}k{' causal' if row['causal'] else ''}"


def _rate(side: Mapping[str, Any] | None) -> str:
    if side is None:
        return "-"
    low, typical, high = (side["tflops"][part] for part in ("low", "typical", "high"))
    return f"{typical:.0f} [{low:.0f}, {high:.0f}]"


def _show_rates(title: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    def published(row: Mapping[str, Any]) -> str:
        us = row["published_us"].get("anchor")
        side = row["flycc"] or row["triton"]
        return f"{side['tflops']['typical'] * side['us']['typical'] / us:.0f}" if us and side else "-"

    lines = [
        (name, _rate(row["flycc"]), _rate(row["triton"]), _times(row, "triton"), published(row))
        for name, row in rows
    ]
    table(title, ("shape", "flycc", "Triton", "/Triton", "published"), lines)


def _times(row: Mapping[str, Any], peer: str) -> str:
    return f"{row['speedup'][peer]:.2f}" if peer in row["speedup"] else "-"


def _show_kernels(title: str, rows: Iterable[tuple[str, Mapping[str, Any]]], side: str) -> None:
    """Each launch with MFMAs: how busy matrix and vector pipes are, LDS conflicts, registers, how many of them LLVM
    spills, and bytes of a lane that go to memory then and not to accumulation registers."""
    lines = [
        (
            name,
            f"{launch['mfma_utilisation']:.0%}",
            f"{launch['valu_utilisation']:.0%}",
            f"{launch['lds_conflicts']:.0%}",
            launch["vgprs"],
            f"{launch['spilled_vgprs']}, {launch['scratch_bytes']}",
            launch["config"] if side == "triton" else row[side]["config"],
        )
        for name, row in rows
        if row[side]
        for launch in row[side]["launches"]
        if launch["mfma_utilisation"]
    ]
    if lines:
        table(title, ("shape", "MFMA", "VALU", "conflicts", "VGPRs", "spills, bytes", "configuration"), lines)


def _show_decode(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    def line(name: str, row: Mapping[str, Any]) -> Iterator[str]:
        yield name
        for side in (row["flycc"], row["triton"]):
            yield f"{side['us']['typical']:.1f}" if side else "-"
            yield f"{side['roof']:.0%}" if side else "-"
        yield _times(row, "triton")

    columns = ("batch x keys", "flycc us", "of HBM", "Triton us", "of HBM", "/Triton")
    heads = f"{KV_HEADS * GROUP}:{KV_HEADS} heads of {DIM}"
    table(
        f"decode, one query, {heads}: of {MI350.hbm_tb_s} TB/s", columns, [tuple(line(*row)) for row in rows]
    )


def _show_credibility(rows: Iterable[Mapping[str, Any]]) -> None:
    """How Triton's modelled rates compare with published ones of Triton, of which ranges are known."""
    for causal, (least, most) in PUBLISHED_TRITON.items():
        rates = [
            row["triton"]["tflops"]["typical"]
            for row in _of(rows, "forward")
            if row["triton"] and (row["dim"], row["causal"]) == (DIM, causal)
        ]
        if rates:
            console.print(
                f"Triton forward{' causal' if causal else ''}, {DIM}: modelled {min(rates):.0f} to "
                f"{max(rates):.0f} TFLOP/s, published {least} to {most}"
            )
