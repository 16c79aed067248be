"""Parses compiled programs from XLA's text: collectives, their loops, copies, and kernels.

The compiler counts the body of a loop once, so operations in a loop are listed with their loops.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_SIZES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "s16": 2,
    "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8,
    "c64": 8, "c128": 16,
}  # fmt: skip
COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_NO_LAUNCH = {
    "after-all", "bitcast", "call", "conditional", "constant", "get-tuple-element", "opt-barrier",
    "parameter", "partition-id", "tuple", "while",
}  # fmt: skip
"""Operations that run nothing on a GPU."""
_HEAD = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\) -> .*\{$")
_LINE = re.compile(r"\s*(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z0-9-]*)\(")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e\d+m\d+\w*)?)\[([0-9,]*)\]")
_CALLED = re.compile(
    r"(body|condition|calls|to_apply|true_computation|false_computation|called_computations"
    r"|branch_computations)=\{?((?:%[\w.-]+(?:, )?)+)"
)
_SOURCE = re.compile(r'op_name="([^"]*)"')
_OF_GPU = "collective_backend_config"
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')


class Shape(NamedTuple):
    """An array of a program: its dtype in XLA's notation, and its sizes on one device."""

    dtype: str
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> float:
        """Returns its size in bytes, without padding."""
        return _SIZES.get(self.dtype, 0) * math.prod(self.sizes)


class Operation(NamedTuple):
    """An operation of a program.

    Attributes:
      name: name of the operation.
      kind: opcode, such as `all-gather-start`.
      shapes: arrays that it makes.
      loops: trip counts of the loops around it, outermost first; 0 for an unknown count.
      computation: name of the computation that it is in.
      line: its whole text.
    """

    name: str
    kind: str
    shapes: tuple[Shape, ...]
    loops: tuple[int, ...]
    computation: str
    line: str

    @property
    def in_place(self) -> bool:
        """True if it updates an argument: a scatter, or a kernel whose result has its memory."""
        updates = ("scatter", "dynamic-update-slice", "dynamic_update_slice")
        return any(name in self.name for name in updates) or "operand_aliasing" in self.line

    @property
    def fused(self) -> bool:
        """True if it is part of a fusion, so that its result need not exist in memory."""
        return "fused" in self.computation or "fusion" in self.computation

    @property
    def bytes(self) -> float:
        """Returns the bytes of the arrays that it makes, on one device."""
        return sum(shape.bytes for shape in self.shapes)


class Collective(NamedTuple):
    """A collective operation.

    Attributes:
      kind: one of `COLLECTIVES`.
      shapes: results on one device.
      loops: see `Operation`.
      asynchronous: whether the program continues while it runs.
      group: number of devices that take part together; 0 for a permutation.
    """

    kind: str
    shapes: tuple[Shape, ...]
    loops: tuple[int, ...]
    asynchronous: bool
    group: int = 0

    @property
    def bytes(self) -> float:
        """Returns the bytes of its results on one device."""
        return sum(shape.bytes for shape in self.shapes)


class MemoryUse(NamedTuple):
    """Bytes of a program on each device, as the compiler counts them.

    Attributes:
      arguments, outputs: bytes of the arguments and of the outputs.
      aliased: bytes of outputs that reuse donated arguments.
      temporaries: bytes of temporary arrays.
      peak: maximum at any time, from the compiler; if it gives none, arguments + outputs −
        aliased + temporaries.
      hosted: bytes of arguments in host memory, which the others leave out.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    peak: int
    hosted: int = 0


@dataclasses.dataclass(frozen=True)
class CompiledProgramText:
    """A compiled program.

    Attributes:
      text: XLA's text after all passes.
      memory: bytes on each device.
    """

    text: str
    memory: MemoryUse

    @classmethod
    def of(cls, compiled: Any) -> CompiledProgramText:
        """Reads a `jax.stages.Compiled`."""
        found = compiled.memory_analysis()
        use = MemoryUse(
            arguments=found.argument_size_in_bytes,
            outputs=found.output_size_in_bytes,
            aliased=found.alias_size_in_bytes,
            temporaries=found.temp_size_in_bytes,
            peak=getattr(found, "peak_memory_in_bytes", 0),
            hosted=getattr(found, "host_argument_size_in_bytes", 0),
        )
        whole = use.arguments + use.outputs - use.aliased + use.temporaries
        # The compiler's peak is that of all memories.
        peak = use.peak - use.hosted - getattr(found, "host_temp_size_in_bytes", 0)
        return cls(compiled.as_text(), use._replace(peak=peak if use.peak else whole))

    @functools.cached_property
    def operations(self) -> list[Operation]:
        """Returns all operations."""
        parts = dict(_computations(self.text))
        around = _loops(parts)
        return [
            Operation(
                name=found[1],
                kind=found[3],
                shapes=_shapes(found[2]),
                loops=around[name],
                computation=name,
                line=line,
            )
            for name, lines in parts.items()
            for line in lines
            if (found := _LINE.match(line))
        ]

    @functools.cached_property
    def collectives(self) -> list[Collective]:
        """Returns each collective once, even if the compiler split it into parts."""
        found: dict[str, Collective] = {}
        for made in self.operations:
            kind = made.kind.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            starts = kind != made.kind
            channel = re.search(r"channel_id=(\d+)", made.line)
            if _OF_GPU in made.line:  # GPUs split none, and layers share their channel and source.
                channel = None
            key = f"{kind} {channel[1] if channel else made.name}"
            if channel and channel[1] == "1" and (source := _SOURCE.search(made.line)):
                key += source[1]  # All collectives that JAX writes itself have channel 1.
            one = Collective(
                kind="reduce-scatter" if "all-reduce-scatter" in made.computation else kind,
                shapes=_results(kind, made.shapes, starts=starts),
                loops=made.loops,
                asynchronous=starts or "async" in made.computation,
                group=_group(made.line),
            )
            found[key] = _joined(found[key], one) if key in found else one
        return list(found.values())

    @functools.cached_property
    def launches(self) -> list[Operation]:
        """Returns what a GPU starts by itself: kernels, calls of libraries, and copies.

        An operation in a loop is started once for each of its trips.
        """
        inner = self._inner
        return [
            one
            for one in self.operations
            if one.kind not in _NO_LAUNCH
            and not one.kind.endswith("-done")
            and one.computation not in inner
            and 'custom_call_target="Sharding"' not in one.line
        ]

    @functools.cached_property
    def _inner(self) -> set[str]:
        """Names of the computations that are part of one operation: fusions and reductions."""
        return {
            name
            for one in self.operations
            if one.kind != "call"
            for role, names in _CALLED.findall(one.line)
            if role in ("calls", "to_apply")
            for name in re.findall(r"%([\w.-]+)", names)
        }

    def source(self, operation: Operation) -> str:
        """Returns the path of an operation in the traced program; that of a part if it has none."""
        if found := _SOURCE.search(operation.line):
            return found[1]
        called = re.search(r"calls=%([\w.-]+)", operation.line)
        parts = self._sources.get(called[1], [""]) if called else [""]
        return parts[-1]

    @functools.cached_property
    def _sources(self) -> dict[str, list[str]]:
        """Paths in the traced program of the operations of each computation."""
        found: dict[str, list[str]] = {}
        for one in self.operations:
            if source := _SOURCE.search(one.line):
                found.setdefault(one.computation, []).append(source[1])
        return found

    @property
    def kernels(self) -> set[str]:
        """Returns the names of the kernels that the program calls, such as `tpu_custom_call`."""
        return set(re.findall(r'custom_call_target="([^"]*)"', self.text))

    @property
    def aliases(self) -> int:
        """Returns the number of arguments whose memory an output reuses."""
        head = self.text.partition("\n")[0]
        return head.count("may-alias") + head.count("must-alias")

    def made(self, least: float) -> list[Operation]:
        """Returns operations outside fusions that make arrays of at least `least` bytes.

        Parameters, tuples and views are left out, since they allocate nothing. The start of an
        asynchronous operation is left out too: it also lists operands, and its end has the results.
        """
        views = {"parameter", "get-tuple-element", "tuple", "bitcast", "while", "conditional"}
        return [
            one
            for one in self.operations
            if not one.fused
            and one.kind not in views
            and not one.kind.endswith("-start")
            and max((shape.bytes for shape in one.shapes), default=0) >= least
        ]


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(
        Shape(dtype, tuple(int(size) for size in sizes.split(",") if size))
        for dtype, sizes in _ARRAY.findall(text)
        if dtype in _SIZES
    )


def _results(kind: str, shapes: tuple[Shape, ...], *, starts: bool) -> tuple[Shape, ...]:
    """Returns the results among the arrays in a collective's text.

    The text of a start operation lists its operands, then the results, then scalars of its state.
    Only for an all-reduce it lists the results alone.
    """
    if not starts or kind == "all-reduce":
        return shapes
    arrays = [shape for shape in shapes if shape.sizes] or list(shapes)
    return tuple(arrays[len(arrays) // 2 :])


def _joined(one: Collective, other: Collective) -> Collective:
    """Joins two parts of one collective."""
    return Collective(
        kind="reduce-scatter" if "reduce-scatter" in (one.kind, other.kind) else one.kind,
        shapes=max(one, other, key=lambda part: part.bytes).shapes,
        loops=max(one.loops, other.loops, key=len),
        asynchronous=one.asynchronous or other.asynchronous,
        group=max(one.group, other.group),
    )


def _group(line: str) -> int:
    """Returns the size of a collective's groups, in any of XLA's notations."""
    named = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line)
    if named:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    counted = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
    if counted:
        return int(counted[1])
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", line)
    return len(listed[1].split(",")) if listed else 0


def _computations(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the name and the lines of each computation."""
    name: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head and not line.startswith("  "):
            name, lines = head[1], []
        elif line.startswith("}") and not line.startswith("}}") and name is not None:
            # With two braces a kernel's metadata ends, which has lines of its own.
            yield name, lines
            name = None
        elif name is not None:
            lines.append(line)


def _trips(line: str, parts: Mapping[str, list[str]]) -> int:
    """Returns a loop's trip count, from XLA or from the loop's condition; 0 if neither has it."""
    if known := _TRIPS.search(line):
        return int(known[1])
    condition = re.search(r"condition=%([\w.-]+)", line)
    lines = parts.get(condition[1], []) if condition else []
    constants = {
        found[1]: int(found[2])
        for one in lines
        if (found := re.match(r"\s*%([\w.-]+) = s32\[\]\S* constant\((\d+)\)", one))
    }
    limits = {
        constants[found[1]]
        for one in lines
        if (found := re.search(r"compare\(%[\w.-]+, %([\w.-]+)\), direction=LT", one))
        and found[1] in constants
    }
    return limits.pop() if len(limits) == 1 else 0


def _loops(parts: Mapping[str, list[str]]) -> dict[str, tuple[int, ...]]:
    """Returns the loops around each computation, outermost first."""
    callers: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, lines in parts.items():
        for line in lines:
            for role, names in _CALLED.findall(line):
                loop = (_trips(line, parts),) if role == "body" else ()
                for callee in re.findall(r"%([\w.-]+)", names):
                    callers.setdefault(callee, (name, loop))

    def around(name: str) -> tuple[int, ...]:
        found: tuple[int, ...] = ()
        seen = set()
        while name in callers and name not in seen:
            seen.add(name)
            name, loop = callers[name]
            found = loop + found
        return found

    return {name: around(name) for name in parts}
