"""Images by reference: a file or encoded bytes, read when needed and identified by digest."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import io
import reprlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

FIELD = "images"
"""Field of a data row that holds its images."""

_CACHED_BYTES = 256 << 20
_WAYS = "a path, bytes, {'path': …} or {'bytes': …}, an array, or an image of Pillow"


@dataclasses.dataclass(frozen=True)
class Image:
    """A reference to an image: either a file, or a file's bytes.

    Attributes:
      path: path of the file.
      data: content of the file, such as a PNG.

    Raises:
      ValueError: both are given, or neither.
    """

    path: str | None = None
    data: bytes | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.data is None):
            raise ValueError("An image is either a path or bytes: give one of them.")

    @classmethod
    def of(cls, value: Any) -> Image:
        """Makes a reference to an image from any of the usual forms.

        Raises:
          ValueError: the value has none of these forms.
        """
        if isinstance(value, Image):
            return value
        if isinstance(value, str | Path) and str(value):
            return cls(path=str(value))
        if isinstance(value, bytes | bytearray) and value:
            return cls(data=bytes(value))
        if isinstance(value, Mapping):  # As the `datasets` library stores images.
            data, path = value.get("bytes"), value.get("path")
            if data or path:
                return cls(data=data) if data else cls(path=path)
        if isinstance(value, np.ndarray):
            return cls.of_array(value)
        if hasattr(value, "save") and hasattr(value, "convert"):
            return cls(data=_png(value))
        raise ValueError(f"{reprlib.repr(value)} is not an image: it must be {_WAYS}.")

    @classmethod
    def of_array(cls, pixels: np.ndarray) -> Image:
        """Encodes pixels as a PNG, without loss.

        Args:
          pixels: uint8 [H, W] in grays, or [H, W, 3] in red, green and blue.

        Raises:
          ValueError: the array has another shape or dtype.
        """
        shape = pixels.shape
        if pixels.dtype != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)):
            raise ValueError(
                f"An array of {pixels.dtype}{list(shape)} is not an image: it must be uint8 [H, W]"
                " or [H, W, 3]."
            )
        import PIL.Image

        return cls(data=_png(PIL.Image.fromarray(pixels)))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the content, which is equal for equal files wherever they are.

        Raises:
          ValueError: the file cannot be read.
        """
        return hashlib.sha256(self.content()).hexdigest()

    def content(self) -> bytes:
        """Returns the encoded bytes.

        Raises:
          ValueError: the file cannot be read.
        """
        if self.data is not None:
            return self.data
        assert self.path is not None, "an image is a path or bytes"
        try:
            return Path(self.path).expanduser().read_bytes()
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read: {error.strerror or error}.") from error

    def packed(self) -> Image:
        """Returns the image with its bytes in place of its path, for machines without the file."""
        return self if self.data is not None else Image(data=self.content())

    def size(self) -> Size:
        """Returns width and height; only the header is read.

        Raises:
          ValueError: the file cannot be read, or is not an image.
        """
        return _sizes.get(self, _read_size)

    def pixels(self) -> UInt8[np.ndarray, "height width 3"]:
        """Returns the pixels in red, green and blue. Each process decodes an image only once.

        Raises:
          ValueError: the file cannot be read, or is not an image.
        """
        return _pixels.get(self, _read_pixels)


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


def images_of(row: Mapping[str, Any]) -> list[Image]:
    """Returns references to the images of a data row; none if it has no images.

    Raises:
      ValueError: names the field and the value that is not an image.
    """
    given = row.get(FIELD)
    if given is None:
        return []
    values = given if isinstance(given, list | tuple) else [given]
    images = []
    for number, value in enumerate(values):
        try:
            images.append(Image.of(value))
        except ValueError as error:
            raise ValueError(f"row[{FIELD!r}][{number}]: {error}") from error
    return images


def check_images(row: Mapping[str, Any]) -> None:
    """Rejects a row with an image that cannot be read.

    Raises:
      ValueError: names the field, the image and the fault.
    """
    for number, image in enumerate(images_of(row)):
        try:
            image.size()
        except ValueError as error:
            raise ValueError(f"row[{FIELD!r}][{number}]: {error}") from error


class _Cache:
    """Thread-safe cache of values by digest; it drops the least recently used ones."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._used = most_bytes, 0
        self._values: collections.OrderedDict[str, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, image: Image, read: Callable[[Image], Any]) -> Any:
        key = image.digest
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = read(image)
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._used += _bytes_of(value)
            while self._used > self._most and len(self._values) > 1:
                self._used -= _bytes_of(self._values.popitem(last=False)[1])
        return value


_sizes, _pixels = _Cache(1 << 20), _Cache(_CACHED_BYTES)


def _bytes_of(value: Any) -> int:
    return getattr(value, "nbytes", 64)


def _read_size(image: Image) -> Size:
    with _opened(image) as opened:
        return Size(*opened.size)


def _read_pixels(image: Image) -> np.ndarray:
    with _opened(image) as opened:
        try:
            pixels = np.asarray(opened.convert("RGB"))
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"{_named(image)} is damaged: {error}.") from error
    pixels.flags.writeable = False  # The cached array is shared.
    return pixels


def _opened(image: Image) -> Any:
    import PIL.Image

    try:
        return PIL.Image.open(io.BytesIO(image.content()))
    except PIL.UnidentifiedImageError as error:
        raise ValueError(f"{_named(image)} is not an image that Pillow reads.") from error
    except (OSError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise ValueError(f"{_named(image)} cannot be decoded: {error}.") from error


def _named(image: Image) -> str:
    return image.path or f"an image of {len(image.content()):,} bytes"


def _png(picture: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
