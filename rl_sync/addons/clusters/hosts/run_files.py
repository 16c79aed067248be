"""Files of a run for machines that do not reach the launcher's directories.

These are the code and the data that the config names: Python modules that the launcher has imported
while it checked the config and that are not installed, files and folders of path settings, of a
checkpoint without its large tensors, and `launch.files`. A file under the launcher's current
directory gets the same relative path on the other machine. Others get a place of their own, and the
config is rewritten.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import rl_sync
from rl_sync.addons.clusters.hosts.host_calls import RunFile
from rl_sync.addons.clusters.hosts.rewriting import CODE, OUTSIDE
from rl_sync.models.huggingface.reading import CONFIG_FILE, load_config, locate
from rl_sync.setting import sections
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings

_OWN_PATHS = (
    *("workdir", "sync.directory", "launch.", "checkpoint."),
    *("reward.secret_path", "teacher."),
)
"""Settings whose paths other machines do not read, or reach by themselves."""
_MIB = 1 << 20
_MOST_FILES = 10_000
_PYTHON_FILE = re.compile(r"[^\s'\"(),=+*]+\.py(?=:)")
_TIED = "tie_word_embeddings"
_TENSORS = re.compile(r".*\.(safetensors|safetensors\.index\.json|bin|gguf|h5|msgpack|onnx|pt|pth)")
"""Names of files with weights, which only the trainer reads."""


class FileSource(NamedTuple):
    """Content of a file that machines may get.

    Attributes:
      path: the file here.
      content: bytes to send instead of the file's; None for the file's.
    """

    path: Path
    content: bytes | None = None

    def read(self, offset: int, count: int) -> bytes:
        """Returns a part of it."""
        if self.content is not None:
            return self.content[offset : offset + count]
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(count)


class RunFiles:
    """The files of a run, and the changes of the config that they need.

    Args:
      settings: the run's settings, checked before, so that the code that they name is imported.
      directory: the launcher's current directory.

    Attributes:
      files: the files, in the order of their places.
      rewritten: texts in the config, and the relative paths that replace them there.

    Raises:
      ConfigError: a file of `launch.files` does not exist, or there are too many files.
    """

    def __init__(self, settings: RunSettings, directory: Path):
        self._directory, self._workdir = directory, Path(settings.workdir).absolute()
        self._limit_bytes = settings.launch.file_mib * _MIB
        self._sources: dict[str, FileSource] = {}
        self.rewritten: list[tuple[str, str]] = []
        for name in settings.launch.sent:
            if not (directory / name).exists():
                raise ConfigError(
                    f"launch.files={settings.launch.files!r}: there is no {name} in {directory}."
                )
            self._add_tree(directory / name)
        texts = dict(_paths_of(settings))
        for name, text in texts.items():
            self._add_setting(name, text)
        self._add_modules(settings)
        if len(self._sources) > _MOST_FILES:
            raise ConfigError(
                f"The config names {len(self._sources):,} files, and machines without the work"
                f" directory get at most {_MOST_FILES:,}: name smaller folders, or share one."
            )
        self.files = [self._described(place) for place in sorted(self._sources)]

    def read(self, place: str, offset: int, count: int) -> bytes:
        """Returns a part of a file.

        Raises:
          KeyError: there is no such file.
          OSError: it cannot be read any more.
        """
        return self._sources[place].read(offset, count)

    def _described(self, place: str) -> RunFile:
        source = self._sources[place]
        size = source.path.stat().st_size if source.content is None else len(source.content)
        if size > self._limit_bytes:
            return RunFile(place, size, "")
        return RunFile(place, size, hashlib.sha256(source.read(0, size)).hexdigest())

    def _add(self, path: Path, place: str | None = None, content: bytes | None = None) -> str:
        place = place or self._place_of(path)
        self._sources.setdefault(place, FileSource(path, content))
        return place

    def _place_of(self, path: Path) -> str:
        """Returns the place of a file or a folder."""
        absolute = Path(os.path.abspath(path))
        if absolute.is_relative_to(self._directory):
            inside = absolute.relative_to(self._directory).as_posix()
            return CODE if inside == "." else f"{CODE}/{inside}"
        drawn = hashlib.sha256(os.fspath(absolute.parent).encode()).hexdigest()[:8]
        return f"{OUTSIDE}/{drawn}/{absolute.name}"

    def _add_tree(self, path: Path, left_out: re.Pattern[str] | None = None) -> str:
        """Adds a file or a folder; returns its place.

        Args:
          left_out: pattern of the names of files that are not needed.
        """
        place = self._place_of(path)
        if path.is_file():
            return self._add(path, place)
        for folder, names, files in os.walk(path):
            names[:] = sorted(name for name in names if self._is_for_others(Path(folder, name)))
            for name in sorted(files):
                one = Path(folder, name)
                is_needed = not (left_out and left_out.fullmatch(name))
                if is_needed and one.is_file() and self._is_for_others(one):
                    self._add(one, f"{place}/{one.relative_to(path).as_posix()}")
        return place

    def _is_for_others(self, path: Path) -> bool:
        """Says whether a file or folder below one that is named is sent with it.

        Hidden ones may hold secrets. A checkpoint of the hub has links, into its own folder.
        """
        is_hidden = path.name.startswith(".") or path.name == "__pycache__"
        return not (is_hidden or path.absolute() == self._workdir)

    def _add_setting(self, name: str, text: str) -> None:
        path = Path(text).expanduser()
        if name in ("model.path", "tokenizer.path") and not path.exists():
            try:
                path = locate(text)  # A name on the hub.
            except ValueError:
                return
        if not path.exists():
            return
        is_model = name == "model.path" and path.is_dir()
        if is_model:
            self._add_checkpoint(path)
        self._rewrite(text, self._add_tree(path, _TENSORS if is_model else None))

    def _add_checkpoint(self, path: Path) -> None:
        """Adds a config.json that describes the model without looking at its tensors."""
        values = json.loads((path / CONFIG_FILE).read_text())
        values[_TIED] = load_config(path).tie_embeddings
        described = json.dumps(values, indent=2).encode()
        self._add(path / CONFIG_FILE, f"{self._place_of(path)}/{CONFIG_FILE}", described)

    def _rewrite(self, text: str, place: str) -> None:
        relative = f"{CODE}/{os.path.normpath(text)}"
        if place != relative and (text, place) not in self.rewritten:
            self.rewritten.append((text, place))

    def _add_modules(self, settings: RunSettings) -> None:
        """Adds imported modules that are not installed, and the Python files that are named."""
        for text in _texts(settings.resolved()):
            for found in _PYTHON_FILE.findall(text):
                path = Path(found).expanduser()
                if path.is_file():
                    self._rewrite(found, self._add(path))
        for name, module in sorted(sys.modules.items()):
            file = _own_file(module)
            if file is None:
                continue
            if file.is_relative_to(self._directory):
                self._add(file)
            elif name.rpartition(".")[2] in (file.stem, file.parent.name):
                inner = name.replace(".", "/")
                is_package = file.name == "__init__.py"
                self._add(
                    file, f"{CODE}/{inner}/__init__.py" if is_package else f"{CODE}/{inner}.py"
                )


def _paths_of(settings: RunSettings) -> Iterator[tuple[str, str]]:
    """Yields the settings that name files or folders which other machines read."""
    config = settings.resolved()
    for section in sections(RunSettings):
        for entry in section.entries:
            if not entry.setting.is_path or entry.name.startswith(_OWN_PATHS):
                continue
            value: Any = config
            for part in entry.name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if isinstance(value, str) and value:
                yield entry.name, value


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _own_file(module: ModuleType) -> Path | None:
    """Returns the file of a module that the user wrote and that is not installed, or None."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    if module.__name__.partition(".")[0] in ("__main__", rl_sync.__name__):
        return None
    path = Path(os.path.abspath(file))
    resolved = path.resolve()
    if any(resolved.is_relative_to(folder) for folder in _installed()) or not path.is_file():
        return None
    return path


@functools.cache  # Asked for each module.
def _installed() -> list[Path]:
    """Returns the folders whose modules other machines have in their own environment."""
    known = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    known |= {os.path.dirname(os.__file__), os.path.join(sys.prefix, "bin")}
    package = Path(rl_sync.__file__).resolve().parent
    return [package, *(Path(folder).resolve() for folder in known)]
