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
from flycc.passes import MATCH_PIPELINE, PASSES, Pass, Step, run_pipeline
from flycc.tools.diagnostics import Diagnostic, diagnostics, unexpected

#: Stages of the graph, printed as they are, and stages of its kernels.
GRAPH_STAGES = ("torch", "flycc")
KERNEL_STAGES = ("fly", "rocdl", "llvm", "isa", "hsaco")

_SEPARATOR = re.compile(r"^// -----.*$", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Returns the exit status: 0, or 1 if the input is at fault."""
    options = _parser().parse_args(argv)
    if options.list_passes:
        print(_pass_list())
        return 0
    try:
        text, file = _read(options.input)
    except OSError as error:
        return _complain(error)
    outputs: list[bytes] = []
    found: list[Diagnostic] = []
    for chunk in _split(text) if options.split_input_file else [text]:
        try:
            outputs.append(_process(chunk, options))
        except ir.MLIRError as error:
            found.extend(diagnostics(error, file))
        except FlyccError as error:
            found.append(Diagnostic(file, 1, 1, str(error)))
    if options.verify_diagnostics:
        found = unexpected(found, text, file)
    elif outputs:
        try:
            _write(b"// -----\n".join(outputs), options.output)
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
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--pass-pipeline",
        metavar="TEXT",
        help="passes of flycc and of MLIR, as in 'match-gemm,func.func(cse)'",
    )
    for name, run in PASSES.items():
        which.add_argument(f"--{name}", dest="passes", action="append_const", const=name, help=_summary(run))
    parser.add_argument(
        "--emit",
        choices=GRAPH_STAGES + KERNEL_STAGES,
        default="torch",
        help="torch: the module after the passes asked for; flycc: the same, with the match passes if none "
        "were asked for; fly to hsaco: the kernels that the flycc ops then need, at that stage of lowering",
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


def _process(text: str, options: argparse.Namespace) -> bytes:
    """One module of the input at the stage asked for."""
    context = load(ir.Context())
    context.allow_unregistered_dialects = options.allow_unregistered_dialect
    with context:
        module = ir.Module.parse(text)
    pipeline = options.pass_pipeline or ",".join(options.passes or ())
    if not pipeline and options.emit != "torch":
        pipeline = MATCH_PIPELINE

    def after(step: Step) -> None:
        if options.print_ir_after_all:
            print(f"// IR after {step.text}\n{module}", file=sys.stderr)

    run_pipeline(module, pipeline, after=after)
    return str(module).encode()


def _read(path: str) -> tuple[str, str]:
    """Text of the input, and the name that messages give it."""
    if path == "-":
        return sys.stdin.read(), "<stdin>"
    return Path(path).read_text(), path


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
