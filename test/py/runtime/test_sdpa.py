"""flycc::sdpa_fwd and sdpa_bwd on the emulated device, against float64."""

from __future__ import annotations

import math
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
import torch
from attention_reference import Attention
from torch import Tensor

from flycc.contracts import FlyccError, SdpaBackwardProblem, SdpaProblem
from flycc.runtime import ops, refusals, sdpa
from flycc.runtime.devices import device_for
from flycc.runtime.loading import load

SEED = int(os.environ["FLYCC_TEST_SEED"])


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED + sum(shape))).to(dtype)


def operands(
    heads: int = 3, kv_heads: int = 1, queries: int = 20, keys: int = 33, dim: int = 64
) -> list[Tensor]:
    return [random(2, h, n, dim) for h, n in ((heads, queries), (kv_heads, keys), (kv_heads, keys))]


def check(q: Tensor, k: Tensor, v: Tensor, grad: bool = True, layout: str = "bhsd", **what: Any) -> Tensor:
    """Called twice, the second time by what was kept of the first; no call goes to PyTorch."""
    of = Attention(q, k, v, q.size(-1) ** -0.5, **what)
    of_queries, of_keys = what.get("documents", (None, None))
    tensors = {"attn_mask": what.get("mask"), "slopes": what.get("slopes")}
    tensors |= {"query_documents": of_queries, "key_documents": of_keys}
    numbers = {"scale": of.scale} | {
        name: what[name] for name in ("lower", "upper", "softcap") if name in what
    }
    expected, bound = of.forward()[0], of.bound()
    with refusals.strict():
        for _ in range(2):
            out, lse = torch.ops.flycc.sdpa_fwd(q, k, v, **tensors, **numbers, want_lse=True, layout=layout)
            assert ((out.double() - expected).abs() <= bound).all()
        if grad:
            dout = torch.randn_like(out)
            for _ in range(2):
                found = torch.ops.flycc.sdpa_bwd(dout, q, k, v, out, lse, **tensors, **numbers)
                for x, dx, right, off in zip(
                    (q, k, v), found, of.backward(dout), of.backward_bounds(dout), strict=True
                ):
                    assert ((dx.double() - right).abs() <= off).all()
                    assert dx.stride() == torch.empty_like(x).stride()
    return out


def test_causal_heads_that_share_keys() -> None:
    out = check(*operands(9, 3), upper=0, layout="bshd")
    assert out.transpose(1, 2).is_contiguous()


def test_lengths_first() -> None:
    """As `nn.MultiheadAttention` has them in memory, whatever `batch_first` is."""
    tensors = [random(n, 2, 3, 64).permute(1, 2, 0, 3) for n in (20, 33, 33)]
    assert check(*tensors, layout="sbhd").stride() == tensors[0].stride()


def test_rows_that_kernels_cannot_take_are_copied() -> None:
    """Misaligned, of odd length, transposed and expanded operands, with a mask that is broadcast."""
    q = random(2, 4, 20, 34)[..., 1:]
    k = random(2, 33, 2, 33).transpose(1, 2)
    v = random(1, 1, 33, 40).expand(2, 2, 33, 40)
    check(q, k, v, mask=random(4, 1, 33) > 0)


def test_a_decode_step_reads_the_cache_in_place() -> None:
    cache = random(2, 1, 100, 64)
    q, k = random(2, 3, 1, 64), cache[:, :, :70]
    check(q, k, k, grad=False, upper=69)


def test_growing_keys_load_no_kernels() -> None:
    cache, q = random(1, 1, 700, 64), random(1, 3, 1, 64)
    loaded = []
    for keys in range(600, 604):
        check(q, cache[:, :, :keys], cache[:, :, :keys], grad=False, upper=keys - 1)
        loaded.append(load.cache_info().misses)
    assert loaded == loaded[:1] * 4


def test_of_expanded_operands_one_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Misaligned K and V of all batches and heads, a row repeated, and the gradient of a sum."""
    copies: list[int] = []
    rows_of = sdpa.rows_of

    def noted(tensor: Tensor) -> Tensor:
        found = rows_of(tensor)
        if found is not tensor:
            copies.append(found.untyped_storage().nbytes())
        return found

    monkeypatch.setattr(sdpa, "rows_of", noted)
    q, k, v = random(2, 4, 20, 64), random(1, 1, 33, 65)[..., 1:], random(1, 1, 1, 34)[..., :33]
    k, v = k.expand(2, 4, 33, 64), v.expand(2, 4, 33, 33)
    check(q, k, v, grad=False)
    assert copies == [33 * 64 * 2, 40 * 2] * 2
    copies.clear()
    grad = torch.ones((), dtype=q.dtype).expand(2, 4, 20, 33)
    out, lse = torch.ops.flycc.sdpa_fwd(q, k, v, scale=0.1, want_lse=True)
    found = torch.ops.flycc.sdpa_bwd(grad, q, k, v, out, lse, scale=0.1)
    of = Attention(q, k, v, 0.1)
    for x, right, off in zip(found, of.backward(grad), of.backward_bounds(grad), strict=True):
        assert ((x.double() - right).abs() <= off).all()
    assert max(copies) == 2 * 4 * 20 * 40 * 2


def test_lse_that_is_not_contiguous() -> None:
    q, k, v = operands()
    out, lse = torch.ops.flycc.sdpa_fwd(q, k, v, scale=0.125, want_lse=True)
    apart = torch.empty(20, 2, 3).permute(1, 2, 0).copy_(lse)
    for one, other in zip(
        torch.ops.flycc.sdpa_bwd(out, q, k, v, out, lse, scale=0.125),
        torch.ops.flycc.sdpa_bwd(out, q, k, v, out, apart, scale=0.125),
        strict=True,
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_documents_of_any_width(dtype: torch.dtype) -> None:
    """Of 64 bits those that differ in the upper 32 alone are different documents."""
    q, k, v = operands()
    of_queries, of_keys = (torch.randint(3, (2, n), dtype=dtype) for n in (20, 33))
    if dtype == torch.int64:
        of_queries, of_keys = ((x << 32) - (x << 62) for x in (of_queries, of_keys))
    check(q, k, v, grad=dtype == torch.int64, documents=(of_queries, of_keys))


def far(*shape: int, apart: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers with strides so large that most pages between them are never touched."""
    room = torch.empty(1 + sum((n - 1) * stride for n, stride in zip(shape, apart, strict=True)), dtype=dtype)
    return room.as_strided(shape, apart).copy_(random(*shape, dtype=dtype))


@pytest.mark.parametrize("queries", [1, 20])
def test_strides_beyond_32_bits(queries: int) -> None:
    """Batches, heads and rows more than 2^31 bytes apart: what 32 bits do not reach is copied, or is PyTorch's."""
    most = 1 << 30
    q = far(2, 3, queries, 64, apart=(3 * most, most, 64, 1))
    k = far(2, 1, 33, 64, apart=(most + 8, 8, 64, 1))
    v = far(2, 1, 33, 64, apart=(40, 8, most // 16, 1))
    check(q, k, v, grad=queries > 1)
    mask = far(2, 3, queries, 33, apart=(3 << 31, 1 << 31, 33, 1), dtype=torch.bool)
    if queries > 1:
        check(q, k, v, mask=mask)
    keys_apart = far(1, 1, 1, 33, apart=(1, 1, 1, 1 << 25), dtype=torch.bool)
    for unreachable in (keys_apart, mask) if queries == 1 else (keys_apart,):
        with refusals.strict(), pytest.raises(FlyccError, match="attn_mask has strides"):
            torch.ops.flycc.sdpa_fwd(q, k, v, unreachable, scale=1.0)


def test_two_threads() -> None:
    """The first calls of both, which compile, and more."""
    q, k, v = operands(queries=5, keys=9)
    calls = ({"scale": 0.1, "upper": 3}, {"scale": 0.2, "lower": 0})
    together = Barrier(len(calls))

    def outs(numbers: dict[str, Any]) -> list[Tensor]:
        together.wait()
        with refusals.strict():
            return [torch.ops.flycc.sdpa_fwd(q, k, v, **numbers)[0] for _ in range(3)]

    with ThreadPoolExecutor(len(calls)) as pool:
        for numbers, found in zip(calls, pool.map(outs, calls), strict=True):
            of = Attention(q, k, v, **numbers)  # type: ignore[arg-type]
            for out in found:
                assert ((out.double() - of.forward()[0]).abs() <= of.bound()).all()


@pytest.mark.parametrize(
    ("queries", "value_dim", "apart"), [(20, 33, 1), (20, 64, 2), (1, 33, 1), (1, 64, 4)]
)
def test_out_whose_rows_are_not_aligned(queries: int, value_dim: int, apart: int) -> None:
    """Rows of out begin at multiples of 2, 4 or 8 bytes, and nothing between them is written."""
    q, k, v = random(2, 3, queries, 64), random(2, 1, 33, 64), random(2, 1, 33, value_dim)
    guard = torch.full((2, 3, queries, value_dim + 3 * apart), 7.0, dtype=q.dtype)
    out = guard[..., apart:][..., :value_dim]
    call = sdpa.Call(None, None, None, None, None, 0.125, None, None, 0.0, 0.0)
    sdpa.launch(q, k, v, call, out, None, device_for(q.device))
    of = Attention(q, k, v, 0.125)
    assert ((out.double() - of.forward()[0]).abs() <= of.bound()).all()
    guard[..., apart : apart + value_dim] = 7
    assert (guard == 7).all()


def test_no_heads_and_no_batch() -> None:
    for batch, heads, kv_heads in ((0, 3, 1), (2, 0, 0), (2, 0, 1)):
        q, k, v = (torch.empty(batch, n, 5, 16, dtype=torch.bfloat16) for n in (heads, kv_heads, kv_heads))
        with refusals.strict():
            out, lse = torch.ops.flycc.sdpa_fwd(q, k, v, scale=1.0, want_lse=True)
            grads = torch.ops.flycc.sdpa_bwd(out, q, k, v, out, lse, scale=1.0)
        assert out.shape == q.shape
        assert lse.shape == q.shape[:3]
        assert not any(x.any() for x in grads)
    with pytest.raises(RuntimeError, match="query has 3 heads, must be a multiple of those of key, 0"):
        torch.ops.flycc.sdpa_fwd(random(2, 3, 5, 16), q[:, :0], q[:, :0], scale=1.0)


def test_heads_of_no_elements() -> None:
    """Scores of 0 are equal weights; values of no elements have sums of weights."""
    q, k, v = random(1, 1, 5, 0), random(1, 1, 7, 0), random(1, 1, 7, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out, lse = torch.ops.flycc.sdpa_fwd(q, k, v, scale=1.0, want_lse=True)
        _, _, dv = torch.ops.flycc.sdpa_bwd(torch.ones_like(out), q, k, v, out, lse, scale=1.0)
        none, sums = torch.ops.flycc.sdpa_fwd(v, v, k, scale=1.0, want_lse=True)
    assert (out.double() - v.double().mean(2, keepdim=True)).abs().max() <= 2.0**-7
    assert (dv == torch.tensor(5 / 7, dtype=dv.dtype)).all()
    assert none.shape == (1, 1, 7, 0)
    assert (sums.double() - Attention(v, v, v, 1.0).forward()[1]).abs().max() <= 1e-4


def test_no_keys_and_no_queries() -> None:
    q, k, v = operands(keys=0)
    out, lse = torch.ops.flycc.sdpa_fwd(q, k, v, scale=1.0, want_lse=True)
    assert not out.any()
    assert (lse == -torch.inf).all()
    assert not any(x.any() for x in torch.ops.flycc.sdpa_bwd(out, q, k, v, out, lse, scale=1.0))
    q, k, v = operands(queries=0)
    assert torch.ops.flycc.sdpa_fwd(q, k, v, scale=1.0)[0].shape == (2, 3, 0, 64)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"dtype": torch.float32}, "sdpa.dtype"),
        ({"mask": torch.float64}, "sdpa.mask"),
        *(({"scale": scale}, "sdpa.scale") for scale in (-1.0, 0.0, math.nan, math.inf, 1e-35)),
        ({"dim": 513}, "sdpa.head-dim"),
    ],
)
def test_what_no_kernel_takes_goes_to_pytorch(change: dict[str, Any], code: str) -> None:
    q, k, v = (x.to(change.get("dtype", x.dtype)) for x in operands(dim=change.get("dim", 64)))
    mask = torch.zeros(20, 33, dtype=change["mask"]) if "mask" in change else None
    scale = change.get("scale", 0.125)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out, _ = torch.ops.flycc.sdpa_fwd(q, k, v, mask, scale=scale)
    expected = Attention(q, k, v, scale, mask).forward()[0]
    if math.isfinite(scale):
        assert (out.double() - expected).abs().max() <= 2.0**-7 * (1 + expected.abs().max())
    else:
        assert out.isnan().all()
    with refusals.strict(), pytest.raises(FlyccError) as refused:
        torch.ops.flycc.sdpa_fwd(q, k, v, mask, scale=scale)
    assert refused.value.reason.code == code


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_mask": torch.ones(3, 33, dtype=torch.bool)}, "attn_mask is .3, 33., must be broadcastable"),
        ({"attn_mask": torch.ones(20, 33, dtype=torch.int32)}, "attn_mask is torch.int32, must be bool or"),
        ({"slopes": torch.ones(4)}, "slopes is .4., must be .3."),
        ({"slopes": torch.ones(3, dtype=torch.int32)}, "slopes is torch.int32, must be floating point"),
        (
            {"query_documents": torch.ones(2, 20), "key_documents": torch.ones(2, 33)},
            "query_documents is torch.float32, must be int64, int32 or narrower",
        ),
        ({"softcap": math.inf}, "softcap is inf, must be finite and not negative"),
        ({"query_documents": torch.ones(2, 20)}, "query_documents and key_documents must be there both"),
        ({"dropout_p": 0.5}, "seed is missing, must be torch.int64 .2. with dropout_p"),
        ({"dropout_p": 1.5}, "dropout_p is 1.5, must be between 0 and 1"),
        ({"layout": "bsdh"}, "layout is 'bsdh', must be one of bhsd, bshd, sbhd"),
    ],
)
def test_mistakes_name_the_argument(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=f"flycc::sdpa_fwd: {message}"):
        torch.ops.flycc.sdpa_fwd(*operands(), scale=1.0, **change)


def test_dropout_repeats_with_its_seed() -> None:
    q, k, v = operands()
    first, other = torch.tensor([SEED, 5]), torch.tensor([SEED + 1, 5])
    outs = [
        torch.ops.flycc.sdpa_fwd(q, k, v, seed=seed, scale=0.125, dropout_p=0.25)[0]
        for seed in (first, first, other)
    ]
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_opcheck() -> None:
    q, k, v = operands(queries=3, keys=5, dim=32)
    torch.library.opcheck(torch.ops.flycc.sdpa_fwd.default, (q, k, v), {"scale": 0.2, "want_lse": True})
    out, lse = torch.ops.flycc.sdpa_fwd(q, k, v, scale=0.2, want_lse=True)
    torch.library.opcheck(torch.ops.flycc.sdpa_bwd.default, (out, q, k, v, out, lse), {"scale": 0.2})


def test_descriptions_name_the_launches() -> None:
    """One query and long keys are shared out and put together again; gradients take three launches."""
    problem = SdpaProblem("bf16", 1, 8, 2, 1, 8192, 128, 128)
    first, second, count = ops.describe(problem).split(", ")
    assert first.startswith("decode ")
    assert second.startswith("combine ")
    assert count == "2 launches"
    assert ops.describe(replace(problem, queries=4096)).startswith("forward d128_128_")
    assert ops.describe(SdpaBackwardProblem(replace(problem, queries=64, lse=True))).endswith(", 3 launches")
    assert ops.describe(replace(problem, keys="s0")) == "kernel chosen when lengths are known"
