"""Published times as rows: which peer class, which product, which kernel, microseconds. See data/README.md."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from flycc.costmodel.peers.kernel_names import NamedKernel, named
from flycc.costmodel.peers.products import Product
from flycc.costmodel.peers.topk import way

DTYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}


@dataclass(frozen=True, slots=True)
class ProductRow:
    """A measured product."""

    key: str
    problem: Product
    us: float
    kernel: NamedKernel | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.problem.rows, self.problem.n, self.problem.k)

    @property
    def m(self) -> int:
        return self.problem.m


@dataclass(frozen=True, slots=True)
class RowwiseRow:
    """A measured RMS norm or top-k; `shape` is M, N and, of a top-k, K."""

    key: str
    shape: tuple[int, ...]
    us: float
    dtype: str = "f32"

    @property
    def m(self) -> int:
        return self.shape[0]


def products() -> list[ProductRow]:
    """All measured products."""
    return [*_tuning_table(), *_bf16("gemm"), *_scaled(), *_bf16("grouped_gemm")]


def rowwise() -> list[RowwiseRow]:
    """All measured RMS norms and top-ks."""
    return [*_rms_norm(), *_topk()]


def _read(name: str) -> Iterator[dict[str, str]]:
    with files("flycc.benchmarks").joinpath("data", "published", name).open() as file:
        yield from csv.DictReader(file)


def _tuning_table() -> Iterator[ProductRow]:
    for row in _read("mi355x_gemm_measured.csv"):
        kernel = named(row["kernel"], int(row["splitK"] or 0))
        assert kernel is not None, row["kernel"]
        peer = kernel if isinstance(kernel, str) else kernel.peer
        fmt = {"bf16": "bf16", "a4w4": "mxfp4"}.get(row["type"], "fp8")
        if row["dt"] == "torch.int8":
            fmt, peer = "int8", peer.replace("fp8", "int8")
        family = "scaled_gemm" if fmt == "mxfp4" else "gemm"
        problem = Product(
            (int(row["M"]),), int(row["N"]), int(row["K"]), 4 if row["out"] == "torch.float32" else 2
        )
        known = None if isinstance(kernel, str) else kernel
        yield ProductRow(f"{family}/{peer}/{fmt}", problem, float(row["us"]), known)


def _us(problem: Product, tflops: str) -> float:
    return 2 * problem.m * problem.n * problem.k / float(tflops) / 1e6


def published(
    family: Literal["gemm", "grouped_gemm", "mxfp8", "mxfp4"],
) -> list[tuple[Product, dict[str, float]]]:
    """The shapes of one of the tables of products, and us by peer: of some shapes nobody's are published."""
    name, prefix = {
        "gemm": ("dense_bf16_nt.csv", ""),
        "grouped_gemm": ("grouped_bf16.csv", ""),
        "mxfp8": ("mx_scaled_nt.csv", "mxfp8_"),
        "mxfp4": ("mx_scaled_nt.csv", "mxfp4_"),
    }[family]
    rows = []
    for row in _read(name):
        groups = row["rows_per_group" if family == "grouped_gemm" else "M"].split()
        problem = Product(tuple(map(int, groups)), int(row["N"]), int(row["K"]))
        rates = {peer: row.get(f"{prefix}{peer}_tflops") for peer in ("aten", "triton", "flydsl")}
        rows.append((problem, {peer: _us(problem, tflops) for peer, tflops in rates.items() if tflops}))
    return rows


def _bf16(family: Literal["gemm", "grouped_gemm"]) -> Iterator[ProductRow]:
    for problem, times in published(family):
        for peer, us in times.items():
            yield ProductRow(f"{family}/{peer}/bf16", problem, us)


def _scaled() -> Iterator[ProductRow]:
    formats: tuple[Literal["mxfp8", "mxfp4"], ...] = ("mxfp8", "mxfp4")
    for fmt in formats:
        for problem, times in published(fmt):
            for peer, us in times.items():
                yield ProductRow(f"scaled_gemm/{peer}/{fmt}", problem, us)


def _rms_norm() -> Iterator[RowwiseRow]:
    for row in _read("rms_norm.csv"):
        for peer in ("aten", "flydsl"):
            if us := row[f"{peer}_us"]:
                shape = (int(row["M"]), int(row["N"]))
                yield RowwiseRow(f"rms_norm/{peer}", shape, float(us), DTYPES[row["dtype"]])


def _topk() -> Iterator[RowwiseRow]:
    for row in _read("topk_fp32.csv"):
        shape = (int(row["M"]), int(row["N"]), int(row["K"]))
        for column in ("aten", "flydsl", "flydsl_deterministic"):
            if us := row[f"{column}_us"]:
                name = column.replace("_", "-").replace("flydsl", way(*shape[1:]))
                yield RowwiseRow(f"topk/{name}", shape, float(us))
