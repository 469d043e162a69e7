"""Reduction trees: in which order the products of a sum are added.

All that the bounds need of a tree is `larger`, the number of leaves below the larger child of its root: a node below
the root may overflow only on the side where the scale is inside, and the largest sum that such a node can hold is
`larger` products of the greatest size. (The root's own overflow is the same on both sides.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, get_args

#: "balanced": halves of ceil(k / 2) and floor(k / 2), and so on. "chain": left to right. "any": not known, or a matrix
#: unit's; nothing is assumed of it. "blocked": each block is a balanced subtree, and a chain adds the blocks.
TreeName = Literal["balanced", "chain", "any", "blocked"]


@dataclass(frozen=True, slots=True)
class Tree:
    """A binary tree of additions over `leaves` products; `block` is the leaves of a subtree of a "blocked" one.

    Raises ValueError for a name that is not known, or for sizes below 1.
    """

    name: TreeName
    leaves: int
    block: int | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(TreeName):
            raise ValueError(f"tree {self.name!r}: {', '.join(get_args(TreeName))} are known")
        if self.leaves < 1:
            raise ValueError(f"a tree of {self.leaves} leaves: at least 1 is needed")
        if (self.block is not None) != (self.name == "blocked") or (
            self.block is not None and self.block < 1
        ):
            raise ValueError(
                f"tree {self.name!r} with a block of {self.block}: blocks are of 'blocked' trees, from 1"
            )

    @property
    def larger(self) -> int:
        """Leaves below the larger child of the root (of "any", the most that there can be); of a single leaf, 1."""
        if self.leaves == 1:
            return 1
        if self.name == "balanced" or (self.block is not None and self.leaves <= self.block):
            return (self.leaves + 1) // 2
        if self.block is not None:
            last = self.leaves % self.block or self.block
            return max(self.leaves - last, last)
        return self.leaves - 1

    def nodes(self) -> list[tuple[int, int]]:
        """The additions in order: pairs of numbers, which below `leaves` are leaves, and from there on earlier nodes.

        The last is the root. Raises ValueError for "any", which is no tree in particular.
        """
        if self.name == "any":
            raise ValueError("the nodes of a tree that is not known")
        out: list[tuple[int, int]] = []

        def add(left: int, right: int) -> int:
            out.append((left, right))
            return self.leaves + len(out) - 1

        def balanced(first: int, count: int) -> int:
            if count == 1:
                return first
            half = (count + 1) // 2
            return add(balanced(first, half), balanced(first + half, count - half))

        block = {"balanced": self.leaves, "chain": 1}.get(self.name, self.block or 1)
        parts = deque(
            balanced(first, min(block, self.leaves - first)) for first in range(0, self.leaves, block)
        )
        total = parts.popleft()
        while parts:
            total = add(total, parts.popleft())
        return out
