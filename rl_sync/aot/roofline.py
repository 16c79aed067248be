"""Rooflines: the least time that a chip's peak rates allow a program.

Operations and memory traffic are counted from the model's shape, since the compiler counts the body
of a loop once. Collectives are read from the compiled program, with the loops around them.
Computing, memory traffic and asynchronous collectives may overlap; other collectives may not.
(Roofline: An Insightful Visual Performance Model, CACM 52(4), 2009.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax

from rl_sync.aot.chips import Chip
from rl_sync.aot.reading import Collective, Reading
from rl_sync.models import memory
from rl_sync.models.config import ModelConfig
from rl_sync.models.flops import block_flops, block_traffic, logit_flops
from rl_sync.models.placement import like_cast, param_like
from rl_sync.models.sharding import Layout

_BACKWARD = 2  # Products of a backward pass, for each of the forward pass.


class Work(NamedTuple):
    """The work of one device.

    Attributes:
      flops: floating-point operations of matrix products.
      useful: those among them that the mathematics needs, so without recomputing.
      traffic: bytes from and to its memory.
      links: bytes over its links in collectives during which nothing else goes on.
      hidden_links: bytes over its links in asynchronous collectives.
    """

    flops: float
    useful: float
    traffic: float
    links: float = 0.0
    hidden_links: float = 0.0

    def secs(self, chip: Chip, link: float) -> float:
        """Returns the least time in seconds, over links of so many bytes a second."""
        together = (
            self.flops / chip.flops,
            self.traffic / chip.bandwidth,
            self.hidden_links / link,
        )
        return max(together) + self.links / link

    def limit(self, chip: Chip, link: float) -> str:
        """Names what takes most of the time."""
        times = {
            "computing": self.flops / chip.flops,
            "memory": self.traffic / chip.bandwidth,
            "links": (self.links + self.hidden_links) / link,
        }
        return max(times, key=lambda name: times[name])

    def utilization(self, chip: Chip, link: float) -> float:
        """Returns the model FLOPs utilization, MFU, that the least time makes."""
        return self.useful / (chip.flops * self.secs(chip, link))


def travelled(one: Collective) -> float:
    """Returns the bytes that a device sends in one run of a collective, by ring algorithms."""
    others = (one.group - 1) / one.group if one.group else 1.0
    factor = {
        "all-gather": others,
        "all-reduce": 2 * others,
        "reduce-scatter": others * one.group,
        "all-to-all": others,
        "ragged-all-to-all": others,
    }
    return one.bytes * factor.get(one.kind, 1.0)


def link_bytes(reading: Reading, unknown_trips: int = 1) -> tuple[float, float]:
    """Returns the bytes that a device sends in all runs of a program's collectives: of those that
    nothing overlaps, and of asynchronous ones.

    Args:
      unknown_trips: how often loops run that the compiler knows no count of.
    """
    alone = hidden = 0.0
    for one in reading.collectives:
        sent = travelled(one) * math.prod(trips or unknown_trips for trips in one.loops)
        if one.asynchronous:
            hidden += sent
        else:
            alone += sent
    return alone, hidden


class Passes(NamedTuple):
    """Passes of a trainer step over its tokens.

    Attributes:
      learned: with gradients.
      forward: without, such as the reference model's.
      recomputed: forward passes that the backward pass takes again.
    """

    learned: float
    forward: float
    recomputed: float


def step_work(
    model: ModelConfig, layout: Layout, rows: tuple[int, int], microbatches: int, passes: Passes
) -> Work:
    """Counts a trainer step without its collectives.

    Args:
      rows: rows of the batch, and their tokens.
      microbatches: parts that the rows are computed in.
    """
    devices = layout.mesh.size
    count, length = rows
    each = block_flops(model, length / 2) + logit_flops(model)
    useful = count * length * each * (passes.learned * (1 + _BACKWARD) + passes.forward)
    again = count * length * each * passes.recomputed
    width = 2 if model.dtype != "float32" else 4
    # A device reads whole kernels in each pass, but for those that other devices compute with.
    split = layout.tensor_shards
    whole = memory.tree_bytes(like_cast(param_like(model, layout), model.dtype)) / split
    sweeps = passes.learned * (1 + _BACKWARD) + passes.forward + passes.recomputed
    activations = count * length * block_traffic(model, width) / devices
    state = memory.device_bytes(param_like(model, layout))
    # Gradients are added to once a microbatch; parameters and both moments are read and written.
    held = state * (2 * microbatches + 6)
    traffic = sweeps * (microbatches * whole + activations) + held
    return Work((useful + again) / devices, useful / devices, traffic)


def decode_work(model: ModelConfig, layout: Layout, rows: int, span: int) -> Work:
    """Counts one decode step of all rows, without its collectives.

    Args:
      span: positions of the cache that are read.
    """
    devices = layout.mesh.size
    flops = rows * (block_flops(model, span) + logit_flops(model)) / devices
    weights = memory.device_bytes(like_cast(param_like(model, layout), model.dtype))
    cache = memory.cache_bytes(model, rows, span, layout)
    return Work(flops, flops, float(weights + cache))


def step_links(
    model: ModelConfig, layout: Layout, rows: tuple[int, int], microbatches: int, passes: Passes
) -> tuple[float, float]:
    """Counts the bytes that a device sends in a trainer step, by ring algorithms, from shapes.

    Parameters are gathered over `fsdp` in each pass of a microbatch and gradients scattered,
    activations are summed over `tensor` twice a block, and gradients over `data` once a step.

    Returns:
      Those of the sums of activations, which the next product waits for, and those of the others,
      which can go on beside computing.
    """
    data, fsdp = layout.mesh.shape["data"], layout.mesh.shape["fsdp"]
    tensor = layout.tensor_shards
    width = 2 if model.dtype != "float32" else 4
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(param_like(model, layout)))
    own = count / tensor
    sweeps = passes.learned * 2 + passes.forward
    gathers = microbatches * sweeps * width * own * (fsdp - 1) / fsdp
    scatters = microbatches * passes.learned * 4 * own * (fsdp - 1) / fsdp
    reduced = 2 * 4 * own / fsdp * (data - 1) / data
    tokens = math.prod(rows) / (data * fsdp)
    sums = 2 * model.num_layers * (passes.learned * 2 + passes.forward + passes.recomputed)
    summed = tokens * model.embed_dim * width * sums * 2 * (tensor - 1) / tensor
    return summed, gathers + scatters + reduced


def decode_links(model: ModelConfig, layout: Layout, rows: int) -> float:
    """Counts the bytes that a device sends in a decode step, from shapes."""
    tensor = layout.tensor_shards
    own = rows * tensor / layout.mesh.size
    width = 2 if model.dtype != "float32" else 4
    summed = own * model.embed_dim * width * (2 * model.num_layers) * 2
    logits = own / tensor * model.vocab_size * 4
    return (summed + logits) * (tensor - 1) / tensor
