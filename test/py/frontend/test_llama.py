"""A whole transformers model, small and with random weights, goes through in inference and in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend_graphs import Recorder

transformers = pytest.importorskip("transformers")

LAYERS = 2
#: Of one decoder layer: q, k, v, o, gate, up and down projections.
LINEARS = 7 * LAYERS + 1


def model(**overrides: object) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
        **overrides,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def test_inference_serves_every_linear_layer_at_every_length() -> None:
    llama, recorder = model().eval(), Recorder()
    compiled = torch.compile(llama, backend=recorder, dynamic=True)
    with torch.no_grad():
        for length in (5, 9, 12):
            tokens = torch.randint(64, (2, length))
            assert torch.equal(compiled(tokens).logits, llama(tokens).logits)
    assert len(recorder.graphs) == 1
    assert recorder.families()["gemm"] == (LINEARS, 0)
    assert recorder.families()["sdpa"] == (LAYERS, 0)


def test_training_gives_eagers_gradients() -> None:
    llama, recorder = model().train(), Recorder()
    tokens = torch.randint(64, (2, 6))
    gradients = []
    for run in (torch.compile(llama, backend=recorder), llama):
        llama.zero_grad()
        run(tokens, labels=tokens).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in llama.named_parameters()})
    mine, theirs = gradients
    for name in theirs:
        # AOTAutograd sums the gradients of a value used several times in its own order, in bf16: each of
        # the few sums on a path rounds by 2**-9 of the value, so 2**-5 of the largest entry is far above.
        difference = (mine[name].float() - theirs[name].float()).abs().max()
        assert difference <= 2**-5 * theirs[name].float().abs().max(), name
    assert recorder.families()["gemm"] == (3 * LINEARS, 0)
    assert recorder.families()["sdpa"] == recorder.families()["sdpa_backward"] == (LAYERS, 0)


def test_decoding_with_a_growing_cache_stops_compiling() -> None:
    """One graph for the prompt, one for a single token, one more when the cache's length turns dynamic."""
    llama, recorder = model().eval(), Recorder()
    prompt = torch.randint(64, (1, 7))
    mine = decode(torch.compile(llama, backend=recorder), llama.config, prompt, steps=8)
    assert mine == decode(llama, llama.config, prompt, steps=8)
    assert len(recorder.graphs) <= 3
    graphs = len(recorder.graphs)
    assert recorder.families()["gemm"] == (LINEARS * graphs, 0)
    assert recorder.families()["sdpa"] == (LAYERS * graphs, 0)


def decode(run: Callable[..., Any], config: Any, prompt: torch.Tensor, steps: int) -> list[int]:
    tokens, cache, answer = prompt, transformers.DynamicCache(config=config), []
    with torch.no_grad():
        for _ in range(steps):
            logits = run(tokens, past_key_values=cache, use_cache=True).logits
            tokens = logits[:, -1:].argmax(-1)
            answer.append(int(tokens))
    return answer
