"""Tensors as attention's kernels take them, copied only where they are otherwise, and what 32-bit offsets reach."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flycc.contracts import Reason
from flycc.kernels.attention.backward_config import MAX_ROW_STRIDE
from flycc.kernels.common.machine import OFFSET_LIMIT

#: Rows begin at multiples of so many bytes and are so many elements apart.
_ROW_BYTES, _ROW_ELEMENTS = 16, 8
_AXES = ("batch", "head", "row")
#: The most queries, and keys, between the first and the last that one buffer of a mask is read for.
_TILE = 128


def rows_of(tensor: Tensor) -> Tensor:
    """`tensor`, [batch, heads, rows, columns] of 16 bits, or a copy of it, as kernels take it: elements of a row next
    to each other, rows that begin at multiples of 16 bytes and are not too far apart. Of what is expanded the copy is,
    too."""
    columns = tensor.size(3)
    # Kernels read whole words of 4 bytes, and of an odd number of elements one more, which the last row must have.
    whole = columns % 2 == 0 and tensor.stride(3) == 1
    aligned = tensor.data_ptr() % _ROW_BYTES == 0 and not any(
        n % _ROW_ELEMENTS for n in strides("", tensor).values()
    )
    if whole and aligned and near_rows(tensor):
        return tensor
    once = tensor
    for dim in range(3):
        if tensor.stride(dim) == 0 and tensor.size(dim) > 1:
            once = once.narrow(dim, 0, 1)
    room = tensor.new_empty((*once.shape[:3], -(-columns // _ROW_ELEMENTS) * _ROW_ELEMENTS))
    room[..., :columns].copy_(once)
    return room.expand(*tensor.shape[:3], -1)


def near_rows(tensor: Tensor) -> bool:
    """Whether 32-bit offsets reach a tile's rows."""
    return strides("", tensor)["_row"] <= MAX_ROW_STRIDE


def strides(name: str, tensor: Tensor) -> dict[str, int]:
    """Between batches, heads and rows, 0 where there is one, in elements: PyTorch leaves these undefined."""
    sizes = zip(_AXES, tensor.stride()[:-1], tensor.shape, strict=False)
    return {f"{name}_{axis}": stride if size > 1 else 0 for axis, stride, size in sizes}


def alignment(*tensors: Tensor) -> int:
    """What divides the byte address of every row of all, at most 16."""
    apart = [n * x.element_size() for x in tensors for n in strides("", x).values()]
    return math.gcd(_ROW_BYTES, *apart, *(x.data_ptr() for x in tensors))


def in_order(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """A dense tensor as a contiguous one, and how to permute that to get it back."""
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    return tensor.permute(order), tuple(order.index(dim) for dim in range(tensor.dim()))


def few_rows(query: Tensor, group: int) -> Tensor:
    """`query`, as `rows_of` gives it, for kernels that read the rows of `group` heads from one buffer."""
    apart = strides("", query)
    last = (query.size(2) - 1) * apart["_row"] + (group - 1) * apart["_head"] + query.size(3)
    return query if last * query.element_size() < OFFSET_LIMIT else query.contiguous()


def documents(of_queries: Tensor, of_keys: Tensor) -> tuple[Tensor, Tensor]:
    """int32 that are equal where these, [batch, n] of signed integers, are."""
    if torch.int64 not in (of_queries.dtype, of_keys.dtype):
        return of_queries.to(torch.int32).contiguous(), of_keys.to(torch.int32).contiguous()
    # Places in the order of all, as they may be wider than 32 bits; nothing waits for the device.
    pair = [x.to(torch.int64).contiguous() for x in (of_queries, of_keys)]
    ordered = torch.cat(pair, 1).sort(1).values
    first, second = (torch.searchsorted(ordered, x, out_int32=True) for x in pair)
    return first, second


def check_mask(mask: Tensor, group: int = 1) -> Reason | None:
    """None if offsets within a tile of queries, keys and `group` heads reach a mask's numbers, else what says so."""
    _, head, query, key = (
        stride if size > 1 else 0 for stride, size in zip(mask.stride(), mask.shape, strict=True)
    )
    last = (_TILE * (query + key) + (group - 1) * head) * mask.element_size()
    if last < OFFSET_LIMIT:
        return None
    return Reason(
        "sdpa.mask", f"attn_mask has strides {mask.stride()}: the kernels reach {OFFSET_LIMIT} bytes"
    )
