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
from rl_sync.runtime.programs import parameters_of
from rl_sync.settings.reading import read_settings
from rl_sync.settings.records import ConfigError, read_config
from rl_sync.settings.run import RunSettings
from rl_sync.storage.snapshots import SnapshotError, load_part
from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizer import CharacterTokenizer
from rl_sync.tasks.tokenizer_files import token_ids, tokenizer_files
from rl_sync.workdir import Workdir

_LEAST_POSITIONS = 2048


def export(workdir: Path, target: Path, dtype: str | None) -> int:
    """Writes the policy of a run's newest snapshot to a new directory.

    Its max_position_embeddings are those of the checkpoint that the run began with. Of a model that
    began at random they are 2,048, or as many as its rows have if those are longer: RoPE has no
    last position, and who reads the model should not be kept to the lengths that it was trained on.

    Args:
      dtype: float32, bfloat16 or float16; None for as imported, or float32.

    Returns:
      The trainer step of the snapshot.

    Raises:
      ConfigError: there is no run or no snapshot, or it cannot be written there or so.
    """
    settings = _settings(workdir)
    task = wiring.load_task(settings)
    model = wiring.model_config(settings, task)
    # Beside a run that still holds the accelerators, and in the host's memory.
    here = jax.local_devices(backend="cpu")[:1]
    layout = Layout(MeshShape().mesh(here), settings.sharding.rules)
    parameters = parameters_of(settings, task, layout)
    kept = {"params": parameters.kept(parameters.like)}
    try:
        step, part, metadata = load_part(Workdir(workdir).snapshots, None, kept)
    except SnapshotError as error:
        raise ConfigError(str(error)) from error
    except FileNotFoundError as error:
        raise ConfigError(
            f"The run in {workdir} has no snapshot yet: one is taken every"
            f" config.checkpoint.every_steps={settings.checkpoint.every_steps} trainer steps (0 for"
            " none), and when the run ends or is stopped."
        ) from error
    with jax.default_device(here[0]):
        params = parameters.completed(part["params"], metadata.get("base_digest"))
        params = lora.merge(model, params) if model.lora else params
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


def _settings(workdir: Path) -> RunSettings:
    config = Workdir(workdir).config
    try:
        return read_settings(read_config(config))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{workdir} is not the work directory of a run: it holds no {config.name}."
        ) from error


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
