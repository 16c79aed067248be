"""Opens files of a checkpoint directory; errors name the damaged file."""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import Any

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""Beginning of the small text file that replaces a large file in a repository."""

_AGAIN = "the download is incomplete: fetch the file again"


def read_object(path: Path) -> dict[str, Any]:
    """Reads the object of a JSON file.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it cannot be read, or does not contain an object; the message names the file.
    """
    _refuse_pointer(path)
    try:
        values = json.loads(path.read_text("utf-8-sig"))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply to be a config.") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); {_AGAIN}.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold an object {{…}}, not {reprlib.repr(values)}.")
    return values


def open_tensors(path: Path) -> Any:
    """Opens a safetensors file.

    Raises:
      ValueError: it is missing or incomplete; the message names the file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        _refuse_pointer(path)
        return safe_open(path, framework="np")
    except FileNotFoundError as error:
        raise ValueError(f"{path} is not there: {_AGAIN}.") from error
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}); {_AGAIN}.") from error


def _refuse_pointer(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"{path} is a directory, but must be a file.")
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise ValueError(
                f"{path} is a Git LFS pointer, not the file itself: run `git lfs pull` in its"
                " directory."
            )
