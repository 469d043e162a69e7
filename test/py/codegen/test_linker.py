"""The linker is found in ROCM_PATH, then PATH, then the PyPI package, and its absence is one clear error."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flycc.codegen import MissingLinker, find_linker
from flycc.codegen import linker as linker_module


def fake_tool(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A ROCM_PATH and a PATH that each hold a linker."""
    rocm = fake_tool(tmp_path / "rocm" / "llvm" / "bin" / "ld.lld")
    on_path = fake_tool(tmp_path / "bin" / "ld.lld")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setenv("PATH", str(on_path.parent))
    return rocm, on_path


def test_order(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    rocm, on_path = places
    assert (find_linker().path, find_linker().origin) == (rocm, "ROCM_PATH")
    rocm.unlink()
    assert (find_linker().path, find_linker().origin) == (on_path, "PATH")
    on_path.unlink()
    assert find_linker().origin == "iree-base-compiler"


def test_missing_linker_names_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(linker_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingLinker) as caught:
        find_linker()
    assert caught.value.reason.code == "codegen.linker"
    for part in (str(tmp_path), "PATH", "iree-lld", "pip install iree-base-compiler"):
        assert part in str(caught.value)


def test_toolkit_of_a_rocm_installation_is_itself(places: tuple[Path, Path], tmp_path: Path) -> None:
    assert find_linker().toolkit(tmp_path / "cache") == tmp_path / "rocm"


def test_toolkit_of_the_pypi_linker_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setattr(linker_module.shutil, "which", lambda name: None)
    found = find_linker()
    with ThreadPoolExecutor(8) as pool:
        directories = set(pool.map(lambda _: found.toolkit(tmp_path / "a 'quoted' place"), range(16)))
    (directory,) = directories
    tool = directory / "llvm" / "bin" / "ld.lld"
    assert "LLD" in subprocess.run([tool, "--version"], check=True, capture_output=True, text=True).stdout
    assert [path.name for path in tool.parent.iterdir()] == ["ld.lld"]


def test_identity_follows_the_file(places: tuple[Path, Path]) -> None:
    before = find_linker().identity
    places[0].write_text("#!/bin/sh\nexit 1 # another version\n")
    assert find_linker().identity != before
