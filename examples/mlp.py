"""A small model to look at: `flycc explain examples/mlp.py:example`.

Two layers run on gfx950 kernels; the float32 head stays on PyTorch, and the table says why.
"""

import torch
from torch import nn


class Mlp(nn.Module):
    """A bfloat16 MLP with a residual and a float32 head."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 256).bfloat16()
        self.down = nn.Linear(256, 64).bfloat16()
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x + self.down(torch.nn.functional.silu(self.up(x)))
        return self.head(hidden.float())


def example() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and its inputs, as `flycc explain` wants them."""
    torch.manual_seed(0)
    return Mlp().eval(), (torch.randn(5, 64, dtype=torch.bfloat16),)


if __name__ == "__main__":
    model, inputs = example()
    compiled = torch.compile(model, backend="flycc")
    with torch.no_grad():
        print(compiled(*inputs))
