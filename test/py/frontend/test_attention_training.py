"""A small transformers model, with random weights, trains through flycc's kernels, and decodes with a growing cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from flycc import record
from flycc.runtime import loading

transformers = pytest.importorskip("transformers")

LAYERS = 2


def llama(heads: int, kv_heads: int) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16 * heads,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=64,
        attn_implementation="sdpa",
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def test_two_steps_of_training_match_eager() -> None:
    """Losses and gradients are bf16 results of a few layers: each rounds by 2**-9 of its values, and the roundings
    of some 20 ops on a path, independent, add up to 2**-9 * sqrt(20) < 2**-6 of a gradient's norm; eager has as many
    of its own, and the second step begins where the first left off, so 2**-4 is above, and what a wrong gradient of
    attention would change is of the order of 1.
    """
    eager = llama(heads=4, kv_heads=2).train()
    ours = copy.deepcopy(eager)
    tokens = torch.randint(64, (1, 9))
    expected = list(train(eager, eager, tokens))
    with record.collect() as recorded:
        actual = list(train(torch.compile(ours, backend="flycc"), ours, tokens))
    assert not recorded.launch_refusals
    for family in ("sdpa", "sdpa_backward"):
        counts = recorded.families()[family]
        assert (counts["kernel"], counts["fallback"]) == (LAYERS, 0), counts
    for (loss, gradients), (exact_loss, exact) in zip(actual, expected, strict=True):
        assert abs(loss - exact_loss) <= 2**-6 * exact_loss
        for name in exact:
            assert (gradients[name] - exact[name]).norm() <= 2**-4 * exact[name].norm(), name


def train(
    run: Callable[..., Any], model: torch.nn.Module, tokens: Tensor
) -> Iterator[tuple[float, dict[str, Tensor]]]:
    """The loss and the gradients of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = run(tokens, labels=tokens).loss
        loss.backward()
        yield float(loss.detach()), {name: p.grad.float() for name, p in model.named_parameters()}
        optimizer.step()


def test_decoding_with_a_growing_cache_compiles_nothing_after_the_third_token() -> None:
    """Heads 9:3, as SmolLM2's; a graph for the prompt, one for a token, one for a cache of any length."""
    model, graphs, code_objects = llama(heads=9, kv_heads=3).eval(), [], []
    caches = [transformers.DynamicCache(config=model.config) for _ in range(2)]
    tokens = torch.randint(64, (1, 13))
    with record.collect() as recorded, torch.no_grad():
        runs = torch.compile(model, backend="flycc"), model
        for _ in range(7):
            actual, expected = (
                run(tokens, past_key_values=cache, use_cache=True).logits
                for run, cache in zip(runs, caches, strict=True)
            )
            # As gradients, whose path is twice as long.
            assert (actual - expected).norm() <= 2**-5 * expected.norm()
            tokens = expected[:, -1:].argmax(-1)
            graphs.append(len(recorded.graphs))
            code_objects.append(loading.load.cache_info().misses)
    assert graphs == [1, 2, 3, 3, 3, 3, 3]
    assert len(set(code_objects[2:])) == 1, code_objects
    assert not recorded.launch_refusals
    counts = recorded.families()["sdpa"]
    assert (counts["kernel"], counts["fallback"]) == (LAYERS * 3, 0), counts
