"""Config files: Python whose `get_config()` returns an ml_collections ConfigDict."""

from __future__ import annotations

import ast
import os
import traceback
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ml_collections import ConfigDict

from rl_sync import configs
from rl_sync.settings.records import ConfigError, read_config
from rl_sync.spelling import nearest, question
from rl_sync.workdir import Workdir


def load(given: str) -> ConfigDict:
    """Loads a config.

    Args:
      given: the file's path, or the name of a config of the package. A colon and an argument of
        `get_config` may follow.

    Raises:
      ConfigError: there is no such file, or it does not return a config; the message gives the line
        and the reason.
    """
    path, colon, argument = os.path.expanduser(given).partition(":")
    if not path:
        raise ConfigError("--config= names no file: give one, or a name, such as arithmetic.")
    if not os.path.isfile(path):
        path = str(path_of(path) or path)
    if os.path.isdir(path):
        raise ConfigError(f"--config={given} is a directory: name a file in it.")
    if not os.path.isfile(path):
        raise ConfigError(f"--config={given}: no such file{_nearest_file(path)}")
    try:
        config = _call(path, [argument] if colon else [])
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        said = f"{_location(path, error)}: {_said(error)}. {_of_package(error)}{_model()}"
        raise ConfigError(said) from error
    if not isinstance(config, ConfigDict):
        returned = "nothing" if config is None else f"a {type(config).__name__}"
        raise ConfigError(
            f"{path}: get_config() returned {returned}, not an ml_collections ConfigDict: start"
            " from rl_sync.configs.base.get_config(), change it, and return it."
        )
    return config


def of_run(workdir: Path) -> ConfigDict:
    """Loads the config in a run's work directory.

    Raises:
      ConfigError: there is none, or it does not fit this version of the code.
    """
    from rl_sync.configs import base

    path, config = Workdir(workdir).config, base.get_config()
    try:
        config.update(read_config(path))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{workdir} is not the work directory of a run: it holds no {path.name}."
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} does not fit this version of the code: {error}") from error
    return config


def names() -> list[str]:
    """Returns the names of the package's configs, sorted."""
    return sorted(file.stem for file in _folder().glob("*.py") if file.stem != "__init__")


def path_of(name: str) -> Path | None:
    """Returns the file of a config of the package; None if there is no such config."""
    return _folder() / f"{name}.py" if name in names() else None


def description(name: str) -> str:
    """Returns the docstring of a config of the package without executing it."""
    path = path_of(name)
    return "" if path is None else ast.get_docstring(ast.parse(path.read_text())) or ""


def _folder() -> Path:
    assert configs.__file__ is not None
    return Path(configs.__file__).resolve().parent  # In the clone the folder is a link.


def _nearest_file(path: str) -> str:
    """Returns the end of a message, which suggests a file or a config with a similar name."""
    folder, name = os.path.split(path)
    for directory in (folder or ".", "configs"):
        files = Path(directory).glob("*.py")
        stems = {file.stem: file.name for file in files if file.name != "__init__.py"}
        near = nearest(name.removesuffix(".py").rpartition(".")[2], stems)
        if near is not None:
            found = os.path.normpath(os.path.join(directory, stems[near]))
            return f"; {question(f'--config={found}')}"
    near = nearest(os.path.splitext(os.path.basename(path))[0], names())
    if near is not None:
        return f"; {question(f'--config={near}')}"
    return f". {_model()} Those of the package are {', '.join(names())}."


def _of_package(error: BaseException) -> str:
    """Returns advice if a config file imported `configs` in place of `rl_sync.configs`."""
    wanted = error.name or "" if isinstance(error, ImportError) else ""
    if wanted.partition(".")[0] != "configs":
        return ""
    return "The package's configs are imported by `from rl_sync.configs import base`. "


def _model() -> str:
    path = path_of("arithmetic")
    assert path is not None
    shown = os.path.relpath(path)
    return f"{path if shown.startswith('..') else shown} shows what a config file looks like."


def _call(path: str, arguments: list[str]) -> object:
    spec = spec_from_file_location(
        "config_file", path, loader=SourceFileLoader("config_file", path)
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    get_config = getattr(module, "get_config", None)
    if not callable(get_config):
        raise ConfigError(f"{path} has no function get_config(). {_model()}")
    return get_config(*arguments)


def _location(path: str, error: BaseException) -> str:
    """Returns the file, and the last of its lines in the error's traceback."""
    if isinstance(error, SyntaxError) and error.filename == path and error.lineno:
        return f"{path}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == path]  # fmt: skip
    return f"{path}, line {lines[-1]}" if lines else path


def _said(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    first = text.strip().splitlines()[0].rstrip(".") if text.strip() else "no reason given"
    return f"{type(error).__name__}: {first}"
