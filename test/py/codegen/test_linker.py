"""The linker is found in ROCM_PATH, then PATH, then the PyPI package, and its absence is one clear error."""

from __future__ import annotations

import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flycc.codegen import MissingLinker, find_linker
from flycc.codegen import linker as linker_module


def fake_tool(path: Path, text: str = "echo LLD 1.0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
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
    fake_tool(places[0], "echo LLD 2.0.1")
    assert find_linker().identity != before


@pytest.mark.parametrize("text", ["exit 0", "echo GNU ld 2.40", "echo LLD; exit 1"])
def test_what_does_not_say_that_it_is_lld_is_passed_over(
    places: tuple[Path, Path], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocm, on_path = places
    fake_tool(rocm, text)
    with pytest.warns(RuntimeWarning, match="is no working LLD") as caught:
        assert [find_linker().path for _ in range(2)] == [on_path, on_path]
    assert len(caught) == 1
    on_path.unlink()
    monkeypatch.setattr(linker_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingLinker, match=f"{rocm} is no working LLD"):
        find_linker()


def test_what_cannot_be_run_is_passed_over(places: tuple[Path, Path]) -> None:
    places[0].write_bytes(b"\x7fELF")
    with pytest.warns(RuntimeWarning, match="Exec format error"):
        assert find_linker().path == places[1]


def test_a_linker_is_probed_once(places: tuple[Path, Path], tmp_path: Path) -> None:
    log = tmp_path / "log"
    fake_tool(places[0], f"echo run >> {log}; echo LLD")
    for _ in range(3):
        find_linker()
    assert log.read_text() == "run\n"


def test_a_plain_toolkit_that_can_be_written_stays_where_it_is(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    places[0].unlink()
    found = find_linker()
    with found.plain_toolkit(tmp_path / "cache") as directory:
        assert directory == found.toolkit(tmp_path / "cache")


def test_no_plain_path_is_an_error(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / '"'
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    places[0].unlink()
    with pytest.raises(MissingLinker, match="TMPDIR"), find_linker().plain_toolkit(odd):
        pass
