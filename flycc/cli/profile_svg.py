"""Charts of a profile as SVG text. Colours are those of the page's style sheet, by class."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

import numpy as np

from flycc.cli.profile import Launch
from flycc.costmodel import tracks
from flycc.costmodel.compute_unit import Event
from flycc.costmodel.prediction import Prediction
from flycc.costmodel.roofline import bandwidth_tb_s, matrix_peak_tflops
from flycc.emulator.isa.registers import UNITS

#: Of timelines: width of the plot and of the labels before it, height of a track, tracks that are drawn.
WIDTH, LABELS, TRACK, TRACKS = 880, 100, 14, 16
#: Turns of the main loop that the close view shows, and its width in clk at least and at most.
_TURNS, _LEAST, _MOST = 2, 400, 6000


def element(name: str, content: str = "", /, **attributes: object) -> str:
    """An element of which `content` is markup; `class_` is the attribute class, and `_` in names stands for `-`."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{given}>{content}</{name}>" if content else f"<{name}{given}/>"


def text(x: float, y: float, words: str, **attributes: object) -> str:
    return element("text", escape(words), x=_n(x), y=_n(y), **attributes)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _svg(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    content = element("title", escape(label)) + "".join(parts)
    return element("svg", content, viewBox=f"0 0 {_n(width)} {_n(height)}", role="img", class_="chart")


def roofline(found: Prediction) -> str:
    """TFLOP/s over FLOP for each byte of a level, both logarithmic; for kernels with MFMAs."""
    peak, limits = matrix_peak_tflops(found.by_instruction), bandwidth_tb_s()
    points = {level: found.flops / found.bytes[level] for level in limits if found.bytes[level]}
    left, top, width, height = 56, 14, 400, 250
    ridge = peak / min(least for least, _ in limits.values())  # where the last roof meets the peak
    low_x = math.floor(math.log10(min([1.0, *points.values()])))
    high_x = math.ceil(math.log10(max([4 * ridge, *points.values()])))
    low_y = math.floor(math.log10(max(1e-3, min(found.tflops, peak / 100))))
    high_y = math.log10(peak * 2)

    def at(x: float, y: float) -> tuple[float, float]:
        share_x = (math.log10(x) - low_x) / (high_x - low_x)
        share_y = (math.log10(y) - low_y) / (high_y - low_y)
        return left + width * share_x, top + height * (1 - share_y)

    parts = []
    for power in range(low_x, high_x + 1):
        x, _ = at(10.0**power, 10.0**low_y)
        parts.append(element("line", x1=_n(x), x2=_n(x), y1=top, y2=top + height, class_="grid"))
        parts.append(text(x, top + height + 16, f"{10.0**power:g}", class_="tick mid"))
    for power in range(low_y, math.floor(high_y) + 1):
        _, y = at(10.0**low_x, 10.0**power)
        parts.append(element("line", x1=left, x2=left + width, y1=_n(y), y2=_n(y), class_="grid"))
        parts.append(text(left - 6, y + 4, f"{10.0**power:g}", class_="tick end"))
    for level, (least, greatest) in limits.items():
        for bandwidth in sorted({least, greatest}):
            first, last = max(10.0**low_x, 10.0**low_y / bandwidth), peak / bandwidth
            (x1, y1), (x2, y2) = at(first, first * bandwidth), at(last, peak)
            dashed = " dashed" if bandwidth > least else ""
            parts.append(
                element(
                    "line",
                    element("title", escape(f"{level}: {bandwidth:g} TB/s")),
                    x1=_n(x1),
                    y1=_n(y1),
                    x2=_n(x2),
                    y2=_n(y2),
                    class_=f"roof level-{level}{dashed}",
                )
            )
    (x1, y1), (x2, _) = (
        at(peak / max(greatest for _, greatest in limits.values()), peak),
        at(10.0**high_x, peak),
    )
    parts.append(element("line", x1=_n(x1), x2=_n(x2), y1=_n(y1), y2=_n(y1), class_="roof peak"))
    parts.append(text(x2, y1 - 5, f"MFMA peak {peak:,.0f} TFLOP/s", class_="tick end"))
    for level, intensity in points.items():
        x, y = at(intensity, max(found.tflops, 10.0**low_y))
        told = f"{level}: {intensity:.0f} FLOP for each byte, modelled {found.tflops:.3g} TFLOP/s"
        parts.append(
            element(
                "circle",
                element("title", escape(told)),
                cx=_n(x),
                cy=_n(y),
                r=5,
                class_=f"point level-{level}",
            )
        )
    parts.append(
        text(left + width / 2, top + height + 34, "FLOP for each byte out of a level", class_="tick mid")
    )
    turned = f"rotate(-90 14 {top + height // 2})"
    parts.append(text(14, top + height / 2, "modelled TFLOP/s", class_="tick mid", transform=turned))
    return _svg(left + width + 20, top + height + 40, "Roofline, modelled", parts)


class Timeline:
    """The waves of one compute unit: all of its first round, and a close view of the main loop."""

    def __init__(self, launch: Launch, events: Sequence[Event]) -> None:
        self._launch, self._events = launch, events
        self._tracks = tracks.tracks(launch.trace, events)
        self.end = max(event.end for event in events)
        self.shown = min(TRACKS, len(self._tracks))

    @property
    def waves(self) -> int:
        return len(self._tracks)

    def whole(self) -> str:
        """What each wave does for most of the time of each column of pixels."""
        parts: list[str] = []
        clk = self.end / WIDTH
        for row, (wave, slices) in enumerate(list(self._tracks.items())[:TRACKS]):
            parts.append(self._label(row, "group {}, wave {}".format(*wave)))
            causes = sorted({piece.cause for piece in slices})
            columns = np.zeros((len(causes), WIDTH))
            for piece in slices:
                spread(columns[causes.index(piece.cause)], piece.start / clk, piece.end / clk)
            busiest = np.where(columns.any(axis=0), columns.argmax(axis=0), -1)
            edges = [0, *(np.flatnonzero(np.diff(busiest)) + 1).tolist(), WIDTH]
            for first, last in pairwise(edges):
                if busiest[first] >= 0:
                    parts.append(self._bar(row, first, last, causes[busiest[first]], ""))
        return _svg(
            LABELS + WIDTH,
            self.shown * (TRACK + 2) + 22,
            "Timeline of the first round, modelled",
            [*parts, *self._axis(0, self.end, self.shown)],
        )

    def window(self) -> tuple[int, int]:
        """First and last clk of the close view: turns of the main loop in the middle, or where there is none."""
        loops = self._launch.prediction.by_loop
        turn = max(loops, key=lambda loop: loop.share).clk_per_iteration if loops else self.end
        width = int(min(max(_TURNS * turn, _LEAST), _MOST, self.end))
        first = (self.end - width) // 2
        return first, first + width

    def close(self) -> str:
        """Every instruction in `window`, and what the matrix pipes do."""
        begin, end = self.window()
        scale, rows = WIDTH / (end - begin), self.shown
        instructions = self._launch.trace.instructions
        parts: list[str] = []
        for row, (wave, slices) in enumerate(list(self._tracks.items())[:TRACKS]):
            parts.append(self._label(row, "group {}, wave {}".format(*wave)))
            for piece in slices:
                if piece.end <= begin or piece.start >= end:
                    continue
                first, last = (
                    (min(max(clk, begin), end) - begin) * scale for clk in (piece.start, piece.end)
                )
                what = f"{'waits for' if piece.stalled else 'executes'} {piece.cause}, {piece.end - piece.start} clk: "
                parts.append(
                    self._bar(
                        row, first, last, piece.cause, what + str(instructions["text"][piece.instruction])
                    )
                )
        is_mfma = instructions["unit"] == UNITS.index("MFMA")
        pipes = sorted({event.simd for event in self._events}) if is_mfma.any() else []
        for row, simd in enumerate(pipes, rows):
            parts.append(self._label(row, f"MFMAs of SIMD {simd}"))
            for event in self._events:
                if (
                    event.simd == simd
                    and is_mfma[event.instruction]
                    and begin < event.end
                    and event.issue < end
                ):
                    first, last = (
                        (min(max(clk, begin), end) - begin) * scale for clk in (event.issue, event.end)
                    )
                    parts.append(self._bar(row, first, last, "mfma", ""))
        rows += len(pipes)
        return _svg(
            LABELS + WIDTH,
            rows * (TRACK + 2) + 22,
            "Timeline of every instruction, modelled",
            [*parts, *self._axis(begin, end, rows)],
        )

    @staticmethod
    def _label(row: int, words: str) -> str:
        return text(0, row * (TRACK + 2) + TRACK - 3, words, class_="tick")

    @staticmethod
    def _bar(row: int, first: float, last: float, cause: str, told: str) -> str:
        return element(
            "rect",
            element("title", escape(told)) if told else "",
            x=_n(LABELS + first),
            y=row * (TRACK + 2),
            width=_n(max(last - first, 0.2)),
            height=TRACK,
            class_=f"c-{cause}",
        )

    @staticmethod
    def _axis(begin: int, end: int, rows: int) -> list[str]:
        y = rows * (TRACK + 2) + 14
        places = ((0.0, ""), (0.25, " mid"), (0.5, " mid"), (0.75, " mid"), (1.0, " end"))
        return [
            text(
                LABELS + WIDTH * share, y, f"{begin + (end - begin) * share:,.0f} clk", class_=f"tick{where}"
            )
            for share, where in places
        ]


def spread(columns: np.ndarray, first: float, last: float) -> None:
    """Add to each column how much of it lies between `first` and `last`."""
    a, b = int(first), min(int(last), len(columns) - 1)
    if a >= b:
        columns[b] += last - first
        return
    columns[a] += a + 1 - first
    columns[a + 1 : b] += 1
    columns[b] += last - b
