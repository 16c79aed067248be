"""Decoding: tokens a second, the share of the memory's bandwidth, and the peak of the memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, get_args

import jax
import numpy as np
from compiled_cases import Case, run_of

from device_parts.finding import Finding, PartOptions, median, spread
from device_parts.memory_peak import beside_plan, memory_limit
from device_parts.model_shape import random_weights, shape_directory
from device_parts.peak_rates import peak_rates
from rl_sync.models.config import Quantization
from rl_sync.models.platform import platform
from rl_sync.plan.lowered_programs import layout_on
from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.roofline import decode_work
from rl_sync.roles.assembly.engines import rollout_engine
from rl_sync.roles.assembly.parameters import parameters_of
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling

_ARRIVE = "parameters that arrive"
_MOST = 0.85
"""Share of the memory that a planned peak may take."""


def half_billion(options: PartOptions) -> Iterator[Finding]:
    """Measures Qwen2.5-0.5B's shape."""
    return _measure("qwen2.5-0.5b", options, slots=(64, 256))


def seven_billion(options: PartOptions) -> Iterator[Finding]:
    """Measures Qwen2.5-7B's shape."""
    return _measure("qwen2.5-7b", options, slots=(32, 128))


def quantized(options: PartOptions) -> Iterator[Finding]:
    """Measures Qwen2.5-7B's shape with quantized kernels, few slots and so mostly weights."""
    for dtype in (*get_args(Quantization), None):  # The peak of the memory only grows.
        more = (("explorer.quantization", dtype),) if dtype else ()
        yield from _measure("qwen2.5-7b", options, (16,), dtype or "bfloat16", more)


def in_pages(options: PartOptions) -> Iterator[Finding]:
    """Measures Qwen2.5-0.5B's shape with a row for each slot, and with as many bytes in pages."""
    pages = (("rollout.cache_bytes", 2**21 if options.small else 2**30),)
    yield from _measure("qwen2.5-0.5b", options, (64,), "pages", pages)
    yield from _measure("qwen2.5-0.5b", options, (64,), "rows")


def _measure(
    name: str,
    options: PartOptions,
    slots: tuple[int, ...],
    label: str = "",
    more: tuple[tuple[str, Any], ...] = (),
) -> Iterator[Finding]:
    """Measures batches of several sizes, the smallest first.

    Args:
      label: what the findings are of, where a part has several.
      more: further settings.
    """
    row_tokens, rounds = (128, 2) if options.small else (1024, 3)
    counts = tuple(count // 16 for count in slots) if options.small else slots
    for count in counts:
        case = Case(
            shape_directory(name, options.small),
            "",
            (1, 1, 1),
            count,
            row_tokens,
            "decode",
            settings=more,
        )
        settings, task = run_of(case)
        layout = layout_on(settings, "explorer", jax.local_devices()[:1])
        estimate = explorer_estimate(settings, task, platform())
        planned = estimate.peak - estimate.held[_ARRIVE]
        sizes = f"{label}, {count} x {row_tokens:,}" if label else f"{count} x {row_tokens:,}"
        if planned > _MOST * memory_limit():
            yield Finding(sizes, "left out", beside=f"plan: {planned / 1e9:.3g} GB")
            continue
        engine = rollout_engine(settings, task, layout)
        engine.load(random_weights(parameters_of(settings, task, layout).abstract_held), 0)
        vocab = parameters_of(settings, task, layout).model.vocab_size
        # From the first token on, the cache's span is the whole row.
        prompt_tokens = row_tokens // 2
        rates, steps = [], []
        for turn in range(rounds + 1):
            rng = np.random.default_rng(turn)
            prompts = rng.integers(0, vocab, (count, prompt_tokens), dtype=np.int32)
            requests = [
                CompletionRequest(prompt, Sampling(row_tokens - prompt_tokens, ()), seed=(turn, i))
                for i, prompt in enumerate(prompts)
            ]
            before = engine.stats
            engine.generate(requests)
            work = engine.stats - before
            if not turn:
                yield Finding(f"{sizes}: compiling", work.compile_secs, "s")
                continue
            rates.append(work.decode_tokens_per_sec)
            steps.append(work.decode_secs / work.steps)
        prefills = work.prefill_tokens_per_sec
        yield beside_plan(f"{sizes}: peak of the memory", planned)
        yield Finding(f"{sizes}: decoding", median(rates), "tokens/s", spread(rates, ",.0f"))
        yield Finding(f"{sizes}: a token of each slot", 1e3 * median(steps), "ms")
        peaks = peak_rates()
        traffic = decode_work(settings, task, count, row_tokens).traffic
        share = traffic / median(steps) / peaks.bandwidth
        yield Finding(
            f"{sizes}: memory bandwidth",
            100 * share,
            "%",
            f"of {peaks.source}; {traffic / 1e9:.3g} GB of weights and cache a token",
        )
        yield Finding(f"{sizes}: prefill", prefills, "tokens/s", "the last round")
        del engine
        gc.collect()  # An engine is a part of cycles, and has the weights.
