"""What tuning knows of each kernel family: its configurations, and what makes two problems alike."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any, Final, TypeAlias, get_type_hints

from flycc.contracts import GemmProblem, GroupedGemmProblem, Reason, RmsNormProblem, TopkProblem
from flycc.contracts.scaled_gemm import BLOCK_K, ElementFormat, ScaledGemmProblem, ScaleKind
from flycc.kernels import gemm, grouped_gemm, mx, rms_norm, topk
from flycc.kernels.common.machine import ACCESS_BYTES, MAX_THREADS
from flycc.kernels.gemm.config import DTYPES, ELEMENT_BYTES
from flycc.kernels.gemm.space import space as gemm_space
from flycc.kernels.gemm.space import unshared
from flycc.kernels.mx.space import space as mx_space
from flycc.kernels.rms_norm.config import BYTES, MIN_THREADS, ROW_REGISTERS

Problem: TypeAlias = GemmProblem | GroupedGemmProblem | RmsNormProblem | ScaledGemmProblem | TopkProblem
Config: TypeAlias = (
    gemm.GemmConfig | grouped_gemm.GroupedGemmConfig | mx.MxConfig | rms_norm.RmsNormConfig | topk.TopkConfig
)

#: Problems' rows that tables have entries for; others take the nearest one's.
BUCKETS = tuple(1 << i for i in range(14))

#: Sizes are 64-bit integers to PyTorch.
_MOST = (1 << 63) - 1

#: Parts of keys that are no sizes.
_WORDS = ("dtype", "layout", "format")

#: Work-items of a workgroup that normalises several rows.
_BLOCKS = (64, 256, 512)


@dataclass(frozen=True, slots=True)
class Key:
    """A table's key: `exact` must be equal, `rows` is the nearest (see `BUCKETS`)."""

    exact: tuple[str | int, ...]
    rows: int

    def apart(self, other: Key) -> float:
        """How far apart the rows of two keys are, in octaves."""
        return abs(math.log2(self.rows) - math.log2(other.rows))


@dataclass(frozen=True, slots=True)
class Family:
    """`names` are those of a key's parts, in a table and on the command line, the rows first.

    `space` has every configuration worth trying, `admits` says quickly whether it, or the kernels' own choice, has one;
    `choose` is the kernels' own choice, `key` is None for problems that tables do not serve, `problem` makes the
    problem of a key again. `config` is the type of a configuration, of plain numbers and such types; None where there
    is one configuration for a problem, so nothing to tune.
    """

    name: str
    names: tuple[str, ...]
    choose: Callable[[Any], Any]
    space: Callable[[Any], Iterable[Any]]
    key: Callable[[Any], Key | None]
    problem: Callable[[Mapping[str, Any]], Any]
    admits: Callable[[Any, Any], bool]
    config: type | None = None

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of the parts that are sizes, as they are on the command line."""
        return tuple(name for name in self.names if name not in _WORDS)

    def known(self, problem: Any) -> bool:
        """Whether all sizes of a problem are known, as those of a launch are."""
        sizes = [getattr(problem, name) for name in self.sizes] + [getattr(problem, "batch", 1)]
        return all(isinstance(size, int) for size in sizes)

    def fields(self, key: Key) -> dict[str, str | int]:
        """A key's parts by name."""
        return dict(zip(self.names, (key.rows, *key.exact), strict=True))

    def key_of(self, parts: Mapping[str, Any]) -> Key:
        """The key of such parts. Raises ValueError for parts that make none."""
        rows, *exact = (parts.get(name) for name in self.names)
        for name, part in zip(self.names, (rows, *exact), strict=True):
            if name in _WORDS:
                if not isinstance(part, str):
                    raise ValueError(f"{name} = {part!r}: a text is needed")
            elif type(part) is not int or not 1 <= part <= _MOST:
                raise ValueError(f"{name} = {part!r}: a number from 1 to {_MOST} is needed")
        assert isinstance(rows, int)
        return Key(tuple(exact), rows)  # type: ignore[arg-type]

    def write_config(self, config: Any) -> dict[str, int | bool | str]:
        """What differs from the defaults, as JSON has it; what a part of it says stands beside the rest."""
        stored: dict[str, int | bool | str] = {}
        for field in fields(config):
            value = getattr(config, field.name)
            if is_dataclass(value):
                stored |= self.write_config(value)
            elif value != field.default:
                stored[field.name] = value
        return stored

    def read_config(self, stored: Mapping[str, Any]) -> Any:
        """The configuration that `write_config` wrote. Raises ValueError for anything else."""
        assert self.config is not None
        known = _plain_fields(self.config)
        for name, value in stored.items():
            if name not in known or type(value) is not known[name]:
                raise ValueError(f"config: {name} = {value!r} is not one of {', '.join(known)}")
        try:
            return _made(self.config, stored)
        except TypeError as error:
            raise ValueError(f"config: {error}") from None


@functools.cache
def _parts(config: type) -> dict[str, type]:
    """The fields of a configuration that are configurations themselves."""
    hints = get_type_hints(config).items()
    return {name: hint for name, hint in hints if isinstance(hint, type) and is_dataclass(hint)}


@functools.cache
def _plain_fields(config: type) -> dict[str, type]:
    """The types of all other fields, and of those of its parts."""
    found: dict[str, type] = {}
    for field in fields(config):
        if (part := _parts(config).get(field.name)) is not None:
            found |= _plain_fields(part)
        else:  # those without a default are numbers
            found[field.name] = int if field.default is MISSING else type(field.default)
    return found


def _made(config: type, stored: Mapping[str, Any]) -> Any:
    """The configuration of such plain fields. Raises TypeError where one is missing."""
    own = {field.name: stored[field.name] for field in fields(config) if field.name in stored}
    return config(**own, **{name: _made(part, stored) for name, part in _parts(config).items()})


def family_of(problem: Any) -> Family | None:
    """The family that computes `problem`, if it can be tuned."""
    return _BY_TYPE.get(type(problem))


def _gemm_key(problem: GemmProblem) -> Key | None:
    sizes = (problem.m, problem.n, problem.k)
    served = problem.dtype in DTYPES and problem.align_a == problem.align_b == 16 and problem.batch == 1
    if not served or not all(isinstance(size, int) for size in sizes):
        return None
    # The two 16-bit types differ in one bit of an instruction, and epilogues in little at the end; a gated product is
    # one of twice as many columns.
    columns = gemm.product_columns(problem)
    return Key((_SIXTEEN, problem.layout, columns, problem.k), problem.m)  # type: ignore[arg-type]


_SIXTEEN: Final = "bf16"


def _gemm_problem(parts: Mapping[str, Any]) -> GemmProblem:
    layout = parts.get("layout", "NT")
    if layout not in ("NN", "NT", "TN", "TT"):
        raise ValueError(f"layout = {layout!r}: NN, NT, TN and TT are accepted")
    trans_a, trans_b = (side == "T" for side in layout)
    return GemmProblem(parts["dtype"], parts["m"], parts["n"], parts["k"], trans_a=trans_a, trans_b=trans_b)


def contiguous(problem: Any) -> Any:
    """`problem`, whose sizes are known, with the alignment of contiguous operands at aligned addresses."""
    if isinstance(problem, GemmProblem | GroupedGemmProblem) and problem.dtype in DTYPES:
        m, n, k = problem.m, problem.n, problem.k
        return replace(
            problem,
            align_a=_align(k, m, ELEMENT_BYTES) if problem.trans_a else _align(m, k, ELEMENT_BYTES),
            align_b=_align(n, k, ELEMENT_BYTES) if problem.trans_b else _align(k, n, ELEMENT_BYTES),
            align_out=_align(m, n, ELEMENT_BYTES),
        )
    if isinstance(problem, ScaledGemmProblem) and isinstance(problem.k, int):
        m, n, k, blocks = problem.m, problem.n, problem.k, -(-problem.k // BLOCK_K)
        return replace(
            problem,
            align_a=_align(m, mx.pairs(problem.format_a, k), ELEMENT_BYTES),
            align_b=_align(n, mx.pairs(problem.format_b, k), ELEMENT_BYTES),
            align_scale_a=_align(m, blocks, 1),
            align_scale_b=_align(n, blocks, 1),
            align_out=_align(m, n, BYTES[problem.dtype]),
        )
    if isinstance(problem, RmsNormProblem) and problem.dtype in BYTES:
        return replace(problem, align=_align(problem.rows, problem.columns, BYTES[problem.dtype]))
    return problem


def _align(rows: Any, columns: Any, element_bytes: int) -> int:
    """The largest power of two, at most 16, that divides the address of every row of a contiguous tensor."""
    return math.gcd(columns * element_bytes, ACCESS_BYTES) if rows > 1 else ACCESS_BYTES


@functools.cache
def _gemm_configs(layout: str) -> frozenset[gemm.GemmConfig]:
    """The space of a layout, whatever the sizes: what it has for such as leave nothing out."""
    trans_a, trans_b = (side == "T" for side in layout)
    return frozenset(gemm_space(GemmProblem(_SIXTEEN, 4096, 4096, 4096, trans_a=trans_a, trans_b=trans_b)))


def _gemm_admits(problem: GemmProblem, config: gemm.GemmConfig) -> bool:
    known = unshared(config) in _gemm_configs(problem.layout) or config == gemm.choose(problem)
    return known and config.is_valid(problem) is None


def _grouped_key(problem: GroupedGemmProblem) -> Key | None:
    sizes = (problem.m, problem.groups, problem.n, problem.k)
    aligned = problem.align_a == problem.align_b == 16
    if problem.ragged != "m" or problem.dtype not in DTYPES or not aligned:
        return None
    if not all(isinstance(size, int) for size in sizes):
        return None
    exact = (_SIXTEEN, problem.layout, problem.groups, problem.n, problem.k)
    return Key(exact, problem.m)  # type: ignore[arg-type]


def _grouped_problem(parts: Mapping[str, Any]) -> GroupedGemmProblem:
    group = _gemm_problem(parts)
    sizes = (parts["groups"], group.m, group.n, group.k)
    return GroupedGemmProblem(group.dtype, "m", *sizes, group.trans_a, group.trans_b)


def _grouped_space(problem: GroupedGemmProblem) -> Iterator[grouped_gemm.GroupedGemmConfig]:
    """Every tile of the space of a batch of products, and all that workgroups may share."""
    tiles = (unshared(tile) for tile in gemm_space(grouped_gemm.batch_of(problem)))
    for tile in dict.fromkeys(tiles):
        both = [tile, replace(tile, splits=2)] if tile.ring or not tile.staged else [tile]
        for config in map(grouped_gemm.GroupedGemmConfig, both):
            if config.is_valid(problem) is None:
                yield config


def _grouped_admits(problem: GroupedGemmProblem, config: grouped_gemm.GroupedGemmConfig) -> bool:
    known = unshared(config.tile) in _gemm_configs(problem.layout) or config == grouped_gemm.choose(problem)
    return known and config.is_valid(problem) is None


#: What tables call operands of one width that are scaled alike.
_FORMATS: dict[str, tuple[ElementFormat, ScaleKind]] = {
    "mxfp8": ("e4m3", "block"),
    "mxfp4": ("e2m1", "block"),
    "fp8": ("e4m3", "row_f32"),
}


def _mx_key(problem: ScaledGemmProblem) -> Key | None:
    sizes = (problem.m, problem.n, problem.k)
    if problem.dtype not in DTYPES or not all(isinstance(size, int) for size in sizes):
        return None
    # Both formats of 8 bits take the same MFMA, and kinds of scales of rows differ in little at the end.
    operands = (problem.format_a, problem.scale_a), (problem.format_b, problem.scale_b)
    named = {
        next((name for name, alike in _FORMATS.items() if alike == _like(*operand)), None)
        for operand in operands
    }
    served = problem.align_a == problem.align_b == 16 and _scales_as_if_contiguous(problem)
    if None in named or len(named) > 1 or not served:
        return None
    return Key((*named, problem.n, problem.k), problem.m)  # type: ignore[arg-type]


def _like(element: ElementFormat, kind: ScaleKind) -> tuple[ElementFormat, ScaleKind]:
    return "e4m3" if element == "e5m2" else element, kind if kind == "block" else "row_f32"


def _scales_as_if_contiguous(problem: ScaledGemmProblem) -> bool:
    """Whether block scales are loaded in as wide accesses as those of contiguous tensors are."""
    least = math.gcd(-(-problem.k // BLOCK_K), ACCESS_BYTES)  # type: ignore[operator]
    return min(problem.align_scale_a, problem.align_scale_b) >= least


def _mx_problem(parts: Mapping[str, Any]) -> ScaledGemmProblem:
    if parts["format"] not in _FORMATS:
        raise ValueError(f"format = {parts['format']!r}: {', '.join(_FORMATS)} are accepted")
    element, kind = _FORMATS[parts["format"]]
    sizes = (parts["m"], parts["n"], parts["k"])
    return ScaledGemmProblem(element, element, "bf16", *sizes, kind, kind)


@functools.cache
def _mx_configs(name: str) -> frozenset[mx.MxConfig]:
    """The space of a format, whatever the sizes: what it has for such as leave nothing out."""
    configs = mx_space(_mx_problem({"format": name, "m": 4096, "n": 4096, "k": 4096}))
    return frozenset(_unshared(config) for config in configs)


def _unshared(config: mx.MxConfig) -> mx.MxConfig:
    return replace(config, tile=unshared(config.tile))


def _mx_admits(problem: ScaledGemmProblem, config: mx.MxConfig) -> bool:
    key = _mx_key(problem)
    known = key is not None and _unshared(config) in _mx_configs(str(key.exact[0]))
    return (known or config == mx.choose(problem)) and config.is_valid(problem) is None


def _norm_key(problem: RmsNormProblem) -> Key | None:
    if problem.align != 16 or not isinstance(problem.rows, int) or not isinstance(problem.columns, int):
        return None
    return Key((problem.dtype, problem.columns), problem.rows)


def _norm_problem(parts: Mapping[str, Any]) -> RmsNormProblem:
    return RmsNormProblem(parts["dtype"], parts["rows"], parts["columns"], weight=parts["dtype"])


def _norm_space(problem: RmsNormProblem) -> Iterator[rms_norm.RmsNormConfig]:
    """Every number of work-items of a row that keeps it in registers, and the kernels' own choice."""
    chosen = rms_norm.choose(problem)
    if isinstance(chosen, Reason) or not isinstance(problem.columns, int):
        return
    yield chosen
    width = ACCESS_BYTES // BYTES[problem.dtype]
    threads = MIN_THREADS
    while threads <= MAX_THREADS:
        slots = -(-max(1, problem.columns // width) // threads)
        for rows in sorted({max(1, block // threads) for block in _BLOCKS}):
            config = rms_norm.RmsNormConfig(threads, rows, slots)
            if config != chosen and slots * width <= ROW_REGISTERS and config.is_valid(problem) is None:
                yield config
        threads *= 2


def _topk_space(problem: TopkProblem) -> Iterator[topk.TopkConfig]:
    chosen = topk.choose(problem)
    if not isinstance(chosen, Reason):
        yield chosen


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "gemm",
            ("m", "dtype", "layout", "n", "k"),
            gemm.choose,
            gemm_space,
            _gemm_key,
            _gemm_problem,
            _gemm_admits,
            gemm.GemmConfig,
        ),
        Family(
            "grouped_gemm",
            ("m", "dtype", "layout", "groups", "n", "k"),
            grouped_gemm.choose,
            _grouped_space,
            _grouped_key,
            _grouped_problem,
            _grouped_admits,
            grouped_gemm.GroupedGemmConfig,
        ),
        Family(
            "scaled_gemm",
            ("m", "format", "n", "k"),
            mx.choose,
            mx_space,
            _mx_key,
            _mx_problem,
            _mx_admits,
            mx.MxConfig,
        ),
        Family(
            "rms_norm",
            ("rows", "dtype", "columns"),
            rms_norm.choose,
            _norm_space,
            _norm_key,
            _norm_problem,
            lambda problem, config: config in _norm_space(problem),
            rms_norm.RmsNormConfig,
        ),
        Family(
            "topk",
            ("rows", "dtype", "columns", "k"),
            topk.choose,
            _topk_space,
            lambda problem: None,
            lambda parts: TopkProblem(parts["dtype"], parts["rows"], parts["columns"], parts["k"]),
            lambda problem, config: config in _topk_space(problem),
        ),
    )
}
_BY_TYPE = {
    GemmProblem: FAMILIES["gemm"],
    GroupedGemmProblem: FAMILIES["grouped_gemm"],
    RmsNormProblem: FAMILIES["rms_norm"],
    ScaledGemmProblem: FAMILIES["scaled_gemm"],
    TopkProblem: FAMILIES["topk"],
}
