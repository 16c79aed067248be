"""Reads image files with Pillow: sizes from headers, and pixels.

Sizes and pixels are those of `load_image` and the image processors in `transformers`: the EXIF
orientation is applied, every mode becomes red, green and blue as Pillow converts it, and a color
that a file declares transparent becomes white.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM")
"""Formats of files, as Pillow names them. Others are refused, since some of them run programs."""

_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_METADATA_CHUNKS = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


def header_size(content: bytes) -> Size:
    """Returns the size that a file's header gives, before the EXIF orientation.

    Raises:
      ValueError: the content is not an image of a known format.
    """
    with _opened(content) as opened:
        return Size(*opened.size)


def upright_size(content: bytes) -> Size:
    """Returns the size after the EXIF orientation.

    Nothing is decoded, except for a PNG with metadata behind its pixels.

    Raises:
      ValueError: the content is not an image of a known format, or is damaged.
    """
    import PIL.Image

    with _opened(content) as opened, _complaining():
        # Pillow decodes a whole PNG in search of metadata behind its pixels.
        whole = opened.format != "PNG" or _ends_with_metadata(content)
        exif = opened.getexif() if whole else PIL.Image.Image.getexif(opened)
        size = Size(*opened.size)
        return Size(*reversed(size)) if exif.get(_ORIENTATION) in _SIDEWAYS else size


def decoded(content: bytes) -> UInt8[np.ndarray, "height width 3"]:
    """Returns the pixels in red, green and blue, after the EXIF orientation.

    Raises:
      ValueError: the content is not an image of a known format, or is damaged.
    """
    import PIL.ImageOps

    with _opened(content) as opened, _complaining():
        picture = PIL.ImageOps.exif_transpose(opened).convert("RGB")
        pixels, clear = np.array(picture), picture.info.get("transparency")
        if isinstance(clear, tuple):
            pixels[(pixels == clear).all(axis=-1)] = 255
        return pixels


def png(picture: Any) -> bytes:
    """Encodes an image of Pillow as an upright PNG; a mode that no PNG has becomes RGB."""
    import PIL.ImageOps

    upright = PIL.ImageOps.exif_transpose(picture)
    buffer = io.BytesIO()
    (upright if upright.mode in _PNG_MODES else upright.convert("RGB")).save(buffer, "PNG")
    return buffer.getvalue()


def _opened(content: bytes) -> Any:
    """Opens a file with the reader of its format, since `PIL.Image.open` has its own bound."""
    import PIL.Image

    PIL.Image.init()
    for name in FORMATS:
        read, accepts = PIL.Image.OPEN[name]
        if accepts is not None and accepts(content[:16]) is True:
            with _complaining():
                return read(io.BytesIO(content), "")
    raise ValueError(f"is not an image that can be read: save it as {', '.join(FORMATS)}")


@contextlib.contextmanager
def _complaining() -> Iterator[None]:
    """Turns errors of Pillow into ValueErrors."""
    try:
        yield
    except Exception as error:  # Readers of damaged files raise errors of all kinds.
        reason = str(error) or type(error).__name__
        raise ValueError(f"is damaged: {reason}. Save it again") from error


def _ends_with_metadata(content: bytes) -> bool:
    """Says whether a PNG has metadata behind its pixels."""
    at, has_pixels = 8, False
    while at + 8 <= len(content):
        kind = content[at + 4 : at + 8]
        if has_pixels and kind in _METADATA_CHUNKS:
            return True
        has_pixels |= kind == b"IDAT"
        at += 12 + int.from_bytes(content[at : at + 4], "big")
    return False
