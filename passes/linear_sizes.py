"""Integers of a graph as sums: a number, and symbols times numbers, such as `s40 + 1`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from torch_mlir import ir

from flycc.dialects.tensor import SIZE_ATTR, Dim, stamped
from flycc.passes.new_ops import new_size, new_sum
from flycc.passes.torch_ir import constant, new_constant

_SYMBOL = re.compile(r"[A-Za-z]\w*")


@dataclass(frozen=True, slots=True)
class Linear:
    """`number` and the sum of all symbols, each times a factor that is not 0; a term is in the order of its name."""

    number: float = 0
    terms: tuple[tuple[str, float], ...] = ()

    def plus(self, other: Linear | float, factor: float = 1) -> Linear:
        """`self + factor * other`."""
        other = other if isinstance(other, Linear) else Linear(other)
        terms = dict(self.terms)
        for symbol, times in other.terms:
            terms[symbol] = terms.get(symbol, 0) + factor * times
        kept = tuple(sorted((symbol, times) for symbol, times in terms.items() if times))
        return Linear(self.number + factor * other.number, kept)

    @property
    def known(self) -> float | None:
        """The number, if there is nothing else."""
        return None if self.terms else self.number

    def is_at_least(self, least: float, sizes: frozenset[str] = frozenset()) -> bool:
        """Whether it provably is; `sizes` are symbols that are not negative."""
        return self.number >= least and all(symbol in sizes and times > 0 for symbol, times in self.terms)


def linear(dim: Dim) -> Linear | None:
    """A size as a sum; what is no sum of multiples, `s0*s1` say, counts as a symbol."""
    return Linear(dim) if isinstance(dim, int) else None if dim is None else _parsed(dim)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Linear | None:
    try:
        return _summed(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return None


def _summed(node: ast.expr) -> Linear:
    match node:
        case ast.Constant(value=int(number)):
            return Linear(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Linear().plus(_summed(operand), -1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            return _summed(left).plus(_summed(right), 1 if isinstance(op, ast.Add) else -1)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            factors = [_summed(left), _summed(right)]
            for one, other in (factors, factors[::-1]):
                if one.known is not None:
                    return Linear().plus(other, one.known)
    return Linear(0, ((ast.unparse(node), 1),))


def linear_value(value: ir.Value) -> Linear | None:
    """An integer of the graph as a sum: a constant, or what the importer has stamped it to be."""
    number = constant(value)
    if number is not None:
        return Linear(number)
    stamp = _size_stamp(value)
    return None if stamp is None else linear(stamp)


def _size_stamp(value: ir.Value) -> str | None:
    attributes: Mapping[str, ir.Attribute] = {}
    if not isinstance(value, ir.BlockArgument):
        attributes = value.owner.attributes
    elif "arg_attrs" in value.owner.owner.attributes:
        attributes = value.owner.owner.attributes["arg_attrs"][value.arg_number]
    return attributes[SIZE_ATTR].value if SIZE_ATTR in attributes else None


def size_symbols(near: ir.Operation) -> frozenset[str]:
    """Symbols that are sizes of tensors that the graph is given, and so not negative."""
    dims = (dim for argument in _arguments(near) for dim in _dims(argument))
    return frozenset(dim for dim in dims if isinstance(dim, str) and _SYMBOL.fullmatch(dim))


def value_of(wanted: Linear, before: ir.Operation) -> ir.Value | None:
    """A value, in front of `before`, that is `wanted`: a constant, or an integer or size that the graph is given, and a
    number. None where there is none."""
    if wanted.known is not None:
        return new_constant(int(wanted.known), before)
    found: list[tuple[int, ir.Value, int | None]] = []
    for argument in _arguments(before):
        given = linear_value(argument) if str(argument.type) == "!torch.int" else None
        sizes = [(axis, linear(dim)) for axis, dim in enumerate(_dims(argument))]
        for axis, size in ((None, given), *sizes):
            if size is not None and size.terms == wanted.terms:
                found.append((int(wanted.number - size.number), argument, axis))
    if not found:
        return None
    number, argument, axis = min(found, key=lambda each: (each[0] != 0, each[2] is not None))
    return new_sum(argument if axis is None else new_size(argument, axis, before), number, before)


def _arguments(near: ir.Operation) -> Iterator[ir.Value]:
    return iter(near.block.arguments)


def _dims(value: ir.Value) -> tuple[Dim, ...]:
    tensor = stamped(value)
    return () if tensor is None else tensor.dims
