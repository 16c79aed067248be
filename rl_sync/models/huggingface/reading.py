"""Reads a Hugging Face directory: its config as a `ModelConfig`, and its tensors. Needs no JAX."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface import architectures, files
from rl_sync.models.huggingface.names import (
    EMBEDDING,
    PATCH,
    POOLED,
    SCORE,
    SHUFFLED,
    UNEMBEDDING,
    Naming,
    assemblies,
    axis_sizes,
    parameters,
    tensor_shape,
)

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# Tensors that a checkpoint may contain in addition to the language model's parameters, and in
# addition to those of its vision, whose last pooling is not used.
_IGNORED = re.compile(r".*rotary_emb\.inv_freq")
_OF_VISION = re.compile(r"(.*\.)?(vision_tower|vision_model|multi_modal_projector|connector)\..*")
_UNUSED_VISION = re.compile(
    r"(.*\.)?(vision_tower|vision_model)\.(head\..*|embeddings\.position_ids)"
)
_COMPARED_ROWS = 1 << 12
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def locate(path: str) -> Path:
    """Returns the directory of a path, or of a hub name whose files are in the local cache.

    Raises:
      ValueError: the path is neither a directory nor such a name.
    """
    directory = Path(path).expanduser()
    if directory.is_dir():
        return directory
    try:
        return Path(huggingface_hub.snapshot_download(path, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        if path.startswith(("/", ".", "~")) or directory.exists():
            raise ValueError(
                f"{path!r} is no directory: give that of a checkpoint, or the name of a model in"
                " the local Hugging Face cache."
            ) from error
        raise ValueError(
            f"{path!r} is neither a directory nor a model in the local Hugging Face cache. Give the"
            f" directory of a checkpoint, or fetch the model first: hf download {path}."
        ) from error


def read_values(directory: Path) -> dict[str, Any]:
    """Reads config.json.

    Raises:
      ValueError: there is no such file, or it is not a JSON object.
    """
    try:
        return files.read_object(directory / CONFIG_FILE)
    except FileNotFoundError as error:
        raise ValueError(f"{directory} holds no {CONFIG_FILE}: it is not a checkpoint.") from error


def load_config(directory: Path, vision: bool = False) -> ModelConfig:
    """Returns the model of a directory; `max_length` is the longest row that it was made for.

    As in transformers 5, the embedding is not tied if the weights have a different unembedding,
    even if config.json says that it is tied. The weights may still be missing.

    Args:
      vision: whether the model includes its vision, if it has any. Otherwise it is the language
        model alone.

    Raises:
      ValueError: config.json is missing, or describes a model that we do not support; or the
        weights are damaged, incomplete, or belong to another model.
    """
    values = read_values(directory)
    try:
        config = architectures.model_config(values, vision)
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from error
    stamps = tuple(
        (path.name, path.stat().st_mtime_ns if path.exists() else 0)  # Links may be broken.
        for path in sorted(directory.glob("*.safetensors*"))
    )
    return _checked(directory, config, stamps) if stamps else config


@functools.lru_cache(maxsize=4)  # A process calls it repeatedly, and it may read the weights.
def _checked(
    directory: Path, config: ModelConfig, stamps: tuple[tuple[str, int], ...]
) -> ModelConfig:
    """Checks all weight files against a config; returns the config that fits the weights.

    Args:
      stamps: names and times of the files; when they change, the files are checked again.
    """
    del stamps
    tensors = TensorFiles(directory)
    if config.tie_embeddings and _has_another_head(tensors):
        config = dataclasses.replace(config, tie_embeddings=False)
    check(directory, tensors, config)
    return config


def _has_another_head(tensors: TensorFiles) -> bool:
    """True if there is an unembedding that differs from the embedding."""
    embedding, head = tensors.naming.prefix + EMBEDDING, tensors.head
    if head not in tensors.names:
        return False
    for name in (embedding, head):
        tensors.dtype(name)  # Raises if the tensor cannot be compared.
    if tensors.shape(embedding) != tensors.shape(head):
        return True
    rows = tensors.shape(head)[0]
    parts = (
        slice(first, min(first + _COMPARED_ROWS, rows)) for first in range(0, rows, _COMPARED_ROWS)
    )
    return not all(
        np.array_equal(tensors.read(embedding, (part,)), tensors.read(head, (part,)))
        for part in parts
    )


class TensorFiles:
    """Tensors of a directory's safetensors files, read slice by slice.

    Args:
      single: name of the file, if there is one for all tensors.

    Raises:
      ValueError: there are no files, or one is missing, damaged or incomplete; the message names
        it.
    """

    def __init__(self, directory: Path, single: str = WEIGHTS_FILE):
        self._directory, self._single = directory, single
        self._open: dict[Path, Any] = {}
        self._files = self._find()

    def _find(self) -> dict[str, Path]:
        """Finds the file of every tensor. As in transformers, a single file has precedence over an
        index.
        """
        single, index = self._directory / self._single, self._directory / INDEX_FILE
        if single.exists() or single.is_symlink():
            return dict.fromkeys(self._handle(single).keys(), single)
        if not index.exists():
            raise ValueError(
                f"{self._directory} holds neither {self._single} nor {INDEX_FILE}; other formats"
                " than safetensors are not read."
            )
        weight_map = files.read_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(
            isinstance(x, str) for x in weight_map.values()
        ):
            raise ValueError(f"{index} has no weight_map from tensors to files: fetch it again.")
        found = {name: self._directory / file for name, file in weight_map.items()}
        missing = sorted({path.name for path in found.values() if not path.exists()})
        if missing:
            raise ValueError(
                f"{index} names {missing[0]}, which is not there"
                + (f", nor are {len(missing) - 1} others" if len(missing) > 1 else "")
                + ": the download is incomplete, fetch it again."
            )
        held = {path: set(self._handle(path).keys()) for path in set(found.values())}
        for name, path in found.items():
            if name not in held[path]:
                raise ValueError(f"{index} says that {name} is in {path.name}, which lacks it.")
        return found

    def _handle(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = files.open_tensors(path)
        return self._open[path]

    def _slice(self, name: str) -> Any:
        return self._handle(self._files[name]).get_slice(name)

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._files)

    @property
    def naming(self) -> Naming:
        """Names of the tensors; without vision, its prefixes are empty.

        Raises:
          ValueError: there is no embedding, or more than one.
        """
        return Naming(self._prefix, self.head, self._before(PATCH), self._before(POOLED, SHUFFLED))

    @property
    def of_vision(self) -> set[str]:
        """Names of the tensors of a model's vision."""
        return {name for name in self._files if _OF_VISION.fullmatch(name)}

    def _before(self, *ends: str) -> str:
        found = (
            name.removesuffix(end) for name in self._files for end in ends if name.endswith(end)
        )
        return next(found, "")

    @property
    def _prefix(self) -> str:
        found = [name for name in self._files if name.endswith(EMBEDDING)]
        if len(found) != 1:
            raise ValueError(
                f"{self._directory} has {len(found)} tensors called …{EMBEDDING}, but a language"
                " model has one."
            )
        return found[0].removesuffix(EMBEDDING)

    @property
    def head(self) -> str:
        """Name of the unembedding, or the usual name if there is none."""
        found = [name for name in self._files if name.endswith(UNEMBEDDING)]
        return found[0] if found else UNEMBEDDING

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's shape."""
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """Returns a tensor's dtype, by its name in JAX.

        Raises:
          ValueError: parameters cannot have this dtype.
        """
        stored = self._slice(name).get_dtype()
        if stored not in _DTYPES:
            raise ValueError(
                f"Tensor {name} in {self._directory} is stored as {stored}; parameters must be one"
                f" of {', '.join(_DTYPES)}."
            )
        return _DTYPES[stored]

    def read(self, name: str, where: tuple[slice, ...]) -> np.ndarray:
        """Reads a copy of part of a tensor, in its stored dtype."""
        return self._slice(name)[where]

    def read_whole(self, name: str) -> np.ndarray:
        """Reads a copy of a tensor, which may be empty or a scalar, in its stored dtype."""
        return self._handle(self._files[name]).get_tensor(name)


def check(
    directory: Path, tensors: TensorFiles, config: ModelConfig, needs_head: bool = True
) -> None:
    """Checks that the tensors are those of a model.

    Args:
      needs_head: whether the scalar head must be there, for a model that has one.

    Raises:
      ValueError: a tensor is missing, unknown, or of another shape than config.json implies.
    """
    sizes = axis_sizes(config)
    wanted = {
        piece.tensor: tensor_shape(assembly, piece, [sizes[axis] for axis in assembly.axes])
        for assembly in parameters(assemblies(config, tensors.naming))
        for piece in assembly.pieces
    }
    if not needs_head and SCORE not in tensors.names:
        wanted.pop(SCORE, None)
    missing = sorted(set(wanted) - tensors.names)
    if missing:
        raise ValueError(
            f"{directory} lacks {len(missing)} of {len(wanted)} tensors that its {CONFIG_FILE}"
            f" implies, such as {missing[0]}."
        )
    known = {*wanted, *([tensors.head] if config.tie_embeddings or config.scalar_head else [])}
    unused = _OF_VISION if config.vision is None else _UNUSED_VISION
    extra = sorted(
        name
        for name in tensors.names - known
        if not (_IGNORED.fullmatch(name) or unused.fullmatch(name))
    )
    if extra:
        raise ValueError(
            f"{directory} has {len(extra)} tensors that its {CONFIG_FILE} does not imply, such as"
            f" {extra[0]}: it is a different model."
        )
    for name, shape in wanted.items():
        if tensors.shape(name) != shape:
            raise ValueError(
                f"Tensor {name} in {directory} has shape {list(tensors.shape(name))}, but its"
                f" {CONFIG_FILE} implies {list(shape)}."
            )
        tensors.dtype(name)
