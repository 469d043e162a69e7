"""flycc-opt: reads MLIR, runs passes on it, lowers the kernels it asks for, prints any stage.

flycc-opt model.mlir --match-gemm --flycc-dce
flycc-opt model.mlir --pass-pipeline='match-gemm,flycc-dce,func.func(cse)'
flycc-opt model.mlir --emit=isa
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_mlir import ir

from flycc.contracts import FlyccError
from flycc.dialects import load
from flycc.passes import MATCH_PIPELINE, PASSES, Pass, PipelineError, run_pipeline
from flycc.passes.pipeline import parse_pipeline
from flycc.tools.diagnostics import Diagnostic, diagnostics, unexpected
from flycc.tools.lowering import known_stages, lower_kernel, lower_module

#: Stages of the graph, and the landmarks among the stages of its kernels' lowering.
GRAPH_STAGES = ("torch", "flycc")
KERNEL_STAGES = ("fly", "rocdl", "llvm", "isa", "hsaco")

_SEPARATOR = re.compile(r"^// -----.*$", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Returns the exit status: 0, or 1 if the input is at fault."""
    parser = _parser()
    options = parser.parse_args(argv)
    _check(parser, options)
    if options.list_passes:
        print(_pass_list())
        return 0
    try:
        text, file = _read(options.input)
    except OSError as error:
        return _complain(error)
    except UnicodeDecodeError as error:
        name = "<stdin>" if options.input == "-" else options.input
        print(f"flycc-opt: {name}: not UTF-8 text: {error}", file=sys.stderr)
        return 1
    outputs: list[bytes] = []
    found: list[Diagnostic] = []
    for chunk in _split(text) if options.split_input_file else [text]:
        try:
            outputs += _process(chunk, options)
        except (ir.MLIRError, FlyccError) as error:
            found += diagnostics(error, file)
    if options.emit == "hsaco" and len(outputs) > 1:
        found.append(Diagnostic(file, 1, 1, f"--emit=hsaco: a file holds one kernel, not {len(outputs)}"))
        outputs = []
    if options.verify_diagnostics:
        found = unexpected(found, text, file)
    elif outputs:
        try:
            _write(_separator(options.emit).join(outputs), options.output)
        except OSError as error:
            return _complain(error)
    for diagnostic in found:
        print(diagnostic, file=sys.stderr)
    return 1 if found else 0


def _complain(error: OSError) -> int:
    print(f"flycc-opt: {error.filename}: {error.strerror}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flycc-opt", description="Run flycc's passes and lowering on MLIR.", allow_abbrev=False
    )
    parser.add_argument("input", nargs="?", default="-", help="MLIR file; - or nothing reads standard input")
    parser.add_argument(
        "-o", dest="output", default="-", metavar="FILE", help="output file; - is standard output"
    )
    parser.add_argument(
        "--pass-pipeline",
        metavar="TEXT",
        help="passes of flycc and of MLIR, as in 'match-gemm,func.func(cse)'",
    )
    for name, run in PASSES.items():
        parser.add_argument(f"--{name}", dest="passes", action="append_const", const=name, help=_summary(run))
    parser.add_argument(
        "--emit",
        default="torch",
        metavar="STAGE",
        help="torch: the module after the passes asked for; flycc: the same, with the match passes if none "
        "were asked for; fly, rocdl, llvm, isa, hsaco, or a stage of FlyDSL's between fly and rocdl: the "
        "kernels that the flycc ops then need, lowered as far as that",
    )
    parser.add_argument(
        "--start-after",
        metavar="STAGE",
        help="the input is a kernel module as this stage (fly to rocdl) left it; --emit says how far to go",
    )
    parser.add_argument(
        "--print-ir-after-all", action="store_true", help="print to standard error after every pass"
    )
    parser.add_argument("--list-passes", action="store_true", help="list flycc's passes and stop")
    parser.add_argument(
        "--split-input-file",
        action="store_true",
        help="treat what `// -----` separates as modules of their own",
    )
    parser.add_argument(
        "--verify-diagnostics",
        action="store_true",
        help="check errors against `// expected-error @below {{text}}`",
    )
    parser.add_argument(
        "--allow-unregistered-dialect", action="store_true", help="accept ops of unknown dialects"
    )
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the process with a usage error if options name no stage or contradict one another."""
    if options.pass_pipeline is not None and options.passes:
        parser.error(f"argument --pass-pipeline: not allowed with --{options.passes[0]}")
    if options.pass_pipeline:
        try:
            parse_pipeline(options.pass_pipeline, load(ir.Context()))
        except PipelineError as error:
            parser.error(f"argument --pass-pipeline: {error.reason.sentence}")
    for name, stage in (("--emit", options.emit), ("--start-after", options.start_after)):
        if stage not in (None, *GRAPH_STAGES, *KERNEL_STAGES) and stage not in known_stages():
            known = ", ".join([*GRAPH_STAGES, *known_stages()])
            parser.error(f"argument {name}: unknown stage {stage!r}; the stages are {known}")
    if options.start_after is not None:
        if options.start_after in GRAPH_STAGES or options.emit in GRAPH_STAGES:
            parser.error("argument --start-after: it and --emit must name stages of a kernel, from fly on")
        if options.passes or options.pass_pipeline:
            parser.error("argument --start-after: passes run on graphs, not on kernels")


def _process(text: str, options: argparse.Namespace) -> list[bytes]:
    """One module of the input at the stage asked for: itself, or its kernels."""

    def observe(stage: str, result: object) -> None:
        if options.print_ir_after_all and not isinstance(result, bytes):
            print(f"// IR after {stage}\n{result}", file=sys.stderr)

    if options.start_after is not None:
        return [lower_kernel(text, options.start_after, options.emit, observe)]
    context = load(ir.Context())
    context.allow_unregistered_dialects = options.allow_unregistered_dialect
    with context:
        module = ir.Module.parse(text)
    pipeline = options.pass_pipeline or ",".join(options.passes or ())
    if not pipeline and options.emit != "torch":
        pipeline = MATCH_PIPELINE
    run_pipeline(module, pipeline, after=lambda step: observe(step.text, module))
    if options.emit in GRAPH_STAGES:
        return [str(module).encode()]
    return lower_module(module, options.emit, observe)


def _separator(stage: str) -> bytes:
    return b"; -----\n" if stage in ("llvm", "isa") else b"// -----\n"


def _read(path: str) -> tuple[str, str]:
    """Text of the input, and the name that messages give it."""
    if path == "-":
        return sys.stdin.buffer.read().decode(), "<stdin>"
    return Path(path).read_bytes().decode(), path


def _write(output: bytes, path: str) -> None:
    if path == "-":
        sys.stdout.buffer.write(output)
    else:
        Path(path).write_bytes(output)


def _split(text: str) -> list[str]:
    """The modules of the input, each behind as many empty lines as keep its line numbers."""
    chunks = []
    lines = 0
    for part in _SEPARATOR.split(text):
        chunks.append("\n" * lines + part)
        lines += part.count("\n")
    return chunks


def _pass_list() -> str:
    lines = [f"{name:<12} {_summary(run)}" for name, run in PASSES.items()]
    return "\n".join(
        [*lines, "In --pass-pipeline also every pass of MLIR by its own name, such as canonicalize or cse."]
    )


def _summary(run: Pass) -> str:
    return (run.__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
