"""Replays on a GPU, in float32, what flycc proves of block scales: inside a bound no bit differs, one further it does.

    python examples/replay_scale_counterexamples.py [cuda|cpu]

Needs PyTorch with a CUDA or ROCm GPU, and the bounds of `flycc.scales`, which need nothing. Every row is one format,
block size and tree of additions: random blocks at both ends of the bound and between them, of which none may differ,
then the counterexamples at one more and at one less than the bound. Ends with status 1 if a row is not as proved.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flycc.scales.bounds import exponent_max, exponent_min
from flycc.scales.formats import E2M1, E4M3, E5M2, Format, elements
from flycc.scales.trees import Tree

BLOCKS = 1 << 17
SIZES = (2, 4, 8, 16, 32, 64)


def tree_sum(values: torch.Tensor, tree: Tree) -> torch.Tensor:
    """Float32 sums over the first dimension, each addition a kernel of its own: none is contracted or reordered."""
    nodes = list(values)
    for left, right in tree.nodes():
        nodes.append(nodes[left] + nodes[right])
    return nodes[-1]


def scaled(values: torch.Tensor, exponent: int) -> torch.Tensor:
    """Float32 `values * 2^exponent` with one rounding, by way of float64."""
    return (values.double() * 2.0**exponent).float()


def differences(products: torch.Tensor, tree: Tree, s: int) -> int:
    """In how many columns of float32 products [k, n] the scale 2^s inside the sum and after it give other bits."""
    inside = tree_sum(scaled(products, s), tree)
    after = scaled(tree_sum(products, tree), s)
    same = (inside.view(torch.int32) == after.view(torch.int32)) | (inside.isnan() & after.isnan())
    return int((~same).sum())


def counterexamples(element: Format, tree: Tree, s: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(above, below): products [k, 1] of Theorem 1's proof, for an s above its bound and for any s below."""
    greatest = element.maximum**2
    # The larger child holds the first leaves, and overflows where the scale is inside.
    many = next((c for c in range(1, tree.larger) if c * greatest * 2.0**s >= 2.0**128), tree.larger)
    above = torch.zeros(tree.leaves, 1)
    above[:many] = greatest
    above[-1] = -greatest
    below = torch.zeros(tree.leaves, 1)
    below[:2] = 2.0 ** (-2 * element.q)  # half of 2^-149 each: rounded to zero alone, but not their sum
    return above, below


def main() -> int:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    name = torch.cuda.get_device_name() if device == "cuda" else "this CPU"
    generator = torch.Generator(device).manual_seed(torch.seed() % 2**31)
    print(f"{name}, torch {torch.__version__}, seed {generator.initial_seed()}, {BLOCKS} blocks a point\n")
    print("format   k  tree      bound      points  differ  one above  one below")
    wrong = 0
    for element in (E2M1, E4M3, E5M2):
        numbers = torch.tensor(elements(element), device=device)
        for k in SIZES:
            for tree in (Tree("balanced", k), Tree("chain", k)):
                low, high = exponent_min(element, element, False), exponent_max(element, element, tree.larger)
                points = sorted({low, low + 1, max(low, -126), 0, high - 1, high})
                inside = 0
                for s in points:
                    codes = torch.randint(len(numbers), (2, k, BLOCKS), device=device, generator=generator)
                    codes[:, :, : BLOCKS // 4] = len(numbers) - 1  # a quarter with the greatest sums
                    signs = torch.randint(2, (k, BLOCKS), device=device, generator=generator) * 2 - 1
                    inside += differences(numbers[codes].prod(0) * signs, tree, s)
                above, below = (x.to(device) for x in counterexamples(element, tree, high + 1))
                over, under = differences(above, tree, high + 1), differences(below, tree, low - 1)
                wrong += inside > 0 or not over or not under
                told = ("agrees", "differs")
                print(
                    f"{element.name:<6}  {k:>2}  {tree.name:<8}  {f'{low}..{high}':<9}  {len(points):>6}  "
                    f"{inside:>6}  {told[over]:<9}  {told[under]}"
                )
    print("\nas proved" if not wrong else f"\n{wrong} rows are NOT as proved")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
