"""Images of recorded prompts: each is stored once, by its digest, as a small PNG.

The files are in `workdir/rollouts/images`. They serve readers, and no run reads them again.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.image_files import png
from rl_sync.images import Image
from rl_sync.records.json_lines import JsonObject, is_inside
from rl_sync.workdir import Workdir

MOST_SHOWN = 16
"""Maximum number of images of a prompt that a reader shows."""

_SIDE_PIXELS = 512
_FOLDER = "images"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_FILE_BYTES = 2 << 20
_REASON_CHARACTERS = 300


class ImageFiles:
    """Stores images of prompts, and never raises an error of the disk or of an image.

    Args:
      workdir: work directory of the run.
      most_bytes: size of all files up to which images are stored.
    """

    def __init__(self, workdir: str | os.PathLike[str], most_bytes: int):
        self._folder, self._most_bytes = Workdir(workdir).rollouts / _FOLDER, most_bytes
        self._sizes: dict[str, int] = {}
        try:
            for path in self._folder.glob("*.png"):
                self._sizes[path.stem] = path.stat().st_size
        except OSError:
            pass  # Then images are stored again.
        self._size_bytes = sum(self._sizes.values())

    def store(self, images: Iterable[Image]) -> list[JsonObject]:
        """Stores images that are not stored yet; returns a description of each.

        Returns:
          `digest` (of the file that the prompt names), `bytes` (its size), `width` and `height`; or
          `error` with the reason why the image cannot be read.
        """
        return [self._described(image) for image in images]

    def _described(self, image: Image) -> JsonObject:
        try:
            width, height = image.size()
            found = {"digest": image.digest, "width": width, "height": height}
            found["bytes"] = image.size_bytes()
            if image.digest not in self._sizes and self._size_bytes < self._most_bytes:
                self._write(image)
            return found
        except (ValueError, OSError) as error:
            return {"error": str(error)[:_REASON_CHARACTERS]}

    def _write(self, image: Image) -> None:
        content = _small(image)
        if self._size_bytes + len(content) > self._most_bytes:
            return
        path = self._folder / f"{image.digest}.png"
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content)
            part.replace(path)
        except OSError:
            return
        self._sizes[image.digest] = len(content)
        self._size_bytes += len(content)


class ShownImage(NamedTuple):
    """An image for a reader.

    Attributes:
      label: its number, size and digest, or the reason why it cannot be read.
      source: data URL of its PNG; empty if there is none.
    """

    label: str
    source: str = ""


def described(images: Sequence[JsonObject]) -> Iterator[str]:
    """Yields a line for each recorded image: number, size and digest, or the fault."""
    for number, one in enumerate(images, start=1):
        if error := one.get("error"):
            yield f"image {number}: {error}"
        else:
            size = f"{one.get('width')}x{one.get('height')}, {one.get('bytes'):,} bytes"
            yield f"image {number}: {size}, sha256 {str(one.get('digest'))[:12]}…"


def shown_images(
    workdir: str | os.PathLike[str], images: Sequence[JsonObject], root: Path | None = None
) -> list[ShownImage]:
    """Reads the recorded images of a prompt, at most `MOST_SHOWN`.

    Args:
      root: directory that files must be in, symbolic links resolved; None for any.
    """
    some = list(images)[:MOST_SHOWN]
    found = [
        ShownImage(label, _source(workdir, one.get("digest"), root))
        for label, one in zip(described(some), some, strict=True)
    ]
    left = len(images) - len(some)
    return [*found, ShownImage(f"{left} more images")] if left else found


def _source(workdir: str | os.PathLike[str], digest: Any, root: Path | None) -> str:
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        return ""
    path = Workdir(workdir).rollouts / _FOLDER / f"{digest}.png"
    try:
        if root is not None and not is_inside(path, root):
            return ""
        if path.stat().st_size > _MOST_FILE_BYTES:
            return ""
        return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
    except OSError:
        return ""


def _small(image: Image) -> bytes:
    """Encodes an image as a PNG of at most `_SIDE_PIXELS` a side."""
    import PIL.Image

    picture = PIL.Image.fromarray(image.pixels())
    picture.thumbnail((_SIDE_PIXELS, _SIDE_PIXELS))
    return png(picture)
