"""Floats of a model that Dynamo made inputs of a graph, made constants, with guards, where kernels are made for them.

With dynamic shapes Dynamo takes the floats of modules for inputs. The eps of a norm or the scale of attention written
by hand would then be a tensor that only the run knows; it hardly ever changes.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from flycc.frontend.written_norms import ADDITIONS, MEANS

_FACTORS = (operator.mul, torch.mul, "mul", operator.truediv, torch.div, "div")
#: Products of queries and keys.
PRODUCTS = (
    *(operator.matmul, torch.matmul, "matmul", torch.bmm, "bmm", torch.baddbmm, "baddbmm"),
    *(torch.einsum, torch.functional.einsum),
)
_CASTS = ("to", "type", "type_as", "float", "half", "bfloat16")
_ABOVE = (*_FACTORS, *_CASTS, torch.tanh, "tanh")
_BELOW = (
    *_FACTORS,
    *_CASTS,
    "transpose",
    torch.transpose,
    "view",
    "reshape",
    "permute",
    "contiguous",
    "unsqueeze",
)
#: Calls between a factor and its product.
_STEPS = 8


def known_number(option: Any) -> Any:
    """`option`, as a constant with a guard where it is a float that Dynamo made an input."""
    value = option.meta.get("example_value") if isinstance(option, Node) else option
    return float(value) if isinstance(value, torch.SymFloat) else option


def specialise_numbers(node: Node) -> None:
    """Makes a float that is added to a mean, or that scales operands or results of a product, a constant."""
    places = []
    if node.target in ADDITIONS and len(node.args) == 2 and _is_call(node.args[0], MEANS):
        places = [1]
    elif node.target in _FACTORS and len(node.args) == 2 and (_is_of_product(node) or _is_for_product(node)):
        places = [0, 1]
    for place in places:
        given = node.args[place]
        number = known_number(given)
        if number is not given:
            node.update_arg(place, number)
            if not given.users:
                node.graph.erase_node(given)


def _is_call(node: Any, targets: tuple[Any, ...]) -> bool:
    return isinstance(node, Node) and node.target in targets


def _is_of_product(node: Node) -> bool:
    """Whether `node` is made of a product by factors, casts and tanh."""
    reached = [node]
    for _ in range(_STEPS):
        reached = [
            each for at in reached for each in at.all_input_nodes if _is_call(each, (*_ABOVE, *PRODUCTS))
        ]
        if any(_is_call(each, PRODUCTS) for each in reached):
            return True
    return False


def _is_for_product(node: Node) -> bool:
    """Whether factors, casts and views lead from `node` to a product."""
    reached = [node]
    for _ in range(_STEPS):
        reached = [each for at in reached for each in at.users if _is_call(each, (*_BELOW, *PRODUCTS))]
        if any(_is_call(each, PRODUCTS) for each in reached):
            return True
    return False
