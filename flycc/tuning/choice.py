"""From a problem to its tuned configuration, and the three ways to tune that `autotune` names.

The entry whose rows are nearest has it: of this process's table, the user's, or the shipped one; the first of these if
several are as near. Where none is near, the closed form does, if its estimate beats the kernels' own choice by more
than a tie. Problems with unknown sizes, and those that tables do not serve, keep the kernels' own choice.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from flycc.contracts import Epilogue, FlyccError, GemmProblem, Reason
from flycc.runtime import choice
from flycc.runtime.devices import device_for
from flycc.runtime.hip import HipDevice
from flycc.tuning.analytic import estimate_us, lower_us
from flycc.tuning.family import FAMILIES, Family, Key, family_of
from flycc.tuning.measure import fastest_on
from flycc.tuning.search import TIE, Budget, Tuned, tune
from flycc.tuning.table import Entry, Table, examined, read, shipped_path, user_path
from flycc.tuning.workers import Workers

#: How a problem that is compiled gets its configuration; see `flycc.options.Options`.
Autotune = Literal["table", "model", "measure"]

#: Candidates of a problem that `autotune` models while a model is being compiled: a second or so for each.
_WHILE_COMPILING = Budget(candidates=12)
#: [?] An entry of other rows is passed over where the closed form puts it farther behind its own choice.
_OTHER_ROWS = 1.2
#: How many of the fastest by the model are measured.
_MEASURED = 4


@functools.cache
def _mine(family: str) -> Table:
    """What this process tuned."""
    return Table(FAMILIES[family])


@functools.cache
def _stored(family: str) -> tuple[Table, Table]:
    """The user's table and the shipped one."""
    of = FAMILIES[family]
    return read(user_path(family), of), read(shipped_path(family), of)


@functools.lru_cache(maxsize=4096)
def tuned_config(problem: Any) -> Any | None:
    """The tuned configuration of `problem`, if there is one."""
    family = family_of(problem)
    key = family.key(problem) if family is not None and family.config is not None else None
    if family is None or key is None:
        return None
    return looked_up(problem, family, key, (_mine(family.name), *_stored(family.name)))


def looked_up(problem: Any, family: Family, key: Key, tables: Sequence[Table]) -> Any | None:
    """What `tables` say of `problem`, whose key is `key`; where they say nothing, the closed form for a product."""
    near = [entry for table in tables if (entry := table.nearest(key)) is not None]
    # Of entries as near, the first table's.
    near.sort(key=lambda entry: entry.key.apart(key))
    serving = [entry for entry in near if entry.config.is_valid(problem) is None]
    if serving and serving[0].key == key:
        return serving[0].config
    if not isinstance(problem, GemmProblem):
        return serving[0].config if serving else None
    closed_form = _closed_form(key, problem.epilogue.gated)
    if closed_form is None or closed_form.is_valid(problem) is not None:
        return serving[0].config if serving else None
    for entry in serving:
        if _as_good(problem, entry.config, closed_form):
            return entry.config
    return closed_form


def _as_good(problem: Any, config: Any, other: Any) -> bool:
    """Whether a configuration that was tuned for other rows is about as good for these: workgroups may have come to be
    some more than the compute units."""
    return estimate_us(problem, config) <= estimate_us(problem, other) * _OTHER_ROWS


def _closed_form(key: Key, gated: bool) -> Any | None:
    """`analytic_choice` for a product of the next number of rows of which an octave has eight: a model that meets
    ever new numbers of rows would wait for it at every launch."""
    step = 1 << max(0, (key.rows - 1).bit_length() - 4)
    return _analytic(key.exact, -(-key.rows // step) * step, gated)


@functools.lru_cache(maxsize=4096)
def _analytic(exact: tuple[str | int, ...], rows: int, gated: bool) -> Any | None:
    family = FAMILIES["gemm"]
    problem = family.problem(family.fields(Key(exact, rows)))
    if gated:
        problem = replace(problem, n=problem.n // 2, epilogue=Epilogue(gated=True))
    return analytic_choice(problem, family)


def analytic_choice(problem: Any, family: Family) -> Any | None:
    """The configuration that the closed form likes best; the kernels' own unless it is better by more than a tie."""
    own = family.choose(problem)
    if isinstance(own, Reason):
        return None
    times = [(estimate_us(problem, config), config) for config in family.space(problem)]
    least = min((us for us, _ in times), default=math.inf)
    if estimate_us(problem, own) <= least * (1 + TIE):
        return own
    # As the search orders them: of equal estimates the lower bound decides.
    return min((config for us, config in times if us == least), key=functools.partial(lower_us, problem))


def install() -> None:
    """Let the runtime ask the tables."""
    choice.install(tuned_config)


def prepare(problem: Any, device: torch.device, autotune: Autotune) -> None:
    """Tune a problem that is about to be compiled for tensors on `device`, if `autotune` asks for it and nobody did.

    What is found is kept in the user's table. A search that fails leaves the problem to the tables, with a warning.
    """
    family = family_of(problem)
    key = family.key(problem) if family is not None and family.config is not None else None
    if autotune == "table" or family is None or key is None:
        return
    mine, (users, _) = _mine(family.name), _stored(family.name)
    known = mine.entries.get(key) or users.entries.get(key)
    try:
        gpu = device_for(device) if autotune == "measure" else None
        wanted = "measure" if isinstance(gpu, HipDevice) else "model"
        if autotune != wanted:
            _warn_unmeasured(device.type)
        if known is not None and wanted in (known.by, "model"):
            return
        with Workers(0) as workers:
            found = tune(problem, workers, _WHILE_COMPILING)
        entry = entry_of(found, family)
        if isinstance(gpu, HipDevice):
            config, us = fastest_on(gpu, problem, _to_measure(found))
            entry = Entry(key, config, us, "measure")
    except FlyccError as error:
        warnings.warn(f"flycc: autotune: {problem}: {error.reason}", RuntimeWarning, stacklevel=2)
        return
    mine.add(entry)
    keep([entry], family, user_path(family.name))


@functools.cache
def _warn_unmeasured(place: str) -> None:
    """Say once why nothing is measured."""
    reason = Reason(
        "tune.no-gpu", f"autotune='measure': tensors on {place} have no GPU; the model is asked instead"
    )
    warnings.warn(f"flycc: {reason}", RuntimeWarning, stacklevel=4)


def _to_measure(tuned: Tuned) -> list[Any]:
    """The fastest by the model, and the one that it would take."""
    top = [candidate.config for candidate in tuned.ranked[:_MEASURED]]
    return top if tuned.best.config in top else [*top, tuned.best.config]


def entry_of(tuned: Tuned, family: Family) -> Entry:
    """The table's entry of a search's answer. Raises `FlyccError` for a problem that tables do not serve."""
    key = family.key(tuned.problem)
    if key is None:
        raise FlyccError(Reason("tune.key", f"{tuned.problem}: tables have single, 16-byte aligned products"))
    return Entry(key, tuned.best.config, tuned.best.time.typical, "model")


def keep(entries: list[Entry], family: Family, path: Path) -> None:
    """Put entries into the table at `path`. One that cannot be written is a warning; so is one that has something wrong
    in it, or is of another version, which stays as it is: it would lose what was not understood."""
    table, wrong = examined(path, family)
    for entry in entries:
        table.add(entry)
    try:
        if wrong:
            raise ValueError(f"{wrong}; it is left as it is: mend it or move it away")
        table.write(path)
    except (OSError, ValueError) as error:
        warnings.warn(f"flycc: tuning table {path}: {error}", RuntimeWarning, stacklevel=2)
    forget()


def forget() -> None:
    """Read the stored tables again when they are needed next."""
    _stored.cache_clear()
    tuned_config.cache_clear()
    choice.changed()
