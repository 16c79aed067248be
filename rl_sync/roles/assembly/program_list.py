"""List of the programs that each role of a run compiles, known before the run begins.

A program is a jitted function for given shapes of its arguments. The list contains programs that
compute with the model: the trainer's steps, and the functions of rollout engines. It omits small
ones, which initialize, move or compare weights.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import jax

from rl_sync.learning.rows.batching import demonstration_batching
from rl_sync.models.sharding import Layout
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.engines import (
    evaluation_engine,
    examination_engine,
    rollout_changes,
    sampled_changes,
)
from rl_sync.roles.assembly.parameters import Parameters
from rl_sync.roles.trainer.actor import Trainer
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.rollout.engine_programs import Requests
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.types import Demonstrations, Params, Prompt

TRAINING, SFT, EVALUATION, ROLLOUT = "training", "sft", "evaluation", "rollout"


class Listed(NamedTuple):
    """A program that a role compiles, or may have to compile.

    Attributes:
      purpose: use of the program in the role.
      name: name of the function.
      key: unique key among the role's programs.
      lower: traces the function for the shapes of its arguments.
    """

    purpose: str
    name: str
    key: Hashable
    lower: Callable[[], jax.stages.Lowered]


def shapes_of(arguments: Any) -> Hashable:
    """Returns the shapes and dtypes of a pytree's leaves, for a program's key."""
    return tuple((leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(arguments))


def sft_key(drawn: Demonstrations) -> Hashable:
    """Returns the key of the SFT step on demonstrations of these shapes."""
    return SFT, shapes_of(drawn)


def trainer_programs(settings: RunSettings, task: Task, trainer: Trainer) -> list[Listed]:
    """Lists the programs of the trainer, roughly in the order of their first use.

    With `trainer.batching=shared` steps are omitted, since their batches may have too many shapes.
    Evaluations of reward models are omitted, too.
    """
    return [
        *_sft(settings, task, trainer),
        *evaluation_programs(settings, task, trainer),
        *_steps(settings, task, trainer),
    ]


def explorer_programs(
    settings: RunSettings,
    task: Task,
    layout: Layout,
    engine: RolloutEngine | None,
    parameters: Parameters,
) -> list[Listed]:
    """Lists the programs of an explorer's engines, roughly in the order of their first use.

    Args:
      engine: the engine of the rollouts; a served one has no programs, and need not be given.
        Evaluations beside them have an engine of their own.
    """
    held = parameters.abstract_held
    programs = []
    if isinstance(engine, Engine):
        programs += _of_engine(ROLLOUT, engine, held, _rollouts(settings, task))
    if settings.evaluates_on_explorers:
        beside = examination_engine(settings, task, layout)
        asked = _evaluations(settings, task, beside.slots)
        programs += _of_engine(EVALUATION, beside, held, asked)
    return programs


def _sft(settings: RunSettings, task: Task, trainer: Trainer) -> list[Listed]:
    if not settings.sft.steps:
        return []
    size, kind = settings.sft.batch_size, settings.trainer.batching
    vision = trainer.model.vision
    tiles = 0 if vision is None else task.demonstrated_tiles
    shards = settings.trainer_layout.batch_shards
    batching = demonstration_batching(kind, size, task.row_tokens, vision, tiles, shards)
    laid_out = batching.demonstration_shapes()
    return [
        Listed(SFT, "step", sft_key(drawn), functools.partial(trainer.lower_sft, drawn))
        for drawn in laid_out
    ]


def _steps(settings: RunSettings, task: Task, trainer: Trainer) -> list[Listed]:
    batching = wiring.batching_of(settings, task)
    return [
        Listed(
            TRAINING,
            "step",
            (TRAINING, shapes_of(batch)),
            functools.partial(trainer.lower_step, trainer.abstract(), batch),
        )
        for batch in batching.shapes()
    ]


def evaluation_programs(settings: RunSettings, task: Task, trainer: Trainer) -> list[Listed]:
    """Lists the programs of the engine with which the trainer evaluates."""
    if settings.algorithm.scores:
        return []
    engine = evaluation_engine(settings, task, trainer.model, trainer.layout)
    abstract = trainer.abstract().params
    asked = _evaluations(settings, task, engine.slots)
    return _of_engine(EVALUATION, engine, abstract, asked)


def _of_engine(purpose: str, engine: Engine, params: Params, requests: Requests) -> list[Listed]:
    possible = engine.possible(params)
    return [
        Listed(purpose, program.name, program, functools.partial(possible.lower, program))
        for program in possible.listed(requests)
    ]


def _rollouts(settings: RunSettings, task: Task) -> Requests:
    """Returns the requests that an explorer's engine will get."""
    prompts = settings.groups_at_once * (1 + settings.algorithm.needs_baselines)
    recomputes = settings.rollout.cache == "recompute"
    requests = _requests(settings, task, task.train, prompts, recomputes=recomputes)
    return dataclasses.replace(requests, changes=rollout_changes(settings, task))


def _evaluations(settings: RunSettings, task: Task, slots: int) -> Requests:
    """Returns the requests that the engine of the evaluations will get."""
    return _requests(settings, task, wiring.examination(settings, task).prompts, slots)


def _requests(
    settings: RunSettings,
    task: Task,
    asked: Iterable[Prompt],
    prompts: int,
    recomputes: bool = False,
) -> Requests:
    sampling, plays = wiring.sampling(settings, task), settings.plays
    # Environments determine the length of prompts.
    any_length = frozenset(range(1, task.row_tokens))
    tiles = task.most_tiles(asked)
    if plays and task.processor is not None:
        tiles = task.row_tokens // task.processor.tile_tokens
    return Requests(
        prompt_tokens=any_length if plays else task.prompt_lengths(asked),
        prompts=prompts,
        new_tokens=sampling.max_new_tokens,
        stop_ids=len(sampling.stop_ids),
        changes=sampled_changes(settings, task),
        held=plays,
        offloads_kv=settings.environment.kv_offload_bytes > 0,
        recomputes=recomputes,
        tiles=tiles,
    )
