"""A profile as text of 80 columns."""

from __future__ import annotations

import textwrap

from flycc.cli.output import console, table
from flycc.cli.profile import Launch, Profile
from flycc.costmodel import MI350
from flycc.costmodel.prediction import Prediction
from flycc.costmodel.roofline import bandwidth_tb_s, matrix_peak_tflops

#: Launches whose details are shown, and rows of their tables; JSON and HTML have all.
DETAILED = 3
TOP_INSTRUCTIONS = 10
TOP_LOOPS = 4
#: Columns of a fact's name, and of a bar that stands for all of the time.
LABEL, BAR = 12, 50
#: Causes with a smaller share of a kernel's time are left out.
SHOWN_SHARE = 0.005


def show(profile: Profile) -> None:
    """The report a person reads."""
    console.print("Modelled, not measured.\n")
    if profile.several:
        _summary(profile)
    for launch in profile.launches[:DETAILED]:
        _details(launch)
    if len(profile.launches) > DETAILED:
        console.print(f"{len(profile.launches) - DETAILED} more kernels: --json and --html have them all")


def _summary(profile: Profile) -> None:
    console.print(profile.subject, soft_wrap=True)
    console.print(f"{profile.total} in kernels, one after another")
    table(
        "\nKernels",
        ("calls", "us each", "interval", "share", "kernel"),
        [
            (
                launch.count,
                f"{launch.prediction.device_us.typical:.1f}",
                f"{launch.prediction.device_us.low:.1f}-{launch.prediction.device_us.high:.1f}",
                f"{share:.1%}",
                f"{launch.kernel}\n{launch.sizes_text}",
            )
            for launch, share in zip(profile.launches, profile.shares(), strict=True)
        ],
    )
    if profile.on_pytorch:
        table(
            "\nOn PyTorch",
            ("ops", "what, and why"),
            [(count, f"{what}: {why}") for count, what, why in profile.on_pytorch],
        )
    if profile.left_out:
        console.print("\n" + left_out_note(profile))
    console.print()


def left_out_note(profile: Profile) -> str:
    """What it means that results came from PyTorch."""
    return (
        f"Launches too long to be emulated whole: {profile.left_out}. PyTorch computed their results; of an op that "
        "takes several launches, such as top-k of long rows, only the first is here."
    )


def _details(launch: Launch) -> None:
    found = launch.prediction
    console.print(launch.title, style="bold", soft_wrap=True)
    for name, text in facts(launch):
        label = f"{name:{LABEL}}"
        console.print(textwrap.fill(text, console.width, initial_indent=label, subsequent_indent=" " * LABEL))
    table(
        "\nTime by cause",
        ("share", "cause", ""),
        [
            (f"{share:.1%}", cause, "█" * round(BAR * share))
            for cause, share in causes(found)
            if share >= SHOWN_SHARE
        ],
    )
    _bytes(found)
    if found.by_loop:
        table(
            "\nLoops",
            ("share", "turns", "clk/turn", "from", "to", "most of it"),
            [
                (
                    f"{loop.share:.1%}",
                    f"{loop.iterations:.0f}",
                    f"{loop.clk_per_iteration:.0f}",
                    f"{loop.first:x}",
                    f"{loop.last:x}",
                    ", ".join(f"{cause} {share:.0%}" for cause, share in list(loop.breakdown.items())[:3]),
                )
                for loop in sorted(found.by_loop, key=lambda loop: -loop.share)[:TOP_LOOPS]
            ],
        )
    total = sum(cost.issue_clk + cost.stall_clk for cost in found.by_instruction)
    table(
        "\nLongest waits",
        ("waits", "for", "address", "instruction"),
        [
            (f"{cost.stall_clk / total:.1%}", cost.stall_cause, f"{cost.address:x}", cost.text)
            for cost in sorted(found.by_instruction, key=lambda cost: -cost.stall_clk)[:TOP_INSTRUCTIONS]
            if cost.stall_clk
        ],
    )
    console.print()


def _bytes(found: Prediction) -> None:
    limits = bandwidth_tb_s()
    table(
        "\nMemory",
        ("level", "MB", "TB/s", "of at most"),
        [
            (level, f"{count / 1e6:.4g}", f"{found.tb_s[level]:.2f}", limit_text(limits.get(level)))
            for level, count in found.bytes.items()
        ],
    )


def limit_text(limits: tuple[float, float] | None) -> str:
    """TB/s as one number, or as two where hypotheses differ."""
    return "-".join(f"{limit:.1f}" for limit in sorted(set(limits or ())))


def causes(prediction: Prediction) -> list[tuple[str, float]]:
    """(cause, share of the time), the largest first."""
    return sorted(prediction.breakdown.items(), key=lambda item: -item[1])


def facts(launch: Launch) -> list[tuple[str, str]]:
    """What there is to say of a launch in one line each."""
    found, occupied = launch.prediction, launch.prediction.occupancy
    peak = matrix_peak_tflops(found.by_instruction)
    clocks = ", ".join(
        f"{name} {us:.1f} us at {found.clock_ghz[name]:.2f} GHz" for name, us in found.by_hypothesis.items()
    )
    told = [
        ("launch", f"grid {_by(launch.grid)}, block {_by(launch.block)}"),
        ("time", f"{found.time}; {_less_word(str(found.device_us))} on the device"),
        ("hypotheses", clocks),
        (
            "rounds",
            f"{found.rounds}, of {found.workgroups:,} workgroups over {MI350.cus} compute units",
        ),
        (
            "occupancy",
            f"workgroups on a compute unit: {occupied.workgroups_per_cu}, waves on a SIMD: "
            f"{occupied.waves_per_simd:g}; limited by {occupied.limit}",
        ),
    ]
    if peak:
        told.append(("MFMAs", f"{rate_text(found.tflops)} of at most {peak:,.0f} TFLOP/s, padding included"))
    busy = ", ".join(f"{name} {share:.0%}" for name, share in found.utilisation.items())
    return [*told, ("busy", busy), *(("note", note) for note in found.notes)]


def rate_text(tflops: float) -> str:
    """TFLOP/s in digits enough for the smallest kernels."""
    return f"{tflops:,.0f}" if tflops >= 10 else f"{tflops:.2g}"


def _by(extent: tuple[int, int, int]) -> str:
    return " x ".join(map(str, extent))


def _less_word(text: str) -> str:
    return text.removeprefix("modelled ")
