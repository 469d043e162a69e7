"""From a problem to its tuned configuration: which table answers, what autotune adds, and what the runtime launches."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flycc.contracts import Epilogue, FlyccError, GemmProblem, Reason, RmsNormBackwardProblem, TopkProblem
from flycc.kernels import gemm
from flycc.runtime import choice as provider
from flycc.runtime import gemm as runtime_gemm
from flycc.runtime.emulated import EmulatedDevice
from flycc.runtime.hip import HipDevice
from flycc.tuning import choice
from flycc.tuning.analytic import estimate_us
from flycc.tuning.choice import analytic_choice, keep, prepare, tuned_config
from flycc.tuning.family import FAMILIES
from flycc.tuning.search import TIE
from flycc.tuning.table import Entry, Table, read, user_path

GEMM = FAMILIES["gemm"]
CPU = torch.device("cpu")
#: In no shipped table.
PROBLEM = GemmProblem("bf16", 16, 48, 352, trans_b=True)
OTHER = gemm.GemmConfig(32, 32, 64, waves_k=2, staged=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user without tables, in a process that has tuned nothing; compiled kernels are kept."""
    monkeypatch.setattr("flycc.tuning.table.cache_root", lambda: tmp_path)
    monkeypatch.setattr("flycc.tuning.journal.cache_root", lambda: tmp_path)
    monkeypatch.setattr(choice, "_WHILE_COMPILING", choice.Budget(candidates=2))

    def forget() -> None:
        choice._mine.cache_clear()
        choice.forget()

    forget()
    yield tmp_path
    forget()


def entry(config: gemm.GemmConfig = OTHER, problem: GemmProblem = PROBLEM, by: str = "model") -> Entry:
    key = GEMM.key(problem)
    assert key is not None
    return Entry(key, config, 1.0, by)


def stored() -> list[Entry]:
    return list(read(user_path("gemm"), GEMM).entries.values())


def test_the_users_table_answers_for_like_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_OTHER_ROWS", math.inf)
    keep([entry()], GEMM, user_path("gemm"))
    assert tuned_config(PROBLEM) == OTHER
    assert tuned_config(GemmProblem("f16", 20, 48, 352, trans_b=True, bias=True)) == OTHER
    # As rows go, 24 is nearer to a new entry at 32.
    near = GemmProblem("bf16", 32, 48, 352, trans_b=True)
    keep([entry(gemm.GemmConfig(64, 64, 64, 2, 2), near)], GEMM, user_path("gemm"))
    assert tuned_config(GemmProblem("bf16", 24, 48, 352, trans_b=True)) == gemm.GemmConfig(64, 64, 64, 2, 2)
    assert tuned_config(PROBLEM) == OTHER


def test_an_entry_of_other_rows_is_passed_over_where_it_is_slow() -> None:
    """Tiles of 16 x 16 give each of 4,096 rows' operands to many workgroups; an entry for these very rows counts."""
    slow = gemm.GemmConfig(16, 16, 64, staged=False)
    many, more = (GemmProblem("bf16", m, 4096, 352, trans_b=True) for m in (4096, 4097))
    keep([entry(slow, many)], GEMM, user_path("gemm"))
    assert tuned_config(many) == slow
    assert tuned_config(more) != slow


def test_without_an_entry_the_closed_form_answers() -> None:
    found = tuned_config(PROBLEM)
    assert found == analytic_choice(PROBLEM, GEMM)
    own = gemm.choose(PROBLEM)
    least = min(estimate_us(PROBLEM, config) for config in GEMM.space(PROBLEM))
    if found == own:
        assert estimate_us(PROBLEM, own) <= least * (1 + TIE)
    else:
        assert estimate_us(PROBLEM, found) == least


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem("bf16", "s0", 48, 352),
        GemmProblem("bf16", 16, 48, 352, batch=3),
        GemmProblem("f32", 16, 48, 352),
        TopkProblem("f32", 4, 64, 2),
        RmsNormBackwardProblem("bf16", 4, 64),
    ],
    ids=str,
)
def test_what_tables_do_not_serve_is_left_to_the_kernels(problem: Any) -> None:
    assert tuned_config(problem) is None
    prepare(problem, CPU, "model")
    assert not stored()


def test_the_runtime_launches_what_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "_providers", [tuned_config])
    keep([entry()], GEMM, user_path("gemm"))
    config, loaded = runtime_gemm.prepare(PROBLEM, EmulatedDevice())
    assert config == OTHER
    assert loaded.spec.symbol.endswith(str(OTHER))
    a, b = torch.randn(16, 352).bfloat16(), torch.randn(48, 352).bfloat16()
    out = torch.ops.flycc.gemm(a, b, trans_b=True)
    # Both round a sum of 352 products once: half a unit in the last place of bfloat16 (2^-8 of the value) each.
    torch.testing.assert_close(out.float(), a.float() @ b.float().T, rtol=2**-7, atol=2**-7)


def test_a_tuned_configuration_that_does_not_serve_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    invalid = gemm.GemmConfig(64, 64, 5)
    monkeypatch.setattr(provider, "_providers", [lambda problem: invalid])
    assert provider.choose(PROBLEM, gemm.choose) == gemm.choose(PROBLEM)
    monkeypatch.setattr(provider, "_providers", [])
    provider.install(tuned_config)
    provider.install(tuned_config)
    assert provider._providers == [tuned_config]


def test_what_a_provider_raises_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(problem: Any) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(provider, "_providers", [])
    monkeypatch.setattr(provider, "_failed", set())
    provider.install(lambda problem: OTHER)
    provider.install(fail)
    with pytest.warns(RuntimeWarning, match="OverflowError: too large") as caught:
        assert [provider.choose(PROBLEM, gemm.choose) for _ in range(2)] == [OTHER, OTHER]
    assert len(caught) == 1


def test_who_comes_last_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "_providers", [tuned_config])
    provider.install(lambda problem: OTHER)
    assert tuned_config(PROBLEM) != OTHER
    assert provider.choose(PROBLEM, gemm.choose) == OTHER


def measured_table(**changes: object) -> str:
    """The text of a table of one measured entry."""
    table = Table(GEMM)
    table.add(entry(by="measure"))
    return json.dumps(json.loads(table.text()) | changes)


@pytest.mark.parametrize(
    "text",
    [
        measured_table(version=2),
        measured_table()[:-2],
        measured_table().replace('"waves_k"', '"swizzle": 8, "waves_k"'),
    ],
    ids=("other version", "cut off", "new field"),
)
def test_a_table_that_was_not_understood_is_not_written_over(text: str) -> None:
    path = user_path("gemm")
    path.parent.mkdir()
    path.write_text(text)
    with pytest.warns(RuntimeWarning, match="it is left as it is") as caught:
        keep([entry(problem=GemmProblem("bf16", 64, 48, 352, trans_b=True))], GEMM, path)
    assert len(caught) == 1
    assert path.read_text() == text


def test_an_entry_of_padded_operands_is_read_again() -> None:
    """Rows of 777 elements are 16-byte aligned if they lie 784 apart."""
    padded = GemmProblem("bf16", 16, 48, 777, trans_b=True)
    keep([entry(problem=padded)], GEMM, user_path("gemm"))
    assert [found.key for found in stored()] == [GEMM.key(padded)]


def test_measured_entries_stay() -> None:
    keep([entry(by="measure")], GEMM, user_path("gemm"))
    keep([entry(problem=GemmProblem("bf16", 64, 48, 352, trans_b=True))], GEMM, user_path("gemm"))
    assert [found.by for found in stored()] == ["measure", "model"]


def test_few_different_rows_ask_the_closed_form() -> None:
    """Eight numbers of rows an octave: 32 from 257 to 4,096. What is chosen computes the problem all the same."""
    choice._analytic.cache_clear()
    for m in range(257, 4097):
        problem = GemmProblem("bf16", m, 48, 352, trans_b=True)
        found = tuned_config(problem)
        assert found is not None
        assert found.is_valid(problem) is None
    assert choice._analytic.cache_info().misses == 32


def test_an_entry_of_these_very_rows_needs_no_closed_form() -> None:
    choice._analytic.cache_clear()
    keep([entry()], GEMM, user_path("gemm"))
    assert tuned_config(PROBLEM) == OTHER
    assert choice._analytic.cache_info().misses == 0


def test_measuring_without_a_gpu_says_so_once() -> None:
    choice._warn_unmeasured.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for problem in (PROBLEM, GemmProblem("bf16", 64, 48, 352, trans_b=True)):
            prepare(problem, CPU, "measure")
    assert sum("tune.no-gpu" in str(warning.message) for warning in caught) == 1
    assert [found.by for found in stored()] == ["model", "model"]


def test_autotune_by_the_model_keeps_what_it_finds() -> None:
    prepare(PROBLEM, CPU, "table")
    assert not stored()
    prepare(PROBLEM, CPU, "model")
    (found,) = stored()
    assert found.by == "model"
    assert tuned_config(PROBLEM) == found.config


def test_autotune_asks_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    keep([entry()], GEMM, user_path("gemm"))

    def never(*_: object) -> None:
        raise AssertionError("tuned again")

    monkeypatch.setattr(choice, "tune", never)
    prepare(PROBLEM, CPU, "model")


def test_autotune_measures_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = object.__new__(HipDevice)  # what it measures is replaced below
    monkeypatch.setattr(choice, "device_for", lambda place: gpu)
    asked = []

    def fastest(device: Any, problem: GemmProblem, configs: list[Any]) -> tuple[Any, float]:
        asked.append((device, configs))
        return configs[-1], 3.5

    monkeypatch.setattr(choice, "fastest_on", fastest)
    keep([entry()], GEMM, user_path("gemm"))  # modelled, so not enough
    prepare(PROBLEM, torch.device("cuda"), "measure")
    ((device, configs),) = asked
    assert device is gpu
    assert len(configs) == 2
    assert [(found.config, found.us, found.by) for found in stored()] == [(configs[-1], 3.5, "measure")]
    prepare(PROBLEM, torch.device("cuda"), "measure")
    assert len(asked) == 1


def test_a_search_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise FlyccError(Reason("codegen.crash", "the compiler ended"))

    monkeypatch.setattr(choice, "tune", fail)
    with pytest.warns(RuntimeWarning, match="the compiler ended"):
        prepare(PROBLEM, CPU, "model")


def test_a_table_that_cannot_be_written_is_a_warning_and_this_process_still_knows(cache: Path) -> None:
    (cache / "tuning").write_text("in the way")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prepare(PROBLEM, CPU, "model")
    assert any("tuning table" in str(warning.message) for warning in caught)
    assert choice._mine("gemm").entries


def test_compiling_with_autotune_tunes_what_it_compiles() -> None:
    """Rounded once each, as above."""

    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Code of its own: Dynamo takes sizes for dynamic that it saw vary in code that it saw before."""
        return torch.nn.functional.linear(x, weight)

    x, weight = torch.randn(16, 352).bfloat16(), torch.randn(48, 352).bfloat16()
    compiled = torch.compile(linear, backend="flycc", options={"autotune": "model"})
    torch.testing.assert_close(
        compiled(x, weight).float(), x.float() @ weight.float().T, rtol=2**-7, atol=2**-7
    )
    assert [(found.key, found.by) for found in stored()] == [(GEMM.key(PROBLEM), "model")]


def test_a_gated_product_takes_what_serves_twice_as_many_columns() -> None:
    """An entry that cannot be gated is passed over."""
    plain = GemmProblem("bf16", 64, 96, 352, trans_b=True)
    gated = replace(plain, n=48, epilogue=Epilogue(gated=True))
    keep([entry(problem=plain)], GEMM, user_path("gemm"))
    assert tuned_config(gated) == OTHER
    narrow = gemm.GemmConfig(16, 16, 64, staged=False)
    assert narrow.is_valid(plain) is None
    keep([entry(problem=plain, config=narrow)], GEMM, user_path("gemm"))
    assert tuned_config(plain) == narrow
    found = tuned_config(gated)
    assert found is not None
    assert found.is_valid(gated) is None
