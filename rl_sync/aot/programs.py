"""The programs of a run, each ready to be lowered from shapes alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl_sync.models import lora
from rl_sync.models.cache import KVCache, map_with_axes
from rl_sync.models.placement import like_cast, param_like
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import Layout, using
from rl_sync.rollout import slots as core
from rl_sync.rollout.batch import Batch
from rl_sync.rollout.buckets import prompt_bucket
from rl_sync.rollout.slots import Prefix, Slots
from rl_sync.runtime import wiring
from rl_sync.runtime.programs import trainer_of
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.types import Params

_STOP_IDS = 4


class Program(NamedTuple):
    """A program of a run.

    Attributes:
      role: `trainer` or `explorer`.
      name: the function.
      sizes: those of its arguments.
      lower: traces it for the platform in use.
    """

    role: str
    name: str
    sizes: tuple[int, ...]
    lower: Callable[[], jax.stages.Lowered]


def layout_on(settings: RunSettings, role: str, devices: Sequence[jax.Device]) -> Layout:
    """Lays a role's mesh on devices."""
    return settings.layout(getattr(settings, role).mesh.shape.mesh(devices))


def train_step(settings: RunSettings, task: Task, layout: Layout) -> Program:
    """Returns the trainer's step on its largest batch."""
    trainer = trainer_of(settings, task, layout)
    batch = wiring.batching(settings, task.row_tokens).largest()
    sizes = batch.rows.tokens.shape
    lower = functools.partial(trainer.lower_step, trainer.like(), batch)
    return Program("trainer", "step", sizes, _for_devices(layout, lower))


def rollout_programs(
    settings: RunSettings,
    task: Task,
    layout: Layout,
    *,
    rows: int = 0,
    span: int = 0,
    prompts: tuple[int, int] = (0, 0),
) -> list[Program]:
    """Returns the programs of an explorer's engine with all slots in use.

    Args:
      rows: slots; those of the settings if 0.
      span: positions that decoding reads; all if 0.
      prompts: rows and positions of a prefill; the longest prompts, and as many of them as the
        engine reads at once, if 0.
    """
    model = lora.merged_config(wiring.explorer_model(settings, task))
    chunk_tokens = settings.rollout.chunk_tokens
    rows, span = rows or settings.slots, span or model.max_length
    width = prompts[1] or prompt_bucket(model.max_length - task.max_drawn_tokens, model.max_length)
    engine = Batch(model, model.max_length, chunk_tokens, layout)
    prefilled = (prompts[0] or engine.prefill_rows(rows, width), width)

    def params() -> Params:
        return like_cast(param_like(model, layout), model.dtype)

    def given(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.repeated)

    def cache(like: KVCache) -> Any:
        parts: Any = map_with_axes(layout.like, like)
        return KVCache(*parts)

    def slots() -> Slots:
        like = jax.eval_shape(lambda: core.empty_slots(model, rows, model.max_length, _STOP_IDS))
        by_rows: Any = jax.tree.map(lambda x: layout.like(x, ("batch",)), like)
        return Slots(by_rows.tokens, cache(like.cache), by_rows.rows)

    def decode() -> jax.stages.Lowered:
        return core.decode_chunk.lower(
            model,
            params(),
            slots(),
            given((rows,), jnp.bool_),
            given((), jnp.int32),
            given((1,), jnp.int32),
            span=span,
            chunk_tokens=chunk_tokens,
        )

    def prefill() -> jax.stages.Lowered:
        return core.prefill.lower(model, params(), given(prefilled, jnp.int32))

    def insert() -> jax.stages.Lowered:
        tokens: Any = given(prefilled, jnp.int32)
        like = jax.eval_shape(lambda p, t: core.prefill(model, p, t), params(), tokens)
        prefix = Prefix(tokens, cache(like.cache))
        new = jax.tree.map(lambda x: given(x.shape, x.dtype), slots().rows)
        whole = given((rows,), jnp.int32)
        return core.insert.lower(slots(), prefix, given((), jnp.int32), whole, whole, new)

    found = {
        ("prefill", prefilled): prefill,
        ("insert", (rows, *prefilled)): insert,
        ("decode", (rows, span)): decode,
    }
    return [
        Program("explorer", name, sizes, _for_devices(layout, lower))
        for (name, sizes), lower in found.items()
    ]


def _for_devices(
    layout: Layout, lower: Callable[[], jax.stages.Lowered]
) -> Callable[[], jax.stages.Lowered]:
    """Traces for the devices of a layout, which this process need not have."""

    def lowered() -> jax.stages.Lowered:
        name = layout.mesh.devices.flat[0].platform
        with compiling_for(name if name in ("cpu", "tpu") else "gpu"), using(layout):
            return lower()

    return lowered
