"""The on-disk cache never hands out wrong bytes, whatever happened to its files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flycc.codegen import CodeObjectCache

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
    "damage", ["flip", "truncate", "empty", "not-json", "no-digest", "path", "other-key"]
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


def test_unwritable_cache_is_a_warning(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with pytest.warns(RuntimeWarning, match="cannot write the cache"):
        CodeObjectCache(blocked).put(KEY, ELF, {})


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
