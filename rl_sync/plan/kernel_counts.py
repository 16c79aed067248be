"""Counts the kernels that a compiled program starts on a GPU, and names those of a layer.

Each costs some microseconds, however little it computes, so a small model decodes as fast as its
kernels start. What a CUDA graph holds starts faster; XLA's text does not say what is in one.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from rl_sync.plan.compiled_text import CompiledProgramText, Operation

_OF_LAYERS = re.compile(r"/Transformer/while/|/blocks/")
_WRAPPERS = re.compile(r"^(jit\(.*\)|checkpoint|rematted_computation|\w+\._\w+)$")
_PRODUCTS, _ATTENTION = "products", "attend_new"


class TokenKernels(NamedTuple):
    """Kernels of a step of decoding.

    Attributes:
      layers: number of layers.
      of_layers: kernels of all layers, by what they compute.
      besides: number of the others: embeddings, logits and sampling.
    """

    layers: int
    of_layers: Mapping[str, int]
    besides: int

    @property
    def total(self) -> int:
        """Number of all of them."""
        return sum(self.of_layers.values()) + self.besides

    @property
    def of_layer(self) -> float:
        """Mean number in a layer."""
        return sum(self.of_layers.values()) / self.layers

    def __str__(self) -> str:
        # The first and the last layer may share kernels with what is around them.
        each = {name: round(count / self.layers) for name, count in self.of_layers.items()}
        products, attends = each.pop(_PRODUCTS, 0), each.pop(_ATTENTION, 0)
        named = [f"{products} products"] + [f"{attends} of attention"] * (attends > 0)
        others = [name if one == 1 else f"{one} × {name}" for name, one in each.items() if one]
        return (
            f"{self.total:,} kernels for a token of each slot: {self.of_layer:.3g} a layer"
            f" ({', '.join([*named, *sorted(others)])}), {self.besides} besides"
        )


def kernels_of_token(reading: CompiledProgramText, layers: int) -> TokenKernels:
    """Counts the kernels of one step of a decode program, whose outermost loop is over steps."""
    found: collections.Counter[str] = collections.Counter()
    besides = 0
    for one in reading.launches:
        if not one.loops:
            continue
        times = _times(one.loops[1:])
        source = reading.source(one)
        if _OF_LAYERS.search(source):
            found[_computed(one, source)] += times
        else:
            besides += times
    return TokenKernels(layers, dict(found), besides)


def kernels_of_step(reading: CompiledProgramText) -> int:
    """Counts the kernels of a whole program; a loop whose trips are not known counts once."""
    return sum(_times(one.loops) for one in reading.launches)


def _times(loops: tuple[int, ...]) -> int:
    return math.prod(trips or 1 for trips in loops)


def _computed(operation: Operation, source: str) -> str:
    """Names what a kernel of a layer computes, from its path in the traced program."""
    if source.endswith("dot_general") and "attention/B" not in source:
        return _PRODUCTS
    if source.endswith("attend_new/pallas_call"):
        return _ATTENTION
    path = source.rpartition("/blocks/")[2] or source.rpartition("/Transformer/")[2]
    parts = [part for part in path.split("/") if not _WRAPPERS.match(part)]
    if parts[-1:] == ["convert_element_type"]:
        parts.pop()  # The last part of a kernel that is named by its module.
    return " ".join(parts[-2:]) or operation.kind
