"""Small mixture-of-experts models of transformers, with random weights, run on grouped products and match PyTorch.

Both bfloat16 runs, flycc's and eager PyTorch's, are held against the float64 model whose experts are a loop. They round
to bfloat16 at the same places, but for flycc's fused norms that round less often, and differ in the order of float32
sums; so eager's error is one draw of what those roundings do to a result, and flycc's another. It may be twice as
large, and 2**-6 of the largest value (8 roundings) more, for draws in which eager's happen to cancel.

An expert that another rounding would choose changes the result by more than any rounding. So tokens are drawn for which
the float64 model chooses every expert by more than `CLEAR` of the token's largest router logit: 32 roundings in a row
that all err to the same side do not change that choice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flycc
from flycc.record import collect

transformers = pytest.importorskip("transformers")

EXPERTS, CHOSEN = 8, 2
CLEAR = 2**-4
STRICT = {"strict": True}
COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "num_experts_per_tok": CHOSEN,
    # Router logits must differ by more than roundings: weights are larger than those of a model to be trained.
    "initializer_range": 0.2,
}
GROUPED = {"num_key_value_heads": 2}
CONFIGS: dict[str, Callable[[int], Any]] = {
    "mixtral": lambda layers: transformers.MixtralConfig(
        intermediate_size=48, num_local_experts=EXPERTS, num_hidden_layers=layers, **COMMON, **GROUPED
    ),
    "qwen3-moe": lambda layers: transformers.Qwen3MoeConfig(
        intermediate_size=48,
        moe_intermediate_size=24,
        num_experts=EXPERTS,
        head_dim=16,
        num_hidden_layers=layers,
        **COMMON,
        **GROUPED,
    ),
    "qwen2-moe": lambda layers: transformers.Qwen2MoeConfig(
        moe_intermediate_size=24,
        shared_expert_intermediate_size=40,
        num_experts=EXPERTS,
        num_hidden_layers=layers,
        **COMMON,
        **GROUPED,
    ),
    "olmoe": lambda layers: transformers.OlmoeConfig(
        intermediate_size=24, num_experts=EXPERTS, num_hidden_layers=layers, **COMMON, **GROUPED
    ),
    "gpt-oss": lambda layers: transformers.GptOssConfig(
        intermediate_size=24,
        num_local_experts=EXPERTS,
        head_dim=16,
        num_hidden_layers=layers,
        **COMMON,
        **GROUPED,
    ),
}


class Models:
    """One model with three copies of its weights: bfloat16 for flycc and for eager PyTorch, and float64."""

    def __init__(self, name: str, layers: int) -> None:
        config = CONFIGS[name](layers)
        model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="grouped_mm")
        self.eager = model.to(torch.bfloat16).eval()
        self.exact = copy.deepcopy(self.eager).double()
        self.exact.set_experts_implementation("eager")
        self.compiled = torch.compile(self.eager, backend="flycc", options=STRICT)

    def clear_tokens(self, length: int) -> Tensor:
        """Tokens [1, `length`] whose experts are chosen clearly; a token's depend on those before it alone."""
        tokens = torch.empty(1, 0, dtype=torch.int64)
        while tokens.shape[1] < length:
            for token in torch.randperm(64):
                longer = torch.cat([tokens, token.view(1, 1)], 1)
                with torch.no_grad():
                    routers = self.exact(longer, output_router_logits=True, use_cache=False).router_logits
                if all(_is_clear(router.view(-1, router.shape[-1])[-1]) for router in routers):
                    tokens = longer
                    break
            else:
                raise AssertionError(f"no token after {tokens.tolist()} makes clear choices")
        return tokens


def _is_clear(router: Tensor) -> bool:
    """Whether the logits [experts] of a token's router leave no doubt."""
    best = router.sort(-1, descending=True).values
    return bool(best[CHOSEN - 1] - best[CHOSEN] > CLEAR * router.abs().max())


def assert_as_close_as_eager(errors: dict[str, float], what: str) -> None:
    print(f"{what}: flycc {errors['compiled']:.4f}, eager {errors['eager']:.4f}")
    assert errors["eager"] <= 2**-2, f"{what}: too far off for a comparison"
    assert errors["compiled"] <= 2 * errors["eager"] + 2**-6, what


def kernels(record: flycc.Record) -> dict[str, tuple[int, int]]:
    """How many candidates of a family got a kernel and how many did not."""
    return {name: (count["kernel"], count["fallback"]) for name, count in record.families().items()}


def names(*quick: str) -> list[Any]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.nightly) for name in CONFIGS]


@pytest.mark.parametrize("name", names("qwen3-moe"))
def test_prefill_and_decode(name: str) -> None:
    """One token chooses two of eight experts, so that while decoding most groups are empty."""
    layers = 2
    models = Models(name, layers)
    tokens = models.clear_tokens(9)
    steps = tokens[:, :8], tokens[:, 8:]
    logits: dict[str, list[Tensor]] = {}
    with collect() as record, torch.no_grad():
        for run in ("compiled", "eager", "exact"):
            cache, model = transformers.DynamicCache(config=models.eager.config), getattr(models, run)
            logits[run] = [model(step, past_key_values=cache, use_cache=True).logits for step in steps]
    for mine, theirs, exact in zip(*logits.values(), strict=True):
        off = {"compiled": mine - exact, "eager": theirs - exact}
        errors = {run: float(error.abs().max() / exact.abs().max()) for run, error in off.items()}
        assert_as_close_as_eager(errors, f"logits of {mine.shape[1]} tokens")
    assert len(record.graphs) == 2
    served = kernels(record)
    assert served["grouped_gemm"] == (2 * 2 * layers, 0)
    assert served["gemm"][1] == 0
    # One selection a router; the other sorts order tokens by expert, as a whole.
    nodes = [node for graph in record.graphs for node in graph.report.nodes]
    assert [n.kernel for n in nodes if n.target == "aten.topk.default"] == ["flycc::topk"] * 2 * layers
    assert not record.launch_refusals


@pytest.mark.parametrize("name", names("mixtral"))
def test_a_training_step(name: str) -> None:
    models = Models(name, layers=1)
    tokens = models.clear_tokens(8)
    gradients: dict[str, dict[str, Tensor]] = {}
    with collect() as record:
        for run in ("compiled", "eager", "exact"):
            getattr(models, run)(tokens, labels=tokens, use_cache=False).loss.backward()
            weights = models.exact if run == "exact" else models.eager
            gradients[run] = {key: weight.grad.double() for key, weight in weights.named_parameters()}
            weights.zero_grad()
    for key, exact in gradients["exact"].items():
        off = {run: gradients[run][key] - exact for run in ("compiled", "eager")}
        assert_as_close_as_eager(
            {run: float(error.norm() / exact.norm()) for run, error in off.items()}, f"gradient of {key}"
        )
    served = kernels(record)
    # Each of the two products of a layer has two gradients.
    assert served["grouped_gemm"] == (6, 0)
    assert served["gemm"][1] == 0
    assert not record.launch_refusals
