"""The policy of a run as a checkpoint that transformers loads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax

from rl_sync.models import lora
from rl_sync.models.huggingface.reading import locate
from rl_sync.models.huggingface.writing import write_checkpoint
from rl_sync.models.sharding import Layout, MeshShape
from rl_sync.runtime import wiring
from rl_sync.runtime.policy import load_policy, settings_of_run, step_named
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizer import CharacterTokenizer
from rl_sync.tasks.tokenizer_files import token_ids, tokenizer_files

_LEAST_POSITIONS = 2048


def export(workdir: Path, target: Path, dtype: str | None, named: str | None = None) -> int:
    """Writes the policy of a run's snapshot to a new directory.

    Its max_position_embeddings are those of the checkpoint that the run began with. Of a model that
    began at random they are 2,048, or as many as its rows have if those are longer: RoPE has no
    last position, and who reads the model should not be kept to the lengths that it was trained on.

    Args:
      dtype: float32, bfloat16 or float16; None for as imported, or float32.
      named: the snapshot; see `rl_sync.runtime.policy.step_named`.

    Returns:
      The trainer step of the snapshot.

    Raises:
      ConfigError: there is no run or no snapshot, or it cannot be written there or so.
    """
    settings = settings_of_run(workdir)
    task = wiring.load_task(settings)
    model = wiring.model_config(settings, task)
    # Beside a run that still holds the accelerators, and in the host's memory.
    here = jax.local_devices(backend="cpu")[:1]
    layout = Layout(MeshShape().mesh(here), settings.sharding.rules)
    with jax.default_device(here[0]):
        step, params = load_policy(workdir, settings, task, layout, step_named(workdir, named))
    path = settings.model.path
    if path is None:
        model = dataclasses.replace(model, max_length=max(model.max_length, _LEAST_POSITIONS))
    try:
        write_checkpoint(
            target,
            lora.merged_config(model),
            params,
            source=None if path is None else locate(path),
            dtype=dtype,
            **_tokenizer(settings, task),
        )
    except (ValueError, OSError) as error:
        raise ConfigError(f"The run in {workdir} cannot be exported: {error}") from error
    return step


def _tokenizer(settings: RunSettings, task: Task) -> dict[str, Any]:
    """The run's tokenizer, where it is not that of `model.path`, which hands on its own."""
    tokenizer, path = task.tokenizer, settings.tokenizer.path
    if isinstance(tokenizer, CharacterTokenizer):
        return {"files": tokenizer_files(tokenizer), "token_ids": token_ids(tokenizer)}
    if path is None:
        return {}
    ends = list(tokenizer.eos_ids)
    ids = {"eos_token_id": ends if len(ends) > 1 else ends[0], "pad_token_id": tokenizer.pad_id}
    return {"tokenizer": locate(path), "token_ids": ids}
