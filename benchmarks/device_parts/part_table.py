"""The parts, the most important first: what each measures, and how long it may take."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from device_parts.finding import Finding, PartOptions


class Part(NamedTuple):
    """A part of the table.

    Attributes:
      module: module of this folder.
      function: function of the module that measures.
      about: sentence about it.
      least_secs: it does not begin with less time left.
      most_secs: it is ended after this time.
      memory_share: share of a GPU's memory that each of its processes may take.
      quantized: whether kernels are in 8 bits.
    """

    module: str
    function: str
    about: str
    least_secs: float
    most_secs: float
    memory_share: float = 0.92
    quantized: bool = False

    def measure(self, options: PartOptions) -> Iterator[Finding]:
        """Measures, and yields each finding as soon as it is there."""
        from rl_sync.roles.assembly import gpu_flags

        gpu_flags.choose("bfloat16", self.quantized, os.environ)
        module = importlib.import_module(f"{__package__}.{self.module}")
        function: Callable[[PartOptions], Iterator[Finding]] = getattr(module, self.function)
        return function(options)


PARTS = {
    "machine": Part("machine", "describe", "The device, its driver, and versions.", 5, 60),
    "tokens": Part(
        "greedy_tokens",
        "compare",
        "Greedy completions of a model with random weights in float32, on the device and on the"
        " CPU of this machine.",
        20,
        90,
    ),
    "job": Part(
        "jobs",
        "colocated",
        "The README's main command, with trainer and explorer as threads of one process.",
        30,
        150,
    ),
    "decode": Part(
        "decoding",
        "half_billion",
        "Decoding of Qwen2.5-0.5B's shape in bfloat16, with random weights.",
        25,
        90,
    ),
    "step": Part(
        "training",
        "half_billion",
        "A trainer step of Qwen2.5-0.5B's shape in bfloat16: GRPO with a reference model, rows of"
        " 1,024 tokens.",
        30,
        100,
    ),
    "attention": Part(
        "attention_kernels",
        "compare",
        "Attention of one layer within rows: kernels beside `einsum`, forward and backward.",
        20,
        110,
    ),
    "decode_attention": Part(
        "decode_attention",
        "compare",
        "Attention of one decode step of one layer: the kernel beside its definition in float32,"
        " and beside XLA's operations.",
        15,
        60,
    ),
    "decode_7b": Part(
        "decoding",
        "seven_billion",
        "Decoding of Qwen2.5-7B's shape in bfloat16, with random weights.",
        30,
        90,
    ),
    "transfers": Part(
        "transfers",
        "measure",
        "Weights of Qwen2.5-0.5B's shape in bfloat16: copies, digests, and the project's"
        " transfers from publish to pull, in one process.",
        20,
        80,
    ),
    "decode_quantized": Part(
        "decoding",
        "quantized",
        "Decoding of Qwen2.5-7B's shape with kernels in 8 bits, beside bfloat16.",
        45,
        110,
        quantized=True,
    ),
    "decode_pages": Part(
        "decoding",
        "in_pages",
        "Decoding of Qwen2.5-0.5B's shape with a cache in pages, beside a row for each slot.",
        30,
        80,
    ),
    "gap": Part(
        "logprob_gap",
        "measure",
        "The gap between the log-probabilities of explorer and trainer, of a small model with"
        " random weights on three seeds: the greatest mean of them.",
        30,
        90,
    ),
    "experts": Part(
        "expert_products",
        "compare",
        "Products of experts at the size of Qwen3-30B-A3B, forward and backward.",
        15,
        60,
    ),
    "smollm2": Part(
        "pretrained",
        "measure",
        "SmolLM2-135M-Instruct: greedy completions beside the CPU's, and a short run.",
        30,
        120,
    ),
    "job_processes": Part(
        "jobs",
        "in_processes",
        "The README's main command, with trainer and explorer as processes.",
        40,
        150,
        memory_share=0.4,
    ),
    "step_kept": Part(
        "training",
        "half_billion_kept",
        "The trainer step of 0.5B again, without computing products with parameters twice.",
        30,
        80,
    ),
    "step_7b": Part(
        "training",
        "seven_billion",
        "A trainer step of Qwen2.5-7B's shape in bfloat16 with adapters of rank 16.",
        40,
        100,
    ),
}
