"""match-gemm, fuse-epilogue and flycc-dce keep the meaning of a module: random graphs are executed before and after.

Values are small integers and everything is computed in float64, so sums are exact and results must be equal
bit for bit, whatever was folded (|sum| <= 64 * 3**2 + 3, far below 2**53).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch_mlir import ir

from flycc.dialects import GemmOp, load
from flycc.passes import run_pipeline
from flycc.passes.torch_ir import constant, int_list, nested_ops

Shape = tuple[int, ...]


@dataclass
class Graph:
    """MLIR text under construction. `hide` says how the types and stamps of a tensor tell a size."""

    hide: Callable[[int], str | None]
    arguments: list[str] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    stamps: dict[str, str] = field(default_factory=dict)

    def _new(self, shape: Shape) -> str:
        name = f"%v{len(self.types)}"
        symbols = [self.hide(size) for size in shape]
        sizes = ",".join("?" if symbol else str(size) for symbol, size in zip(symbols, shape, strict=True))
        self.types[name] = f"!torch.vtensor<[{sizes}],bf16>"
        quoted = ", ".join(f'"{symbol or size}"' for symbol, size in zip(symbols, shape, strict=True))
        self.stamps[name] = "" if "?" in symbols else f"{{flycc.shape = [{quoted}]}}"
        self.shapes[name] = shape
        return name

    def argument(self, shape: Shape) -> str:
        name = self._new(shape)
        self.arguments.append(name)
        return name

    def constant(self, kind: str, value: object) -> str:
        name = f"%c{len(self.types)}"
        self.types[name] = f"!torch.{kind}"
        self.lines.append(f"{name} = torch.constant.{kind} {str(value).lower()}")
        return name

    def sizes(self, values: Shape) -> str:
        items = [self.constant("int", value) for value in values]
        name = f"%l{len(self.types)}"
        self.types[name] = "!torch.list<int>"
        types = ", ".join("!torch.int" for _ in items)
        self.lines.append(
            f"{name} = torch.prim.ListConstruct {', '.join(items)} : ({types}) -> !torch.list<int>"
        )
        return name

    def op(self, name: str, operands: list[str], shape: Shape) -> str:
        result = self._new(shape)
        types = ", ".join(self.types[operand] for operand in operands)
        self.lines.append(
            f"{result} = torch.aten.{name} {', '.join(operands)} {self.stamps[result]} : {types} "
            f"-> {self.types[result]}"
        )
        return result

    def text(self, results: list[str]) -> str:
        arguments = ", ".join(f"{n}: {self.types[n]} {self.stamps[n]}" for n in self.arguments)
        types = ", ".join(self.types[result] for result in results)
        body = "\n".join(self.lines)
        return (
            f"func.func @main({arguments}) -> ({types}) {{\n{body}\nreturn {', '.join(results)} : {types}\n}}"
        )


#: Ways to split one batch: where operands and result go different ways, folding is mostly wrong.
_BATCHES: tuple[tuple[Shape, ...], ...] = (
    ((2,),),
    ((2, 3),),
    ((2, 3), (3, 2)),
    ((4,), (2, 2), (1, 4)),
    ((2, 2, 2), (2, 4), (4, 2)),
)


def regrouped(rng: random.Random, shape: Shape) -> Shape:
    """Another shape of as many elements: neighbours merged, sizes split."""
    sizes = list(shape)
    for _ in range(rng.randint(1, 2)):
        at = rng.randint(0, len(sizes) - 1)
        if rng.random() < 0.5 and at + 1 < len(sizes):
            sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
        elif len(sizes) < 5:
            factor = rng.choice([d for d in range(1, sizes[at] + 1) if sizes[at] % d == 0])
            sizes[at : at + 1] = [factor, sizes[at] // factor]
    return tuple(sizes)


def operand(
    rng: random.Random, graph: Graph, shape: Shape, depth: int, batches: tuple[Shape, ...] = ()
) -> str:
    """A value of `shape` behind up to `depth` views of an argument.

    `batches`, if given, are ways to split its first dimension, and one is likely to be taken.
    """
    rank = len(shape)
    kinds = ["transpose", "permute", "view", "expand", "clone"]
    kind = rng.choice(kinds) if depth else "argument"
    if batches and depth and rng.randint(0, 5):
        kind = "split"
    if kind == "transpose" and rank >= 2:
        pair = rng.choice([(-1, -2), (-1, -2), (-2, -1), (0, 1), (0, rank - 1)])
        source = list(shape)
        source[pair[0]], source[pair[1]] = source[pair[1]], source[pair[0]]
        kept = batches if rank == 3 and pair[0] < 0 else ()
        below = operand(rng, graph, tuple(source), depth - 1, kept)
        if rank == 2 and rng.random() < 0.5:
            return graph.op("t", [below], shape)
        axes = [graph.constant("int", axis) for axis in pair]
        return graph.op("transpose.int", [below, *axes], shape)
    if kind == "permute":
        order = rng.sample(range(rank), rank)
        source = [0] * rank
        for to, axis in enumerate(order):
            source[axis] = shape[to]
        below = operand(rng, graph, tuple(source), depth - 1)
        return graph.op("permute", [below, graph.sizes(tuple(order))], shape)
    if kind in ("view", "split"):
        source = split(rng, shape, batches) if kind == "split" else regrouped(rng, shape)
        below = operand(rng, graph, source, depth - 1)
        name = rng.choice(["view", "_unsafe_view", "reshape"])
        return graph.op(name, [below, graph.sizes(shape)], shape)
    if kind == "expand":
        rows = rng.random() < 0.5
        source = tuple(
            1 if rng.random() < 0.5 and (rows or at < rank - 2) else s for at, s in enumerate(shape)
        )
        dropped = rng.randint(0, max(0, rank - 2))
        below = operand(rng, graph, source[dropped:], depth - 1)
        return graph.op("expand", [below, graph.sizes(shape), graph.constant("bool", False)], shape)
    if kind == "clone":
        below = operand(rng, graph, shape, depth - 1, batches)
        return graph.op("clone", [below, graph.constant("int", 0)], shape)
    return graph.argument(shape)


def split(rng: random.Random, shape: Shape, batches: tuple[Shape, ...]) -> Shape:
    """`shape` with its first dimension, a multiple of all `batches`, split into one of them and the rest."""
    batch = rng.choice(batches)
    rest = shape[0] // math.prod(batch)
    return (*batch, *([rest] if len(shape) == 2 or rest > 1 else []), *shape[1:])


def random_graph(rng: random.Random) -> tuple[str, list[Shape]]:
    """MLIR text of a function around one product, and the shapes of its arguments."""
    fresh = iter(range(10**6))
    knowledge = rng.choice(["static", "symbols", "mixed"])

    def hide(size: int) -> str | None:
        """None for a static size; one symbol for equal sizes; one of its own; or "?" for no symbol."""
        choice = knowledge if knowledge != "mixed" else rng.choice(["static", "symbols", "own", "?"])
        return {"static": None, "symbols": f"s{size}", "own": f"u{next(fresh)}", "?": "?"}[choice]

    graph = Graph(hide)
    m, n, k = rng.choices([1, 2, 2, 3, 4], k=3)
    name = rng.choice(["mm", "addmm", "bmm", "baddbmm", "linear", "matmul"])
    batches: tuple[Shape, ...] = ()
    lead: Shape = ()
    if name in ("linear", "matmul"):
        lead = rng.choice([(), (2,), (2, 3)])
    else:
        batches = rng.choice(_BATCHES)
        count = math.prod(batches[0])
        if name in ("bmm", "baddbmm"):
            lead = (count,)
        else:
            m *= count
    result = (*lead, m, n)
    a = operand(rng, graph, (*lead, m, k), rng.randint(0, 3), batches)
    b_shape = (n, k) if name == "linear" else (*lead, k, n)
    b = operand(rng, graph, b_shape, rng.randint(0, 3), batches if lead else ())
    operands = [a, b]
    if name in ("addmm", "baddbmm"):
        kept = rng.randint(0, len(result))
        bias = tuple(rng.choice([1, s]) for s in result)[kept:]
        one = graph.constant("int", 1)
        operands = [graph.argument(bias), a, b, one, one]
    elif name == "linear":
        operands.append(graph.argument((n,)))
    y = graph.op(name, operands, result)
    outputs = [y] if rng.randint(0, 7) == 0 else []
    shape = result
    if rng.randint(0, 3):
        shape = split(rng, result, batches) if batches else regrouped(rng, result)
        y = graph.op(rng.choice(["view", "_unsafe_view"]), [y, graph.sizes(shape)], shape)
    if rng.random() < 0.5:
        vector = (4,) if shape[-1] == 1 else shape[-1:]
        other = rng.choice([y, graph.argument(vector), graph.argument(vector), graph.argument(shape)])
        terms = [y, other] if rng.random() < 0.5 else [other, y]
        shape = np.broadcast_shapes(shape, graph.shapes[other])
        y = graph.op("add.Tensor", [*terms, graph.constant("int", 1)], shape)
    return graph.text([*outputs, y]), [graph.shapes[argument] for argument in graph.arguments]


def execute(module: ir.Module, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """Runs `@main` with numpy."""
    function = next(op for op in nested_ops(module.operation) if op.name == "func.func")
    values = dict(zip(function.regions[0].blocks[0].arguments, arguments, strict=True))
    for view in function.regions[0].blocks[0].operations:
        op = view.operation
        x = [values.get(operand) for operand in op.operands]
        if op.name == "func.return":
            return x
        result = _EXECUTE[op.name](op, x) if op.name in _EXECUTE else None
        if result is not None:
            values[op.results[0]] = result
    raise AssertionError("no return")


def _gemm(op: ir.Operation, x: list[np.ndarray]) -> np.ndarray:
    gemm = op.opview
    a = np.swapaxes(x[0], -1, -2) if gemm.trans_a else x[0]
    b = np.swapaxes(x[1], -1, -2) if gemm.trans_b else x[1]
    # The graphs have additions only, so the bias and the residual are all there may be.
    return a @ b + sum(x[2:], np.zeros(()))


def _reshape(op: ir.Operation, x: list[np.ndarray]) -> np.ndarray:
    return x[0].reshape(int_list(op.operands[1]))


_EXECUTE = {
    "flycc.gemm": _gemm,
    "torch.aten.t": lambda op, x: x[0].T,
    "torch.aten.transpose.int": lambda op, x: np.swapaxes(
        x[0], constant(op.operands[1]), constant(op.operands[2])
    ),
    "torch.aten.permute": lambda op, x: np.transpose(x[0], int_list(op.operands[1])),
    "torch.aten.view": _reshape,
    "torch.aten._unsafe_view": _reshape,
    "torch.aten.reshape": _reshape,
    "torch.aten.expand": lambda op, x: np.broadcast_to(x[0], int_list(op.operands[1])),
    "torch.aten.clone": lambda op, x: x[0],
    "torch.aten.mm": lambda op, x: x[0] @ x[1],
    "torch.aten.bmm": lambda op, x: x[0] @ x[1],
    "torch.aten.matmul": lambda op, x: x[0] @ x[1],
    "torch.aten.addmm": lambda op, x: x[0] + x[1] @ x[2],
    "torch.aten.baddbmm": lambda op, x: x[0] + x[1] @ x[2],
    "torch.aten.linear": lambda op, x: x[0] @ x[1].T + x[2],
    "torch.aten.add.Tensor": lambda op, x: x[0] + x[1],
}


def test_random_graphs_compute_the_same() -> None:
    seed = random.randrange(2**32)
    print(f"{seed=}")
    rng = random.Random(seed)
    values = np.random.default_rng(seed)
    layouts: Counter[str] = Counter()
    for _ in range(400):
        text, shapes = random_graph(rng)
        print(text)
        with load(ir.Context()):
            module = ir.Module.parse(text)
        arguments = [values.integers(-3, 4, shape).astype(np.float64) for shape in shapes]
        expected = execute(module, arguments)
        run_pipeline(module)
        (gemm,) = (op.opview for op in nested_ops(module.operation) if isinstance(op.opview, GemmOp))
        layouts[gemm.layout.value] += 1
        for want, got in zip(expected, execute(module, arguments), strict=True):
            assert got.shape == want.shape
            np.testing.assert_array_equal(got, want)
    assert set(layouts) == {"NN", "NT", "TN", "TT"}
