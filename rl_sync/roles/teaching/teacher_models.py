"""The teachers of a policy: their models and parameters, from checkpoints or runs."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import jax

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config, locate
from rl_sync.models.placement import abstract_params, as_computed_abstract, shardings
from rl_sync.models.sharding import Layout
from rl_sync.roles.assembly import wiring
from rl_sync.roles.saved_policy import (
    is_run,
    model_of_run,
    policy_of_run,
    require_snapshot,
    settings_of_run,
    step_named,
)
from rl_sync.settings.records import ConfigError, require
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer
from rl_sync.tasks.tokenizers.vocabularies import first_difference
from rl_sync.types import Params

_OF_TOKENS = ("embedding", "unembedding")
"""Parameters with a row for each token."""


def teacher_models(settings: RunSettings, task: Task) -> tuple[ModelConfig, ...]:
    """Returns the teachers' model configs for the trainer's rows; none without a teacher.

    Their vocabulary is the policy's, even if a checkpoint has more rows behind it.

    Raises:
      ConfigError: there is no such model, or it has another vocabulary, or cannot read the rows.
    """
    return tuple(_model(settings, task, path) for path in settings.teacher.paths.values())


def _model(settings: RunSettings, task: Task, path: str) -> ModelConfig:
    tokenizer, stored = _read(settings, path)
    named, policy = _named(settings, path), wiring.trainer_model(settings, task)
    _require_teaches(task, stored, named)
    differs = first_difference(task.tokenizer, tokenizer)
    require(
        differs is None,
        f"{named} has another vocabulary than the policy:"
        + (" token {} is {!r} there, not {!r}".format(*_swapped(differs)) if differs else "")
        + ". Its probabilities of the policy's tokens are unknown: use a teacher with the policy's"
        " tokenizer.",
    )
    require(
        stored.vocab_size >= policy.vocab_size,
        f"{named} has {stored.vocab_size} tokens, fewer than the policy's {policy.vocab_size}: use"
        " a teacher that knows all of them.",
    )
    require(
        task.row_tokens <= stored.max_length,
        f"{named} was made for at most {stored.max_length} tokens, but the task's rows have"
        f" {task.row_tokens}: lower task.max_prompt_tokens or task.max_completion_tokens.",
    )
    _require_same_groups(settings, stored, named)
    model = dataclasses.replace(
        stored,
        vocab_size=policy.vocab_size,
        max_length=policy.max_length,
        dtype=policy.dtype,
        attention=policy.attention,
    )
    return wiring.fitting(settings, task, model)


def _named(settings: RunSettings, path: str) -> str:
    """Names a teacher as the settings do."""
    name = next(name for name, there in settings.teacher.paths.items() if there == path)
    return f"teacher.sets: {name}={path!r}" if name else f"teacher.path={path!r}"


def _require_teaches(task: Task, teacher: ModelConfig, named: str) -> None:
    """Rejects models that have no probabilities of the policy's tokens."""
    require(
        not teacher.scalar_head,
        f"{named} is a reward model, which has no probabilities of tokens: use a language model.",
    )
    require(
        task.processor is None and teacher.vision is None,
        f"{named}: teachers and policies that are distilled read text alone. Leave out"
        " algorithm.distillation, or the images.",
    )


def _swapped(differs: tuple[int, str, str]) -> tuple[int, str, str]:
    number, ours, theirs = differs
    return number, theirs, ours


def _require_same_groups(settings: RunSettings, teacher: ModelConfig, named: str) -> None:
    """Rejects a mesh that would divide the heads of both models in different ways."""
    layout, kv_heads = settings.trainer_layout, settings.model.kv_heads()
    require(
        layout.mesh.size == 1 or layout.grouped(teacher.num_kv_heads) == layout.grouped(kv_heads),
        f"{named} has {teacher.num_kv_heads} key and value heads and the policy {kv_heads}, which"
        f" trainer.mesh.tensor={settings.trainer.mesh.tensor} devices would share differently: use"
        " trainer.mesh.tensor=1, or a number that divides both.",
    )


def load_teachers(settings: RunSettings, task: Task, layout: Layout) -> tuple[Params, ...]:
    """Loads the teachers' parameters, sharded as the policy's are.

    Raises:
      ConfigError: see `teacher_models`; or the weights cannot be read.
    """
    models = teacher_models(settings, task)
    paths = settings.teacher.paths.values()
    return tuple(_load(settings, *one, layout) for one in zip(paths, models, strict=True))


def _load(settings: RunSettings, path: str, model: ModelConfig, layout: Layout) -> Params:
    if is_run(path):
        return policy_of_run(_workdir(path), layout, _step(settings, path)).params
    try:
        directory = locate(path)
        stored = dataclasses.replace(load_config(directory), dtype=model.dtype)
        there = as_computed_abstract(stored, abstract_params(stored, layout))
        params = load_params(directory, stored, there)
    except ValueError as error:
        raise ConfigError(f"{_named(settings, path)}: {error}") from error
    if stored.vocab_size == model.vocab_size:
        return params
    abstract = as_computed_abstract(model, abstract_params(model, layout))
    cut = functools.partial(_cut, model.vocab_size)
    return jax.jit(cut, out_shardings=shardings(abstract))(params)


def _cut(vocab_size: int, params: Params) -> Params:
    """Leaves out the rows of tokens behind the policy's vocabulary."""
    return {name: x[:vocab_size] if name in _OF_TOKENS else x for name, x in params.items()}


def _read(settings: RunSettings, path: str) -> tuple[Tokenizer, ModelConfig]:
    """Reads the tokenizer and the model config of a teacher."""
    if not is_run(path):
        require(
            settings.teacher.step is None,
            f"teacher.step={settings.teacher.step} names a snapshot, but"
            f" {_named(settings, path)} is not the work directory of a run: leave it out.",
        )
        try:
            directory = locate(path)
            stored = load_config(directory)
            require(
                any(directory.glob("tokenizer*")),
                "it has no tokenizer, whose vocabulary must be the policy's: copy tokenizer.json"
                " into it.",
            )
            return pretrained.load(TokenizerConfig(str(directory), "no")), stored
        except (ValueError, OSError) as error:
            raise ConfigError(f"{_named(settings, path)}: {error}") from error
    try:
        if _step(settings, path) is None:
            require_snapshot(_workdir(path))
    except ConfigError as error:
        raise ConfigError(f"teacher.step of {_named(settings, path)}: {error}") from error
    run = settings_of_run(_workdir(path))
    task = wiring.load_task(run)
    return task.tokenizer, model_of_run(run, task)


def _workdir(path: str) -> Path:
    return Path(path).expanduser()


def _step(settings: RunSettings, path: str) -> int | None:
    """Returns the step of the snapshot; None for the newest."""
    step = settings.teacher.step
    return 0 if step == "0" else step_named(_workdir(path), step)
