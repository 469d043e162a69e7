"""What place-scales guards with, composed of its parts, is what the theory as a whole licenses."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from flycc.passes.place_scales import _exact_bounds, _hoisted_bounds
from flycc.scales.bounds import derive
from flycc.scales.formats import E2M1, E2M3, E3M2, E4M3, FLOAT_TYPES, Format
from flycc.scales.ranges import Range, hoist, ok, order_free, spread_limit
from flycc.scales.trees import Tree

SEED = int(os.environ["FLYCC_TEST_SEED"])


def ranges(rng: np.random.Generator, ends: list[int], spread: int) -> Range:
    """A range that begins or ends near a bound, about as wide as may be."""
    low = int(np.clip(rng.choice(ends) + rng.integers(-2, 3), 0, 254))
    return Range(low, int(np.clip(low + rng.integers(spread + 2), low, 254)))


@pytest.mark.parametrize("operand", FLOAT_TYPES.values(), ids=lambda t: t.name)
@pytest.mark.parametrize(("a", "b"), [(E2M1, E2M1), (E2M3, E2M1), (E3M2, E3M2)], ids=lambda f: f.name)
def test_bounds_of_dequantised_operands(a: Format, b: Format, operand: SimpleNamespace) -> None:
    """They hold exactly where operands dequantise as `derive` says and sums are free of their order: 2 and 6."""
    rng = np.random.default_rng([SEED, a.q, b.q])
    seen = set()
    for k in (1, 32, 64):
        read = SimpleNamespace(types=[operand.name], scales=SimpleNamespace(types=[]))
        sides = [SimpleNamespace(format=f, k=k, read=read, hoisted=False) for f in (a, b)]
        bounds = _exact_bounds(*sides)
        assert bounds is not None
        guard = derive(a, b, Tree("any", k), "element", operand=operand, flush=True)
        ends = [bounds.a_min, bounds.a_max, bounds.b_min, bounds.b_max, 127]
        ends += [
            bounds.sum_min - 127,
            bounds.sum_min - bounds.b_min,
            bounds.sum_max - 127,
            bounds.sum_max - bounds.b_max,
        ]
        for _ in range(600):
            x, y = ranges(rng, ends, bounds.spread), ranges(rng, ends, 0)
            legal = ok(guard, x, y) and order_free(a, b, k, x, y, flush=True)
            assert bounds.holds(x, y) == legal, (SEED, k, x, y)
            seen.add(legal)
    assert seen == {True, False}


def test_sums_that_depend_on_their_order_have_none() -> None:
    side = SimpleNamespace(format=E4M3, k=64)
    assert spread_limit(E4M3, E4M3, 64) is None
    assert _exact_bounds(side, side) is None


@pytest.mark.parametrize(("a", "b"), [(E2M1, E2M1), (E4M3, E4M3), (E2M3, E2M3)], ids=lambda f: f.name)
def test_bounds_of_hoisted_scales(a: Format, b: Format) -> None:
    """Every pair of bytes within may be hoisted, both at once or one after the other (Theorem 5), in any tree.

    At one less, or one more, none may. (A chain of k + 1 has k products below its root.)
    """
    for k in (33, 4096, 100000):
        tree, bounds = Tree("blocked", k, 32), _hoisted_bounds(a, b, k)
        for name, whole in (("a", 127), ("b", 127), ("sum", 254)):
            low, high = getattr(bounds, f"{name}_min"), getattr(bounds, f"{name}_max")
            for total in (low, low + 1, whole, high - 1, high):
                s = total - whole
                assert hoist(a, b, tree, (s + 254, s + 254), s, flush=True)
                if name != "sum":  # what is left inside when this one is taken out
                    assert hoist(a, b, tree, (254 + s, 254 + s), 0, flush=True)
            below = low - 1 - whole
            assert low == 0 or not hoist(a, b, tree, (below + 254, below + 254), below, flush=True)
            above = high + 1 - whole
            assert not hoist(a, b, Tree("chain", k + 1), (above + 254, above + 254), above, flush=True)
