"""What every subcommand prints and writes: others' names as they are, files before text, one line for a bad path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flycc.cli.main import main
from flycc.cli.output import console, table, write_json

HOSTILE = "[red]x[/red] [/] :smile: \x1b[31m\u202e"
SHOWN = "[red]x[/red] [/] :smile: \ufffd[31m\ufffd"


def test_names_are_neither_markup_nor_commands(capsys: pytest.CaptureFixture) -> None:
    table(HOSTILE, ("name", "what"), [(HOSTILE, HOSTILE)])
    console.print(HOSTILE)
    shown = capsys.readouterr().out
    assert shown.count(SHOWN) == 4
    assert "\x1b" not in shown


def test_no_json_that_others_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(str(tmp_path / "x.json"), {"time": float("nan")})
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("option", "path", "why"),
    [
        ("--json", ".", "is a folder"),
        ("--json", "", "a file's name is needed"),
        ("--json", "nonesuch/x", "its folder is missing"),
    ],
)
@pytest.mark.parametrize("command", [["predict", "--family", "rms_norm", "--shape", "8,8"], ["doctor"]])
def test_a_path_is_checked_before_the_work(
    command: list[str],
    option: str,
    path: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, option, path]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert f"{option} {path}: {why}" in shown.err


def test_a_reader_that_ends_early_loses_no_file(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    query = ["predict", "--family", "gemm", "--shape", "64,64,64", "--kernel", "aten", "--json", str(out)]
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "flycc.cli.main", *query],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(write)
    assert ended.returncode == 1
    assert b"Traceback" not in ended.stderr
    assert json.loads(out.read_text())["predictions"]
