"""What attention of a graph became, in words for reports."""

from __future__ import annotations

from torch_mlir.ir import OpView, Value

from flycc.dialects import SdpaBackwardOp, SdpaOp
from flycc.dialects.constants import constant
from flycc.dialects.sdpa import four
from flycc.dialects.sizes import known


def attention_text(op: OpView) -> str:
    """For example "causal, window 128, GQA 9:3, mask bf16 loaded"; "" for what is no attention."""
    if not isinstance(op, SdpaOp | SdpaBackwardOp):
        return ""
    heads, kv_heads = (four(known(x).dims)[1] for x in (op.query, op.key))
    parts = [*_band(op.lower, op.upper), *([] if heads == kv_heads else [f"GQA {heads}:{kv_heads}"])]
    if op.mask is not None:
        dtype = known(op.mask).dtype
        parts.append(f"mask {'bool' if dtype == 'i1' else dtype} loaded")
    if op.softcap.value:
        parts.append(f"softcap {op.softcap.value:g}")
    named = {"documents": op.query_documents, "ALiBi": op.slopes}
    parts += [name for name, value in named.items() if value is not None]
    if op.dropout_p.value:
        parts.append(f"dropout {op.dropout_p.value:g}")
    return ", ".join(parts) or "every query sees every key"


def _band(lower: Value | None, upper: Value | None) -> list[str]:
    first, last = (None if limit is None else _limit(limit) for limit in (lower, upper))
    text = []
    if last is not None:
        text.append("causal" if last == 0 else f"keys up to i + {last}")
    if first is not None:
        text.append(
            f"window {1 - first}" if isinstance(first, int) and last == 0 else f"keys from i + {first}"
        )
    return text


def _limit(limit: Value) -> int | str:
    number = constant(limit)
    return "a run-time number" if number is None else int(number)
