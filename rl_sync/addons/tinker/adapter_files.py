"""Checkpoints of adapters: a directory of PEFT, the optimizer's state, and a description.

    ROOT/MODEL/weights/NAME            adapters and optimizer, to go on training
    ROOT/MODEL/sampler_weights/NAME    adapters alone

Their addresses are tinker://MODEL/weights/NAME and tinker://MODEL/sampler_weights/NAME.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_sync.addons.tinker.adapter_passes import AdapterState, placed_like
from rl_sync.addons.tinker.tinker_calls import CallRefusedError
from rl_sync.models.config import Lora, ModelConfig
from rl_sync.models.huggingface.adapters import (
    load_adapters,
    module_prefix,
    read_adapters,
    write_adapters,
)
from rl_sync.models.huggingface.writing import new_directory
from rl_sync.models.placement import abstract_params
from rl_sync.models.sharding import Layout

TRAINING, SAMPLER = "weights", "sampler_weights"
_PATH = re.compile(r"tinker://(\w[\w:\-]*)/(weights|sampler_weights)/(\w[\w.\-]*)")
_DESCRIPTION, _OPTIMIZER, _ADAPTERS = "checkpoint.json", "optimizer.safetensors", "adapter"


@dataclasses.dataclass(frozen=True)
class AdapterCheckpoint:
    """A checkpoint on the disk.

    Attributes:
      address: its address.
      directory: its directory.
      base_model: name of the base model.
      lora: shape of the adapters.
      steps: number of steps that were taken.
      created: time of its creation, as ISO 8601 has it.
      user_metadata, model_metadata: what the client says of it, and of its model.
    """

    address: str
    directory: Path
    base_model: str
    lora: Lora
    steps: int
    created: str
    user_metadata: Mapping[str, str] | None
    model_metadata: Mapping[str, str] | None

    @property
    def has_optimizer(self) -> bool:
        """Says whether it has the optimizer's state."""
        return (self.directory / _OPTIMIZER).is_file()

    @property
    def size_bytes(self) -> int:
        """Size of its files."""
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())


@dataclasses.dataclass(frozen=True)
class AdapterFiles:
    """The checkpoints of a server.

    Attributes:
      root: their directory.
      base: directory of the base model.
      base_model: name of the base model.
    """

    root: Path
    base: Path
    base_model: str

    def save(
        self,
        config: ModelConfig,
        state: AdapterState,
        *,
        model_id: str,
        kind: str,
        name: str,
        overwrite: bool,
        user_metadata: Mapping[str, str] | None,
        model_metadata: Mapping[str, str] | None,
    ) -> str:
        """Writes a checkpoint, which appears under its name once it is complete.

        Args:
          config: a config with `lora`.
          kind: `TRAINING`, or `SAMPLER` without the optimizer's state.
          overwrite: whether one of the same name may be replaced.

        Returns:
          Its address.

        Raises:
          CallRefusedError: there is one of the same name.
        """
        assert config.lora is not None
        target, address = self._directory(model_id, kind, name), _address(model_id, kind, name)
        if target.exists() and not overwrite:
            raise CallRefusedError(
                f"{address} exists: save under another name, or with overwrite=True."
            )
        fresh = target.with_name(f".new-{name}") if target.exists() else target
        shutil.rmtree(target.with_name(f".new-{name}"), ignore_errors=True)
        with new_directory(fresh, None) as unfinished:
            write_adapters(
                unfinished / _ADAPTERS,
                config,
                state.adapters["blocks"],
                base=str(self.base),
                prefix=module_prefix(self.base),
                dtype="float32",
            )
            if kind == TRAINING:
                _write_optimizer(unfinished / _OPTIMIZER, state.opt_state)
            description = {
                "base_model": self.base_model,
                "lora": dataclasses.asdict(config.lora),
                "steps": state.steps,
                "created": datetime.datetime.now(datetime.UTC).isoformat(),
                "user_metadata": user_metadata,
                "model_metadata": model_metadata,
            }
            (unfinished / _DESCRIPTION).write_text(json.dumps(description, indent=1))
        if fresh != target:
            shutil.rmtree(target)
            fresh.rename(target)
        return address

    def find(self, address: str) -> AdapterCheckpoint:
        """Returns a checkpoint by its address.

        Raises:
          CallRefusedError: there is none, or it is of another base model.
        """
        if (found := _PATH.fullmatch(address)) is None:
            raise CallRefusedError(
                f"{address!r} is no address of a checkpoint: it is as save_state returns it, such"
                " as tinker://MODEL/weights/NAME."
            )
        directory = self._directory(*found.groups())
        try:
            values = json.loads((directory / _DESCRIPTION).read_text())
        except FileNotFoundError as error:
            raise CallRefusedError(
                f"There is no checkpoint {address}: this server keeps its own below {self.root}."
            ) from error
        if values["base_model"] != self.base_model:
            raise CallRefusedError(
                f"{address} has adapters of {values['base_model']}, and this server has"
                f" {self.base_model}: start one with --model={values['base_model']}."
            )
        shape = {**values["lora"], "targets": tuple(values["lora"]["targets"])}
        return AdapterCheckpoint(
            address=address,
            directory=directory,
            base_model=values["base_model"],
            lora=Lora(**shape),
            steps=values["steps"],
            created=values["created"],
            user_metadata=values["user_metadata"],
            model_metadata=values["model_metadata"],
        )

    def load(
        self,
        checkpoint: AdapterCheckpoint,
        config: ModelConfig,
        layout: Layout,
        *,
        with_optimizer: bool,
    ) -> AdapterState:
        """Reads the state that a checkpoint holds.

        Args:
          config: the model, with the checkpoint's `lora`.
          with_optimizer: whether the optimizer's state is read; otherwise it begins anew.

        Raises:
          CallRefusedError: the checkpoint has no optimizer's state.
        """
        if with_optimizer and not checkpoint.has_optimizer:
            raise CallRefusedError(
                f"{checkpoint.address} has no optimizer's state: load it without the optimizer, or"
                " load one that save_state wrote."
            )
        abstract = abstract_params(config, layout)["blocks"]
        stored = read_adapters(checkpoint.directory / _ADAPTERS)
        adapters = {"blocks": load_adapters(stored, config, abstract)}
        if not with_optimizer:
            return AdapterState.begun(adapters)
        begun = AdapterState.begun(adapters, checkpoint.steps)
        opt_state = _read_optimizer(checkpoint.directory / _OPTIMIZER, begun.opt_state)
        return dataclasses.replace(begun, opt_state=placed_like(opt_state, adapters))

    def of_model(self, model_id: str) -> list[AdapterCheckpoint]:
        """Returns the checkpoints of a model, oldest first."""
        found = [
            self.find(_address(model_id, kind, path.name))
            for kind in (TRAINING, SAMPLER)
            for path in sorted((self.root / model_id / kind).glob("[!.]*"))
        ]
        return sorted(found, key=lambda one: one.created)

    def delete(self, address: str) -> None:
        """Deletes a checkpoint.

        Raises:
          CallRefusedError: there is none.
        """
        shutil.rmtree(self.find(address).directory)

    def _directory(self, model_id: str, kind: str, name: str) -> Path:
        return self.root / model_id / kind / name


def _address(model_id: str, kind: str, name: str) -> str:
    return f"tinker://{model_id}/{kind}/{name}"


def _named(opt_state: optax.OptState) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(opt_state)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _write_optimizer(path: Path, opt_state: optax.OptState) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.asarray(leaf) for name, leaf in _named(opt_state).items()}, path)


def _read_optimizer(path: Path, like: optax.OptState) -> optax.OptState:
    from safetensors.numpy import load_file

    values = load_file(path)
    leaves = [jnp.asarray(values[name]) for name in _named(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
