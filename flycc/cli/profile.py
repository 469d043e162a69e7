"""`flycc profile SUBJECT`: the modelled time of a model's kernels, or of anyone's gfx950 kernel, and where it goes."""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flycc import emulator
from flycc.cli.code_object import pick_kernel, read_module
from flycc.cli.emulate import add_launch_options, argument, extent
from flycc.cli.output import check_writable, console, write_json
from flycc.contracts import FlyccError, Reason
from flycc.costmodel import Interval, Prediction, neighbours, predict, timeline, tracks
from flycc.emulator.trace import Trace
from flycc.emulator.trace_recorder import Recorder


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument(
        "subject",
        metavar="SUBJECT",
        help="FILE.py:FUNCTION that returns (model, tuple of inputs), as for flycc explain; a gfx950 code object "
        "(with --grid, --block, --arg, as for flycc emulate); or FILE.npz, a trace of flycc emulate",
    )
    add_launch_options(parser, required=False)
    parser.add_argument(
        "--json", metavar="FILE", help="also write the profile as JSON ('-': standard output alone)"
    )
    parser.add_argument(
        "--perfetto", metavar="FILE", help="write the timeline of one compute unit, for ui.perfetto.dev"
    )
    parser.add_argument("--html", metavar="FILE", help="write a report to look at in a browser: one file")


def run(args: argparse.Namespace) -> int:
    """Profile, report, write what was asked for."""
    from flycc.cli import profile_html, profile_table

    for option in ("perfetto", "html"):
        check_writable(f"--{option}", getattr(args, option))
    profile = profiled(args)
    told = []
    if args.perfetto:
        timelines = [(launch.title, launch.trace, timeline(launch.trace)) for launch in profile.launches]
        count = _written("--perfetto", args.perfetto, lambda: tracks.export(timelines, args.perfetto))
        told.append(f"{args.perfetto}: {count:,} instructions; {tracks.TIME_NOTE}")
    if args.html:
        text = profile_html.page(profile)
        _written("--html", args.html, lambda: Path(args.html).write_text(text, encoding="utf-8"))
        told.append(f"{args.html}: open it in a browser")
    if args.json:
        write_json(args.json, profile.to_json())
    if args.json != "-":
        profile_table.show(profile)
        for line in told:
            console.print(f"\n{line}", soft_wrap=True)
    return 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel with one grid and one set of `sizes` (empty where they are not known), launched `count` times."""

    kernel: str
    sizes: dict[str, int]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    count: int
    trace: Trace
    prediction: Prediction

    @property
    def title(self) -> str:
        return f"{self.kernel} {self.sizes_text}".strip()

    @property
    def sizes_text(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.sizes.items())


@dataclass(frozen=True, slots=True)
class Profile:
    """`total` is the modelled time of all launches one after another; `launches` longest first, all their repetitions
    together; `on_pytorch` has what no kernel computes: how often, what, and why. `left_out` counts launches that were
    too long to be emulated whole, so that PyTorch computed their results."""

    subject: str
    total: Interval
    launches: list[Launch]
    on_pytorch: list[tuple[int, str, str]] = field(default_factory=list)
    left_out: int = 0

    @property
    def several(self) -> bool:
        """Whether there is more to say than of one launch of one kernel."""
        counts = [launch.count for launch in self.launches]
        return counts != [1] or bool(self.on_pytorch) or bool(self.left_out)

    def shares(self) -> list[float]:
        """Of the time on the device, by launch; they sum to 1."""
        times = [launch.count * launch.prediction.device_us.typical for launch in self.launches]
        return [time / sum(times) for time in times]

    def to_json(self) -> dict[str, Any]:
        """The same for programs; times in us."""
        return {
            "modelled": True,
            "subject": self.subject,
            "total_us": asdict(self.total),
            "launches": [
                {
                    "kernel": launch.kernel,
                    "sizes": launch.sizes,
                    "grid": launch.grid,
                    "block": launch.block,
                    "count": launch.count,
                    "share": share,
                    "prediction": launch.prediction.to_json(),
                }
                for launch, share in zip(self.launches, self.shares(), strict=True)
            ],
            "on_pytorch": [
                {"count": count, "what": what, "why": why} for count, what, why in self.on_pytorch
            ],
            "left_out": self.left_out,
        }


def profiled(args: argparse.Namespace) -> Profile:
    """The profile of what the arguments name. Raises `FlyccError` where that is nothing, or cannot be modelled."""
    of_code = [f"--{name}" for name in ("kernel", "grid", "block", "arg") if getattr(args, name)]
    is_trace = args.subject.endswith(".npz")
    is_model = args.subject.endswith(".py") or (":" in args.subject and not Path(args.subject).exists())
    if is_trace or is_model:
        if of_code:
            raise FlyccError(
                Reason("profile.subject", f"{of_code[0]} is for a code object, and {args.subject} is none")
            )
        return _of_trace(args.subject) if is_trace else _of_model(args.subject)
    module = read_module(args.subject)
    if not args.grid or not args.block:
        missing = "--block" if args.grid else "--grid"
        raise FlyccError(
            Reason(
                "profile.subject",
                f"{missing} is needed beside a code object; FILE.py:FUNCTION and FILE.npz need none",
            )
        )
    return _of_code_object(args, module)


def _of_model(subject: str) -> Profile:
    from flycc.cli.explain import example, explained
    from flycc.tuning import total
    from flycc.tuning.launches import LEFT_OUT, watched_launches

    fn, inputs = example(subject)
    with watched_launches() as watched, warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{LEFT_OUT}", RuntimeWarning)
        record = explained(subject, fn, inputs)
    on_pytorch: Counter[tuple[str, str]] = Counter()
    for graph in record.graphs:
        for node in graph.report.nodes:
            if node.reason:
                on_pytorch[f"{node.target} {node.shapes}", str(node.reason)] += 1
        for target, count in graph.report.others.items():
            on_pytorch[target, "no kernel family covers it"] += count
    left_out = 0
    for reason, count in record.launch_refusals.items():
        if reason.code == LEFT_OUT:
            left_out += count
        else:
            on_pytorch["a launch", str(reason)] += count
    rest = [(count, what, why) for (what, why), count in on_pytorch.most_common()]
    if not watched:
        why = f"; {rest[0][1]}: {rest[0][2]}" if rest else ""
        raise FlyccError(Reason("profile.subject", f"{subject} launches no kernel of flycc{why}"))
    launches = [
        Launch(one.kernel, one.sizes, one.grid, one.block, one.count, one.trace, one.prediction())
        for one in watched.values()
    ]
    whole = total([launch.prediction for launch in launches for _ in range(launch.count)])
    launches.sort(key=lambda launch: -launch.count * launch.prediction.device_us.typical)
    return Profile(subject, whole, launches, rest, left_out)


def _of_code_object(args: argparse.Namespace, module: emulator.Module) -> Profile:
    kernel = pick_kernel(module, args.subject, args.kernel)
    grid, block = extent("--grid", args.grid), extent("--block", args.block)
    recorder = Recorder()
    try:
        emulator.run(
            module,
            kernel.name,
            grid,
            block,
            [argument(text) for text in args.arg],
            dynamic_lds=args.dynamic_lds,
            observers=(recorder,),
            workgroups=neighbours(grid),
        )
    except (emulator.EmulatorError, ValueError) as error:
        raise FlyccError(Reason("profile.launch", str(error))) from error
    return _of_one(args.subject, recorder.trace())


def _of_trace(path: str) -> Profile:
    try:
        return _of_one(path, Trace.load(path))
    except (OSError, ValueError) as error:
        raise FlyccError(Reason("profile.trace", str(error))) from error
    except (IndexError, KeyError) as error:  # arrays of the right types that do not fit together
        raise FlyccError(Reason("profile.trace", f"{path} is damaged: {error}")) from error


def _of_one(subject: str, trace: Trace) -> Profile:
    try:
        prediction = predict(trace)
    except ValueError as error:
        raise FlyccError(Reason("profile.model", f"{subject}: {error}")) from error
    x, y, z = trace.info["grid"]
    launch = Launch(prediction.kernel, {}, (x, y, z), tuple(trace.info["block"]), 1, trace, prediction)
    return Profile(subject, prediction.time, [launch])


def _written(option: str, path: str, write: Callable[[], int]) -> int:
    try:
        return write()
    except OSError as error:
        raise FlyccError(Reason("profile.write", f"{option} {path}: {error.strerror}")) from error
