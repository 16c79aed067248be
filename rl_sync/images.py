"""Images by reference: a file or encoded bytes, read when needed and identified by digest.

Nothing is fetched from a network.
"""

from __future__ import annotations

import base64
import binascii
import collections
import contextlib
import dataclasses
import functools
import hashlib
import io
import re
import reprlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import UInt8

from rl_sync.image_files import Size, decoded, header_size, media_type, png, upright_size

FIELD = "images"
"""Field of a data row that holds its images."""

MOST_PIXELS = 89_478_485
"""Most pixels of an image, if a setting does not change them: the number at which Pillow warns."""

_CACHED_BYTES = 256 << 20
_WAYS = (
    "a path, bytes, a data URL (data:image/png;base64,…), {'path': …}, {'bytes': …} or {'url': …},"
    " an array, or an image of Pillow"
)
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class ImageError(ValueError):
    """An image cannot be read; the message names it, and the remedy."""


@dataclasses.dataclass(frozen=True)
class Image:
    """A reference to an image: either a file, or a file's bytes.

    Attributes:
      path: path of the file.
      data: content of the file, such as a PNG.
      place: row and column that the image is from, for messages; may be empty.
      most_pixels: number of pixels beyond which the image is refused, without decoding it.

    Raises:
      ValueError: both are given, or neither.
    """

    path: str | None = None
    data: bytes | None = None
    place: str = dataclasses.field(default="", compare=False)
    most_pixels: int = dataclasses.field(default=MOST_PIXELS, compare=False)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.data is None):
            raise ValueError("An image is either a path or bytes: give one of them.")

    @classmethod
    def of(cls, value: Any) -> Image:
        """Makes a reference to an image from any of the usual forms.

        Raises:
          ValueError: the value has none of these forms, or is an address on the network.
        """
        if isinstance(value, Image):
            return value
        if isinstance(value, str) and value[:5].lower() == "data:":
            return cls(data=_data_of(value))
        if isinstance(value, str) and _ADDRESS.match(value):
            raise ValueError(
                f"{reprlib.repr(value)} is an address, and nothing is fetched: download the image,"
                " and give its path, its bytes, or a data URL (data:image/png;base64,…)."
            )
        if isinstance(value, str | Path) and str(value):
            return cls(path=str(value))
        if isinstance(value, bytes | bytearray) and value:
            return cls(data=bytes(value))
        if isinstance(value, Mapping):
            data, path = value.get("bytes"), value.get("path")
            if data or path:  # As the `datasets` library stores images.
                return cls(data=bytes(data)) if data else cls(path=str(path))
            url = value.get("image_url") or value.get("url") or value.get("image")
            if url:  # Parts of chat messages.
                return cls.of(url)
        if isinstance(value, np.ndarray):
            return cls.of_array(value)
        if hasattr(value, "save") and hasattr(value, "convert"):
            return cls(data=png(value))
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

        return cls(data=png(PIL.Image.fromarray(pixels)))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the content, which is equal for equal files wherever they are.

        Raises:
          ValueError: the file cannot be read.
        """
        return hashlib.sha256(self.content()).hexdigest()

    def size_bytes(self) -> int:
        """Returns the number of encoded bytes.

        Raises:
          ValueError: the file cannot be read.
        """
        with self._file() as file:
            return file.seek(0, io.SEEK_END)

    def content(self) -> bytes:
        """Returns the encoded bytes.

        Raises:
          ValueError: the file cannot be read.
        """
        with self._file() as file:
            return file.read()

    def _file(self) -> BinaryIO:
        if self.data is not None:
            return io.BytesIO(self.data)
        assert self.path is not None, "an image is a path or bytes"
        try:
            path = Path(self.path).expanduser()
            if path.is_file():
                return path.open("rb")
            reason = "it is a directory" if path.is_dir() else "there is no such file"
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"{_named(self)} cannot be read: {reason}.")

    def data_url(self) -> str:
        """Returns the content as a data URL.

        Raises:
          ValueError: the file cannot be read, or is not an image.
        """
        with self._file() as file, _naming(self):
            kind = media_type(file)
        return f"data:{kind};base64,{base64.b64encode(self.content()).decode()}"

    def packed(self) -> Image:
        """Returns the image with its bytes in place of its path, for machines without the file."""
        if self.data is not None:
            return self
        return dataclasses.replace(self, path=None, data=self.content())

    def size(self) -> Size:
        """Returns width and height after the EXIF orientation; nothing is decoded.

        Raises:
          ValueError: the file cannot be read, is not an image, or has more than `most_pixels`.
        """
        return self._size

    @functools.cached_property
    def _size(self) -> Size:
        with self._file() as file:
            with _naming(self):
                width, height = header_size(file)
            if width * height > self.most_pixels:
                raise ImageError(
                    f"{_named(self)} has {width:,} × {height:,} pixels, and {self.most_pixels:,}"
                    " are allowed: make it smaller, or raise task.max_image_pixels."
                )
            with _naming(self):
                return upright_size(file)

    def pixels(self) -> UInt8[np.ndarray, "height width 3"]:
        """Returns the pixels in red, green and blue. Each process decodes an image only once.

        Raises:
          ValueError: the file cannot be read, is not an image, is damaged, or has more than
            `most_pixels`.
        """
        self.size()
        return _pixels.get(self, _read_pixels)


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
            at = "" if image.place else f"row[{FIELD!r}][{number}]: "
            raise ValueError(f"{at}{error}") from error


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


_pixels = _Cache(_CACHED_BYTES)


def _bytes_of(value: Any) -> int:
    return getattr(value, "nbytes", 64)


def _read_pixels(image: Image) -> np.ndarray:
    content = image.content()
    with _naming(image):
        pixels = decoded(content)
    pixels.flags.writeable = False  # The cached array is shared.
    return pixels


@contextlib.contextmanager
def _naming(image: Image) -> Iterator[None]:
    """Puts the name of an image in front of complaints about its content."""
    try:
        yield
    except ValueError as error:
        raise ImageError(f"{_named(image)} {error}.") from error


def _named(image: Image) -> str:
    name = image.path or f"an image of {len(image.content()):,} bytes"
    return f"{image.place}: {name}" if image.place else name


def _data_of(url: str) -> bytes:
    """Returns the content of a data URL."""
    kind, comma, text = url.partition(",")
    if not comma or not kind.lower().endswith(";base64"):
        raise ValueError(
            f"{reprlib.repr(url)} is not a data URL of an image: it must be"
            " data:image/png;base64,…, or of another format."
        )
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{reprlib.repr(url)} is not base64: {error}. Encode it again.") from error
    if not data:
        raise ValueError(f"{reprlib.repr(url)} is empty: it must have the bytes of an image.")
    return data
