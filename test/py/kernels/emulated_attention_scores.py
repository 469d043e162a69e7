"""Scores and dropout by a kernel of their own: a wave for each 32 x 32 products, which it loads as MFMAs give them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flydsl.compiler as flyc
import flydsl.expr as fx
import numpy as np
from flydsl.expr import rocdl
from loaded_kernels import loaded

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.kernels.attention import dropout, features, scores
from flycc.kernels.attention.dropout import Dropout
from flycc.kernels.attention.features import Features
from flycc.kernels.attention.scores import Band, Documents, Mask, Place, Scores, lse_in_units
from flycc.kernels.common.arguments import numbers, placeholders
from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.spec import KernargLayout, KernelSpec
from flycc.kernels.common.vectors import ELEMENTS

KERNARG = KernargLayout(
    (
        ("products", "ptr"),
        ("lse", "ptr"),
        ("mask", "ptr"),
        ("slopes", "ptr"),
        ("query_documents", "ptr"),
        ("key_documents", "ptr"),
        ("seed", "ptr"),
        ("scores", "ptr"),
        ("derivatives", "ptr"),
        ("probabilities", "ptr"),
        ("kept", "ptr"),
        ("mask_query", "i64"),
        ("mask_key", "i64"),
        ("queries", "i32"),
        ("keys", "i32"),
        ("scale", "f32"),
        ("softcap", "f32"),
        ("lower", "i32"),
        ("upper", "i32"),
        ("threshold", "i32"),
        ("batch_head", "i32"),
    )
)
RESULTS = ("scores", "derivatives", "probabilities", "kept")

if TYPE_CHECKING:
    Numbers = Any
else:
    (Numbers,) = numbers(KERNARG)


def spec(chosen: Features, along_keys: bool) -> KernelSpec:
    """Products and all results are float32 [queries, keys], of one head."""
    symbol = f"scores{chosen}_{'keys' if along_keys else 'queries'}"
    sources = tuple(Path(str(module.__file__)) for module in (dropout, features, scores))
    return KernelSpec("scores", symbol, symbol, KERNARG, sources, lambda: _build(chosen, along_keys, symbol))


def _build(chosen: Features, along_keys: bool, symbol: str) -> tuple[Any, tuple[Any, ...]]:
    def wave(pointers: dict[str, fx.Pointer], sizes: Any) -> None:
        lane = fx.thread_idx.x % 64
        queries, keys = sizes.queries, sizes.keys
        place = Place.of(fx.block_idx.x * 32, fx.block_idx.y * 32, lane, along_keys)
        documents = mask = None
        if chosen.documents:
            of_queries = pointers["query_documents"], queries
            of_keys = pointers["key_documents"], keys
            sides = (*of_queries, *of_keys) if along_keys else (*of_keys, *of_queries)
            documents = Documents.of(place.of_column, *sides)
        if chosen.mask != "none":
            mask = Mask(chosen.mask, pointers["mask"], sizes.mask_query, sizes.mask_key, queries, keys)
        slope = fx.Float32(0.0)
        if chosen.alibi:
            slope = fx.Float32(fx.ptr_load(pointers["slopes"], result_type=fx.Float32.ir_type))
        band = Band(chosen, sizes.lower, sizes.upper, queries, keys)
        made = Scores(chosen, band, sizes.scale, sizes.softcap, slope, mask, documents)
        beside = made.load(place)

        query = [place.of_column if along_keys else place.of_rows + step for step in place.steps]
        key = [place.of_rows + step if along_keys else place.of_column for step in place.steps]
        exists = [(i < queries) & (j < keys) for i, j in zip(query, key, strict=True)]
        offsets = [checked(e, (i * keys + j) * 4) for e, i, j in zip(exists, query, key, strict=True)]
        products = _load(bounded(pointers["products"]), offsets)
        lse = _load(bounded(pointers["lse"]), [checked(i < queries, i * 4) for i in query])
        lse = fx.Vector.from_elements([lse_in_units(lse[i]) for i in range(16)], fx.Float32)
        values, derivative = made.of(products, place, beside)
        results = {"scores": values * made.unit, "probabilities": made.probabilities(values, lse)}
        if derivative is not None:
            results["derivatives"] = derivative
        if chosen.dropout:
            kept = Dropout.of(pointers["seed"], sizes.batch_head, sizes.threshold).kept(place)
            ones = [keep.select(fx.Float32(1.0), fx.Float32(0.0)) for keep in kept]
            results["kept"] = fx.Vector.from_elements(ones, fx.Float32)
        for name, result in results.items():
            for i, offset in enumerate(offsets):
                zero = fx.Int32(0).ir_value()
                rocdl.raw_ptr_buffer_store(
                    result[i].ir_value(), bounded(pointers[name]), offset.ir_value(), zero
                )

    @flyc.kernel(name=symbol)
    def kernel(
        products: fx.Pointer,
        lse: fx.Pointer,
        mask: fx.Pointer,
        slopes: fx.Pointer,
        query_documents: fx.Pointer,
        key_documents: fx.Pointer,
        seed: fx.Pointer,
        scores: fx.Pointer,
        derivatives: fx.Pointer,
        probabilities: fx.Pointer,
        kept: fx.Pointer,
        sizes: Numbers,
    ) -> None:
        pointers = (products, lse, mask, slopes, query_documents, key_documents, seed)
        pointers += (scores, derivatives, probabilities, kept)
        wave(dict(zip(KERNARG.pointers, pointers, strict=True)), sizes)

    @flyc.jit
    def launch(
        products: fx.Pointer,
        lse: fx.Pointer,
        mask: fx.Pointer,
        slopes: fx.Pointer,
        query_documents: fx.Pointer,
        key_documents: fx.Pointer,
        seed: fx.Pointer,
        scores: fx.Pointer,
        derivatives: fx.Pointer,
        probabilities: fx.Pointer,
        kept: fx.Pointer,
        sizes: Numbers,
        x: fx.Int32,
        y: fx.Int32,
        stream: fx.Stream = fx.Stream(None),  # noqa: B008 (FlyDSL's spelling of the default stream)
    ) -> None:
        kernel(
            products, lse, mask, slopes, query_documents, key_documents, seed,
            scores, derivatives, probabilities, kept, sizes,
        ).launch(grid=(x, y, 1), block=(64, 1, 1), stream=stream)  # fmt: skip

    elements = dict.fromkeys(KERNARG.pointers, fx.Float32)
    elements |= dict.fromkeys(("query_documents", "key_documents", "seed"), fx.Int32)
    elements["mask"] = fx.Int8 if chosen.mask == "bool" else ELEMENTS.get(chosen.mask, fx.Float32)
    return launch, (*placeholders(KERNARG, elements), fx.Int32(1), fx.Int32(1))


def _load(buffer: Any, offsets: list[fx.Int32]) -> fx.Vector:
    kind = fx.Float32.ir_type
    loaded = [rocdl.raw_ptr_buffer_load(kind, buffer, offset, fx.Int32(0)) for offset in offsets]
    return fx.Vector.from_elements([fx.Float32(value) for value in loaded], fx.Float32)


@dataclass
class Run:
    """What a run gave."""

    findings: tuple[emulator.Finding, ...]
    results: dict[str, np.ndarray]


def run(
    chosen: Features,
    along_keys: bool,
    arrays: dict[str, np.ndarray],
    values: dict[str, int | float],
) -> Run:
    """The kernel's results for `arrays`, by the names of the arguments, whose memory ends with their last elements."""
    queries, keys = arrays["products"].shape
    compiled = compile_kernel(spec(chosen, along_keys))
    memory = emulator.Memory()
    arguments: dict[str, int | float] = dict.fromkeys(KERNARG.names, 0)
    for name, array in arrays.items():
        arguments[name] = memory.register(array, name=name, writable=False)
    results = {name: np.full((queries, keys), -77.0, np.float32) for name in RESULTS}
    for name, array in results.items():
        arguments[name] = memory.register(array, name=name)
    kernel = loaded(compiled)
    stats = emulator.launch(
        kernel,
        (-(-queries // 32), -(-keys // 32), 1),
        (64, 1, 1),
        compiled.kernarg.pack(arguments | values | {"queries": queries, "keys": keys}),
        memory,
        sanitize="all",
    )
    return Run(stats.findings, results)
