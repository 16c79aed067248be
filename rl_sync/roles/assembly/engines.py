"""Engines of a run: the engine of an explorer, and the trainer's engine for evaluations."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import cast

import jax
import numpy as np
from jaxtyping import Float, Int

from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.reading import locate
from rl_sync.models.huggingface.writing import FrameSources, write_checkpoint
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.sharding import Layout, using
from rl_sync.role_names import explorer_name
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.checkpoint_frame import tokenizer_of
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.rollout.engine_options import CachePolicy, EngineOptions
from rl_sync.rollout.engine_programs import CompiledProgram
from rl_sync.rollout.sampling import LogitsProcessors
from rl_sync.rollout.served.engine_transfers import CheckpointTransfer, DeltaTransfer
from rl_sync.rollout.served.installation import Installation
from rl_sync.rollout.served.served_engine import ServedEngine
from rl_sync.rollout.served.vllm_calls import VllmCalls
from rl_sync.rollout.speculation.draft_pace import Speculation
from rl_sync.settings.explorer_settings import VLLM
from rl_sync.settings.records import require
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.types import Params
from rl_sync.workdir import Workdir

BeforeFirst = Callable[[CompiledProgram], None]


def _at_once(program: CompiledProgram) -> None:
    """Does not compile a program in advance."""


def rollout_engine(
    settings: RunSettings, task: Task, layout: Layout, before_first: BeforeFirst = _at_once
) -> Engine:
    """Makes an explorer's engine, on its devices.

    Args:
      before_first: see `EngineOptions`.
    """
    model, options = _of_rollouts(settings, task, before_first)
    return Engine(model, layout, options)


def _of_rollouts(
    settings: RunSettings, task: Task, before_first: BeforeFirst
) -> tuple[ModelConfig, EngineOptions]:
    """Returns the model config and the options of an explorer's engine."""
    return lora.merged_config(wiring.explorer_model(settings, task)), EngineOptions(
        slots=settings.slots,
        chunk_tokens=settings.rollout.chunk_tokens,
        cache=cast(CachePolicy, settings.rollout.cache),
        cache_bytes=settings.rollout.cache_bytes or None,
        # With exact pulls a run that was resumed must come to the same bits.
        reuses_prefixes=settings.schedule.pull == "latest",
        kv_offload_bytes=settings.environment.kv_offload_bytes,
        decode=task.tokenizer.decode,
        changes=rollout_changes(settings, task),
        records_routes=settings.rollout.routing_replay,
        sampler=wiring.token_records(settings, task).sampler,
        speculation=cast(Speculation, settings.rollout.speculation),
        draft_tokens=settings.rollout.draft_tokens,
        draft_bytes=settings.rollout.draft_bytes,
        frozen_vision=not settings.model.trains_tower,
        image_cache_bytes=settings.rollout.image_cache_bytes,
        before_first=before_first,
    )


def engine_of_rollouts(
    settings: RunSettings,
    task: Task,
    layout: Layout,
    number: int,
    *,
    before_first: BeforeFirst = _at_once,
    tell: Callable[[str], None] = lambda told: None,
    check: Callable[[], None] = lambda: None,
) -> RolloutEngine:
    """Makes the engine of an explorer's rollouts: its own, or the served one of its number.

    Args:
      number: number of the explorer, from 1.
      before_first: see `EngineOptions`.
      tell, check: see `ServedEngine`.
    """
    explorer = settings.explorer
    if not explorer.engines:
        return rollout_engine(settings, task, layout, before_first)
    model = lora.merged_config(wiring.explorer_model(settings, task))
    require(
        model.vision is None,
        f"explorer.engine={explorer.engine} gets no images: leave it out, or use a model that reads"
        " text alone.",
    )
    folder = Path(explorer.engine_directory or Workdir(settings.workdir).engines)
    path = settings.model.path
    frame = FrameSources(
        source=None if path is None else locate(path),
        dtype=settings.explorer_dtype,
        **tokenizer_of(settings, task),
    )
    compiled = jax.jit(functools.partial(token_logprobs, model))

    def score(params: Params, tokens: Int[np.ndarray, "B T"]) -> Float[np.ndarray, "B T"]:
        with using(layout):
            return np.asarray(compiled(params, tokens)[0])

    calls = VllmCalls(explorer.engines[number - 1].removeprefix(VLLM), explorer.engine_secs)
    is_delta = explorer.engine_transfer == "delta"
    installation = Installation(
        calls=calls,
        transfer=(
            DeltaTransfer(calls, explorer.engine_secs) if is_delta else CheckpointTransfer(calls)
        ),
        directory=folder / explorer_name(number),
        write=lambda target, params: write_checkpoint(target, model, params, frame),
        score=score,
        dtype=settings.explorer_dtype,
        vocab_size=model.vocab_size,
        max_length=model.max_length,
        recompute=settings.rollout.cache == "recompute",
    )
    return ServedEngine(
        model,
        installation,
        slots=settings.slots,
        wait_secs=explorer.engine_secs,
        decode=task.tokenizer.decode,
        tell=tell,
        check=check,
    )


def examination_engine(
    settings: RunSettings, task: Task, layout: Layout, before_first: BeforeFirst = _at_once
) -> Engine:
    """Makes the engine with which an explorer evaluates beside its rollouts.

    Args:
      before_first: see `EngineOptions`.
    """
    model, options = _of_rollouts(settings, task, before_first)
    beside = dataclasses.replace(
        options,
        slots=settings.evaluation_slots,
        cache_bytes=wiring.examination_cache_bytes(settings, task),
    )
    return Engine(model, layout, beside)


def rollout_changes(settings: RunSettings, task: Task) -> LogitsProcessors:
    """Returns the logits processors of an explorer's engine, which also say what it records."""
    changes, keeps = sampled_changes(settings, task), settings.rollout.keep_sampling_mask
    excludes = LogitsProcessors.of(wiring.sampling(settings, task)).excludes
    return changes._replace(masks=excludes and keeps, whole=excludes and not keeps)


def sampled_changes(settings: RunSettings, task: Task) -> LogitsProcessors:
    """Returns the logits processors that a run's rollouts and evaluations need."""
    rollouts, examination = wiring.sampling(settings, task), wiring.examination(settings, task)
    return LogitsProcessors.of(rollouts).with_those(LogitsProcessors.of(examination.sampling))


def evaluation_engine(
    settings: RunSettings,
    task: Task,
    model: ModelConfig,
    layout: Layout,
    before_first: BeforeFirst = _at_once,
) -> Engine:
    """Makes the engine with which the trainer completes held-out problems.

    Args:
      model: the policy's model config.
      before_first: see `EngineOptions`.
    """
    problems = len(wiring.examination(settings, task).prompts)
    return Engine(
        model,
        layout,
        EngineOptions(
            slots=min(problems, settings.sft.probe_problems),
            decode=task.tokenizer.decode,
            changes=sampled_changes(settings, task),
            frozen_vision=not settings.model.trains_tower,
            image_cache_bytes=settings.rollout.image_cache_bytes,
            before_first=before_first,
        ),
    )
