"""Blocks of masks that a Dynamo graph makes for flex_attention and that nothing reads any more.

`create_block_mask` computes a mask for all queries and keys with vmap, which would keep other rewrites away from the
graph: they do not look into functorch transforms (`changes_dispatch`).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Graph, Node

from flycc.frontend.lockstep import NEW, called, writes, written
from flycc.frontend.nodes import is_of_functorch, reached

#: What begins and ends a transform, and what is called for both.
_BRACKETS = ("lazy_load_decompositions", "_vmap_increment_nesting", "_vmap_decrement_nesting")


def drop_unread_blocks(graph: Graph, blocks: Iterable[Node]) -> None:
    """Takes out of `graph` those of `blocks` that nothing reads, and what only they were made of.

    With the last of what is vmapped goes what begins and ends the transforms.
    """
    writers = {node for node in graph.nodes if called(node) is not None and writes(node)}
    makers = reached(blocks, back=True)
    fresh = {node for node in makers if called(node) in NEW}
    fillers = {node for node in writers if fresh.issuperset(written(node))}
    makers |= reached(fillers, back=True) | set(filter(is_of_functorch, graph.nodes))
    makers = {node for node in makers if called(node) is not None} - (writers - fillers)
    live = reached((node for node in graph.nodes if node not in makers), back=True)
    while kept := {node for node in fillers - live if not live.isdisjoint(written(node))}:
        live |= reached(kept, back=True)
    dead = makers - live
    if any(is_of_functorch(node) for node in live):
        dead = {node for node in dead if not _is_bracket(node)}
    for node in sorted(dead, reverse=True):
        graph.erase_node(node)


def _is_bracket(node: Node) -> bool:
    """Whether it begins or ends a transform, or is called for it."""
    return is_of_functorch(node) and getattr(node.target, "__name__", "") in _BRACKETS
