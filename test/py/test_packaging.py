"""What an installed flycc promises before anything of it is imported."""

import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_backend_is_known_by_name_alone():
    out = python("""
        import torch
        assert "flycc" in torch._dynamo.list_backends(), torch._dynamo.list_backends()
        f = torch.compile(lambda x: x + 1, backend="flycc")
        print(f(torch.ones(2)).tolist())
    """)
    assert out == "[2.0, 2.0]"


def test_top_package_and_passes_do_not_import_torch_or_flydsl():
    assert (
        python("""
        import sys, flycc, flycc.dialects, flycc.passes, flycc.contracts
        print([name for name in ("torch", "flydsl") if name in sys.modules])
    """)
        == "[]"
    )


def test_kernels_and_codegen_do_not_import_flydsl():
    assert (
        python("""
        import sys, flycc.codegen, flycc.kernels.gemm
        print("flydsl" in sys.modules)
    """)
        == "False"
    )


def test_emulator_imports_numpy_only():
    assert (
        python("""
        import sys
        before = set(sys.modules)
        import flycc.emulator
        roots = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
        print(sorted(roots))
    """)
        == "['flycc', 'numpy']"
    )


def test_explain_stays_a_function_after_its_module_is_imported():
    assert (
        python("""
        import flycc, flycc.explanation
        print(callable(flycc.explain), flycc.errors.FlyccError.__name__)
    """)
        == "True FlyccError"
    )


def test_a_wheel_holds_every_package_of_the_tree():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    rooms = {folder: name for name, folder in settings["package-dir"].items()}
    found = {
        ".".join((rooms[parts[0]], *parts[1:]))
        for init in ROOT.glob("*/**/__init__.py")
        if (parts := init.parent.relative_to(ROOT).parts)[0] in rooms
    }
    assert found == set(settings["packages"])
