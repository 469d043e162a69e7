"""Attention of small transformers models with random weights: every layer is on kernels, and masks are bands.

Hidden states are compared with the model's own as a whole: some 20 roundings to bf16 on a path, independent, add up to
2**-9 * sqrt(20) < 2**-6 of their norm, and the model's own has as many.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frontend_graphs import Recorder

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GPT2: dict[str, Any] = {"vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}
WINDOW = {"sliding_window": 4}
#: Model, options, implementation; what a report says of a prompt, of one that is padded in front, of one token more.
CASES: dict[str, tuple[str, dict[str, Any], str, tuple[str, str, str]]] = {
    "llama-sdpa": (
        "Llama",
        SIZES,
        "sdpa",
        ("causal, GQA 4:2", "causal, GQA 4:2, mask bool loaded", "GQA 4:2"),
    ),
    "llama-eager": ("Llama", SIZES, "eager", ("causal, GQA 4:2", "GQA 4:2, mask bf16 loaded", "GQA 4:2")),
    "mistral-sdpa": (
        "Mistral",
        SIZES | WINDOW,
        "sdpa",
        (
            "causal, window 4, GQA 4:2",
            "causal, window 4, GQA 4:2, mask bool loaded",
            "GQA 4:2",
        ),
    ),
    "gemma2": (
        "Gemma2",
        SIZES | WINDOW | {"query_pre_attn_scalar": 8},
        "eager",
        (
            "causal, window 4, GQA 4:2, softcap 50",
            "GQA 4:2, mask bf16 loaded, softcap 50",
            "GQA 4:2, softcap 50",
        ),
    ),
    "qwen3": ("Qwen3", SIZES, "eager", ("causal, GQA 4:2", "GQA 4:2, mask bf16 loaded", "GQA 4:2")),
    "gpt2": ("GPT2", GPT2, "eager", ("causal", "mask bf16 loaded", "every query sees every key")),
}
QUICK = "mistral-sdpa"


def model(name: str, sizes: dict[str, Any], implementation: str) -> torch.nn.Module:
    config = getattr(transformers, f"{name}Config")(**sizes, attn_implementation=implementation)
    return getattr(transformers, f"{name}Model")(config).to(torch.bfloat16).eval()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == QUICK else pytest.mark.nightly) for n in CASES]
)
def test_a_prompt_padding_and_a_token(name: str) -> None:
    *how, (prompt, padded, token) = CASES[name]
    net, recorder = model(*how), Recorder(compare=False)
    tokens, attention_mask = torch.randint(1, 64, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    attention_mask[0, :3] = 0
    caches = [transformers.DynamicCache(config=net.config) for _ in range(2)]
    with torch.no_grad():
        runs = torch.compile(net, backend=recorder, dynamic=False), net
        cached = [run(tokens, past_key_values=cache) for run, cache in zip(runs, caches, strict=True)]
        more = [run(tokens[:, :1], past_key_values=cache) for run, cache in zip(runs, caches, strict=True)]
        torch._dynamo.reset()
        masked = [run(tokens, attention_mask=attention_mask, use_cache=False) for run in runs]
    for mine, theirs in (cached, more, masked):
        a, b = (
            out.last_hidden_state[:, 3:] if out is masked else out.last_hidden_state for out in (mine, theirs)
        )
        assert (a - b).norm() <= 2**-5 * b.norm()
    details = [c.detail for report in recorder.reports for c in report.nodes if c.family == "sdpa"]
    assert details == [prompt, token, padded]
    assert all(c.reason is None for report in recorder.reports for c in report.nodes if c.family == "sdpa")


@pytest.mark.parametrize(
    "name",
    [
        "GPTNeoX",
        pytest.param("Llama", marks=pytest.mark.nightly),
        pytest.param("OPT", marks=pytest.mark.nightly),
    ],
)
def test_training_of_attention_written_by_hand(name: str) -> None:
    """Gradients as those of a path twice as long; biases of keys have none but roundings, as softmaxes cancel them."""
    sizes = {size: SIZES[size] for size in SIZES if size not in ("num_key_value_heads", "head_dim")}
    if name == "OPT":
        sizes |= {"ffn_dim": 32, "word_embed_proj_dim": 32, "dropout": 0.0}
    config = getattr(transformers, f"{name}Config")(**sizes, attn_implementation="eager")
    net = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.bfloat16).train()
    tokens, recorder, gradients = torch.randint(1, 64, (2, 9)), Recorder(compare=False), []
    for run in (torch.compile(net, backend=recorder), net):
        net.zero_grad()
        run(tokens, labels=tokens, use_cache=False).loss.backward()
        gradients.append({n: p.grad.float() for n, p in net.named_parameters() if "k_proj.bias" not in n})
    for parameter, exact in gradients[1].items():
        assert (gradients[0][parameter] - exact).norm() <= 2**-3 * exact.norm(), parameter
    assert recorder.families()["sdpa"] == recorder.families()["sdpa_backward"] == (1, 0)
