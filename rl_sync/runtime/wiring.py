"""The wiring: from a run's settings to the task, the models and the rest that they describe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import cast

from rl_sync.actors.events import MasterSettings
from rl_sync.learning.batching import Batching
from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout
from rl_sync.rewards.rubric import Rubric
from rl_sync.rewards.workers import Judges
from rl_sync.rollout.engine import CachePolicy, Engine
from rl_sync.rollout.sampling import Sampling
from rl_sync.runtime.judging import Judging
from rl_sync.settings.records import ConfigError, require
from rl_sync.settings.run import RunSettings
from rl_sync.tasks import catalog
from rl_sync.tasks.task import Task
from rl_sync.workdir import Workdir


def load_task(settings: RunSettings) -> Task:
    """Loads the problems and their tokenizer.

    Raises:
      ConfigError: they cannot be read (the message says where), do not fit the model, or there is
        nothing to imitate where a setting wants it.
    """
    tokenizer = dataclasses.replace(
        settings.tokenizer, path=settings.tokenizer.path or settings.model.path
    )
    try:
        task = catalog.load_task(settings.task, tokenizer, settings.seed)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    model_config(settings, task)
    sampling(settings, task)
    _require_demonstrations(settings, task)
    _require_preferences(settings, task)
    return task


def _require_demonstrations(settings: RunSettings, task: Task) -> None:
    """Refuses a task without demonstrations where a setting wants some."""
    if task.demonstrations:
        return
    algorithm = settings.algorithm
    wanted = {
        "warm_up.steps": settings.warm_up.steps,
        "algorithm.expert_rows": algorithm.expert_rows,
    }
    for name, value in wanted.items():
        rule = (
            f"{name}={value}, but the task has no demonstrations to imitate: use {name}=0 to go"
            " without."
        )
        require(not value, " ".join([rule, *task.notes]))
    require(
        not algorithm.imitates,
        f"algorithm.name={algorithm.name} trains on demonstrations, but the task has none: name the"
        " field that they are in, or another algorithm.",
    )


def _require_preferences(settings: RunSettings, task: Task) -> None:
    """Refuses a task without pairs of preference where a reward model is trained."""
    for name, pairs in {"train": task.preferences, "hold out": task.held_out_preferences}.items():
        require(
            bool(pairs) or not settings.algorithm.scores,
            f"algorithm.name={settings.algorithm.name} compares pairs of completions, but the task"
            f" has none to {name}: use task.dataset.format=preference, or name the fields with"
            " task.dataset.chosen and task.dataset.rejected. " + " ".join(task.notes),
        )


def check_reward(task: Task) -> None:
    """Refuses a reward that cannot be made, or that cannot judge the task's problems.

    Raises:
      ConfigError: names the reward, the problem and the way out.
    """
    try:
        rubric = Rubric(task.reward)
        rubric.check(prompt.fields for prompt in (*task.train, *task.held_out))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def judging(settings: RunSettings, task: Task, fail: Callable[[str], None]) -> Judging:
    """The judging of a task's completions; the reward is tried at once, in a thread.

    Args:
      fail: called with a reason if it cannot be used.
    """
    judges = Judges(task.reward, settings.reward)
    made = Judging(
        task=task,
        judge=judges,
        main=judges.rubric.labels[0],
        settings=settings.reward,
        workdir=Workdir(settings.workdir),
        fail=fail,
    )
    made.start()
    return made


def model_config(settings: RunSettings, task: Task) -> ModelConfig:
    """The model for a task's vocabulary and lengths.

    Raises:
      ConfigError: `model.path` is no checkpoint of ours, or does not fit the task.
    """
    model = settings.model.config(task.tokenizer.vocab_size, task.row_tokens)
    scores = settings.algorithm.scores
    require(
        scores or not model.scalar_head,
        f"config.model.path={settings.model.path!r} is a reward model, which cannot generate: give"
        " a language model, or train it further with algorithm.name=reward_model.",
    )
    return dataclasses.replace(model, scalar_head=scores)


def trainer_model(settings: RunSettings, task: Task) -> ModelConfig:
    """The model as the trainer computes it; raises what `model_config` does."""
    return dataclasses.replace(model_config(settings, task), dtype=settings.compute_dtype)


def explorer_model(settings: RunSettings, task: Task) -> ModelConfig:
    """The model as explorers compute it; raises what `model_config` does."""
    return dataclasses.replace(model_config(settings, task), dtype=settings.explorer_dtype)


def sampling(settings: RunSettings, task: Task) -> Sampling:
    """The way in which explorers sample completions.

    Raises:
      ConfigError: the task's completions are shorter than the settings ask for.
    """
    rollout = settings.rollout
    try:
        return Sampling(
            max_new_tokens=task.max_completion_tokens,
            stop_ids=(*task.tokenizer.eos_ids, *rollout.more_stop_ids),
            stop_strings=tuple(part for part in rollout.stop_strings.split("|") if part),
            min_new_tokens=rollout.min_new_tokens,
            repetition_penalty=rollout.repetition_penalty,
            temperature=rollout.temperature,
            top_k=rollout.top_k,
            top_p=rollout.top_p,
            min_p=rollout.min_p,
        )
    except ValueError as error:
        raise ConfigError(f"rollout.{error}") from error


def greedy_sampling(settings: RunSettings, task: Task) -> Sampling:
    """The way of evaluations: as explorers do, but always with the likeliest token."""
    return dataclasses.replace(sampling(settings, task), greedy=True)


def engine(settings: RunSettings, task: Task, layout: Layout) -> Engine:
    """The engine that an explorer generates with, on its devices."""
    return Engine(
        lora.merged_config(explorer_model(settings, task)),
        settings.slots,
        chunk_tokens=settings.rollout.chunk_tokens,
        cache=cast(CachePolicy, settings.rollout.cache),
        decode=task.tokenizer.decode,
        layout=layout,
    )


def batching(settings: RunSettings, row_tokens: int) -> Batching:
    """The layout of the trainer's batches, of trajectories of at most `row_tokens`."""
    shards = settings.trainer_layout.batch_shards
    return Batching(
        kind=settings.trainer.batching,
        trajectories=settings.trainer.groups_per_step * settings.trainer.group_size,
        row_tokens=row_tokens,
        updates=settings.optimizer.updates_per_batch,
        # Rows of packed batches are as many as they have to be.
        microbatch_rows=settings.trainer.microbatch_rows or (shards if shards > 1 else 0),
        with_baselines=settings.algorithm.needs_baselines,
    )


def master_settings(settings: RunSettings) -> MasterSettings:
    """The settings that the master actor goes by."""
    return MasterSettings(
        schedule=settings.schedule,
        steps=settings.trainer.steps,
        groups_per_step=settings.groups_generated,
        explorers=settings.explorers,
        groups_per_lease=settings.groups_per_lease,
        lease_secs=settings.master.lease_secs,
        carries_over=settings.rollout.budget_tokens > 0,
        screening=settings.algorithm.screening,
        times_sampled=settings.replay.times_sampled,
    )
