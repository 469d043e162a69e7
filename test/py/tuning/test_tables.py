"""Tables: what is written is read again, what is wrong is left out with one warning, and the nearest rows answer."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flycc.contracts import GemmProblem
from flycc.kernels.gemm import GemmConfig
from flycc.tuning.family import FAMILIES, Key
from flycc.tuning.shipped import SHIPPED
from flycc.tuning.table import Entry, Table, read, shipped_path

GEMM = FAMILIES["gemm"]
CONFIGS = (GemmConfig(64, 64, 64, 2, 2), GemmConfig(16, 64, 64, waves_k=4, staged=False))


def key(m: int, n: int = 256, k: int = 512) -> Key:
    return Key(("bf16", "NT", n, k), m)


def entry(m: int, config: GemmConfig = CONFIGS[0], us: float = 5.0, by: str = "model") -> Entry:
    return Entry(key(m), config, us, by)


def table(*entries: Entry) -> Table:
    made = Table(GEMM)
    for each in entries:
        made.add(each)
    return made


@given(
    rows=st.dictionaries(st.integers(1, 1 << 20), st.tuples(st.sampled_from(CONFIGS), st.integers(1, 10**6)))
)
def test_what_is_written_is_read_again(
    rows: dict[int, tuple[GemmConfig, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("table") / "gemm.json"
    written = table(*(entry(m, config, us / 100) for m, (config, us) in rows.items()))
    written.write(path)
    assert read(path, GEMM).entries == written.entries


def test_an_entry_is_a_line_and_lines_are_sorted() -> None:
    one = table(entry(64), entry(1)).text().splitlines()
    both = table(entry(1), entry(8), entry(64)).text().splitlines()
    assert len(both) == len(one) + 1
    assert [line.rstrip(",") for line in both if '"m": 8,' not in line] == [line.rstrip(",") for line in one]


def test_the_nearest_rows_answer_within_two_octaves() -> None:
    """In octaves: 24 is nearer to 32 (0.42) than to 16 (0.58)."""
    known = table(entry(16, CONFIGS[1]), entry(32, CONFIGS[0]))
    found = {m: known.nearest(key(m)) for m in (3, 4, 16, 22, 24, 128, 129)}
    rows = {m: nearest and nearest.key.rows for m, nearest in found.items()}
    assert rows == {3: None, 4: 16, 16: 16, 22: 16, 24: 32, 128: 32, 129: None}
    assert known.nearest(key(16, n=257)) is None


def test_a_measured_time_is_not_replaced_by_a_modelled_one() -> None:
    made = table(entry(8, CONFIGS[0], by="measure"))
    made.add(entry(8, CONFIGS[1], by="model"))
    assert made.entries[key(8)].config == CONFIGS[0]
    made.add(entry(8, CONFIGS[1], by="measure"))
    assert made.entries[key(8)].config == CONFIGS[1]


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"tile_m": 16, "tile_n": 16, "tile_k": 5}},  # no multiple of an MFMA's K
        {"config": {"tile_m": 16, "tile_n": 16}},
        {"config": {"tile_m": 16, "tile_n": 16, "tile_k": 32, "speed": 9}},
        {"config": {"tile_m": 16.0, "tile_n": 16, "tile_k": 32}},
        {
            "config": {"tile_m": 512, "tile_n": 512, "tile_k": 64, "staged": False}
        },  # its sums fit no registers
        {"config": {"tile_m": 1 << 40, "tile_n": 64, "tile_k": 32, "staged": False}},
        {"config": {"tile_m": 16 * 10**400, "tile_n": 64, "tile_k": 32, "staged": False}},
        {"config": None},
        {"m": 0},
        {"m": 10**400},
        {"n": 1 << 63},
        {"m": "8"},
        {"dtype": 16},
        {"dtype": "f16"},  # looked up as bf16
        {"layout": "XX"},
        {"us": float("nan")},
        {"us": -1},
        {"us": 10**400},
        {"us": True},
        {"by": "guess"},
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_wrong_entry_is_left_out_with_one_warning(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "gemm.json"
    stored = json.loads(table(entry(8), entry(16), entry(32)).text())
    for at in (0, 1):
        stored["entries"][at] |= change
    path.write_text(json.dumps(stored))
    with pytest.warns(RuntimeWarning, match="2 of 3 entries are left out; entry 1") as caught:
        assert list(read(path, GEMM).entries) == [key(32)]
    assert len(caught) == 1
    assert len(str(caught[0].message)) < len(str(path)) + 300


def test_a_norm_that_no_kernel_is_written_for_is_left_out(tmp_path: Path) -> None:
    """Several rows in a workgroup of several waves a row; work-items that are no power of two."""
    path = tmp_path / "rms_norm.json"
    entry = {"dtype": "bf16", "columns": 2888, "rows": 8, "us": 5.0, "by": "model"}
    for config in ({"threads": 128, "rows": 2, "vectors": 3}, {"threads": 192, "rows": 1, "vectors": 2}):
        path.write_text(
            json.dumps({"version": 1, "family": "rms_norm", "entries": [entry | {"config": config}]})
        )
        with pytest.warns(RuntimeWarning, match=r"rms-norm\.config"):
            assert not read(path, FAMILIES["rms_norm"]).entries


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"version": 2, "family": "gemm", "entries": []}',
        '{"version": 1.0, "family": "gemm", "entries": []}',
        '{"version": true, "family": "gemm", "entries": []}',
        '{"version": 1}',
        "\xff",
    ],
)
def test_a_file_that_is_no_table_is_a_warning(text: str, tmp_path: Path) -> None:
    path = tmp_path / "gemm.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.warns(RuntimeWarning, match="it is not used"):
        assert not read(path, GEMM).entries


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gemm.json")
    with pytest.warns(RuntimeWarning, match="no regular file"):
        assert not read(tmp_path / "gemm.json", GEMM).entries


def test_a_link_to_a_table_stays_one(tmp_path: Path) -> None:
    link, real = tmp_path / "gemm.json", tmp_path / "real.json"
    link.symlink_to(real)
    table(entry(8)).write(link)
    assert link.is_symlink()
    assert list(read(real, GEMM).entries) == [key(8)]


def test_no_file_is_an_empty_table(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not read(tmp_path / "gemm.json", GEMM).entries


@pytest.mark.parametrize("family", SHIPPED)
def test_the_shipped_table_is_as_the_command_writes_it(family: str) -> None:
    """No entry is left out, and writing it again changes no byte."""
    path = shipped_path(family)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shipped = read(path, FAMILIES[family])
    assert shipped.entries
    assert shipped.text() == path.read_text()


def test_a_key_leaves_out_what_tables_do_not_serve() -> None:
    problem = GemmProblem("f16", 8, 256, 512, trans_b=True, bias=True)
    assert GEMM.key(problem) == key(8)
    for other in (
        GemmProblem("bf16", "s0", 256, 512, trans_b=True),
        GemmProblem("bf16", 8, 256, 512, batch=4, trans_b=True),
        GemmProblem("bf16", 8, 256, 512, trans_b=True, align_b=8),
    ):
        assert GEMM.key(other) is None
