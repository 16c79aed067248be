"""Processes images as the processors of `transformers` do, by the files of a checkpoint.

Their image processors on Pillow need neither torch nor torchvision. Those of whole prompts do, for
some families, so the texts around images are written here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from rl_sync.image_files import Size
from rl_sync.images import Image
from rl_sync.models.huggingface.files import read_object
from rl_sync.tasks.pictures.tile_processor import PictureMarks, TileLayout, TileProcessor

_LONGEST = 4096  # No image is resized beyond this, whatever the files say.
_BYTE = 1 / 255
_START, _SOFT, _END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
_IMAGE, _AROUND, _GLOBAL = "<image>", "<fake_token_around_image>", "<global-img>"


@dataclasses.dataclass(frozen=True)
class WholeTiles:
    """Processing of images for Gemma 3: each image is one tile.

    Attributes:
      backend: the image processor of `transformers`.
      tile_size, tile_tokens: see `TileProcessor`.
    """

    backend: Any
    tile_size: int
    tile_tokens: int

    @property
    def marks(self) -> PictureMarks:
        """Tokens of images."""
        return PictureMarks(_SOFT, _START, f"{_SOFT}|{_START}|{_END}")

    def layout(self, size: Size) -> TileLayout:
        """Returns one tile."""
        del size
        return TileLayout()

    def written(self, layout: TileLayout) -> Sequence[str | int]:
        """Returns the tile between the tokens of an image's start and end."""
        del layout
        return (f"\n\n{_START}", 0, f"{_END}\n\n")

    def tiles(self, image: Image) -> UInt8[np.ndarray, "N H W 3"]:
        """Returns the pixels of the tile."""
        return _processed(self.backend, image, do_pan_and_scan=False)


@dataclasses.dataclass(frozen=True)
class SplitTiles:
    """Processing of images for SmolVLM and Idefics 3: parts of an image, then the whole image.

    Attributes:
      backend: the image processor of `transformers`.
      tile_size, tile_tokens: see `TileProcessor`.
      longest: length of an image's longer side before it is cut, in pixels.
      splits: whether images are cut into parts.
    """

    backend: Any
    tile_size: int
    tile_tokens: int
    longest: int
    splits: bool = True

    @property
    def marks(self) -> PictureMarks:
        """Tokens of images."""
        names = rf"{_IMAGE}|{_AROUND}|{_GLOBAL}|<row_\d+_col_\d+>"
        return PictureMarks(_IMAGE, _IMAGE, names)

    def layout(self, size: Size) -> TileLayout:
        """Returns the parts of an image; its rounding is that of `transformers`."""
        if not self.splits:
            return TileLayout()
        width, height = _resized(size, self.longest)
        # The shorter side is rounded up to an even number.
        size = Size(width + width % 2 * (width < height), height + height % 2 * (width >= height))
        size = Size(max(size.width, 1), max(size.height, 1))
        if max(size) > _LONGEST:
            width, height = _resized(size, _LONGEST)
            size = Size(max(width, 1), max(height, 1))
        side = self.tile_size
        grid = _resized(size, math.ceil(max(size) / side) * side)
        columns, rows = (math.ceil(length / side) for length in grid)
        return TileLayout(rows, columns) if rows * columns > 1 else TileLayout()

    def written(self, layout: TileLayout) -> Sequence[str | int]:
        """Returns the parts by rows, each with its place in the grid, then the whole image."""
        pieces: list[str | int] = []
        for row in range(layout.rows):
            for column in range(layout.columns):
                pieces += [
                    f"{_AROUND}<row_{row + 1}_col_{column + 1}>",
                    row * layout.columns + column,
                ]
            pieces.append("\n")
        gap = "\n" if layout.rows else ""
        return (*pieces, f"{gap}{_AROUND}{_GLOBAL}", layout.tiles - 1, _AROUND)

    def tiles(self, image: Image) -> UInt8[np.ndarray, "N H W 3"]:
        """Returns the pixels of the tiles."""
        return _processed(self.backend, image)


@functools.lru_cache(maxsize=4)
def checkpoint_tiles(path: str) -> TileProcessor | None:
    """Makes the image processing of a checkpoint; None if its family is none with images.

    Args:
      path: directory of the checkpoint.

    Raises:
      ValueError: a file is missing or damaged, or asks for processing that the model's first
        operation does not expect.
    """
    directory = Path(path)
    config = read_object(directory / "config.json")
    family = config.get("model_type")
    if family == "gemma3" and "vision_config" in config:
        return _whole(directory, config)
    if family in ("idefics3", "smolvlm"):
        return _split(directory, config)
    return None


def _whole(directory: Path, config: Mapping[str, Any]) -> WholeTiles:
    about = _about(directory)
    backend = _backend(directory, "Gemma3ImageProcessor")
    side = config["vision_config"].get("image_size", 896)
    _require(directory, "size", dict(backend.size), {"height": side, "width": side})
    _require(directory, "do_pan_and_scan", bool(about.get("do_pan_and_scan")), False)
    tokens = config.get("mm_tokens_per_image", 256)
    _require(directory, "image_seq_length", about.get("image_seq_length", tokens), tokens)
    return WholeTiles(backend, side, tokens)


def _split(directory: Path, config: Mapping[str, Any]) -> SplitTiles:
    about, vision = _about(directory), config.get("vision_config", {})
    names = {"idefics3": "Idefics3ImageProcessor", "smolvlm": "SmolVLMImageProcessor"}
    backend = _backend(directory, names[config["model_type"]])
    side, patch = vision.get("image_size", 224), vision.get("patch_size", 32)
    _require(directory, "max_image_size", dict(backend.max_image_size), {"longest_edge": side})
    tokens = (side // patch) ** 2 // config.get("scale_factor", 2) ** 2
    _require(directory, "image_seq_len", about.get("image_seq_len", tokens), tokens)
    longest = dict(backend.size).get("longest_edge")
    if longest is None:
        raise ValueError(
            f"{directory}: the processor's size={dict(backend.size)} must have a longest_edge."
        )
    return SplitTiles(backend, side, tokens, longest, bool(backend.do_image_splitting))


def _about(directory: Path) -> dict[str, Any]:
    """Returns the settings of the processors; newer files have those of images in a section."""
    found: dict[str, Any] = {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (directory / name).exists():
            values = read_object(directory / name)
            inner = values.pop("image_processor", None)
            found |= values | (inner if isinstance(inner, dict) else {})
    if not found:
        raise ValueError(
            f"{directory} has no preprocessor_config.json and no processor_config.json, which say"
            " how images are resized: fetch one of them from the checkpoint's page."
        )
    return found


def _backend(directory: Path, name: str) -> Any:
    import transformers

    # Older releases have only one class a family, which is on Pillow.
    processor = getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)
    try:
        backend = processor.from_pretrained(directory)
    except Exception as error:  # transformers raises errors of all kinds.
        raise ValueError(
            f"{directory}: the image processor cannot be made: {str(error).partition(chr(10))[0]}"
        ) from error
    for field in ("do_resize", "do_rescale", "do_normalize"):
        _require(directory, field, getattr(backend, field), True)
    for field in ("image_mean", "image_std"):
        _require(directory, field, list(getattr(backend, field)), [0.5, 0.5, 0.5])
    scale = backend.rescale_factor
    _require(directory, "rescale_factor", _BYTE if math.isclose(scale, _BYTE) else scale, _BYTE)
    return backend


def _require(directory: Path, field: str, value: object, needed: object) -> None:
    if value != needed:
        raise ValueError(
            f"{directory}: the processor's {field}={value!r} is not supported; it must be"
            f" {needed!r}, which is what the model of config.json reads."
        )


def _resized(size: Size, longest: int) -> Size:
    """Returns the size with this longer side and the same ratio, rounded down."""
    ratio = size.width / size.height
    if size.width >= size.height:
        return Size(longest, int(longest / ratio))
    return Size(int(longest * ratio), longest)


def _processed(backend: Any, image: Image, **options: Any) -> UInt8[np.ndarray, "N H W 3"]:
    """Returns the pixels that an image processor makes, before they are scaled to −1…1."""
    import PIL.Image

    whole = PIL.Image.fromarray(image.pixels())
    made = backend(images=[whole], do_rescale=False, do_normalize=False, **options)
    pixels = np.asarray(made["pixel_values"])
    assert pixels.dtype == np.uint8, "unscaled pixels are bytes"
    tiles = pixels.reshape(-1, *pixels.shape[-3:])
    return np.ascontiguousarray(tiles.transpose(0, 2, 3, 1))
