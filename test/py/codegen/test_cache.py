"""The on-disk cache never hands out wrong bytes, whatever happened to its files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from flycc.codegen import CodeObjectCache
from flycc.codegen.cache import cache_root

KEY, OTHER = "a" * 64, "b" * 64
ELF = bytes(range(256)) * 16


def files(cache: CodeObjectCache, pattern: str) -> list[Path]:
    return sorted(cache.root.glob(pattern))


def test_round_trip(cache: CodeObjectCache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, ELF, {"symbol": "k"})
    assert cache.get(KEY) == ELF
    assert cache.get(OTHER) is None
    assert cache.usage() == (1, len(ELF))
    assert cache.clear() == 1
    assert cache.get(KEY) is None
    assert cache.usage() == (0, 0)


def test_entry_is_readable_json(cache: CodeObjectCache) -> None:
    cache.put(KEY, ELF, {"symbol": "k"})
    record = json.loads(files(cache, "entries/*.json")[0].read_bytes())
    assert record["about"] == {"symbol": "k"}
    assert record["bytes"] == len(ELF)


@pytest.mark.parametrize(
    "damage",
    [
        "flip",
        "truncate",
        "empty",
        "not-json",
        "no-digest",
        "path",
        "other-key",
        "deep-json",
        "entry-is-directory",
        "object-is-directory",
    ],
)
def test_damage_is_removed_with_one_warning(cache: CodeObjectCache, damage: str) -> None:
    cache.put(KEY, ELF, {})
    (entry,), (object_,) = files(cache, "entries/*"), files(cache, "objects/*")
    record = json.loads(entry.read_bytes())
    if damage == "flip":
        object_.write_bytes(ELF[:100] + bytes([ELF[100] ^ 1]) + ELF[101:])
    elif damage == "truncate":
        object_.write_bytes(ELF[:-1])
    elif damage == "empty":
        object_.write_bytes(b"")
    elif damage == "not-json":
        entry.write_bytes(entry.read_bytes()[:20])
    elif damage == "no-digest":
        entry.write_text(json.dumps({"key": KEY}))
    elif damage == "path":
        entry.write_text(json.dumps(record | {"sha256": "../" * 21 + "x"}))
    elif damage == "deep-json":
        entry.write_text("[" * 100_000)
    elif damage.endswith("is-directory"):
        place = entry if damage.startswith("entry") else object_
        place.unlink()
        (place / "inner").mkdir(parents=True)
    else:
        entry.write_text(json.dumps(record | {"key": OTHER}))
    with pytest.warns(RuntimeWarning, match="damaged cache entry") as caught:
        assert cache.get(KEY) is None
    assert len(caught) == 1
    assert not entry.exists()
    cache.put(KEY, ELF, {})
    assert cache.get(KEY) == ELF


def test_missing_object_is_a_silent_miss(cache: CodeObjectCache, recwarn: pytest.WarningsRecorder) -> None:
    cache.put(KEY, ELF, {})
    files(cache, "objects/*")[0].unlink()
    assert cache.get(KEY) is None
    assert not recwarn.list


def test_eviction_removes_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = CodeObjectCache(tmp_path, max_bytes=2500)
    keys = [f"{i:064x}" for i in range(3)]
    for age, key in zip((30, 20, 10), keys, strict=True):
        if key != keys[2]:
            cache.put(key, key.encode() * 16, {})
            stamp = time.time() - age
            os.utime(tmp_path / "entries" / f"{key}.json", (stamp, stamp))
    assert cache.get(keys[0]) is not None  # now the second is the one used longest ago
    cache.put(keys[2], keys[2].encode() * 16, {})
    assert [cache.get(key) is not None for key in keys] == [True, False, True]


def test_leftovers_of_killed_writers_are_swept(cache: CodeObjectCache) -> None:
    cache.put(KEY, ELF, {})
    old, young = cache.root / "objects" / "old.tmp", cache.root / "objects" / "young.tmp"
    for path in (old, young):
        path.write_bytes(b"partial")
    os.utime(old, (0, 0))
    cache.put(OTHER, ELF[::-1], {})
    assert (old.exists(), young.exists()) == (False, True)
    assert cache.get(KEY) == ELF


@pytest.fixture(params=["file", "proc", "dangling", "loop", "long", "unreadable", "read-only"])
def unusable(request: pytest.FixtureRequest, tmp_path: Path) -> CodeObjectCache:
    root = tmp_path / "root"
    if request.param == "file":
        root.write_text("not a directory")
    elif request.param == "proc":
        root = Path("/proc", tmp_path.name)
    elif request.param in ("dangling", "loop"):
        root.symlink_to(root if request.param == "loop" else tmp_path / "absent")
    elif request.param == "long":
        root = tmp_path / ("x" * 300)
    else:
        if os.geteuid() == 0:
            pytest.skip("root can read and write everything")
        root.mkdir(mode=0o500 if request.param == "read-only" else 0)
    return CodeObjectCache(root)


def test_an_unusable_cache_is_one_warning_that_names_it(unusable: CodeObjectCache) -> None:
    with warnings.catch_warnings(record=True, action="always") as caught:
        for key in (KEY, OTHER):
            assert unusable.get(key) is None
            unusable.put(key, ELF, {})
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert str(warning.message).startswith(f"flycc: cannot use the cache in {unusable.root} (")
    problem = unusable.problem()
    assert problem is not None
    assert problem.startswith(f"cannot use the cache in {unusable.root} (")


def test_a_usable_cache_has_no_problem_and_is_not_made_by_asking(cache: CodeObjectCache) -> None:
    assert cache.problem() is None
    assert not cache.root.exists()
    cache.put(KEY, ELF, {})
    before = files(cache, "**/*")
    assert cache.problem() is None
    assert files(cache, "**/*") == before


def test_a_damaged_entry_that_cannot_be_removed_is_ignored(
    cache: CodeObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(KEY, ELF, {})
    files(cache, "entries/*")[0].write_text("{}")

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.warns(RuntimeWarning, match="damaged cache entry"):
        assert cache.get(KEY) is None


def test_without_a_home_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FLYCC_CACHE_DIR", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert CodeObjectCache(cache_root()).problem() is not None


WRITER = """
import random, sys
from pathlib import Path
from flycc.codegen import CodeObjectCache
cache = CodeObjectCache(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    number = random.randrange(8)
    cache.put(f"{number:064x}", bytes([number]) * 500_000, {})
"""


def test_killed_and_concurrent_writers_leave_only_whole_entries(
    cache: CodeObjectCache, recwarn: pytest.WarningsRecorder
) -> None:
    command = [sys.executable, "-c", WRITER, str(cache.root)]
    for round_ in range(4):
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        deadline = time.monotonic() + 0.1 + 0.05 * round_
        while time.monotonic() < deadline:
            for number in range(8):
                assert cache.get(f"{number:064x}") in (None, bytes([number]) * 500_000)
        for writer in writers:
            writer.kill()
            writer.communicate()
    found = [number for number in range(8) if cache.get(f"{number:064x}") is not None]
    assert found, "the writers were killed before they wrote anything"
    assert not recwarn.list
