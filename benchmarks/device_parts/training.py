"""A trainer step: seconds, MFU by the usual count, and the peak of the memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from compiled_cases import Case, run_of

from device_parts.finding import Finding, PartOptions, median, spread
from device_parts.memory_peak import beside_plan, memory_limit
from device_parts.model_shape import random_weights, shape_directory
from device_parts.peak_rates import peak_rates
from rl_sync.models import lora
from rl_sync.models.placement import as_computed, zeros
from rl_sync.models.platform import platform
from rl_sync.plan.compiled_text import CompiledProgramText
from rl_sync.plan.lowered_programs import layout_on
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.plan.roofline import step_work
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.build import trainer_of
from rl_sync.roles.trainer.actor import Trainer
from rl_sync.types import TrainBatch

_MOST = 0.85
_MICROBATCH_ROWS = (16, 8, 4, 2, 1)
_LORA = (("model.lora.rank", 16),)


def half_billion(options: PartOptions) -> Iterator[Finding]:
    """Measures Qwen2.5-0.5B's shape, all of whose parameters are trained."""
    return _measure("qwen2.5-0.5b", options, "full", ())


def half_billion_kept(options: PartOptions) -> Iterator[Finding]:
    """Measures the same, but results of products with parameters are not computed again."""
    return _measure("qwen2.5-0.5b", options, "dots_no_batch", ())


def seven_billion(options: PartOptions) -> Iterator[Finding]:
    """Measures Qwen2.5-7B's shape with adapters."""
    return _measure("qwen2.5-7b", options, "full", _LORA)


def _measure(
    name: str,
    options: PartOptions,
    remat: str,
    more: tuple[tuple[str, Any], ...],
) -> Iterator[Finding]:
    """Measures the largest microbatch that fits by `plan`.

    Args:
      more: further settings.
    """
    row_tokens, rounds = (128, 2) if options.small else (1024, 4)
    rows_tried = (4,) if options.small else _MICROBATCH_ROWS
    shape, limit = shape_directory(name, options.small), memory_limit()
    for rows in rows_tried:
        case = Case(shape, "", (1, 1, 1), rows, row_tokens, "step", remat, more)
        settings, task = run_of(case)
        planned = step_estimate(settings, task, platform()).peak
        if planned <= _MOST * limit:
            break
    else:
        yield Finding(f"remat {remat}", "left out", beside=f"plan: {planned / 1e9:.3g} GB")
        return
    trainer = trainer_of(settings, task, layout_on(settings, "trainer", jax.local_devices()[:1]))
    like = wiring.batching_of(settings, task).largest()
    count, length = like.rows.tokens.shape
    sizes = f"remat {remat}, {count} x {length:,} in microbatches of {rows}"
    started = time.perf_counter()
    compiled = trainer.lower_step(trainer.abstract(), like).compile()
    yield Finding(f"{sizes}: compiling", time.perf_counter() - started, "s")
    state = _state(trainer)
    batch = trainer.place(_random_batch(like, trainer.model.vocab_size))
    secs = []
    for turn in range(rounds + 1):
        started = time.perf_counter()
        state, metrics = Trainer.step.by(compiled, trainer, state, batch)
        loss = float(metrics["loss"])
        if turn:
            secs.append(time.perf_counter() - started)
    if not np.isfinite(loss) or float(metrics["skipped_updates"]):
        raise FloatingPointError(f"the loss of random tokens is {loss}, and the update was skipped")
    compiler = CompiledProgramText.of(compiled).memory.peak
    yield beside_plan(
        f"{sizes}: peak of the memory", planned, f"; the compiler: {compiler / 1e9:.3g} GB"
    )
    yield Finding(f"{sizes}: a step", median(secs), "s", spread(secs))
    yield Finding(f"{sizes}: rate", count * length / median(secs), "tokens/s")
    peaks, work = peak_rates(), step_work(settings, task)
    mfu = work.model_flops / (peaks.flops * median(secs))
    usual = "6 operations a token and parameter, and attention"
    if more:
        usual = "4 operations a token and parameter (the base gets no gradient), and attention"
    yield Finding(f"{sizes}: MFU", 100 * mfu, "%", f"of {peaks.source}; {usual}")
    whole = work.flops / (peaks.flops * median(secs))
    yield Finding(
        f"{sizes}: with recomputing and the reference", 100 * whole, "%", f"of {peaks.source}"
    )


def _state(trainer: Trainer) -> Any:
    """Makes a state with random weights, without anything beside it."""
    abstract = trainer.abstract()
    params = random_weights(abstract.params)
    ref_params = None
    if abstract.ref_params is not None:
        trained = lora.split(params)[0] if trainer.model.lora else params
        ref_params = jax.tree.map(jnp.copy, as_computed(trainer.model, trained))
    rest = zeros(abstract._replace(params=None, ref_params=None))
    return rest._replace(params=params, ref_params=ref_params)


def _random_batch(like: TrainBatch, vocab_size: int) -> TrainBatch:
    """Makes a batch of random tokens, half of each row a completion."""
    rng = np.random.default_rng(0)
    shape = like.rows.tokens.shape
    mask = np.broadcast_to(np.arange(shape[1]) >= shape[1] // 2, shape)
    rows = like.rows._replace(
        tokens=jnp.asarray(rng.integers(0, vocab_size, shape), jnp.int32),
        completion_mask=jnp.asarray(mask),
        behavior_logprobs=jnp.asarray(np.where(mask, -np.log(vocab_size), 0.0), jnp.float32),
        policy_versions=jnp.zeros(shape, jnp.int32),
    )
    rewards = jnp.asarray(rng.standard_normal(like.rewards.shape), jnp.float32)
    return like._replace(rows=rows, rewards=rewards)
