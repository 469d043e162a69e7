"""What a guard asks at run time: a few comparisons of the ranges of two operands' scale bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flycc.scales.formats import MAX_BYTE
from flycc.scales.ranges import Range


@dataclass(frozen=True, slots=True)
class Bounds:
    """For which ranges of E8M0 bytes, of a (`a.lo`, `a.hi`) and of b, a guard holds; ends are included.

        a_min <= a.lo, a.hi <= a_max, b_min <= b.lo, b.hi <= b_max, sum_min <= a.lo + b.lo, a.hi + b.hi <= sum_max,
        spread of S <= spread

    The spread is how far the sums of bytes S of the blocks of one result lie apart, at most: that of a row of a and
    that of a row of b together, which is no more than (a.hi - a.lo) + (b.hi - b.lo). Bytes of 255 do not count: they
    make NaN of the same results in both forms.
    """

    a_min: int = 0
    a_max: int = MAX_BYTE
    b_min: int = 0
    b_max: int = MAX_BYTE
    sum_min: int = 0
    sum_max: int = 2 * MAX_BYTE
    spread: int = 2 * MAX_BYTE

    def __str__(self) -> str:
        """What is limited, as in `2 <= a <= 252, a + b >= 130, spread <= 4`."""
        free = Bounds()

        def within(low: str, name: str, high: str) -> str:
            least, most = getattr(self, low), getattr(self, high)
            below = f"{least} <= " if least != getattr(free, low) else ""
            above = f" <= {most}" if most != getattr(free, high) else ""
            return f"{below}{name}{above}" if below or above else ""

        parts = [
            within("a_min", "a", "a_max"),
            within("b_min", "b", "b_max"),
            within("sum_min", "a + b", "sum_max"),
        ]
        if self.spread != free.spread:
            parts.append(f"spread <= {self.spread}")
        return ", ".join(filter(None, parts)) or "all scales"

    def within(self, **limits: tuple[int, int] | None) -> Bounds:
        """These bounds with those of `a`, `b` or `sum` narrowed to (least, greatest); None is no byte at all."""
        narrowed: dict[str, int] = {}
        for name, limit in limits.items():
            low, high = limit or (MAX_BYTE, 0)
            narrowed[f"{name}_min"] = max(getattr(self, f"{name}_min"), low)
            narrowed[f"{name}_max"] = min(getattr(self, f"{name}_max"), high)
        return replace(self, **narrowed)

    def holds(self, a: Range, b: Range, spread: int | None = None) -> bool:
        """Whether all bytes of two ranges are within; `spread` as far as more is known of it than the ranges say."""
        return not self.missed(a, b, spread)

    def missed(self, a: Range, b: Range, spread: int | None = None) -> tuple[str, ...]:
        """Which bounds two ranges are not within, as in `a >= 2`; see `holds`."""
        wide = (a.hi - a.lo) + (b.hi - b.lo) if spread is None else spread
        within = {
            f"a >= {self.a_min}": self.a_min <= a.lo,
            f"a <= {self.a_max}": a.hi <= self.a_max,
            f"b >= {self.b_min}": self.b_min <= b.lo,
            f"b <= {self.b_max}": b.hi <= self.b_max,
            f"a + b >= {self.sum_min}": self.sum_min <= a.lo + b.lo,
            f"a + b <= {self.sum_max}": a.hi + b.hi <= self.sum_max,
            f"spread <= {self.spread}": wide <= self.spread,
        }
        return tuple(bound for bound, held in within.items() if not held)

    @property
    def satisfiable(self) -> bool:
        """Whether some pair of bytes is within."""
        low = max(self.sum_min, self.a_min + self.b_min)
        high = min(self.sum_max, self.a_max + self.b_max)
        return self.a_min <= self.a_max and self.b_min <= self.b_max and low <= high and self.spread >= 0
