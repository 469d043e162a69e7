"""FX in: an ATen-level graph becomes a torch-dialect function whose every op names its FX node.

Attributes that the importer stamps, and that passes and the rebuild rely on:

- `flycc.node` (string) on every op: the FX node that the op came from. A node may import as several ops
  (its literals and lists, then the op that computes it).
- `flycc.shape` (array of strings) on the op that holds a node's tensor result: its sizes, symbols by name.
  `flycc.shapes` (array of such arrays, empty for what is not a tensor) where a node has several results.
- `flycc.size` (string) on the op that holds an integer with symbols: its expression.
- `flycc.impure` (unit) on ops that may not be dropped when unused: mutation, RNG, asserts, effects.

Function arguments carry `flycc.node`, `flycc.shape` and `flycc.size` as argument attributes.

What the torch dialect cannot say (higher-order ops, mutable schemas, Python arithmetic on symbols, literals
without a torch constant, ops that fail their own verifier) is imported opaquely: a `torch.operator` of the
same name with the operands in order. Element types that MLIR lacks become `unk`. The FX graph is only read.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch_mlir.dialects import func
from torch_mlir.extras.fx_importer import (
    LITERAL_CONVERTER_MAP,
    SCALAR_TYPE_TO_TORCH_MLIR_TYPE,
    SYMBOLIC_OP_TO_TORCH_OP,
    ContextCache,
    FxImporter,
    GraphNodeImporter,
)
from torch_mlir.ir import (
    ArrayAttr,
    Attribute,
    Block,
    Context,
    DictAttr,
    FunctionType,
    InsertionPoint,
    Location,
    Module,
    Operation,
    StringAttr,
    Type,
    TypeAttr,
    UnitAttr,
    Value,
)

from flycc.contracts import FlyccError, Reason
from flycc.dialects.tensor import SHAPE_ATTR, SHAPES_ATTR, SIZE_ATTR
from flycc.frontend.nodes import is_impure, size_text, target_name
from flycc.passes.torch_ir import IMPURE_ATTR, NODE_ATTR


class ImportFailed(FlyccError):
    """The graph as a whole cannot be imported; `reason` says why."""

    def __init__(self, node: Node | None, cause: Exception) -> None:
        where = f"node {node.name} ({target_name(node)})" if node is not None else "the module"
        text = " ".join(f"{type(cause).__name__}: {cause}".split())
        super().__init__(Reason("import.failed", f"{where} cannot be imported: {text[:300]}"))


def import_graph(gm: GraphModule, context: Context) -> Module:
    """A module with one function `@main` that holds the graph of `gm`, one result per graph output.

    Every node needs its fake value in `meta["val"]`, as AOTAutograd leaves it. `context` must know the torch
    and flycc dialects. Raises ImportFailed.
    """
    with context, Location.unknown():
        module = Module.create()
        types = _Types(context)
        placeholders = gm.graph.find_nodes(op="placeholder")
        node: Node | None = None
        try:
            inputs = [types.value_info_to_type(node.meta.get("val")) for node in placeholders]
            function = func.FuncOp("main", FunctionType.get(inputs, []), ip=InsertionPoint(module.body))
            entry = function.add_entry_block()
            # The base class wants an importer for its hooks and symbol table only.
            importer = _NodeImporter(FxImporter(module=module, config_check=False), context, types, entry)
            importer.bind_placeholders(placeholders)
            for node in gm.graph.nodes:
                if node.op != "placeholder":
                    importer.import_node(node)
            results = [value.type for value in entry.operations[-1].operands]
            function.attributes["function_type"] = TypeAttr.get(FunctionType.get(inputs, results))
            function.attributes["arg_attrs"] = ArrayAttr.get([_value_attrs(node) for node in placeholders])
            node = None
            module.operation.verify()
        # The importer is third-party code with asserts and lookups in tables: whatever it raises means that
        # this graph is not for us, and the graph still runs as it is.
        except Exception as error:
            raise ImportFailed(node, error) from error
    return module


def _shape_attr(val: Any) -> Attribute:
    sizes = size_text(val) if isinstance(val, torch.Tensor) else []
    return ArrayAttr.get([StringAttr.get(size) for size in sizes])


def _value_attrs(node: Node) -> DictAttr:
    """The stamp of the op, or function argument, that holds the value of `node`."""
    attrs: dict[str, Attribute] = {NODE_ATTR: StringAttr.get(node.name)}
    val = node.meta.get("val")
    if isinstance(val, torch.Tensor):
        attrs[SHAPE_ATTR] = _shape_attr(val)
    elif isinstance(val, list | tuple):
        attrs[SHAPES_ATTR] = ArrayAttr.get([_shape_attr(item) for item in val])
    elif isinstance(val, torch.SymInt):
        attrs[SIZE_ATTR] = StringAttr.get(str(val.node.expr))
    return DictAttr.get(attrs)


class _Types(ContextCache):
    """Types for every value: `unk` elements for dtypes unknown to MLIR, `!torch.any` for other objects."""

    __slots__ = ()

    def get_vtensor_type(self, shape: Sequence[Any], dtype: torch.dtype, **kwargs: Any) -> Type:
        try:
            return super().get_vtensor_type(shape, dtype, **kwargs)
        except KeyError:
            return Type.parse(f"!torch.vtensor<[{self.format_asm_shape(shape)}],unk>", self._c)

    def value_info_to_type(self, val: Any, *, tensor_meta: Any = None, mutable: bool = False) -> Type:
        if isinstance(val, torch.Tensor):
            return self.get_vtensor_type(val.shape, val.dtype, val=val, mutable=mutable)
        if isinstance(val, list | tuple) and val and all(isinstance(item, torch.Tensor) for item in val):
            return Type.parse("!torch.list<vtensor>", self._c)
        return Type.parse(SCALAR_TYPE_TO_TORCH_MLIR_TYPE.get(type(val), "!torch.any"), self._c)


class _NodeImporter(GraphNodeImporter):
    """torch-mlir's importer, one node at a time, natively where it can and opaquely where it cannot.

    Each node's ops are built in a scratch block and moved over when they verify, so that a failed attempt
    leaves nothing behind and the ops of a node are known without looking.
    """

    def __init__(self, importer: FxImporter, context: Context, types: _Types, entry: Block) -> None:
        super().__init__(importer, context, types, entry)
        self._entry = entry
        self._scratch = func.FuncOp("scratch", FunctionType.get([], []))
        self._b = self._scratch.add_entry_block()
        self._loc = Location.unknown()

    def bind_placeholders(self, placeholders: Sequence[Node]) -> None:
        for node, argument in zip(placeholders, self._entry.arguments, strict=True):
            self.bind_node_value(node, argument)

    def import_node(self, node: Node) -> None:
        """Appends the ops of `node` to the function and binds its results."""
        self._loc = self._cc.get_node_location(node) or self._loc
        with self._loc, InsertionPoint(self._b):
            if node.op == "output":
                func.ReturnOp([v for leaf in _leaves(node.args) for v in self._operands(leaf)])
            elif node.target is operator.getitem and self._bind_getitem(node):
                return
            elif not self._import_natively(node):
                self._import_opaquely(node)
        ops, impure = list(self._b.operations), is_impure(node)
        for op in ops:
            op.attributes[NODE_ATTR] = StringAttr.get(node.name)
            if impure:
                op.attributes[IMPURE_ATTR] = UnitAttr.get()
            self._entry.append(op)
        for named in _value_attrs(node):
            ops[-1].attributes[named.name] = named.attr

    def _import_argument(self, loc: Location, arg: Any, expected_jit_type: Any = None) -> Value:
        # The base class would copy the tensor behind a get_attr node into the module.
        if isinstance(arg, Node) and arg.op == "get_attr":
            return self.resolve_node_value(arg)
        return super()._import_argument(loc, arg, expected_jit_type)

    def _bind_getitem(self, node: Node) -> bool:
        """A getitem is no op: it is (producer, result index)."""
        producer, index = node.args
        if producer not in self._multi_result_nodes or not isinstance(index, int):
            return False
        self.bind_node_value(node, self.resolve_node_value(producer, index))
        return True

    def _import_natively(self, node: Node) -> bool:
        target = SYMBOLIC_OP_TO_TORCH_OP.get(node.target, node.target)
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
            return False
        try:
            # Naming the target skips the base class's canonicalisation, which edits the FX node.
            self._import_torch_op_overload(self._loc, node, target)
            self._unpack_list(node)
            for op in self._b.operations:
                op.verify()
        except Exception:  # see import_graph: anything may be raised for a node the base class cannot express
            self._discard(node)
            return False
        return True

    def _unpack_list(self, node: Node) -> None:
        """Gives a node that returns one list a result per element, as multi-result nodes have."""
        val = node.meta.get("val")
        if not isinstance(val, list | tuple) or node in self._multi_result_nodes:
            return
        types = [self._cc.value_info_to_type(item) for item in val]
        unpacked = Operation.create("torch.prim.ListUnpack", types, [self._v.pop((node, 0))])
        self._bind_results(node, unpacked)

    def _discard(self, node: Node) -> None:
        for op in reversed(list(self._b.operations)):
            op.erase()
        self._multi_result_nodes.discard(node)
        index = 0
        while self._v.pop((node, index), None) is not None:
            index += 1

    def _import_opaquely(self, node: Node) -> None:
        name, val = target_name(node).removesuffix(".default"), node.meta.get("val")
        if node.op == "get_attr":
            name, val = f"get_attr.{name}", operator.attrgetter(name)(node.graph.owning_module)
        arguments = [value for leaf in _leaves(_arguments_in_order(node)) for value in self._operands(leaf)]
        results = list(val) if isinstance(val, list | tuple) else [val]
        if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns:
            results = []
        op = Operation.create(
            "torch.operator",
            [self._cc.value_info_to_type(result) for result in results],
            arguments,
            {"name": StringAttr.get(f"torch.{name}")},
        )
        self._bind_results(node, op)

    def _bind_results(self, node: Node, op: Operation) -> None:
        if isinstance(node.meta.get("val"), list | tuple):
            self._multi_result_nodes.add(node)
        for index, value in enumerate(op.results):
            self.bind_node_value(node, value, index)

    def _operands(self, leaf: Any) -> Iterable[Value]:
        """The values of one leaf of an opaque op's arguments: all results of a node, or one literal."""
        if isinstance(leaf, Node):
            if leaf not in self._multi_result_nodes:
                return [self.resolve_node_value(leaf)]
            return [self.resolve_node_value(leaf, i) for i in range(len(leaf.meta["val"]))]
        known = leaf is None or isinstance(leaf, bool | int | float | str)
        convert = LITERAL_CONVERTER_MAP.lookup(type(leaf) if known else str)
        return [convert(leaf if known else str(leaf), self, self._cc)]


def _leaves(arguments: Any) -> list[Any]:
    leaves: list[Any] = []
    map_aggregate(arguments, leaves.append)
    return leaves


def _arguments_in_order(node: Node) -> Any:
    """Arguments in schema order with defaults filled in, or as written where there is no schema."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return (node.args, node.kwargs)
    parameters = node.target._schema.arguments[len(node.args) :]
    return (node.args, [node.kwargs.get(p.name, p.default_value) for p in parameters])
