"""`flycc predict`: the modelled time of an operator of any shape, by our kernel and by the ones that others publish."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

from flycc.cli.output import console, table, write_json
from flycc.contracts import FlyccError, GemmProblem, GroupedGemmProblem, Reason, RmsNormProblem, TopkProblem
from flycc.costmodel import MI350, Interval
from flycc.costmodel.peers import PEERS, NamedKernel, Peer, Product, named, predict
from flycc.costmodel.peers import rms_norm as norm_peers
from flycc.costmodel.peers import topk as topk_peers
from flycc.costmodel.peers.kernel_names import DOUBLE_BUFFER

#: family -> what its --shape spells, and its element types: the first is the default.
FAMILIES = {
    "gemm": ("M,N,K", ("bf16", "f16", "fp8", "int8", "mxfp8", "mxfp4")),
    "grouped_gemm": ("N,K", ("bf16", "f16")),
    "scaled_gemm": ("M,N,K", ("bf16", "f16")),
    "rms_norm": ("M,N", ("bf16", "f16", "f32")),
    "topk": ("M,N,K", ("f32", "bf16", "f16", "i32")),
}
FORMATS = ("mxfp8", "mxfp4")
LAYOUTS = ("NT", "NN", "TN", "TT")
ALIASES = {
    "fp16": "f16",
    "float16": "f16",
    "fp32": "f32",
    "float32": "f32",
    "bfloat16": "bf16",
    "e4m3": "fp8",
    "fp4": "mxfp4",
}
OURS = "flycc"
#: Classes of the families that have no tiles, in the order shown.
ROWWISE = {"rms_norm": ("aten", "flydsl"), "topk": ("aten", "flydsl", "flydsl-deterministic")}
#: Largest size and most K-splits that are asked for.
MOST, MOST_SPLITS = 2**31 - 1, 64
#: Types whose peers were fitted to another.
FITTED_TO = {"f16": "bf16"}
#: Marks a class that has notes.
MARK = "*"
#: Parts of the time that a row of the table names at most, and the least that one has of it.
SHOWN_PARTS = 3
LEAST_SHARE = 0.01


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    shapes = "; ".join(f"{family} {shape}" for family, (shape, _) in FAMILIES.items())
    parser.add_argument("--family", required=True, choices=FAMILIES)
    parser.add_argument("--shape", required=True, metavar="SIZES", help=f"sizes with commas: {shapes}")
    parser.add_argument("--groups", metavar="ROWS", help="rows of each group of a grouped_gemm, with commas")
    parser.add_argument(
        "--dtype", metavar="TYPE", help="element type; by default the family's first: " + _types()
    )
    parser.add_argument("--format", choices=FORMATS, help="of the operands of a scaled_gemm")
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="of a gemm's operands, for our own kernel (default: NT, as all published)",
    )
    parser.add_argument(
        "--kernel",
        metavar="NAME",
        help=f"one class only ({OURS}, aten, triton, flydsl, aiter-...), or a published kernel by its full name",
    )
    parser.add_argument("--tile", metavar="MxNxK", help="tile of the class that --kernel names")
    parser.add_argument(
        "--splitk",
        type=int,
        default=0,
        metavar="S",
        help="K-splits; beside a published name, as its table has it",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="also write the answers as JSON ('-': standard output alone)"
    )


def run(args: argparse.Namespace) -> int:
    """Answer, and report."""
    query = Query.of(args)
    answers = query.answers()
    if args.json:
        write_json(args.json, {**query.to_json(), "predictions": answers})
    if args.json != "-":
        show(query, answers)
    return 0


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked. `groups` are the rows of each group; `kernel` is a class, and `named` a kernel of it."""

    family: str
    shape: tuple[int, ...]
    dtype: str
    format: str
    layout: str
    groups: tuple[int, ...] = ()
    kernel: str | None = None
    named: NamedKernel | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> Query:
        """Raises `FlyccError` naming the argument that is wrong."""
        spelled, dtypes = FAMILIES[args.family]
        shape = _sizes("--shape", args.shape, spelled.count(",") + 1, spelled)
        dtype = ALIASES.get(args.dtype, args.dtype) or dtypes[0]
        if dtype not in dtypes:
            raise _bad("--dtype", f"got {args.dtype}; {args.family} takes {', '.join(dtypes)}")
        if args.family == "topk" and shape[2] > shape[1]:
            raise _bad("--shape", f"got {args.shape}; K of a topk is at most N")
        if dtype in FORMATS:  # a scaled product by another name
            if args.format not in (None, dtype):
                raise _bad(
                    "--format", f"got {args.format} beside --dtype {args.dtype}; one of them is enough"
                )
            scaled_too = {**vars(args), "family": "scaled_gemm", "dtype": None, "format": dtype}
            return cls.of(argparse.Namespace(**scaled_too))
        grouped, scaled = args.family == "grouped_gemm", args.family == "scaled_gemm"
        if grouped != bool(args.groups):
            raise _bad("--groups", f"rows of each group, for grouped_gemm and only there; got {args.groups}")
        if scaled != bool(args.format):
            raise _bad(
                "--format", f"{' or '.join(FORMATS)}, for scaled_gemm and only there; got {args.format}"
            )
        groups = _sizes("--groups", args.groups, None, "rows of each group", least=0) if grouped else ()
        if grouped and not sum(groups):
            raise _bad("--groups", f"got {args.groups}; one group at least must have rows")
        fmt = args.format or ("bf16" if dtype == "f16" else dtype)
        query = cls(args.family, shape, dtype, fmt, args.layout or "NT", groups)
        kernel, found = query._kernel(args.kernel, args.tile, args.splitk)
        if args.layout and (
            OURS not in query.classes() or args.family != "gemm" or kernel not in (None, OURS)
        ):
            raise _bad("--layout", f"got {args.layout}; it is for our own kernel of a gemm of bf16 or f16")
        return replace(query, kernel=kernel, named=found)

    def _kernel(
        self, name: str | None, tile: str | None, split: int
    ) -> tuple[str | None, NamedKernel | None]:
        classes = self.classes()
        if not 0 <= split <= MOST_SPLITS:
            raise _bad("--splitk", f"got {split}; 0 (not split) to {MOST_SPLITS} is accepted")
        if name is None or name in classes:
            if not tile:
                if split:
                    raise _bad(
                        "--splitk",
                        "needs a tile beside it: --kernel CLASS --tile MxNxK, or a kernel's full name",
                    )
                return name, None
            if name is None or name == OURS or self.family in ROWWISE or self.family == "grouped_gemm":
                raise _bad("--tile", f"needs --kernel with a class of dense or scaled products, got {name}")
            m, n, k = _sizes("--tile", tile, 3, "MxNxK", separator="x")
            return name, self._fits("--tile", NamedKernel(name, (m, n, k, max(1, split), DOUBLE_BUFFER)))
        if tile:
            raise _bad("--tile", f"got {tile} beside a kernel's full name, which has its tile")
        found = named(name, split)
        peer = found if isinstance(found, str) or found is None else found.peer
        if peer and self.format == "int8":
            peer = peer.replace("fp8", "int8")
        if peer not in classes:
            raise _bad(
                "--kernel", f"got {name}; {', '.join(classes)} and their kernels' full names are accepted"
            )
        if isinstance(found, NamedKernel):
            return peer, self._fits("--kernel", found)
        if split:
            raise _bad("--splitk", f"got {split}; {name} is a library and chooses its K-splits")
        return peer, None

    def _fits(self, argument: str, kernel: NamedKernel) -> NamedKernel:
        """The kernel, if its operands fit LDS and every K-split has a step."""
        m, n, k, split, _ = kernel.tile
        element = next(peer.format.element_bytes for peer in self.peers() if peer.name == kernel.peer)
        if (m + n) * k * element > MI350.lds_bytes_per_cu:
            lds = MI350.lds_bytes_per_cu // 1024
            raise _bad(argument, f"{m}x{n}x{k} is no tile: a step's operands must fit the {lds} KB of LDS")
        if split > max(1, -(-self.shape[-1] // k)):
            raise _bad(
                "--splitk", f"{split} K-splits of K {self.shape[-1]} in steps of {k} leave some without"
            )
        return kernel

    def peers(self) -> list[Peer]:
        """Classes with tiles that answer."""
        found = [p for p in PEERS if p.family == self.family and p.format.name == self.format]
        return sorted(found, key=lambda peer: peer.name.startswith("aiter-"))

    def classes(self) -> list[str]:
        """All classes that answer, in the order shown: ours, PyTorch's, those of the tuning tables."""
        ours = [OURS] if self.ours() else []
        return [*ours, *ROWWISE.get(self.family, [peer.name for peer in self.peers()])]

    def ours(self) -> GemmProblem | GroupedGemmProblem | RmsNormProblem | TopkProblem | None:
        """The problem for our own kernels; None if there is none of the family or type."""
        if self.family == "grouped_gemm":
            n, k = self.shape
            return GroupedGemmProblem(self.dtype, "m", len(self.groups), sum(self.groups), n, k, trans_b=True)  # type: ignore
        if self.family == "gemm" and self.dtype in ("bf16", "f16"):
            trans_a, trans_b = (side == "T" for side in self.layout)
            return GemmProblem(self.dtype, *self.shape, trans_a=trans_a, trans_b=trans_b)  # type: ignore
        if self.family == "rms_norm":
            return RmsNormProblem(self.dtype, *self.shape, weight=self.dtype)  # type: ignore
        return TopkProblem(self.dtype, *self.shape) if self.family == "topk" else None  # type: ignore

    def answers(self) -> list[dict[str, Any]]:
        """One entry for each class."""
        return [self._answer(name) for name in self.classes() if self.kernel in (None, name)]

    def _answer(self, name: str) -> dict[str, Any]:
        if name == OURS:
            answer = _ours_or_why(self.ours(), self.groups)
            rate = {} if "refused" in answer else self._rate(answer["time_us"]["typical"])
            return {"class": OURS, **answer, **rate}
        if self.family in ROWWISE:
            found = (norm_peers if self.family == "rms_norm" else topk_peers).predict(
                name, *self.shape, *([self.dtype] if self.family == "rms_norm" else [])
            )
        else:
            peer = next(peer for peer in self.peers() if peer.name == name)
            *rows, n, k = (*self.groups, *self.shape)
            found = predict(peer, Product(tuple(rows), n, k), self.named)
        return {
            "class": name,
            **_entry(found.time, found.breakdown),
            **self._rate(found.time.typical),
            "kernel": found.kernel,
            "source": found.source,
            "notes": [*found.notes, *self._other_rows()],
        }

    def _other_rows(self) -> list[str]:
        """What tells this question from all that peers were fitted to."""
        notes = []
        fitted_to = (
            topk_peers.FITTED_DTYPE if self.family == "topk" else FITTED_TO.get(self.dtype, self.dtype)
        )
        if self.family != "rms_norm" and fitted_to != self.dtype:
            notes.append(f"fitted to {fitted_to}, asked for {self.dtype}")
        if self.layout != "NT":
            notes.append(f"fitted to layout NT, asked for {self.layout}")
        return notes

    def _rate(self, us: float) -> dict[str, float]:
        return {"tb_s" if self.family in ROWWISE else "tflops": self.work / us / 1e6}

    def to_json(self) -> dict[str, Any]:
        """The question."""
        return {
            "modelled": True,
            "family": self.family,
            "shape": list(self.shape),
            "groups": list(self.groups),
            "dtype": self.dtype,
            "format": self.format,
            "layout": self.layout,
        }

    @property
    def work(self) -> float:
        """Operations of a product, bytes that a row-wise operator must move."""
        if self.family == "rms_norm":
            m, n = self.shape
            return 2 * m * n * norm_peers.ELEMENT_BYTES[self.dtype]
        if self.family == "topk":
            return self.shape[0] * self.shape[1] * topk_peers.ELEMENT_BYTES[self.dtype]
        *rows, n, k = (*self.groups, *self.shape)
        return 2 * sum(rows) * n * k


def _ours_or_why(problem: Any, groups: Sequence[int]) -> dict[str, Any]:
    """Ours; whatever keeps it from answering is told in its place, so that the peers' answers are not lost."""
    try:
        return ours(problem, groups)
    except FlyccError as error:
        reason = error.reason
    except Exception as error:  # compiling and emulating can fail in many ways
        first = (str(error) or "no message").splitlines()[0]
        reason = Reason("predict.ours", f"could not be modelled: {type(error).__name__}: {first}")
    return {"modelled": True, "refused": asdict(reason)}


def ours(problem: Any, groups: Sequence[int] = ()) -> dict[str, Any]:
    """Our own kernel: compiled, emulated in part and modelled; or why it does not serve. A grouped product has `groups`
    of so many rows."""
    from flycc import tuning
    from flycc.kernels import gemm, grouped_gemm, rms_norm, topk

    families: dict[type, Any] = {
        GemmProblem: gemm,
        GroupedGemmProblem: grouped_gemm,
        RmsNormProblem: rms_norm,
        TopkProblem: topk,
    }
    family = families[type(problem)]
    config = family.choose(problem)
    if isinstance(config, Reason):
        return {"modelled": True, "refused": asdict(config)}
    predictions = tuning.model(problem, config, offsets=[*accumulate(groups)] if groups else None)
    time = tuning.total(predictions)
    shares: dict[str, float] = {}
    for prediction in predictions:
        for cause, share in prediction.breakdown.items():
            shares[cause] = shares.get(cause, 0.0) + share * prediction.time.typical
    whole = sum(prediction.time.typical for prediction in predictions)
    launches = [prediction.to_json() for prediction in predictions]
    for launch in launches:
        del launch["by_instruction"]
    return {
        **_entry(time, {cause: share / whole for cause, share in shares.items()}),
        "kernel": str(config),
        "source": "our binary, emulated in part",
        "notes": [],
        "launches": launches,
    }


def _entry(time: Interval, breakdown: dict[str, float]) -> dict[str, Any]:
    return {"modelled": True, "time_us": asdict(time), "breakdown": breakdown}


def show(query: Query, answers: list[dict[str, Any]]) -> None:
    """One line for each class."""
    groups = f" groups {len(query.groups)}" if query.groups else ""
    rate = "TB/s" if query.family in ROWWISE else "TFLOP/s"

    def row(answer: dict[str, Any]) -> Sequence[object]:
        if "refused" in answer:
            return answer["class"], "-", "-", "-", answer["refused"]["sentence"]
        time = Interval(**answer["time_us"])
        parts = sorted(answer["breakdown"].items(), key=lambda item: -item[1])[:SHOWN_PARTS]
        shares = ", ".join(f"{name} {share:.0%}" for name, share in parts if share >= LEAST_SHARE)
        return (
            answer["class"] + (MARK if answer["notes"] else ""),
            f"{time.typical:.1f}",
            f"{time.low:.1f}-{time.high:.1f}",
            f"{query.work / time.typical / 1e6:.{1 if query.family in ROWWISE else 0}f}",
            "; ".join(filter(None, (answer["kernel"], shares))),
        )

    shape = "x".join(map(str, query.shape))
    table(
        f"modelled: {query.family}{groups} {shape} {query.format if query.format in FORMATS else query.dtype}",
        ("class", "us", "interval", rate, "tile or kernel; where the time goes"),
        map(row, answers),
    )
    tie = " A tie: each typical time lies in the other's interval." if len(answers) > 1 else ""
    console.print(f"\nModelled, not measured.{tie}")
    by_note: dict[str, list[str]] = {}
    for answer in answers:
        for note in answer.get("notes", ()):
            by_note.setdefault(note, []).append(answer["class"])
    for note, classes in by_note.items():
        console.print(f"{MARK} {', '.join(classes)}: {note}")


def _types() -> str:
    return "; ".join(f"{family} {', '.join(types)}" for family, (_, types) in FAMILIES.items())


def _sizes(
    argument: str, text: str, count: int | None, spelled: str, least: int = 1, separator: str = ","
) -> tuple[int, ...]:
    parts = text.split(separator)
    sizes = tuple(int(part) for part in parts if re.fullmatch(r"[0-9]{1,10}", part))
    if (
        len(sizes) != (count or len(parts))
        or len(sizes) != len(parts)
        or not least <= min(sizes) <= max(sizes) <= MOST
    ):
        raise _bad(argument, f"got {text}; {spelled} is accepted, whole numbers from {least} to {MOST}")
    return sizes


def _bad(argument: str, sentence: str) -> FlyccError:
    return FlyccError(Reason(f"predict.{argument.removeprefix('--')}", f"{argument}: {sentence}"))
