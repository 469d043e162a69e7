"""The search: which configuration of a problem the cost model finds fastest.

    with Workers(2) as workers:
        tuned = tune(problem, workers, Budget(candidates=40))
    tuned.best.config, tuned.best.time

The kernels' own choice is modelled first, then the others, those that the closed form (`analytic`) likes best first, in
batches of a fixed size. Between batches what cannot win any more is left out. So the same budget of candidates gives
the same answer whatever the machine, its load and the number of workers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from flycc.contracts import FlyccError, Reason
from flycc.costmodel import MI350, Interval
from flycc.tuning.analytic import estimate_us, lower_us
from flycc.tuning.family import Family, family_of
from flycc.tuning.files import shortened
from flycc.tuning.journal import Journal
from flycc.tuning.workers import Workers

#: Candidates between two looks at the best: enough for the cores of a desk machine.
BATCH = 4
#: [?] Two configurations whose modelled times differ by less are a tie, which goes to the kernels' own choice. Half of
#: the model's error: two binaries of one problem on one machine have part of what the model misses in common.
TIE = MI350.model_error / 2
#: A candidate whose estimate is so many times the best modelled time is left out: how far the closed form is off (see
#: docs/tuning.md).
ESTIMATE_ERROR = 1.4


@dataclass(frozen=True, slots=True)
class Budget:
    """What a search may take: seconds, candidates to model (those in the journal count too), or no limit."""

    seconds: float | None = None
    candidates: int | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """ "60s" or "200". Raises `FlyccError` for anything else."""
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(s?)", text, re.ASCII)
        if match is None or not float(match[1]) or (not match[2] and "." in text):
            raise FlyccError(
                Reason(
                    "tune.budget",
                    f"--budget {shortened(text)}: seconds as 60s, or a number of candidates as 200",
                )
            )
        return cls(seconds=float(match[1])) if match[2] else cls(candidates=int(match[1]))


NO_LIMIT = Budget()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration and its modelled time."""

    config: Any
    time: Interval


@dataclass(frozen=True, slots=True)
class Tuned:
    """The answer. `own` is the kernels' own choice, None if that could not be modelled; `best` the one to use, which is
    `own` if that is a tie with the fastest; `ranked` all that were modelled, the fastest first; `failed` those that
    could not be, with why. Of `space` configurations `pruned` were left out, and `unseen` did not fit the budget."""

    problem: Any
    best: Candidate
    own: Candidate | None
    ranked: tuple[Candidate, ...]
    failed: tuple[tuple[Any, Reason], ...]
    space: int
    pruned: int
    unseen: int
    seconds: float

    @property
    def fastest(self) -> Candidate:
        """The fastest by the model, tie or not."""
        return self.ranked[0]

    @property
    def gain(self) -> float:
        """How many times faster `best` is than the kernels' own choice."""
        return self.own.time.typical / self.best.time.typical if self.own else 1.0

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""

        def shown(candidate: Candidate) -> dict[str, Any]:
            return {"config": str(candidate.config), "time_us": asdict(candidate.time)}

        return {
            "modelled": True,
            "problem": str(self.problem),
            "best": shown(self.best),
            "own": shown(self.own) if self.own else None,
            "fastest": shown(self.fastest),
            "gain": self.gain,
            "ranked": [shown(candidate) for candidate in self.ranked],
            "failed": [{"config": str(config), **asdict(reason)} for config, reason in self.failed],
            "space": self.space,
            "pruned": self.pruned,
            "unseen": self.unseen,
            "seconds": self.seconds,
        }


def tune(
    problem: Any,
    workers: Workers,
    budget: Budget = NO_LIMIT,
    *,
    prune: bool = True,
    journal: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Tuned:
    """The fastest configuration of `problem`, whose sizes must all be known, by the cost model.

    `prune=False` models every configuration: for judging the search. `journal` is the folder that results are kept in,
    by default one in the cache directory. `progress` is told after each batch how many
    candidates are done, and of how many. Raises `FlyccError` where no kernel serves the problem, or none can be built.
    """
    started = perf_counter()
    family = family_of(problem)
    if family is None:
        raise FlyccError(Reason("tune.family", f"{problem}: this family has one configuration for a problem"))
    left = ordered(problem, family)
    done_before, space = Journal(problem, journal), len(left)
    ranked: list[Candidate] = []
    failed: list[tuple[Any, Reason]] = []
    pruned = 0
    while left:
        done = len(ranked) + len(failed)
        if budget.candidates is not None and done >= budget.candidates:
            break
        if budget.seconds is not None and done and perf_counter() - started >= budget.seconds:
            break
        if prune and ranked:
            kept = [config for config in left if may_win(problem, config, ranked[0].time)]
            pruned += len(left) - len(kept)
            left = kept
        most = BATCH if budget.candidates is None else min(BATCH, budget.candidates - done)
        batch, left = left[:most], left[most:]
        missing = [config for config in batch if str(config) not in done_before.found]
        if missing:
            done_before.add(dict(zip(missing, workers.evaluate(problem, missing), strict=True)))
        for config in batch:
            found = done_before.found[str(config)]
            if isinstance(found, Reason):
                failed.append((config, found))
            else:
                ranked.append(Candidate(config, found))
        ranked.sort(
            key=lambda candidate: candidate.time.typical
        )  # stable: equal times stay in the order tried
        progress(len(ranked) + len(failed), len(ranked) + len(failed) + len(left))
    if not ranked:
        raise FlyccError(failed[0][1])
    chosen = family.choose(problem)
    own = next((candidate for candidate in ranked if candidate.config == chosen), None)
    tie = own is not None and own.time.typical <= ranked[0].time.typical * (1 + TIE)
    return Tuned(
        problem=problem,
        best=own if own is not None and tie else ranked[0],
        own=own,
        ranked=tuple(ranked),
        failed=tuple(failed),
        space=space,
        pruned=pruned,
        unseen=len(left),
        seconds=perf_counter() - started,
    )


def ordered(problem: Any, family: Family) -> list[Any]:
    """All configurations: the kernels' own choice, then the others as the closed form likes them.

    Raises `FlyccError` where no kernel serves the problem.
    """
    chosen = family.choose(problem)
    if isinstance(chosen, Reason):
        raise FlyccError(chosen)
    others = [config for config in family.space(problem) if config != chosen]
    if family.config is not None:
        others.sort(key=lambda config: (estimate_us(problem, config), lower_us(problem, config)))  # stable
    return [chosen, *others]


def may_win(problem: Any, config: Any, best: Interval) -> bool:
    """Whether a configuration may still be faster than `best`: by what it takes at least, with the model's error, and
    by its estimate, with the estimate's."""
    return (
        lower_us(problem, config) <= best.typical * (1 + MI350.model_error)
        and estimate_us(problem, config) <= best.typical * ESTIMATE_ERROR
    )
