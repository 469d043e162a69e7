"""A profile as one HTML file, without scripts and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from flycc.cli.output import printable
from flycc.cli.profile import Launch, Profile
from flycc.cli.profile_style import CSS
from flycc.cli.profile_svg import Timeline, element, roofline
from flycc.cli.profile_table import causes, facts, left_out_note, limit_text, rate_text
from flycc.costmodel import MI350, Interval, timeline
from flycc.costmodel.prediction import InstructionCost, LoopCost, Prediction
from flycc.costmodel.roofline import bandwidth_tb_s

#: Shares below this get no part of a bar and no entry of its legend.
_SMALL = 0.002
#: Share of a kernel's time at which an instruction is tinted most.
_HOTTEST = 0.05
#: Rows of the table of waits.
_WAITS = 10
_MEANINGS = {
    "mfma": "matrix instructions, or waiting for the matrix pipe",
    "valu": "vector instructions, or waiting for their pipe",
    "trans": "transcendental instructions",
    "salu": "scalar instructions",
    "lds": "issuing LDS instructions, or waiting for room in the LDS queue",
    "global": "issuing global memory instructions, or waiting for room in the L1 queue",
    "scalar": "issuing scalar loads",
    "branch": "branches",
    "issue": "waiting for an issue slot; synchronisation instructions",
    "wait-vm": "s_waitcnt for global memory",
    "wait-lgkm": "s_waitcnt for LDS or scalar loads",
    "barrier": "waiting for other waves at s_barrier",
    "dependency": "waiting for the result of a matrix instruction",
    "start": "until the first instruction of a workgroup",
    "tail": "the mean compute unit has no more work",
    "launch": "launching the kernel",
}


def page(profile: Profile) -> str:
    """The whole document."""
    body = [
        element("h1", escape(f"Profile of {profile.subject}")),
        element(
            "p",
            "All figures are <b>modelled</b> by flycc for one MI350 (gfx950), not measured. "
            "Beside a time stands the interval that the model is sure of.",
            class_="quiet",
        ),
        *([_overview(profile)] if profile.several else []),
        *(_launch(number, launch) for number, launch in enumerate(profile.launches)),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(profile.subject)}: flycc profile</title><style>{CSS}</style>"
    )
    content = "\n".join(body)
    return printable(
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body><main>{content}</main></body></html>\n'
    )


def _overview(profile: Profile) -> str:
    shares = profile.shares()
    rows = [
        [
            element("a", escape(launch.title), href=f"#kernel-{number}"),
            str(launch.count),
            _interval(launch.prediction.device_us),
            _meter(share),
        ]
        for number, (launch, share) in enumerate(zip(profile.launches, shares, strict=True))
    ]
    parts = [
        _cards([("all kernels", f"{profile.total.typical:.1f} us", _range(profile.total))]),
        element("h3", "Kernels"),
        _table(("kernel", "launches", "us each, on the device", "share of the time"), rows, "l r r l"),
    ]
    if profile.on_pytorch:
        left = [[str(count), escape(what), escape(why)] for count, what, why in profile.on_pytorch]
        parts += [
            element("h3", "On PyTorch, not modelled"),
            _table(("ops", "what", "why"), left, "r l l"),
        ]
    if profile.left_out:
        parts.append(element("p", escape(left_out_note(profile)), class_="quiet"))
    return element("section", "".join(parts))


def _launch(number: int, launch: Launch) -> str:
    found = launch.prediction
    parts = [
        element("h2", escape(launch.title)),
        _cards(_figures(launch)),
        element("h3", "Where the modelled time goes"),
        _stack(causes(found)),
        _legend(causes(found)),
        element("div", _rates(found), class_="columns"),
    ]
    if found.by_loop:
        parts += [element("h3", "Loops"), _loops(found.by_loop)]
    parts += [*_timelines(launch), element("h3", "Longest waits"), _waits(number, found)]
    parts += [element("h3", "Instructions"), _disassembly(number, found)]
    told = [element("dt", escape(name)) + element("dd", escape(text)) for name, text in facts(launch)]
    parts.append(element("details", element("summary", "All figures") + element("dl", "".join(told))))
    return element("section", "".join(parts), id=f"kernel-{number}")


def _figures(launch: Launch) -> list[tuple[str, str, str]]:
    found, occupied = launch.prediction, launch.prediction.occupancy
    figures = [
        ("time", f"{found.time.typical:.1f} us", _range(found.time)),
        ("on the device", f"{found.device_us.typical:.1f} us", _range(found.device_us)),
        ("rounds", str(found.rounds), f"{found.workgroups:,} workgroups on {MI350.cus} compute units"),
        (
            "waves on a SIMD",
            f"{occupied.waves_per_simd:g}",
            f"workgroups on a compute unit: {occupied.workgroups_per_cu}, limited by {occupied.limit}",
        ),
    ]
    if found.flops:
        figures.append(("matrix rate", f"{rate_text(found.tflops)} TFLOP/s", "padding included"))
    return [*figures, ("out of L2", f"{found.tb_s['l2']:.2f} TB/s", f"HBM {found.tb_s['hbm']:.2f} TB/s")]


def _rates(found: Prediction) -> str:
    limits = bandwidth_tb_s()
    rows = [
        [
            element("i", " ", class_=f"key level-{level}") + escape(level),
            f"{count / 1e6:.4g}",
            f"{found.tb_s[level]:.2f}",
            limit_text(limits.get(level)),
        ]
        for level, count in found.bytes.items()
    ]
    busy = [[escape(name), _meter(share)] for name, share in found.utilisation.items()]
    tables = (
        element("h3", "Memory")
        + _table(("level", "MB", "TB/s", "of at most"), rows, "l r r r")
        + element("h3", "How long each part of a compute unit is busy")
        + _table(("part", "share of the clocks"), busy, "l l")
    )
    drawn = element("h3", "Roofline") + roofline(found) if found.flops else ""
    return (element("div", drawn) if drawn else "") + element("div", tables)


def _loops(loops: Sequence[LoopCost]) -> str:
    rows = [
        [
            f"<code>{loop.first:x}</code> to <code>{loop.last:x}</code>",
            f"{loop.iterations:,.0f}",
            f"{loop.clk_per_iteration:,.0f}",
            f"{loop.share:.1%}",
            _stack(list(loop.breakdown.items())),
        ]
        for loop in sorted(loops, key=lambda loop: -loop.share)
    ]
    return _table(
        ("loop", "turns of a wave", "clk a turn", "of the time", "where it goes"), rows, "l r r r w"
    )


def _timelines(launch: Launch) -> list[str]:
    events = timeline(launch.trace)
    if not events:
        return []
    drawn = Timeline(launch, events)
    begin, end = drawn.window()
    some = f", the first {drawn.shown} of {drawn.waves} waves" if drawn.shown < drawn.waves else ""
    title = element(
        "h3", f"One compute unit in the launch's first round, {MI350.hypotheses[0].name}, modelled{some}"
    )
    if end - begin == drawn.end:
        return [title, drawn.close()]
    within = element("h4", f"Clocks {begin:,} to {end:,} of them, every instruction")
    return [title, drawn.whole(), within, drawn.close()]


def _waits(number: int, found: Prediction) -> str:
    total = _wave_clk(found)
    costs = sorted(found.by_instruction, key=lambda cost: -cost.stall_clk)[:_WAITS]
    rows = [
        [
            f"{cost.stall_clk / total:.1%}",
            f'<i class="key c-{escape(cost.stall_cause)}"></i>{escape(cost.stall_cause)}',
            f'<a href="#{_anchor(number, cost)}"><code>{cost.address:x}</code></a>',
            element("code", escape(cost.text)),
        ]
        for cost in costs
        if cost.stall_clk
    ]
    return _table(("of the time", "waits for", "address", "instruction"), rows, "r l r l")


def _wave_clk(found: Prediction) -> float:
    return sum(cost.issue_clk + cost.stall_clk for cost in found.by_instruction)


def _anchor(number: int, cost: InstructionCost) -> str:
    return f"kernel-{number}-{cost.address:x}"


def _disassembly(number: int, found: Prediction) -> str:
    total = _wave_clk(found)
    rows = []
    for cost in found.by_instruction:
        share = (cost.issue_clk + cost.stall_clk) / total
        executed = cost.issue_clk / MI350.slot_clk
        cells = [
            (f"{cost.address:x}", "r"),
            (f"{cost.count:,.0f}", "r"),
            (f"{(cost.issue_clk + cost.stall_clk) / executed:,.0f}", "r"),
            (f"{share:.1%}" if share >= 0.0005 else "", "r"),
            (escape(cost.stall_cause) if cost.stall_clk else "", "l"),
            (escape(cost.text), "l"),
        ]
        rows.append(
            element(
                "tr",
                "".join(f'<td class="{side}">{content}</td>' for content, side in cells),
                id=_anchor(number, cost),
                class_=_loop_class(cost),
                style=f"--heat:{min(1.0, share / _HOTTEST):.3f}",
            )
        )
    names = ("address", "times", "clk each", "of the time", "waits for", "instruction")
    head = "".join(f"<th>{name}</th>" for name in names)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    told = "Times a wave executes it; clk of a wave for each time, its wait included. A bar at the left: in a loop."
    return element("p", told, class_="quiet") + element("div", table, class_="code")


def _loop_class(cost: InstructionCost) -> str:
    return f"loop loop-{cost.loop % 3}" if cost.loop >= 0 else "straight"


def _stack(shares: Iterable[tuple[str, float]]) -> str:
    parts = [
        f'<span class="c-{escape(cause)}" style="flex:{share:.4f} 0 0" title="{escape(cause)} {share:.1%}"></span>'
        for cause, share in shares
        if share >= _SMALL
    ]
    return f'<div class="stack">{"".join(parts)}</div>'


def _legend(shares: Iterable[tuple[str, float]]) -> str:
    items = [
        f'<li title="{escape(_MEANINGS.get(cause, cause))}"><i class="key c-{escape(cause)}"></i>'
        f"{escape(cause)} <b>{share:.1%}</b></li>"
        for cause, share in shares
        if share >= _SMALL
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _cards(figures: Iterable[tuple[str, str, str]]) -> str:
    cards = [
        f'<div class="card"><span>{escape(name)}, modelled</span><b>{escape(value)}</b>'
        f"<span>{escape(more)}</span></div>"
        for name, value, more in figures
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _meter(share: float) -> str:
    return f'<div class="meter"><span style="width:{min(1.0, share):.1%}"></span><b>{share:.1%}</b></div>'


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], sides: str) -> str:
    """`rows` are markup; `sides` has a class for each column: left, right, or wide."""
    side = sides.split()
    head = "".join(f'<th class="{s}">{escape(name)}</th>' for name, s in zip(names, side, strict=True))
    lines = [
        "<tr>" + "".join(f'<td class="{s}">{cell}</td>' for cell, s in zip(row, side, strict=True)) + "</tr>"
        for row in rows
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _interval(time: Interval) -> str:
    return f"{time.typical:.1f} <small>{_range(time)}</small>"


def _range(time: Interval) -> str:
    return f"{time.low:.1f} to {time.high:.1f} us"
