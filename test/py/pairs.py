"""Combinations for parametrised tests, of which an everyday run takes enough for every pair of values to meet."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest


def pairwise(*axes: Iterable[Any]) -> list[Any]:
    """All combinations of the axes' values, for `parametrize`; those that bring no new pair of values are nightly."""
    values = [tuple(axis) for axis in axes]
    every = list(product(*(range(len(axis)) for axis in values)))
    missing = set().union(*map(_pairs, every))
    everyday = set()
    while missing:
        best = max(every, key=lambda at: len(missing & _pairs(at)))
        everyday.add(best)
        missing -= _pairs(best)
    return [
        pytest.param(
            *(axis[i] for axis, i in zip(values, at, strict=True)),
            marks=() if at in everyday else pytest.mark.nightly,
        )
        for at in every
    ]


def _pairs(at: tuple[int, ...]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    """(axis, position on it) of every two values of a combination."""
    return set(combinations(enumerate(at), 2))
