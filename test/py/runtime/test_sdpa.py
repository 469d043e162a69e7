"""flycc::sdpa_fwd and sdpa_bwd on the emulated device, against float64."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
from attention_reference import Attention
from torch import Tensor

from flycc.contracts import FlyccError
from flycc.runtime import ops, refusals  # noqa: F401 (defines the operators)

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
    tensors = {"attn_mask": what.get("mask"), "slopes": what.get("slopes")}
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
        ({"scale": -1.0}, "sdpa.scale"),
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
    assert (out.double() - expected).abs().max() <= 2.0**-7 * (1 + expected.abs().max())
    with refusals.strict(), pytest.raises(FlyccError) as refused:
        torch.ops.flycc.sdpa_fwd(q, k, v, mask, scale=scale)
    assert refused.value.reason.code == code


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_mask": torch.ones(3, 33, dtype=torch.bool)}, "attn_mask is .3, 33., must be broadcastable"),
        ({"attn_mask": torch.ones(20, 33, dtype=torch.int32)}, "attn_mask is torch.int32, must be bool or"),
        ({"slopes": torch.ones(4)}, "slopes is .4., must be .3."),
        ({"query_documents": torch.ones(2, 20)}, "query_documents and key_documents must be there both"),
        ({"dropout_p": 0.5}, "seed is missing, must be torch.int64 .2. with dropout_p"),
        ({"dropout_p": 1.5}, "dropout_p is 1.5, must be between 0 and 1"),
        ({"layout": "bsdh"}, "layout is 'bsdh', must be one of bhsd, bshd"),
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
