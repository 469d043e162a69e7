"""PyTorch's modules of multi-head attention: their attention is kept whole, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frontend_graphs import Recorder, assert_same_bits, targets
from torch import Tensor, nn

EMBED, HEADS, LENGTH = 32, 4, 9
hidden = torch.zeros(2, LENGTH, dtype=torch.bool)
hidden[1, 6:] = True
later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
causal = nn.Transformer.generate_square_subsequent_mask(LENGTH).bfloat16()


class Attention(nn.Module):
    """`nn.MultiheadAttention` without the weights in its result."""

    def __init__(self, call: dict[str, Any], **options: Any) -> None:
        super().__init__()
        self.attention, self.call = nn.MultiheadAttention(EMBED, HEADS, **options), call

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.attention(query, key, key, need_weights=False, **self.call)[0]


#: name: (how it is called, how it is made, sizes in front of `EMBED` of query and of key, what its problem says)
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, ...], tuple[int, ...], str]] = {
    "batch-first": ({}, {"batch_first": True}, (2, LENGTH), (2, 11), "9x11x8 bf16+lse"),
    "length-first": ({}, {}, (LENGTH, 2), (11, 2), "9x11x8 bf16+lse"),
    "no-batch": ({}, {}, (LENGTH,), (11,), "9x11x8 bf16+lse"),
    "causal": (
        {"attn_mask": causal, "is_causal": True},
        {"batch_first": True},
        (2, LENGTH),
        (2, LENGTH),
        "9x9x8 bf16+upper+lse",
    ),
    "padded": (
        {"attn_mask": later, "key_padding_mask": hidden},
        {"batch_first": True},
        (2, LENGTH),
        (2, LENGTH),
        "9x9x8 bf16+mask bf16+lse",
    ),
    "more-keys": ({}, {"add_bias_kv": True, "add_zero_attn": True}, (LENGTH, 2), (11, 2), "9x13x8 bf16+lse"),
}


@pytest.mark.parametrize("name", FORMS)
def test_attention_of_a_module_is_kept_whole_with_the_same_bits(name: str) -> None:
    call, options, *sizes, problem = FORMS[name]
    module = Attention(call, **options).bfloat16()
    inputs = [torch.randn(*size, EMBED).bfloat16() for size in sizes]
    results, recorder = [], Recorder()
    for run in (torch.compile(module, backend=recorder, fullgraph=True), module):
        out = run(*inputs)
        results.append([out, *torch.autograd.grad(out.square().sum(), [*module.parameters()])])
    assert_same_bits(*results)
    batch = 1 if len(sizes[0]) == 1 else 2
    served = {c.target: (c.kernel, c.problem) for report in recorder.reports for c in report.nodes}
    assert served["flycc.sdpa.default"] == ("flycc::sdpa_fwd", f"sdpa {batch}x4 heads {problem} align 16")
    assert served["flycc.sdpa_backward.default"][0] == "flycc::sdpa_bwd"


@pytest.mark.parametrize("lies", [False, True])
def test_weights_that_nothing_reads_are_not_made(lies: bool) -> None:
    """Also where `is_causal` is wrong: with weights PyTorch reads the mask alone."""
    module = nn.MultiheadAttention(EMBED, HEADS, dtype=torch.float64)
    mask = later.mT if lies else later
    x, recorder = torch.randn(LENGTH, 2, EMBED, dtype=torch.float64), Recorder()

    def attend(x: Tensor) -> Tensor:
        return module(x, x, x, attn_mask=mask, is_causal=True)[0]

    out = torch.compile(attend, backend=recorder, fullgraph=True)(x)
    torch.testing.assert_close(out, attend(x), rtol=0, atol=1e-12)
    assert "flycc.sdpa.default" in targets(recorder)


def test_weights_that_are_read_are_pytorchs() -> None:
    module, x = nn.MultiheadAttention(EMBED, HEADS), torch.randn(LENGTH, 2, EMBED)
    recorder = Recorder()
    assert_same_bits(torch.compile(module, backend=recorder, fullgraph=True)(x, x, x), module(x, x, x))
    assert "flycc.sdpa.default" not in targets(recorder)


def test_dropout_of_a_module_repeats_with_its_seed() -> None:
    module = Attention({}, dropout=0.5).bfloat16()
    compiled = torch.compile(module, backend=(recorder := Recorder()), fullgraph=True)
    x = torch.randn(LENGTH, 2, EMBED).bfloat16()
    outs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        outs.append(compiled(x, x))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    assert "flycc.sdpa.default" in targets(recorder)


def test_a_mask_that_needs_a_gradient_gets_it() -> None:
    bias = torch.randn(LENGTH, LENGTH, requires_grad=True)
    module, x = Attention({"attn_mask": bias}), torch.randn(LENGTH, 2, EMBED)
    recorder = Recorder()
    runs = (torch.compile(module, backend=recorder), module)
    mine, theirs = (torch.autograd.grad(run(x, x).square().sum(), bias)[0] for run in runs)
    assert_same_bits(mine, theirs)
    assert "flycc.sdpa.default" not in targets(recorder)
    reasons = {c.family: c.reason for c in recorder.reports[0].nodes if c.target != "aten.addmm.default"}
    assert reasons["sdpa"].code == "sdpa.mask"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("options", "masks"),
    [
        ({}, {}),
        ({"activation": "gelu", "norm_first": True}, {"src_key_padding_mask": hidden}),
        ({}, {"src_mask": later}),
        ({}, {"src_mask": later, "src_key_padding_mask": hidden}),
    ],
)
def test_a_fused_encoder_layer_is_opened(
    options: dict[str, Any], masks: dict[str, Tensor], dtype: torch.dtype
) -> None:
    """In float64, where the order of roundings does not show; bf16 is what kernels are for."""
    layer = nn.TransformerEncoderLayer(EMBED, HEADS, 64, batch_first=True, **options).to(dtype).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    x, recorder = torch.randn(2, LENGTH, EMBED, dtype=dtype), Recorder(compare=dtype == torch.float64)
    with torch.no_grad():
        out = torch.compile(layer, backend=recorder, fullgraph=True)(x, **masks)
        expected = layer(x, **masks)
    assert {"flycc.sdpa.default", "aten.native_layer_norm.default"} <= {*targets(recorder)}
    if dtype == torch.bfloat16:
        served = {family: kernels for family, (kernels, _) in recorder.families().items()}
        assert (served["gemm"], served["sdpa"]) == (4, 1)
    # Numbers of 3 and less are rounded to bf16 some ten times.
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12 if dtype == torch.float64 else 0.1)
