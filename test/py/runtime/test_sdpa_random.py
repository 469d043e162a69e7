"""flycc::sdpa_fwd and sdpa_bwd of random problems in random layouts, with NaN between the rows, against float64."""

from __future__ import annotations

import math
import os
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from attention_reference import Attention, dropout_mask
from torch import Tensor

from flycc import emulator
from flycc.runtime import emulated, ops, refusals  # noqa: F401 (defines the operators)

SEED = int(os.environ["FLYCC_TEST_SEED"])
#: Dims that have kernels of their own, and others.
DIMS = (1, 7, 16, 32, 40, 64, 80, 96, 128, 131, 192, 200, 256, 257, 320, 512)
LENGTHS = (1, 2, 7, 16, 31, 32, 33, 64, 65, 100, 128, 129, 257, 300)
#: Products that a problem has at most, times elements of their operands.
WORK = 2e6


class Problem:
    """What the operators are given: operands by name in `tensors`, numbers in `numbers`."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        pick = self.random.choice
        self.dtype = pick((torch.bfloat16, torch.float16))
        head, value = pick(DIMS), pick(DIMS)
        batch, kv_heads, group = pick((1, 2)), pick((1, 2, 3)), pick((1, 3, 8))
        queries, keys = pick(LENGTHS), pick((*LENGTHS, 1100))
        while batch * kv_heads * group * queries * keys * (head + value) > WORK and queries * keys > 1:
            queries, keys = -(-queries // 2), -(-keys // 2)
        self.shape = (batch, kv_heads * group, queries, keys)
        self.query = self.strided((batch, kv_heads * group, queries, head))
        self.key = self.strided((batch, kv_heads, keys, head))
        self.value = self.strided((batch, kv_heads, keys, value))
        self.grad = self.strided((batch, kv_heads * group, queries, value))
        self.numbers: dict[str, Any] = {"scale": pick((head**-0.5, 1.0, 0.01))}
        self.tensors: dict[str, Tensor | None] = {}
        self._choose_scores()

    def strided(self, shape: tuple[int, ...]) -> Tensor:
        """Random numbers in some order in memory, rows apart, perhaps misaligned."""
        order = self.random.choice(((0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)))
        before, behind = self.random.choice(((0, 0), (0, 8), (8, 16), (1, 3)))
        sizes = [shape[dim] for dim in order]
        room = torch.full((*sizes[:3], before + shape[3] + behind), math.nan, dtype=self.dtype)
        part = room[..., before : before + shape[3]]
        part.copy_(torch.randn(sizes, generator=self.generator))
        return part.permute([order.index(dim) for dim in range(4)])

    def _choose_scores(self) -> None:
        batch, heads, queries, keys = self.shape
        pick, chance = self.random.choice, self.random.random
        if chance() < 0.5:
            shape = [pick((1, size)) for size in self.shape]
            mask = torch.randn(shape, generator=self.generator)
            dtype = pick((torch.bool, torch.float32, torch.bfloat16, torch.float16))
            hidden = mask > pick((0.0, 1.0))
            mask = ~hidden if dtype == torch.bool else mask.masked_fill(hidden, -math.inf).to(dtype)
            self.tensors["attn_mask"] = mask.mT.contiguous().mT if chance() < 0.3 else mask
        for name in ("lower", "upper"):
            if chance() < 0.4:
                self.numbers[name] = pick((0, keys - queries, self.random.randint(-queries, keys)))
        if chance() < 0.2:
            for name, length in (("query_documents", queries), ("key_documents", keys)):
                documents = torch.randint(3, (batch, length), generator=self.generator)
                self.tensors[name] = documents.sort(1).values
        if chance() < 0.2:
            self.tensors["slopes"] = torch.rand(heads, generator=self.generator)
        if chance() < 0.2:
            self.numbers["softcap"] = pick((1.0, 30.0))
        if chance() < 0.2:
            self.numbers["dropout_p"] = pick((0.1, 0.9, 1.0))
            self.tensors["seed"] = torch.randint(1 << 62, (2,), generator=self.generator)

    @property
    def reference(self) -> Attention:
        tensors, numbers, keep = dict(self.tensors), dict(self.numbers), None
        if (seed := tensors.pop("seed", None)) is not None:
            keep = dropout_mask(int(seed[0]), int(seed[1]), self.shape, numbers["dropout_p"])
        documents = tensors.pop("query_documents", None), tensors.pop("key_documents", None)
        return Attention(
            self.query,
            self.key,
            self.value,
            mask=tensors.pop("attn_mask", None),
            documents=None if documents[0] is None else documents,  # type: ignore[arg-type]
            keep=keep,
            **tensors,  # type: ignore[arg-type]
            **numbers,
        )


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(24))
def test_random_problems(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order of waves; what sanitizers find is an error."""
    problem = Problem(SEED + number)
    order = problem.random.choice(("lockstep", "serial", "reverse", SEED))
    launch = partial(emulator.launch, wave_order=order, sanitize="all", raise_on_finding=True)
    monkeypatch.setattr(emulated.emulator, "launch", launch)
    given = {**problem.tensors, **problem.numbers}
    with refusals.strict():
        out, lse = torch.ops.flycc.sdpa_fwd(
            problem.query,
            problem.key,
            problem.value,
            **given,
            want_lse=True,
            layout=problem.random.choice(("bhsd", "bshd")),
        )
        operands = problem.query, problem.key, problem.value, out, lse
        gradients = torch.ops.flycc.sdpa_bwd(problem.grad, *operands, **given)
    of = problem.reference
    expected, bound = of.forward(), (of.bound(), of.lse_bound())
    for found, right, off in zip((out, lse), expected, bound, strict=True):
        empty = right == -math.inf
        assert (found[empty] == -math.inf).all()
        assert ((found.double() - right)[~empty].abs() <= off[~empty]).all(), given
    for found, right, off in zip(
        gradients, of.backward(problem.grad), of.backward_bounds(problem.grad), strict=True
    ):
        assert ((found.double() - right).abs() <= off).all(), given
