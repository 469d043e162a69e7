"""What `make test` runs: lint, types, import directions, lit and pytest, each with its time, then a summary.

Every step runs even if an earlier one failed; the exit status is 1 if any did.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "tree"

#: The rooms at the top of the repository, which are imported below flycc.
MAPPED = ("benchmarks", "dialects", "kernels", "passes", "tools")


def link_tree() -> None:
    """The package as it is imported, in build/tree, made of symbolic links.

    mypy and import-linter read the file system and know nothing of setuptools' package-dir mapping.
    """
    package = TREE / "flycc"
    package.mkdir(parents=True, exist_ok=True)
    wanted = {entry.name: entry for entry in (ROOT / "flycc").iterdir() if entry.name != "__pycache__"}
    wanted |= {name: ROOT / name for name in MAPPED}
    for link in package.iterdir():
        if link.is_symlink() and link.name not in wanted:
            link.unlink()
    for name, target in wanted.items():
        if not (package / name).is_symlink():
            (package / name).symlink_to(target)


def steps(nightly: bool) -> list[tuple[str, list[str]]]:
    """(name, command) of every step, quick ones first."""
    python = sys.executable
    scripts = Path(python).parent
    jobs = str(os.cpu_count() or 1)
    return [
        ("lint", [python, "-m", "ruff", "check", "."]),
        ("format", [python, "-m", "ruff", "format", "--check", "."]),
        ("types", [python, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "flycc"]),
        ("imports", [str(scripts / "lint-imports"), str(ROOT / "pyproject.toml")]),
        ("lit", [str(scripts / "lit"), "-v", "-j", jobs, "--order=lexical", str(ROOT / "test" / "lit")]),
        (
            "pytest",
            # Workers: a crash in native code is then one failed test with a name, and the others go on.
            [python, "-m", "pytest", "-n", jobs, "--dist", "loadfile", "--durations=5"]
            + (["-m", "nightly or not nightly"] if nightly else []),
        ),
    ]


def main() -> int:
    """Run the steps; `--nightly` adds the long sweeps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nightly", action="store_true", help="also run the tests marked nightly")
    args = parser.parse_args()
    link_tree()
    results: list[tuple[str, int, float]] = []
    plan = steps(args.nightly)
    for number, (name, command) in enumerate(plan, 1):
        print(f"== [{number}/{len(plan)}] {name}", flush=True)
        started = time.monotonic()
        # mypy and import-linter find the package in the link tree; everything else uses the installed one.
        in_tree = name in ("types", "imports")
        environment = os.environ | ({"PYTHONPATH": str(TREE), "MYPYPATH": str(TREE)} if in_tree else {})
        status = subprocess.run(
            command, cwd=TREE if in_tree else ROOT, env=environment, check=False
        ).returncode
        results.append((name, status, time.monotonic() - started))
    print("\n== summary")
    for name, status, seconds in results:
        print(f"{name:<8} {'passed' if status == 0 else 'FAILED':<8} {seconds:7.1f} s")
    failed = sum(status != 0 for _, status, _ in results)
    print(f"steps: {len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
