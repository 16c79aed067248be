"""Export of a run's policy, adapters or reward model, in the forms of transformers and PEFT."""

from __future__ import annotations

from pathlib import Path

import jax

from rl_sync.models.huggingface.adapters import module_prefix, write_adapters
from rl_sync.models.huggingface.notes import NOTES_FILE, ScoreNotes
from rl_sync.models.huggingface.reading import locate
from rl_sync.models.huggingface.writing import FrameSources, write_checkpoint
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.sharding import Layout
from rl_sync.records.metrics import read_metrics
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.checkpoint_frame import tokenizer_of
from rl_sync.roles.saved_policy import (
    RunPolicy,
    load_adapters_of_run,
    policy_of_run,
    settings_of_run,
    step_named,
)
from rl_sync.settings.records import ConfigError, require


def export(workdir: Path, target: Path, dtype: str | None, named: str | None = None) -> int:
    """Writes the policy of a run's snapshot, or its reward model, to a new directory.

    Its max_position_embeddings are the `max_length` of `model_of_run`.

    Args:
      dtype: float32, bfloat16 or float16; None for the imported checkpoint's, or float32.
      named: name of the snapshot; see `rl_sync.roles.saved_policy.step_named`.

    Returns:
      The trainer step of the snapshot.

    Raises:
      ConfigError: there is no run or no snapshot, or it cannot be written there or in this form.
    """
    settings = settings_of_run(workdir)
    # On the host, since a run may still hold the accelerators.
    here = jax.local_devices(backend="cpu")[:1]
    layout = Layout(MeshShape().mesh(here), settings.sharding.rules)
    with jax.default_device(here[0]):
        policy = policy_of_run(workdir, layout, step_named(workdir, named))
    model, task = policy.model, policy.task
    path = settings.model.path
    try:
        write_checkpoint(
            target,
            model,
            policy.params,
            FrameSources(
                source=None if path is None else locate(path),
                dtype=dtype,
                notes=_notes(workdir, policy),
                **tokenizer_of(settings, task),
            ),
        )
    except (ValueError, OSError) as error:
        raise ConfigError(f"The run in {workdir} cannot be exported: {error}") from error
    return policy.step


def export_adapters(
    workdir: Path, target: Path, dtype: str | None, named: str | None = None
) -> int:
    """Writes the adapters of a run's snapshot to a new directory, as PEFT loads them.

    Args:
      dtype: float32, bfloat16 or float16; None for float32.
      named: name of the snapshot; see `rl_sync.roles.saved_policy.step_named`.

    Returns:
      The trainer step of the snapshot.

    Raises:
      ConfigError: there is no run or no snapshot, it has no adapters of a checkpoint, or it cannot
        be written there or in this form.
    """
    settings = settings_of_run(workdir)
    path = settings.model.path
    task = wiring.load_task(settings)
    model = wiring.model_config(settings, task)
    require(
        model.lora is not None and path is not None and not model.scalar_head,
        f"The run in {workdir} has no adapters that PEFT could load"
        f" (model.lora.rank={settings.model.lora.rank}, model.path={path!r},"
        f" algorithm.name={settings.algorithm.name}): export the whole model, without --adapter.",
    )
    assert path is not None, "it was just required"
    here = jax.local_devices(backend="cpu")[:1]
    layout = Layout(MeshShape().mesh(here), settings.sharding.rules)
    with jax.default_device(here[0]):
        step, kept = load_adapters_of_run(
            workdir, settings, task, layout, step_named(workdir, named)
        )
    try:
        write_adapters(
            target,
            model,
            kept["blocks"],
            base=path,
            prefix=module_prefix(locate(path)),
            dtype=dtype or "float32",
        )
    except (ValueError, OSError) as error:
        raise ConfigError(f"The run in {workdir} cannot be exported: {error}") from error
    return step


def _notes(workdir: Path, policy: RunPolicy) -> dict[str, str]:
    """Returns notes on how to read a reward model's scores; none for a policy."""
    if not policy.model.scalar_head:
        return {}
    settings = policy.settings
    evaluations = read_metrics(workdir, "evaluation")
    of_step = [line for line in evaluations if line["step"] == policy.step]
    measured = of_step[-1] if of_step else {}
    notes = ScoreNotes(
        chat=settings.tokenizer.chat,
        system=settings.tokenizer.system,
        mean=measured.get("score_mean"),
        std=measured.get("score_std"),
        accuracy=measured.get("accuracy"),
        pairs=measured.get("problems"),
    )
    return {NOTES_FILE: notes.to_json()}
