"""Modules with pointwise ops behind a product, compiled and run on the emulated device, against float64.

The bound is carried along: `Bounded` is an exact value and how far off a computation may be that rounds after every
op, as PyTorch does. What is fused rounds less often. Float32 sums of n products are off by at most
(n + 1) 2^-24 sum|a||b|; the kernel's activations are taken to be off by at most 2^-12 of their argument.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import flycc.backend  # noqa: F401  registers the backend
from flycc import record as recording

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "written_silu": lambda x: x * torch.sigmoid(x),
}
#: At most how steep an activation is, and how much its slope changes for a change of its argument.
SLOPE, CURVATURE = 1.13, 0.81


@dataclass(frozen=True)
class Bounded:
    """`value` in float64 and a bound of the error of what is computed in `dtype`."""

    value: Tensor
    error: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Bounded:
        value = tensor.detach().double()
        return cls(value, torch.zeros_like(value), tensor.dtype)

    def rounded(self, dtype: torch.dtype | None = None) -> Bounded:
        info = torch.finfo(dtype or self.dtype)
        half = info.eps / 2 * (self.value.abs() + self.error) + info.eps * info.smallest_normal
        return Bounded(self.value, self.error + half, dtype or self.dtype)

    def __add__(self, other: Bounded) -> Bounded:
        dtype = torch.promote_types(self.dtype, other.dtype)
        return Bounded(self.value + other.value, self.error + other.error, dtype).rounded()

    def __mul__(self, other: Bounded) -> Bounded:
        dtype = torch.promote_types(self.dtype, other.dtype)
        error = self.value.abs() * other.error + (other.value.abs() + other.error) * self.error
        return Bounded(self.value * other.value, error, dtype).rounded()

    def times(self, factor: float) -> Bounded:
        return Bounded(self.value * factor, self.error * abs(factor), self.dtype).rounded()

    def __matmul__(self, other: Bounded) -> Bounded:
        magnitude = (self.value.abs() + self.error) @ (other.value.abs() + other.error)
        propagated = magnitude - self.value.abs() @ other.value.abs()
        error = propagated + (self.value.shape[-1] + 1) * 2.0**-24 * magnitude
        return Bounded(self.value @ other.value, error, self.dtype).rounded()

    def activated(self, name: str) -> Bounded:
        error = SLOPE * self.error + 2.0**-12 * (self.value.abs() + self.error)
        # Written with a sigmoid, that is rounded too, to one part as large.
        steps = 2 if name == "written_silu" else 1
        result = Bounded(ACTIVATIONS[name](self.value), error, self.dtype)
        for _ in range(steps):
            result = result.rounded()
        return result

    def slope(self, name: str) -> Bounded:
        """The derivative of an activation here."""
        x = self.value.clone().requires_grad_()
        (value,) = torch.autograd.grad(ACTIVATIONS[name](x).sum(), x)
        jump = (self.value.abs() <= self.error).double() if name == "relu" else CURVATURE * self.error
        # Its terms are rounded by themselves where autograd writes them as ops.
        terms = 6 * torch.finfo(self.dtype).eps * (1 + self.value.abs() + self.error)
        return Bounded(value, jump + terms * (name == "written_silu"), self.dtype).rounded()

    def summed_to(self, tensor: Tensor) -> Bounded:
        """The gradient of `tensor`, which was broadcast."""
        value, error, magnitude = (
            t.sum_to_size(tensor.shape) for t in (self.value, self.error, self.value.abs() + self.error)
        )
        count = self.value.numel() // value.numel()
        return Bounded(value, error + count * 2.0**-24 * magnitude, self.dtype).rounded(tensor.dtype)

    def mt(self) -> Bounded:
        return Bounded(self.value.mT, self.error.mT, self.dtype)

    def rows(self) -> Bounded:
        return Bounded(self.value.flatten(0, -2), self.error.flatten(0, -2), self.dtype)

    def check(self, result: Tensor) -> None:
        assert (result.dtype, result.shape) == (self.dtype, self.value.shape)
        assert ((result.detach().double() - self.value).abs() <= self.error).all()


Step = tuple[str, str | float]


class Tail(nn.Module):
    """A linear layer without bias, and `steps` behind it: pairs of a kind and what it is done with."""

    def __init__(self, steps: list[Step], k: int, n: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.steps = steps
        self.weight, self.gate = (nn.Parameter(torch.randn(n, k).to(dtype) / 4) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(n).to(dtype))

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        for kind, what in self.steps:
            match kind:
                case "scale":
                    y = y * what
                case "bias":
                    y = y + self.bias if what == "right" else self.bias + y
                case "activation":
                    y = ACTIVATIONS[what](y)
                case "gate":
                    y = y * F.linear(x, self.gate) if what == "right" else F.linear(x, self.gate) * y
                case "residual":
                    y = torch.add(residual, y, alpha=what)
                case "cast":
                    y = y.float()
        return y

    def bounded(
        self, x: Tensor, residual: Tensor, gradient: Tensor | None
    ) -> tuple[Bounded, list[tuple[Tensor, Bounded]]]:
        """The result, and for the `gradient` of it those of the inputs and of the parameters that are used."""
        given, weight, gate = (Bounded.of(t) for t in (x, self.weight, self.gate))
        y, before = given @ weight.mt(), []
        for kind, what in self.steps:
            before.append(y)
            match kind:
                case "scale":
                    y = y.times(what)
                case "bias":
                    y = y + Bounded.of(self.bias)
                case "activation":
                    y = y.activated(what)
                case "gate":
                    y = y * (given @ gate.mt())
                case "residual":
                    y = y.times(what) + Bounded.of(residual)
                case "cast":
                    y = Bounded(y.value, y.error, torch.float32).rounded()
        if gradient is None:
            return y, []
        d, dx, found = Bounded.of(gradient), [], []
        for (kind, what), p in zip(reversed(self.steps), reversed(before), strict=True):
            match kind:
                case "scale":
                    d = d.times(what)
                case "bias":
                    found.append((self.bias, d.summed_to(self.bias)))
                case "activation":
                    d = d * p.slope(what)
                case "gate":
                    dt = (d * p).rounded(x.dtype)
                    found.append((self.gate, dt.rows().mt() @ given.rows()))
                    dx.append(dt @ gate)
                    d = d * (given @ gate.mt())
                case "residual":
                    found.append((residual, d.rounded(residual.dtype)))
                    d = d.times(what)
                case "cast":
                    pass
            d = d.rounded(p.dtype)
        found.append((self.weight, d.rows().mt() @ given.rows()))
        dx.append(d @ weight)
        found.append((x, dx[0] if len(dx) == 1 else dx[0] + dx[1]))
        return y, found


def in_order(rng: random.Random, activation: str) -> list[Step]:
    """Steps that one epilogue is: some of them, in its order."""
    gated = rng.random() < 0.4
    steps: list[Step] = [("scale", rng.choice([0.5, -1.7]))] if rng.random() < 0.5 else []
    if gated and steps:
        steps = []  # both halves would have to be scaled
    if not gated and rng.random() < 0.5:
        steps.append(("bias", rng.choice(["left", "right"])))
    steps.append(("activation", activation))
    if gated:
        steps.append(("gate", rng.choice(["left", "right"])))
    if rng.random() < 0.5:
        steps.append(("residual", 1))
    return steps + [("cast", "")] * (rng.random() < 0.3)


def in_any_order(rng: random.Random) -> list[Step]:
    """Steps of which an epilogue may be the first ones only."""
    steps: list[Step] = [
        ("scale", rng.choice([0.5, -1.7])),
        ("bias", rng.choice(["left", "right"])),
        ("activation", rng.choice([*ACTIVATIONS])),
        ("gate", rng.choice(["left", "right"])),
        ("residual", rng.choice([1, 0.5])),
        ("cast", ""),
    ]
    return rng.sample(steps, rng.randint(2, 5))


def inputs(rng: random.Random, module: Tail, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Rows, in one batch or in two, and a residual."""
    n, k = module.weight.shape
    lead = (*rng.choice([(), (2,)]), rng.randint(2, 9)) if rows is None else (2, rows)
    return tuple(torch.randn(*lead, size).to(module.weight.dtype) for size in (k, n))  # type: ignore[return-value]


def fresh() -> random.Random:
    """Of the seed that `torch` has, too."""
    torch._dynamo.reset()
    seed = random.randrange(2**32)
    print(f"{seed=}")
    torch.manual_seed(seed)
    return random.Random(seed)


def random_module(rng: random.Random, steps: list[Step]) -> Tail:
    print(steps)
    k, n = rng.choice([(24, 32), (33, 21)])
    return Tail(steps, k, n, rng.choice([torch.bfloat16, torch.float16]))


@pytest.mark.parametrize("activation", [*ACTIVATIONS])
def test_an_epilogue_is_part_of_the_product(activation: str) -> None:
    rng = fresh()
    module = random_module(rng, in_order(rng, activation))
    x, residual = inputs(rng, module)
    compiled = torch.compile(module, backend="flycc", options={"strict": True})
    with torch.no_grad(), recording.collect() as record:
        result = compiled(x, residual)
    module.bounded(x, residual, None)[0].check(result)
    (graph,) = record.graphs
    assert graph.report.others == {}
    assert all(candidate.kernel is not None for candidate in graph.report.nodes)
    assert record.launch_refusals == {}


def test_any_order_means_the_same() -> None:
    rng = fresh()
    for _ in range(2):
        module = random_module(rng, in_any_order(rng))
        x, residual = inputs(rng, module)
        with torch.no_grad():
            result = torch.compile(module, backend="flycc", options={"strict": True})(x, residual)
        module.bounded(x, residual, None)[0].check(result)


def check_training(rng: random.Random, module: Tail, fallback: str) -> None:
    x, residual = (t.requires_grad_() for t in inputs(rng, module))
    result = torch.compile(module, backend="flycc", options={"strict": True, "fallback": fallback})(
        x, residual
    )
    gradient = torch.randn_like(result)
    result.backward(gradient)
    expected, gradients = module.bounded(x, residual, gradient)
    expected.check(result)
    for tensor, bounded in gradients:
        assert tensor.grad is not None
        bounded.check(tensor.grad)


@pytest.mark.parametrize("ordered", [True, False])
def test_gradients(ordered: bool) -> None:
    rng = fresh()
    steps = in_order(rng, rng.choice([*ACTIVATIONS])) if ordered else in_any_order(rng)
    check_training(rng, random_module(rng, steps), "eager")


@pytest.mark.skipif(not shutil.which("c++"), reason="Inductor needs a C++ compiler")
def test_gradients_with_inductor() -> None:
    rng = fresh()
    check_training(rng, random_module(rng, in_order(rng, rng.choice([*ACTIVATIONS]))), "inductor")


def test_sizes_may_change() -> None:
    rng = fresh()
    module = random_module(rng, in_order(rng, rng.choice([*ACTIVATIONS])))
    compiled = torch.compile(module, backend="flycc", dynamic=True, options={"strict": True})
    with torch.no_grad(), recording.collect() as record:
        for rows in (3, 5, 8):
            x, residual = inputs(rng, module, rows)
            module.bounded(x, residual, None)[0].check(compiled(x, residual))
    (graph,) = record.graphs
    assert graph.report.others == {}


def test_bounds_are_tight_enough_to_find_a_fault() -> None:
    """Another activation, or a residual that is left out, is far outside."""
    rng = fresh()
    steps: list[Step] = [("activation", "silu"), ("residual", 1)]
    module = Tail(steps, 24, 32, torch.bfloat16)
    x, residual = inputs(rng, module)
    bounded = module.bounded(x, residual, None)[0]
    for wrong in ([("activation", "relu"), ("residual", 1)], steps[:1], steps[1:]):
        module.steps = wrong
        with torch.no_grad(), pytest.raises(AssertionError):
            bounded.check(module(x, residual))
