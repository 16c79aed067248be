"""Runs a model for rewards on devices of this process: rows of any length, in few padded shapes."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from rl_sync.isolation.worker_program import is_worker
from rl_sync.models.config import DTYPES, ModelConfig
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config, locate
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.placement import abstract_params, cast_abstract, put
from rl_sync.models.sharding import Layout, using
from rl_sync.roles.assembly import wiring
from rl_sync.roles.saved_policy import (
    is_run,
    model_of_run,
    policy_of_run,
    require_snapshot,
    settings_of_run,
    step_named,
)
from rl_sync.settings.mesh_settings import ShardingSettings
from rl_sync.spelling import require_one_of
from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from rl_sync.tasks.tokenizers.prompt_messages import encode_asked
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer
from rl_sync.types import Params

_LEAST_LENGTH = 16
Step = int | str | None
Pass = Callable[[ModelConfig, Params, Array, Array, Array], Float[Array, " B"]]
"""A function of model, parameters, tokens [B, T], starts [B] and lengths [B] to row values."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSite:
    """Devices and memory of a served model; these fields are options of rewards by models.

    Attributes:
      platform: `cpu`, `gpu`, `tpu`; empty for JAX's default.
      data, fsdp, tensor: sizes of its mesh.
      rows: maximum number of rows at once.
      dtype: dtype of its parameters and computations.

    Raises:
      ValueError: a value is invalid.
    """

    platform: str = "cpu"
    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    rows: int = 16
    dtype: str = "float32"

    def __post_init__(self) -> None:
        require_one_of("dtype", self.dtype, DTYPES)
        shards = MeshShape(self.data, self.fsdp, self.tensor).devices
        if self.rows < 1 or self.rows % (self.data * self.fsdp):
            raise ValueError(
                f"rows={self.rows} must be a multiple of data · fsdp = {self.data * self.fsdp},"
                f" the number of parts that a mesh of {shards} devices shards a batch into."
            )

    def layout(self) -> Layout:
        """Makes the mesh on this process's devices.

        Raises:
          ValueError: there are too few devices.
        """
        shape = MeshShape(self.data, self.fsdp, self.tensor)
        if self.platform and is_worker():
            # A worker has no other models. Without this, JAX would also take the accelerators.
            jax.config.update("jax_platforms", self.platform)
            if self.platform == "cpu" and shape.devices > 1:
                with contextlib.suppress(RuntimeError):  # JAX has started; `mesh` checks devices.
                    jax.config.update("jax_num_cpu_devices", shape.devices)
        devices = jax.local_devices(backend=self.platform or None)
        return Layout(shape.mesh(devices), ShardingSettings().rules)


class Served:
    """A loaded model with its tokenizer.

    Args:
      path: directory of a checkpoint, hub name of a checkpoint in the local cache, or work
        directory of a run.
      step: step of a run's snapshot, `best`, None for the newest, or 0 for the initial policy.
      site: devices that it computes on.
      chat, system: see `TokenizerConfig`; not used for a run, which has its own.

    Raises:
      ValueError: the model cannot be loaded.
    """

    def __init__(
        self,
        path: str,
        step: Step,
        site: ModelSite,
        chat: str = "auto",
        system: str | None = None,
    ) -> None:
        self._site, self.layout = site, site.layout()
        self.tokenizer: Tokenizer
        if is_run(path):
            kv_heads = settings_of_run(_workdir(path)).model.kv_heads()
            self.layout = self.layout.grouped(kv_heads)
            policy = policy_of_run(_workdir(path), self.layout, _numbered(path, step))
            self.tokenizer, model = policy.task.tokenizer, policy.model
            self.params = jax.tree.map(lambda x: x.astype(site.dtype), policy.params)
        else:
            directory = locate(path)
            self.tokenizer = tokenizer_of(path, chat, system)
            model = load_config(directory)
            self.layout = self.layout.grouped(model.num_kv_heads)
            abstract = cast_abstract(abstract_params(model, self.layout), site.dtype)
            self.params = load_params(directory, model, abstract)
        self.model = dataclasses.replace(model, dtype=site.dtype)
        self._compiled: dict[Pass, jax.stages.Wrapped] = {}

    def values(
        self, one: Pass, rows: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Float[np.ndarray, " rows"]:
        """Computes a value of each row, in order.

        Rows of similar length are padded to one of a few lengths, so that little is compiled. Equal
        rows are computed once, since completions of a group are often the same.

        Args:
          one: the pass.
          rows: token ids.
          starts: position in each row that the pass needs.
        """
        asked = [(tuple(row), start) for row, start in zip(rows, starts, strict=True)]
        by_width: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for row, start in dict.fromkeys(asked):
            by_width.setdefault(self._width(len(row)), []).append((row, start))
        found: dict[tuple[tuple[int, ...], int], float] = {}
        for width, members in sorted(by_width.items()):
            for first in range(0, len(members), self._site.rows):
                some = members[first : first + self._site.rows]
                found |= dict(zip(some, self._batch(one, width, some).tolist(), strict=True))
        return np.array([found[key] for key in asked], np.float32)

    def _batch(
        self, one: Pass, width: int, rows: Sequence[tuple[Sequence[int], int]]
    ) -> Float[np.ndarray, " rows"]:
        shards = self._site.data * self._site.fsdp
        count = shards * 2 ** math.ceil(math.log2(max(1, len(rows) / shards)))
        count = min(count, self._site.rows)
        tokens = np.full((count, width), self.tokenizer.pad_id, np.int32)
        starts, lengths = np.ones(count, np.int32), np.ones(count, np.int32)
        for i, (row, start) in enumerate(rows):
            tokens[i, : len(row)], starts[i], lengths[i] = row, start, len(row)
        cut = self.layout.sharding(("batch",), tokens.shape)
        given = put(tokens, cut), put(starts, self.layout.repeated)
        computed = self._pass(one)(self.params, *given, put(lengths, self.layout.repeated))
        return np.asarray(computed)[: len(rows)]

    def _pass(self, one: Pass) -> jax.stages.Wrapped:
        if one not in self._compiled:
            self._compiled[one] = program_of(one, self.model, self.layout)
        return self._compiled[one]

    def _width(self, length: int) -> int:
        return max(_LEAST_LENGTH, 2 ** math.ceil(math.log2(max(1, length))))


def program_of(one: Pass, model: ModelConfig, layout: Layout) -> jax.stages.Wrapped:
    """Returns a pass as a function of parameters, tokens [B, T], starts [B] and lengths [B].

    It compiles for the layout's devices, each of which gets the values of all rows.
    """

    def run(params: Params, tokens: Array, starts: Array, lengths: Array) -> Array:
        with using(layout):
            return one(model, params, tokens, starts, lengths)

    return jax.jit(run, out_shardings=layout.repeated)


def _workdir(path: str) -> Path:
    return Path(path).expanduser()


def _numbered(path: str, step: Step) -> int | None:
    """Returns the step of a run's snapshot, or 0 for the initial policy."""
    return 0 if step == 0 else step_named(_workdir(path), None if step is None else str(step))


def model_of(path: str, step: Step = None) -> ModelConfig:
    """Returns the model config of a path, without loading the model.

    Args:
      path, step: see `Served`.

    Raises:
      ValueError: there is no model, or a run has no such snapshot.
    """
    if not is_run(path):
        return load_config(locate(path))
    if _numbered(path, step) is None:
        require_snapshot(_workdir(path))
    settings = settings_of_run(_workdir(path))
    return model_of_run(settings, wiring.load_task(settings))


def tokenizer_of(path: str, chat: str, system: str | None) -> Tokenizer:
    """Loads the tokenizer of a path.

    Args:
      path, chat, system: see `Served`.

    Raises:
      ValueError: there is no tokenizer, or it has no such chat template.
    """
    if is_run(path):
        return wiring.load_task(settings_of_run(_workdir(path))).tokenizer
    return pretrained.load(TokenizerConfig(str(locate(path)), chat, system))


def require_fit(
    tokenizer: Tokenizer, text: str, model: ModelConfig, row: Mapping[str, Any] | None = None
) -> None:
    """Rejects a prompt that a model cannot read.

    Args:
      row: the prompt's row, which may have the messages of a conversation.

    Raises:
      ValueError: the tokenizer lacks one of the prompt's characters, or the prompt is too long.
    """
    try:
        length = len(encode_asked(tokenizer, text, row))
    except Exception as error:  # Tokenizers raise errors of many kinds.
        raise ValueError(f"the model's tokenizer cannot encode it: {error}") from error
    if length >= model.max_length:
        raise ValueError(
            f"it has {length} tokens for the model, which takes at most {model.max_length} with the"
            " completion."
        )
