"""A mixture of experts written as a loop: `flycc explain examples/moe.py:example`.

The loop's products become two grouped ones, the router's linear layer and its top-k get kernels as well.
"""

import torch
import torch.nn.functional as F
from torch import nn

# Without this, or fullgraph=True, Dynamo leaves the loop to Python: who chose an expert is known at run time only.
torch._dynamo.config.capture_dynamic_output_shape_ops = True


class Experts(nn.Module):
    """Eight experts of which each token, a row of 64 bfloat16 elements, takes two."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, 8, bias=False).bfloat16()
        self.up = nn.Parameter(torch.randn(8, 128, 64).bfloat16() / 8)
        self.down = nn.Parameter(torch.randn(8, 64, 128).bfloat16() / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = torch.topk(torch.softmax(self.router(x).float(), -1), 2)
        mask = F.one_hot(chosen, 8).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for expert in range(8):
            slot, token = torch.where(mask[expert])
            hidden = F.silu(F.linear(x[token], self.up[expert]))
            rows = F.linear(hidden, self.down[expert]) * scores[token, slot, None]
            out.index_add_(0, token, rows.to(x.dtype))
        return out


def example() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and its inputs, as `flycc explain` wants them."""
    torch.manual_seed(0)
    return Experts().eval().requires_grad_(False), (torch.randn(12, 64, dtype=torch.bfloat16),)


if __name__ == "__main__":
    model, inputs = example()
    print(torch.compile(model, backend="flycc")(*inputs))
