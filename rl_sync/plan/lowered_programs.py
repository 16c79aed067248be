"""The programs of a run, each of which can be lowered from shapes alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import jax

from rl_sync.models.platform import Platform, compiling_for
from rl_sync.models.sharding import Layout, using
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.build import trainer_of
from rl_sync.roles.assembly.engines import rollout_changes, rollout_engine
from rl_sync.roles.assembly.gpu_flags import compiler_options
from rl_sync.roles.assembly.parameters import parameters_of
from rl_sync.rollout.buckets import power_of_two
from rl_sync.rollout.engine_programs import DECODING, LEAST_STOP_IDS, CompiledProgram
from rl_sync.rollout.image_features import MOST_TILES
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task


class LowerableProgram(NamedTuple):
    """A program of a run.

    Attributes:
      role: `trainer` or `explorer`.
      name: name of the function.
      sizes: sizes of its arguments.
      lower: traces it for its devices.
      options: compiler options, as roles have them.
    """

    role: str
    name: str
    sizes: tuple[int, ...]
    lower: Callable[[], jax.stages.Lowered]
    options: Mapping[str, bool] = MappingProxyType({})

    def compile(self) -> jax.stages.Compiled:
        """Compiles it for its devices, which this process need not have."""
        return self.lower().compile(dict(self.options))


def layout_on(settings: RunSettings, role: str, devices: Sequence[jax.Device]) -> Layout:
    """Lays a role's mesh on devices."""
    return settings.layout(role, getattr(settings, role).mesh.shape.mesh(devices))


def train_step(settings: RunSettings, task: Task, layout: Layout) -> LowerableProgram:
    """Returns the trainer's step on its largest batch."""
    trainer = trainer_of(settings, task, layout)
    batch = wiring.batching_of(settings, task).largest()
    sizes = batch.rows.tokens.shape
    lower = functools.partial(trainer.lower_step, trainer.abstract(), batch)
    options = _options(settings, layout)
    return LowerableProgram("trainer", "step", sizes, _for_devices(layout, lower), options)


def rollout_programs(
    settings: RunSettings,
    task: Task,
    layout: Layout,
    *,
    rows: int = 0,
    prompts: tuple[int, int] = (0, 0),
) -> list[LowerableProgram]:
    """Returns the programs of an explorer's engine with all slots in use.

    If prompts have images, a prefill has the most that a training problem shows.

    Args:
      rows: number of slots; 0 for the number in the settings.
      prompts: rows and positions of a prefill. 0 positions are those of the longest prompts, and
        0 rows as many as the engine prefills at once.
    """
    engine = rollout_engine(settings, task, layout)
    parameters = parameters_of(settings, task, layout)
    possible = engine.possible(parameters.abstract_held)
    length, engine_sizes = parameters.model.max_length, possible.sizes
    rows = rows or settings.slots
    width = prompts[1] or engine_sizes.prompt_bucket(length - task.max_drawn_tokens)
    prefilled = (prompts[0] or engine_sizes.prefill_rows(rows, width), width)
    sizes: dict[str, tuple[int, ...]] = {
        "prefill": prefilled,
        "insert": (rows, *prefilled),
        "decode": (rows, length),
    }
    if parameters.model.vision and task.trained_tiles:
        tiles = power_of_two(task.trained_tiles)
        encoded = min(MOST_TILES, power_of_two(prefilled[0] * tiles))
        sizes = {"image_features": (encoded,), **sizes, "prefill": (*prefilled, tiles)}
    more: dict[str, tuple[int, ...]] = {
        "insert": (LEAST_STOP_IDS,),
        "decode": (LEAST_STOP_IDS, *rollout_changes(settings, task)),
    }
    called = {"decode": DECODING[possible.speculation][0]}
    return [
        LowerableProgram(
            "explorer",
            name,
            size,
            _for_devices(layout, functools.partial(possible.lower, one)),
            _options(settings, layout),
        )
        for name, size in sizes.items()
        for one in [CompiledProgram(called.get(name, name), (*size, *more.get(name, ())))]
    ]


def _options(settings: RunSettings, layout: Layout) -> dict[str, bool]:
    if isinstance(layout.mesh, jax.sharding.AbstractMesh) or _platform_of(layout) != "gpu":
        return {}
    return compiler_options(settings.explorer_dtype, settings.quantization is not None)


def _platform_of(layout: Layout) -> Platform:
    name = layout.mesh.devices.flat[0].platform
    return name if name in ("cpu", "tpu") else "gpu"


def _for_devices(
    layout: Layout, lower: Callable[[], jax.stages.Lowered]
) -> Callable[[], jax.stages.Lowered]:
    """Makes a function trace for the devices of a layout, which this process need not have."""

    def lowered() -> jax.stages.Lowered:
        device, platform = layout.mesh.devices.flat[0], _platform_of(layout)
        with compiling_for(platform), using(layout), contextlib.ExitStack() as of_gpu:
            if platform == "gpu":  # Libraries of kernels ask the default device for its kind.
                of_gpu.enter_context(jax.default_device(device))
            return lower()

    return lowered
