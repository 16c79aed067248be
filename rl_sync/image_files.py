"""Reads image files with Pillow: sizes from headers, and pixels.

Sizes and pixels are those of `load_image` and the image processors in `transformers`: the EXIF
orientation is applied, every mode becomes red, green and blue as Pillow converts it, and a color
that a file declares transparent becomes white.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from jaxtyping import UInt8

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM")
"""Formats of files, as Pillow names them. Others are refused, since some of them run programs."""

_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_PNG_START = b"\x89PNG\r\n\x1a\n"
_METADATA_CHUNKS = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


def header_size(file: BinaryIO) -> Size:
    """Returns the size that a file's header gives, before the EXIF orientation.

    Raises:
      ValueError: the file is not an image of a known format.
    """
    return Size(*_opened(file).size)


def media_type(file: BinaryIO) -> str:
    """Returns the media type of a file, such as `image/png`.

    Raises:
      ValueError: the file is not an image of a known format.
    """
    return _opened(file).get_format_mimetype()


def upright_size(file: BinaryIO) -> Size:
    """Returns the size after the EXIF orientation.

    Nothing is decoded, except for a PNG with metadata behind its pixels.

    Raises:
      ValueError: the file is not an image of a known format, or is damaged.
    """
    import PIL.Image

    # Pillow decodes a whole PNG in search of metadata behind its pixels.
    whole = not _is_png_without_late_metadata(file)
    opened = _opened(file)
    with _complaining():
        exif = opened.getexif() if whole else PIL.Image.Image.getexif(opened)
        size = Size(*opened.size)
        return Size(*reversed(size)) if exif.get(_ORIENTATION) in _SIDEWAYS else size


def decoded(content: bytes) -> UInt8[np.ndarray, "height width 3"]:
    """Returns the pixels in red, green and blue, after the EXIF orientation.

    Raises:
      ValueError: the content is not an image of a known format, or is damaged.
    """
    import PIL.ImageOps

    with _opened(io.BytesIO(content)) as opened, _complaining():
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


def _opened(file: BinaryIO) -> Any:
    """Opens a file with the reader of its format, since `PIL.Image.open` has its own bound."""
    import PIL.Image

    PIL.Image.init()
    file.seek(0)
    prefix = file.read(16).ljust(16, b"\0")
    file.seek(0)
    for name in FORMATS:
        read, accepts = PIL.Image.OPEN[name]
        if accepts is not None and accepts(prefix) is True:
            with _complaining():
                return read(file, "")
    raise ValueError(f"is not an image that can be read: save it as {', '.join(FORMATS)}")


@contextlib.contextmanager
def _complaining() -> Iterator[None]:
    """Turns errors of Pillow into ValueErrors."""
    try:
        yield
    except Exception as error:  # Readers of damaged files raise errors of all kinds.
        reason = str(error) or type(error).__name__
        raise ValueError(f"is damaged: {reason}. Save it again") from error


def _is_png_without_late_metadata(file: BinaryIO) -> bool:
    """Says whether a file is a PNG without metadata behind its pixels."""
    file.seek(0)
    if file.read(8) != _PNG_START:
        return False
    has_pixels = False
    while len(head := file.read(8)) == 8:
        kind = head[4:]
        if has_pixels and kind in _METADATA_CHUNKS:
            return False
        has_pixels |= kind == b"IDAT"
        file.seek(int.from_bytes(head[:4], "big") + 4, io.SEEK_CUR)
    return True
