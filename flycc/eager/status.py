"""What `flycc.eager.status()` returns."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from flycc.contracts import Reason

WIDTH = 80


@dataclass(frozen=True, slots=True)
class OpStatus:
    """Calls of one ATen operator: how many kernels served, and how many went to PyTorch, by reason.

    Each reason stands for all of its code. `devices` are the types of the devices it is overridden on now.
    """

    name: str
    devices: tuple[str, ...]
    served: int
    refused: dict[Reason, int]

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "devices": list(self.devices),
            "served": self.served,
            "refused": [
                {"code": reason.code, "sentence": reason.sentence, "count": count}
                for reason, count in self.refused.items()
            ],
        }


@dataclass(frozen=True, slots=True)
class Status:
    """All operators that eager mode knows. Counts are of this process, since it started."""

    ops: tuple[OpStatus, ...]

    def __getitem__(self, name: str) -> OpStatus:
        """The operator `name`. Raises KeyError."""
        for op in self.ops:
            if op.name == name:
                return op
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """{name: {devices, served, refused: [{code, sentence, count}]}}."""
        return {op.name: op.to_json() for op in self.ops}

    def __rich__(self) -> Table:
        table = Table(
            title="flycc.eager", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
        )
        for column in ("op", "on", "served", "refused"):
            table.add_column(column, no_wrap=True)
        table.add_column("why on PyTorch", overflow="fold", ratio=1)
        for op in self.ops:
            first, *others = op.refused.items() or [(None, 0)]
            table.add_row(op.name, ", ".join(op.devices) or "-", str(op.served), *_refusal(*first))
            for reason, count in others:
                table.add_row("", "", "", *_refusal(reason, count))
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=WIDTH, highlight=False, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _refusal(reason: Reason | None, count: int) -> tuple[str, str]:
    return str(count), "" if reason is None else str(reason)
