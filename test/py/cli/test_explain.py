"""`flycc explain FILE.py:FUNCTION` as people use it: their own files, and their mistakes."""

import json
import subprocess
import sys

import pytest

from flycc.cli.main import main

MODEL = """
from __future__ import annotations
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sibling import WIDTH

@dataclass
class Settings:
    width: int = WIDTH

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(Settings().width, 8)

    def forward(self, x):
        return F.silu(self.linear(x))

def example():
    return torch.nn.Sequential(Block()).bfloat16(), (torch.ones(2, 16, dtype=torch.bfloat16),)

def no_tuple():
    return Block()

def refused():
    return Block(), (torch.ones(2, 16),)
"""

MX = """
import torch
import torch.nn.functional as F
import flycc

def product(data, scales):
    wide = torch.ops.flycc.mx_dequantize(data, scales, dtype=torch.bfloat16)
    return F.linear(wide, wide)

def example():
    return product, (torch.ones(4, 32).to(torch.float8_e4m3fn), torch.ones(4, 1).to(torch.float8_e8m0fnu))
"""


@pytest.fixture
def folder(tmp_path):
    # A name that a standard module has.
    (tmp_path / "test.py").write_text(MODEL)
    (tmp_path / "sibling.py").write_text("WIDTH = 16\n")
    return tmp_path


def explain(*arguments):
    command = [sys.executable, "-m", "flycc.cli.main", "explain", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_file_with_globals_siblings_and_dataclasses(folder):
    done = explain(f"{folder}/test.py:example", "--json", folder / "out.json")
    assert done.returncode == 0, done.stderr
    assert "flycc::gemm" in done.stdout
    assert "aten.addmm.default + aten.silu.default bf16[8]" in " ".join(done.stdout.split())
    assert json.loads((folder / "out.json").read_text())["families"]["gemm"]["kernel"] == 1


def test_options_of_mx_are_the_backend_s(folder, capsys):
    (folder / "mx.py").write_text(MX)
    assert main(["explain", f"{folder}/mx.py:example", "--scale-placement", "relaxed"]) == 0
    assert "relaxed: no proof of equal bits" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["test.py:no_tuple"],
            "explain.subject: test.py:no_tuple must return (model, tuple of inputs), got Block",
        ),
        (["test.py:missing"], "explain.subject: test.py has no function 'missing'"),
        (["none.py:example"], "explain.subject: there is no file none.py"),
        (["test.py"], "explain.subject: 'test.py' is not of the form FILE.py:FUNCTION"),
        (["--json", "/no/such/folder/x.json", "test.py:example"], "cli.json: --json /no/such/folder/x.json"),
        (["--strict", "test.py:refused"], "gemm.dtype: "),
    ],
)
def test_mistakes_get_one_line(folder, monkeypatch, arguments, sentence):
    monkeypatch.chdir(folder)
    done = explain(*arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"flycc explain: {sentence}")
    assert "Traceback" not in done.stderr
