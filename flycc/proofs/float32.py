"""The two sides of a query in float32 arithmetic, on many blocks at once: what a solver's model must make differ."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from flycc.scales.trees import Tree

#: 2^-126: flushed are the numbers below.
_NORMAL = np.float32(2.0**-126)


def scaled(values: np.ndarray, exponent: int) -> np.ndarray:
    """float32 `values * 2^exponent`, with one rounding; of products with at most 24 significant bits, or sums."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values.astype(np.float64), exponent).astype(np.float32)


def tree_sum(values: np.ndarray, tree: Tree, flush: bool = False) -> np.ndarray:
    """The float32 sums over the first axis, added in the tree's order."""
    nodes = list(values)
    with np.errstate(over="ignore", invalid="ignore"):
        for left, right in tree.nodes():
            nodes.append(flushed(nodes[left] + nodes[right], flush))
    return nodes[-1]


def flushed(values: np.ndarray, flush: bool) -> np.ndarray:
    """With subnormal numbers as zeros of their sign, if `flush`."""
    return np.where(abs(values) < _NORMAL, np.copysign(np.float32(0), values), values) if flush else values


def scale_inside(
    products: np.ndarray, tree: Tree, inner: int, outer: int = 0, flush: bool = False
) -> np.ndarray:
    """`2^outer * sum of 2^inner p` of float64 or float32 products [k, ...]."""
    inside = tree_sum(flushed(scaled(products, inner), flush), tree, flush)
    return flushed(scaled(inside, outer), flush)


def scale_outside(products: np.ndarray, tree: Tree, exponent: int, flush: bool = False) -> np.ndarray:
    """`2^exponent * sum of p`: placement "block"."""
    total = tree_sum(flushed(products.astype(np.float32), flush), tree, flush)
    return flushed(scaled(total, exponent), flush)


def same(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Where two float32 arrays have the same bits, or are both NaN."""
    return (first.view(np.uint32) == second.view(np.uint32)) | (np.isnan(first) & np.isnan(second))


def rounded(value: Fraction) -> Fraction | float:
    """An exact number to the nearest float32, ties to even; an infinity where it overflows."""
    if value == 0:
        return Fraction(0)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    nearest = round(value / unit) * unit
    return nearest if abs(nearest) < 2**128 else float("inf") * (1 if value > 0 else -1)
