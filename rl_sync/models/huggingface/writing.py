"""Exports a `ModelConfig` and parameters as a directory that transformers loads."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rl_sync.models.config import DTYPES, ModelConfig
from rl_sync.models.huggingface import architectures
from rl_sync.models.huggingface.families import FAMILIES
from rl_sync.models.huggingface.files import read_object
from rl_sync.models.huggingface.names import (
    Naming,
    ParameterParts,
    TensorPiece,
    assemblies,
    overlap,
    tensor_shape,
)
from rl_sync.models.huggingface.reading import (
    CONFIG_FILE,
    INDEX_FILE,
    WEIGHTS_FILE,
    TensorFiles,
    read_values,
)
from rl_sync.models.huggingface.vision_families import VISION_FAMILIES, processor_values
from rl_sync.spelling import require_one_of
from rl_sync.types import Params

MAX_FILE_BYTES = 5 * 10**9
GENERATION_FILE = "generation_config.json"
# Files that are copied from a source directory, in addition to its weights.
PROCESSOR_FILE = "preprocessor_config.json"
_COPIED = (
    GENERATION_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    PROCESSOR_FILE,
    "processor_config.json",
)
STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Dtypes of stored parameters, with their names in safetensors files."""


TokenIds = Mapping[str, int | list[int] | None]
"""Ids of special tokens, by their names in transformers' configs."""


class Tensor(NamedTuple):
    """A tensor to write.

    Attributes:
      name: name of the tensor in the file.
      parameter: parameter that it is a part of.
      assembly, piece: its part of the parameter.
      shape: shape of the tensor.
      dtype: dtype of the stored tensor.
    """

    name: str
    parameter: Array
    assembly: ParameterParts
    piece: TensorPiece
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        """Number of bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def values(self) -> np.ndarray:
        """Returns the tensor on the host."""
        box = [self.piece.box.get(axis, slice(None)) for axis in self.assembly.axes]
        part = overlap(self.assembly, self.piece, self.parameter.shape, box)
        assert part is not None, "a piece lies within its parameter"
        start = [slot.indices(n)[0] for slot, n in zip(box, self.parameter.shape, strict=True)]
        return np.asarray(
            _take(
                self.parameter,
                np.asarray(start, np.int32),
                view=part.view,
                order=part.order,
                shape=self.shape,
                dtype=self.dtype,
            )
        )


class CopiedTensor(NamedTuple):
    """A tensor to write as it is in the source.

    Attributes:
      name: its name in the source and in the file.
      tensors: tensors of the source.
      dtype: dtype of the stored tensor.
    """

    name: str
    tensors: TensorFiles
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.tensors.shape(self.name)

    @property
    def size_bytes(self) -> int:
        """Number of bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def values(self) -> np.ndarray:
        """Returns the tensor on the host."""
        return self.tensors.read_whole(self.name).astype(self.dtype)


AnyTensor = Tensor | CopiedTensor


class FrameSources(NamedTuple):
    """Sources of the files of a checkpoint besides its weights, and the dtype that they name.

    Attributes:
      source: directory that the parameters were imported from; its config.json, its tokenizer, and
        the weights of a vision that the parameters lack are copied. None for a model of our own.
      tokenizer: directory of the tokenizer, if it is not `source`.
      dtype: float32, bfloat16 or float16; None for each tensor's dtype in `source`, or float32 if
        the tensor is not there.
      files: files of a tokenizer of our own by name, which replace those of `source`.
      token_ids: special tokens for config.json and generation_config.json, such as `eos_token_id`.
      notes: other files, by name.
    """

    source: Path | None = None
    tokenizer: Path | None = None
    dtype: str | None = None
    files: Mapping[str, str] | None = None
    token_ids: TokenIds | None = None
    notes: Mapping[str, str] | None = None


OWN = FrameSources()
"""Sources for a model of our own: none."""


def write_checkpoint(
    target: Path,
    config: ModelConfig,
    params: Params,
    frame: FrameSources = OWN,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Writes a checkpoint. The host never holds more than one tensor of the files.

    Args:
      target: a new or empty directory. It appears under its name once it is complete.
      config: model config.
      params: jax arrays that this process can address completely.
      frame: sources of the other files.
      max_file_bytes: maximum size of a file; larger checkpoints are split into several files with
        an index.

    Raises:
      ValueError: the target is in use, or transformers has no such model.
    """
    with new_directory(target, frame.dtype) as unfinished:
        stored = _stored_tensors(frame.source)
        keeps_vision = config.vision is not None or (
            stored is not None and bool(stored.of_vision) and not config.scalar_head
        )
        tensors = _tensors(config, params, stored, frame.dtype, keeps_vision)
        write_frame(unfinished, config, frame, keeps_vision)
        _write_tensors(unfinished, tensors, max_file_bytes)


@contextlib.contextmanager
def new_directory(target: Path, dtype: str | None) -> Iterator[Path]:
    """Gives the path of an unfinished directory, which is renamed to the target at the end.

    Args:
      target: a new or empty directory.
      dtype: dtype of what will be written; None for that of the source.

    Raises:
      ValueError: the target is in use, or there is no such dtype.
    """
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists and is not empty; name a new directory.")
    if dtype is not None:
        require_one_of("dtype", dtype, DTYPES)
    unfinished = target.with_name(f".unfinished-{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_frame(
    target: Path,
    config: ModelConfig,
    frame: FrameSources = OWN,
    keeps_vision: bool = False,
) -> None:
    """Writes the files of a checkpoint besides its weights: config.json, and those of the tokenizer
    and of the processing of images.

    Args:
      target: a new or empty directory.
      config, frame: see `write_checkpoint`.
      keeps_vision: whether config.json describes the vision of `source` though `config` has none.

    Raises:
      ValueError: transformers has no such model.
    """
    keeps_vision = keeps_vision or config.vision is not None
    source, token_ids = frame.source, frame.token_ids
    values = _config_values(config, frame, keeps_vision)
    target.mkdir(parents=True, exist_ok=True)
    write_json(target / CONFIG_FILE, values)
    giver = frame.tokenizer or source
    if giver is not None and frame.files is None:
        for name in _COPIED:
            if (giver / name).exists():
                shutil.copyfile(giver / name, target / name)
    if source is None and config.vision and (processor := processor_values(config.vision)):
        write_json(target / PROCESSOR_FILE, processor)
    if token_ids is not None:
        generation = target / GENERATION_FILE
        copied = read_object(generation) if generation.exists() else {}
        write_json(generation, copied | dict(token_ids))
    for name, text in {**(frame.files or {}), **(frame.notes or {})}.items():
        (target / name).write_text(text)


def _config_values(config: ModelConfig, frame: FrameSources, keeps_vision: bool) -> dict[str, Any]:
    source, dtype, token_ids = frame.source, frame.dtype, frame.token_ids or {}
    if source is None:
        return architectures.config_values(config, dtype or "float32") | dict(token_ids)
    values = read_values(source)
    if keeps_vision:
        values["architectures"] = [VISION_FAMILIES[values["model_type"]].architecture]
    else:
        values = dict(architectures.text_values(values))
        values["architectures"] = [FAMILIES[values["model_type"]].architecture]
    values["tie_word_embeddings"] = config.tie_embeddings  # The weights may override it.
    if config.scalar_head:
        values |= architectures.classifier_values(values)
    if dtype is not None:
        values["dtype" if "dtype" in values else "torch_dtype"] = dtype
        for part in values.values():
            if isinstance(part, dict):
                part |= {key: dtype for key in ("dtype", "torch_dtype") if key in part}
    return values | dict(token_ids)


def _stored_tensors(source: Path | None) -> TensorFiles | None:
    """Opens the tensors of a source; None if it has none."""
    if source is None or not any(source.glob("*.safetensors*")):
        return None
    return TensorFiles(source)


def _tensors(
    config: ModelConfig,
    params: Params,
    stored: TensorFiles | None,
    dtype: str | None,
    keeps_vision: bool,
) -> list[AnyTensor]:
    """Returns all tensors, sorted by name."""
    there = assemblies(config, stored.naming) if stored else None
    naming = _own_naming(config)
    if stored and keeps_vision:
        naming = stored.naming
    found: list[AnyTensor] = []
    parts = jax.tree.leaves(assemblies(config, naming))
    sources = jax.tree.leaves(there) if there else parts
    for assembly, source, parameter in zip(parts, sources, jax.tree.leaves(params), strict=True):
        for piece, stored_piece in zip(assembly.pieces, source.pieces, strict=True):
            kept = dtype or "float32"
            if stored and dtype is None and stored_piece.tensor in stored.names:
                kept = stored.dtype(stored_piece.tensor)
            shape = tensor_shape(assembly, piece, parameter.shape)
            found.append(
                Tensor(
                    name=piece.tensor,
                    parameter=parameter,
                    assembly=assembly,
                    piece=piece,
                    shape=shape,
                    dtype=jnp.dtype(kept),
                )
            )
    if stored and keeps_vision:
        rest = stored.of_vision - {tensor.name for tensor in found}
        found += [
            CopiedTensor(name, stored, jnp.dtype(dtype or stored.dtype(name))) for name in rest
        ]
    return sorted(found, key=lambda tensor: tensor.name)


def _own_naming(config: ModelConfig) -> Naming:
    """Returns the names of a new checkpoint's tensors."""
    if config.vision is None:
        return Naming()
    family = VISION_FAMILIES[architectures.config_values(config, "float32")["model_type"]]
    return Naming(family.prefix, family.head, family.tower_prefix, family.projector_prefix)


@functools.partial(jax.jit, static_argnames=("view", "order", "shape", "dtype"))
def _take(
    parameter: Array,
    start: Array,
    view: tuple[int, ...],
    order: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
) -> Array:
    """Takes a piece from its parameter, in the tensor's own shape; inverts `reading._written`."""
    sizes = [view[axis] for axis in order]
    block = jax.lax.dynamic_slice(parameter, tuple(start), sizes)
    return block.transpose(np.argsort(order)).reshape(shape).astype(dtype)


def _write_tensors(directory: Path, tensors: list[AnyTensor], max_file_bytes: int) -> None:
    """Writes the safetensors files, and an index if there are several."""
    shares: list[list[AnyTensor]] = [[]]
    for tensor in tensors:
        held = sum(other.size_bytes for other in shares[-1])
        if shares[-1] and held + tensor.size_bytes > max_file_bytes:
            shares.append([])
        shares[-1].append(tensor)
    if len(shares) == 1:
        _write_file(directory / WEIGHTS_FILE, tensors)
        return
    weight_map: dict[str, str] = {}
    for number, share in enumerate(shares, start=1):
        name = f"model-{number:05d}-of-{len(shares):05d}.safetensors"
        _write_file(directory / name, share)
        weight_map |= {tensor.name: name for tensor in share}
    total = sum(tensor.size_bytes for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_json(directory / INDEX_FILE, index)


def _write_file(path: Path, tensors: list[AnyTensor]) -> None:
    """Writes one safetensors file tensor by tensor; the library's writer needs all tensors at once.

    The format: the header's length in eight bytes, the header in JSON, the bytes of the tensors
    (https://github.com/huggingface/safetensors#format).
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    # The widest dtypes come first, so that each tensor begins at a multiple of its item size.
    ordered = sorted(tensors, key=lambda tensor: (-tensor.dtype.itemsize, tensor.name))
    for tensor in ordered:
        start, end = end, end + tensor.size_bytes
        header[tensor.name] = {
            "dtype": STORED[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in ordered:
            _write_values(file, tensor)


def _write_values(file: BinaryIO, tensor: AnyTensor) -> None:
    file.write(np.ascontiguousarray(tensor.values()).view(np.uint8).data)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object to a file."""
    path.write_text(json.dumps(values, indent=2) + "\n")
