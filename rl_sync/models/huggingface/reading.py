"""Import: a Hugging Face directory as a `ModelConfig` and parameters on their devices."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from jaxtyping import Array

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface import architectures
from rl_sync.models.huggingface.names import (
    EMBEDDING,
    UNEMBEDDING,
    Assembly,
    Overlap,
    assemblies,
    overlap,
    tensor_shape,
)
from rl_sync.types import Params

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# What a checkpoint may hold beside the language model's parameters.
_IGNORED = re.compile(r".*rotary_emb\.inv_freq|(.*\.)?(vision_tower|multi_modal_projector)\..*")
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def locate(path: str) -> Path:
    """The directory that a path means, or a hub name whose files are in the local cache.

    Raises:
      ValueError: it is neither.
    """
    directory = Path(path).expanduser()
    if directory.is_dir():
        return directory
    try:
        return Path(huggingface_hub.snapshot_download(path, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise ValueError(
            f"{path!r} is neither a directory nor a model in the local Hugging Face cache. Give the"
            f" directory of a checkpoint, or fetch the model first: hf download {path}."
        ) from error


def read_values(directory: Path) -> dict[str, Any]:
    """What config.json says.

    Raises:
      ValueError: there is none, or it is not JSON.
    """
    path = directory / CONFIG_FILE
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ValueError(f"{directory} holds no {CONFIG_FILE}: it is not a checkpoint.") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error


def load_config(directory: Path) -> ModelConfig:
    """The model of a directory; `max_length` is the longest row that it was made for.

    Raises:
      ValueError: config.json is missing, or describes a model that we do not have.
    """
    try:
        return architectures.model_config(read_values(directory))
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from error


class TensorFiles:
    """The tensors of a directory's safetensors files, read a slice at a time.

    Raises:
      ValueError: there are none, or one of those that the index names is missing.
    """

    def __init__(self, directory: Path):
        self._directory = directory
        self._open: dict[Path, Any] = {}
        self._files = self._find()

    def _find(self) -> dict[str, Path]:
        """The file of every tensor."""
        single, index = self._directory / WEIGHTS_FILE, self._directory / INDEX_FILE
        if index.exists():
            places = json.loads(index.read_text())["weight_map"]
            files = {name: self._directory / file for name, file in places.items()}
            missing = sorted({path.name for path in files.values() if not path.exists()})
            if missing:
                raise ValueError(f"{index} names {missing[0]}, which is not there.")
            return files
        if not single.exists():
            raise ValueError(
                f"{self._directory} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}; other formats"
                " than safetensors are not read."
            )
        return dict.fromkeys(self._handle(single).keys(), single)

    def _handle(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = safetensors.safe_open(path, framework="np")
        return self._open[path]

    def _slice(self, name: str) -> Any:
        return self._handle(self._files[name]).get_slice(name)

    @property
    def names(self) -> set[str]:
        """All tensors."""
        return set(self._files)

    @property
    def prefix(self) -> str:
        """What the names of the language model's tensors start with: `model.`, mostly.

        Raises:
          ValueError: there is no embedding.
        """
        found = [name for name in self._files if name.endswith(EMBEDDING)]
        if len(found) != 1:
            raise ValueError(
                f"{self._directory} has {len(found)} tensors called …{EMBEDDING} where a language"
                " model has one."
            )
        return found[0].removesuffix(EMBEDDING)

    @property
    def head(self) -> str:
        """The name of the unembedding: the usual one if there is none."""
        found = [name for name in self._files if name.endswith(UNEMBEDDING)]
        return found[0] if found else UNEMBEDDING

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """A tensor's dtype, as JAX calls it.

        Raises:
          ValueError: it is none that parameters come in.
        """
        stored = self._slice(name).get_dtype()
        if stored not in _DTYPES:
            raise ValueError(
                f"Tensor {name} in {self._directory} is stored as {stored}; parameters must be one"
                f" of {', '.join(_DTYPES)}."
            )
        return _DTYPES[stored]

    def read(self, name: str, where: tuple[slice, ...]) -> np.ndarray:
        """A copy of a part of a tensor, as it is stored."""
        return self._slice(name)[where]


def load_params(directory: Path, config: ModelConfig, like: Params) -> Params:
    """The parameters of a directory, each read straight into its own shards.

    On the host there is never more than one tensor of the files: each is read as far as this
    process's devices need it, put into their buffers, and dropped.

    Args:
      directory: see `locate`.
      config: what `load_config` says of it, but for what is our choice.
      like: the tree of `init_params` with the dtype and the sharding that each array shall have,
        as `jax.ShapeDtypeStruct`.

    Raises:
      ValueError: a tensor is missing, unknown, or of another shape than config.json implies.
    """
    files = TensorFiles(directory)
    tree = assemblies(config, files.prefix, files.head)
    _check(directory, files, tree, config, like)
    return jax.tree.map(functools.partial(_assemble, files), tree, like)


def _check(
    directory: Path, files: TensorFiles, tree: Any, config: ModelConfig, like: Params
) -> None:
    parameters = zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
    wanted = {
        piece.tensor: tensor_shape(assembly, piece, parameter.shape)
        for assembly, parameter in parameters
        for piece in assembly.pieces
    }
    missing = sorted(set(wanted) - files.names)
    if missing:
        raise ValueError(
            f"{directory} lacks {len(missing)} of {len(wanted)} tensors that its {CONFIG_FILE}"
            f" implies, such as {missing[0]}."
        )
    known = {*wanted, *([files.head] if config.tie_embeddings else [])}
    extra = sorted(name for name in files.names - known if not _IGNORED.fullmatch(name))
    if extra:
        raise ValueError(
            f"{directory} holds {len(extra)} tensors that its {CONFIG_FILE} does not imply, such as"
            f" {extra[0]}: it is another model than that."
        )
    for name, shape in wanted.items():
        if files.shape(name) != shape:
            raise ValueError(
                f"Tensor {name} in {directory} has shape {list(files.shape(name))}, but its"
                f" {CONFIG_FILE} implies {list(shape)}."
            )
        files.dtype(name)


def _assemble(files: TensorFiles, assembly: Assembly, like: jax.ShapeDtypeStruct) -> Array:
    """One parameter, shard by shard."""
    sharding = like.sharding
    assert sharding is not None, "parameters are read into a sharding"
    shape, dtype = like.shape, like.dtype
    # Devices that hold the same window share what is read for it.
    devices: dict[tuple[tuple[int, int, int], ...], list[jax.Device]] = {}
    for device, window in sharding.addressable_devices_indices_map(shape).items():
        assert window is not None
        key = tuple(part.indices(size) for part, size in zip(window, shape, strict=True))
        devices.setdefault(key, []).append(device)
    shards = {
        device: jnp.zeros([last - first for first, last, _ in key], dtype, device=device)
        for key, holders in devices.items()
        for device in holders
    }
    for piece in assembly.pieces:
        for key, holders in devices.items():
            part = overlap(assembly, piece, shape, [slice(first, last) for first, last, _ in key])
            if part is None:
                continue
            values = files.read(piece.tensor, part.read)
            for device in holders:
                shards[device] = _placed(shards[device], values, part)
            del values
    return jax.make_array_from_single_device_arrays(shape, sharding, list(shards.values()))


def _placed(shard: Array, values: np.ndarray, part: Overlap) -> Array:
    """The shard with the values in it; nothing holds on to them afterwards."""
    on_device = jax.device_put(values, shard.sharding)
    start = np.asarray(part.start, np.int32)
    placed = _place(shard, on_device, start, part.view, part.cut, part.order)
    placed.block_until_ready()
    on_device.delete()
    # A CPU's array may stand in numpy's memory, of which JAX lets go at its next call only.
    jax.device_put(start)
    return placed


@functools.partial(jax.jit, static_argnums=(3, 4, 5), donate_argnums=0)
def _place(
    shard: Array,
    values: Array,
    start: Array,
    view: tuple[int, ...],
    cut: Sequence[tuple[int, int]],
    order: tuple[int, ...],
) -> Array:
    """Writes what was read of a tensor into its place, in the buffer itself: it is donated."""
    block = values.reshape(view)[tuple(slice(*ends) for ends in cut)].transpose(order)
    return jax.lax.dynamic_update_slice(shard, block.astype(shard.dtype), tuple(start))
