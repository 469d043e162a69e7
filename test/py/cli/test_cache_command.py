"""`flycc cache` and `flycc doctor` where the cache can be used, and where not."""

from __future__ import annotations

from pathlib import Path

import pytest

from flycc.cli import doctor
from flycc.cli.main import main
from flycc.codegen import CodeObjectCache


@pytest.fixture(params=["file", "/proc/absent"])
def unusable(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "file").touch()
    root = tmp_path / request.param
    monkeypatch.setenv("FLYCC_CACHE_DIR", str(root))
    return root


@pytest.mark.parametrize("arguments", [[], ["--clear"]])
def test_unusable_cache_is_an_error(
    unusable: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", *arguments]) == 1
    said = capsys.readouterr()
    assert f"cannot use the cache in {unusable} (" in said.err
    assert not said.out


def test_doctor_reports_an_unusable_cache_as_no_obstacle(
    unusable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = doctor.examine()
    assert found["ok"]
    assert found["cache_problem"].startswith(f"cannot use the cache in {unusable} (")
    doctor.show(found)
    assert "problem  cannot use the cache in" in capsys.readouterr().out


def test_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FLYCC_CACHE_DIR", str(tmp_path))
    CodeObjectCache().put("a" * 64, b"elf", {})
    (tmp_path / "objects" / "directory").mkdir()
    assert doctor.examine()["cache_problem"] is None
    assert main(["cache", "--clear"]) == 0
    assert "removed 1 code objects" in capsys.readouterr().out
    assert CodeObjectCache().usage() == (0, 0)
    assert not list((tmp_path / "objects").iterdir())
