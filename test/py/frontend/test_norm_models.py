"""Small transformers models with random weights: every RMS norm of an inference graph is matched.

`Recorder` runs each graph as it was and rebuilt, and compares every output; in float32 only, as attention that is
matched too rounds where PyTorch's does not, and what is a last bit of bf16 there is more at the end of a model.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frontend_graphs import Recorder
from torch import Tensor

transformers = pytest.importorskip("transformers")

#: One has all that norms may follow and precede; what PyTorch takes to trace a model grows with them.
LAYERS = 1
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "use_cache": False,
    "pad_token_id": 0,
}

#: model: (norms in a layer, of them behind a residual addition in all layers and at the end)
#:
#: Llama: before attention and MLP. Gemma 2 and 3: before and behind both. Gemma 3 and Qwen 3: also of q
#: and k, which Gemma 3 transposes first.
#: The first norm of the first layer takes the embedding; every other in front of a block takes a sum.
DECODERS = {
    "Llama": (2, 2 * LAYERS),
    "Gemma": (2, 2 * LAYERS),
    "Gemma2": (4, 2 * LAYERS),
    "Gemma3": (6, 2 * LAYERS),
    "Qwen3": (4, 2 * LAYERS),
}
QUICK = [("Gemma3", torch.bfloat16), ("Gemma3", torch.float32)]


def decoder(name: str, dtype: torch.dtype) -> torch.nn.Module:
    config_class = {"Gemma3": "Gemma3TextConfig"}.get(name, f"{name}Config")
    config = getattr(transformers, config_class)(**SIZES)
    return spread(getattr(transformers, f"{name}ForCausalLM")(config)).to(dtype).eval()


def spread(model: torch.nn.Module) -> torch.nn.Module:
    """Weights of norms start as all ones or zeros, which would hide where they enter."""
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter)
    return model


def run(model: torch.nn.Module, *inputs: Tensor, **options: Any) -> Recorder:
    wide = next(model.parameters()).dtype == torch.float32
    recorder = Recorder(exact=False, compare=wide)
    with torch.no_grad():
        logits = torch.compile(model, backend=recorder, dynamic=True)(*inputs, **options).logits.double()
        expected = model(*inputs, **options).logits.double()
    # Some dozen roundings by 2**-9 on a path.
    assert (logits - expected).norm() <= (2**-18 if wide else 2**-4) * expected.norm()
    assert len(recorder.graphs) == 1
    return recorder


def residuals(recorder: Recorder) -> int:
    """How many norms take the addition before them."""
    return sum("+residual" in candidate.problem for candidate in recorder.reports[0].nodes)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        # Gemma 3 has all forms of the others; PyTorch takes most of the time, to trace with symbolic sizes.
        pytest.param(name, dtype, marks=() if (name, dtype) in QUICK else pytest.mark.nightly)
        for name in DECODERS
        for dtype in (torch.bfloat16, torch.float32)
    ],
)
def test_every_norm_of_a_decoder_is_matched(name: str, dtype: torch.dtype) -> None:
    per_layer, with_residual = DECODERS[name]
    recorder = run(decoder(name, dtype), torch.randint(64, (2, 5)))
    assert recorder.families()["rms_norm"] == (per_layer * LAYERS + 1, 0)
    assert residuals(recorder) == with_residual


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.nightly)])
def test_every_norm_of_t5_is_matched(dtype: torch.dtype) -> None:
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=LAYERS, num_heads=4, use_cache=False
    )
    t5 = spread(transformers.T5ForConditionalGeneration(config)).to(dtype).eval()
    recorder = run(t5, torch.randint(64, (2, 5)), decoder_input_ids=torch.randint(64, (2, 3)))
    # Encoder layers have two norms, decoder layers three, and both stacks one at the end; the first norm of
    # each takes the embedding.
    assert recorder.families()["rms_norm"] == (5 * LAYERS + 2, 0)
    assert residuals(recorder) == 5 * LAYERS


def test_norms_of_a_model_of_modules_are_matched_in_training() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = torch.nn.RMSNorm(16), torch.nn.Linear(16, 16, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.linear(self.norm(x))

    model = torch.nn.Sequential(Block(), Block(), torch.nn.RMSNorm(16))
    recorder = Recorder()
    x = torch.randn(3, 5, 16)
    # Not a function of the norm of the result, which a last RMS norm keeps: its gradients would cancel.
    target = torch.randn(3, 5, 16)
    (torch.compile(model, backend=recorder)(x) * target).sum().backward()
    families = recorder.families()
    assert families["rms_norm"] == (3, 0)
    assert families["rms_norm_backward"] == (3, 0)
    assert sum("+residual+rstd" in candidate.problem for candidate in recorder.reports[0].nodes) == 2
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    (model(x) * target).sum().backward()
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    for mine, theirs in zip(gradients, expected, strict=True):
        # The recorder returns what the original graph computes; AOTAutograd sums in its own order, and a sum
        # of 16 terms on each of the few steps of a path rounds by 2**-20 of them at most.
        assert (mine - theirs).abs().max() <= 2**-16 * theirs.abs().max()
