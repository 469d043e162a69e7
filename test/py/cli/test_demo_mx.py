"""`flycc demo --mx`: steps along given tokens, and numbers that are the format's."""

from __future__ import annotations

import argparse
import copy
import json
import os
from pathlib import Path

import pytest
import torch
from mx_layers import quantise_layers
from torch import Tensor, nn

from flycc.cli import demo


def compiled(model: nn.Module, mx: str) -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(model, backend="flycc", options={"mx": mx, "mx_keep": demo.MX_KEEP})


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


def quantised(model: nn.Module, mx: str) -> nn.Module:
    made = copy.deepcopy(model)
    quantise_layers(made, mx, demo.MX_KEEP)
    return made


def small() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(int(os.environ["FLYCC_TEST_SEED"]))
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 50}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "eos_token_id": 49}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).half().eval()


class Numbers:
    """A tokenizer."""

    def decode(self, tokens: list[int], **_: object) -> str:
        return " ".join(map(str, tokens))


def test_the_report_is_of_what_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch._dynamo.reset()
    model, prompt, file = small(), torch.randint(49, (1, 5)), tmp_path / "demo.json"
    args = argparse.Namespace(tokens=1, mx="mxfp8", prompt="?", json=str(file))
    demo.compare_mx(args, model, Numbers(), prompt, {"mx": "mxfp8", "mx_keep": demo.MX_KEEP})
    result = json.loads(file.read_text())
    plain, theirs = (
        demo.generate(run, prompt, 1, "again").logits[0] for run in (model, compiled(model, "mxfp8"))
    )
    assert result["rms_rel_logit_error"] == pytest.approx(relative(theirs, plain), rel=1e-6)
    assert result["tokens_agree"] == int(plain.argmax() == theirs.argmax())
    kernels = {name: counts["kernel"] for name, counts in result["ops"].items()}
    assert (kernels["scaled_gemm"], kernels["mx_weight"], kernels["gemm"]) == (7, 7, 1)
    printed = "".join(capsys.readouterr())
    assert "compiled     1 graphs" in printed
    assert "decode" not in printed.partition("compiled")[2]


def test_steps_along_given_tokens() -> None:
    """Of float16, so that roundings (2^-11) are small beside what quantising changes (2^-4).

    They may still turn single elements over, by an element's whole step: half of what the format changes is the bound.
    """
    model = small()
    prompt, along = torch.randint(49, (1, 5)), [7, 49, 3]
    runs = {
        name: demo.generate(run, prompt, 3, name, along=along)
        for name, run in (
            ("ours", compiled(model, "mxfp8")),
            ("theirs", quantised(model, "mxfp8")),
            ("plain", model),
        )
    }
    assert [len(run.tokens) for run in runs.values()] == [2, 2, 2]  # 49 ends the text
    ours, theirs, plain = (run.logits for run in runs.values())
    changed = demo.mx_errors(theirs, plain)
    errors = demo.mx_errors(ours, theirs)
    assert all(errors[name] <= changed[name] / 2 for name in errors)
    assert changed["rms_rel_logit_error"] == pytest.approx(
        relative(torch.stack(theirs), torch.stack(plain)), rel=1e-9
    )


@pytest.mark.nightly
@pytest.mark.parametrize("mx", ["mxfp8", "mxfp4"])
def test_smollm2_is_the_model_of_quantised_layers(mx: str) -> None:
    """As above, through 30 layers."""
    model, tokenizer = demo.load_model()
    model = model.half()
    prompt = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        plain, theirs, ours = (
            run(input_ids=prompt, use_cache=False).logits[0]
            for run in (model, quantised(model, mx), compiled(model, mx))
        )
    assert relative(ours, theirs) <= relative(theirs, plain) / 2
