"""The record of what flycc did: every candidate op of every graph, the kernel it got or the Reason it did not."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch._dynamo.callback import callback_handler
from torch._dynamo.utils import counters

from flycc.contracts import Reason
from flycc.frontend.report import Report
from flycc.runtime import refusals, scale_guard
from flycc.runtime.devices import device_for
from flycc.scales.ranges import Range

_active: list[Record] = []
_lock = threading.Lock()
#: Per thread, the seconds of the phases that ended inside the one that runs.
_inside = threading.local()


@dataclass(frozen=True, slots=True)
class Graph:
    """One compiled ATen graph: "forward", "backward" or "inference", and what became of its candidate ops."""

    kind: str
    report: Report

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {"kind": self.kind, **self.report.to_json()}


@dataclass(slots=True)
class GuardCount:
    """How often a product's scale guard held and failed at run time, and between which bytes it saw the scales.

    `spread` is the widest it saw, and `missed` counts the bounds that were not kept.
    """

    held: int = 0
    failed: int = 0
    a: Range | None = None
    b: Range | None = None
    spread: int = 0
    missed: dict[str, int] = field(default_factory=dict)

    def add(self, verdict: scale_guard.Verdict) -> None:
        """Count one more verdict."""
        self.held += verdict.holds
        self.failed += not verdict.holds
        self.a = verdict.a if self.a is None else self.a | verdict.a
        self.b = verdict.b if self.b is None else self.b | verdict.b
        self.spread = max(self.spread, verdict.spread)
        for bound in verdict.missed:
            self.missed[bound] = self.missed.get(bound, 0) + 1

    def __str__(self) -> str:
        bounds = ", ".join(f"{bound} ({count} times)" for bound, count in self.missed.items())
        return (
            f"held {self.held} times, failed {self.failed} times; bytes of a in {self.a}, of b in {self.b}, "
            f"spread {self.spread}{'; missed: ' if bounds else ''}{bounds}"
        )


@dataclass
class Record:
    """All graphs compiled, and all launches refused, while it was collecting.

    `phase_seconds` is wall time by phase of our own pipeline; `compile_seconds` is the whole of compilation, with
    Dynamo's and AOTAutograd's share. `notes` counts what kept code from larger graphs or better ops: Dynamo's graph
    breaks, and loops over experts that stay loops. `device` is the name of the device that CPU tensors' kernels run
    on. `scale_guards` are the verdicts of guards by where the product is, as in "graph 0, mm"; graphs that were
    compiled before are not numbered among those recorded.
    """

    device: str
    graphs: list[Graph] = field(default_factory=list)
    launch_refusals: dict[Reason, int] = field(default_factory=dict)
    notes: dict[Reason, int] = field(default_factory=dict)
    scale_guards: dict[str, GuardCount] = field(default_factory=lambda: defaultdict(GuardCount))
    phase_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    compile_seconds: float = 0.0

    def where(self, product: str) -> str:
        """Where a guarded product is, given its graph's number in this process and its node's name."""
        number, _, node = product.rpartition(".")
        for index, graph in enumerate(self.graphs):
            if str(graph.report.number) == number:
                return f"graph {index}, {node}"
        return f"a graph compiled before, {product}"

    def families(self) -> dict[str, dict[str, Any]]:
        """{family: {kernel, fallback, reasons}} over all graphs, in alphabetical order, "other" last."""
        counts: dict[str, dict[str, Any]] = {}
        for graph in self.graphs:
            for candidate in graph.report.nodes:
                entry = counts.setdefault(candidate.family, {"kernel": 0, "fallback": 0, "reasons": []})
                entry["fallback" if candidate.kernel is None else "kernel"] += 1
                if candidate.reason and candidate.reason.sentence not in entry["reasons"]:
                    entry["reasons"].append(candidate.reason.sentence)
        result = dict(sorted(counts.items()))
        others: dict[str, int] = defaultdict(int)
        for graph in self.graphs:
            for target, count in graph.report.others.items():
                others[target] += count
        if others:
            kinds = sorted(others, key=lambda target: -others[target])
            more = f" and {len(kinds) - 3} more" if len(kinds) > 3 else ""
            sentence = f"no kernel family covers {', '.join(kinds[:3])}{more}"
            result["other"] = {"kernel": 0, "fallback": sum(others.values()), "reasons": [sentence]}
        return result

    def to_json(self) -> dict[str, Any]:
        """The same as the printed report, for programs."""
        return {
            "graphs": [graph.to_json() for graph in self.graphs],
            "families": self.families(),
            "launch_refusals": _counted(self.launch_refusals),
            "notes": _counted(self.notes),
            "scale_guards": {product: asdict(count) for product, count in self.scale_guards.items()},
            "phase_s": dict(self.phase_seconds),
            "compile_s": self.compile_seconds,
        }


def _counted(reasons: dict[Reason, int]) -> list[dict[str, Any]]:
    return [
        {"code": reason.code, "sentence": reason.sentence, "count": count}
        for reason, count in reasons.items()
    ]


def _graph_breaks() -> Counter[str]:
    """What Dynamo counted so far: its explanations of graph breaks and of frames that it left to Python."""
    return Counter(counters["unimplemented"]) | Counter(counters["graph_break"])


def _graph_break(explanation: str) -> Reason:
    sentence = " ".join(explanation.partition("For more details")[0].split())
    if "aten.nonzero" in explanation:
        sentence += (
            ". A loop over experts that asks who chose them stays Python for that, without kernels: models of "
            'transformers have none with experts_implementation="grouped_mm"'
        )
    return Reason("dynamo.graph-break", sentence)


@contextmanager
def collect() -> Iterator[Record]:
    """Record what every `flycc` compilation and launch in this process does while the block runs."""
    record = Record(device=device_for(torch.device("cpu")).name)
    started = 0.0
    breaks_before = _graph_breaks()

    def on_start(_: Any) -> None:
        nonlocal started
        started = time.perf_counter()

    def on_end(_: Any) -> None:
        record.compile_seconds += time.perf_counter() - started

    def on_refusal(reason: Reason) -> None:
        record.launch_refusals[reason] = record.launch_refusals.get(reason, 0) + 1

    def on_verdict(verdict: scale_guard.Verdict) -> None:
        record.scale_guards[record.where(verdict.product)].add(verdict)

    callback_handler.register_start_callback(on_start)
    callback_handler.register_end_callback(on_end)
    with _lock:
        _active.append(record)
    try:
        with refusals.listening(on_refusal), scale_guard.listening(on_verdict):
            yield record
    finally:
        with _lock:
            _active.remove(record)
        for explanation, count in (_graph_breaks() - breaks_before).items():
            reason = _graph_break(explanation)
            record.notes[reason] = record.notes.get(reason, 0) + count
        # `torch._dynamo.reset()` inside the block has removed them already.
        if on_start in callback_handler.start_callbacks:
            callback_handler.remove_start_callback(on_start)
        if on_end in callback_handler.end_callbacks:
            callback_handler.remove_end_callback(on_end)


def add_graph(kind: str, report: Report) -> None:
    """Hand the report of one compiled graph to whoever collects."""
    with _lock:
        for record in _active:
            record.graphs.append(Graph(kind, report))


def add_notes(reasons: Iterable[Reason]) -> None:
    """Hand what was noticed about one Dynamo graph to whoever collects."""
    with _lock:
        for record in _active:
            for reason in reasons:
                record.notes[reason] = record.notes.get(reason, 0) + 1


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Add the wall time of the block, less that of phases inside it, to `phase_seconds[name]` of whoever collects."""
    outer = getattr(_inside, "seconds", 0.0)
    _inside.seconds = 0.0
    started = time.perf_counter()
    try:
        yield
    finally:
        elapsed = time.perf_counter() - started
        with _lock:
            for record in _active:
                record.phase_seconds[name] += elapsed - _inside.seconds
        _inside.seconds = outer + elapsed
