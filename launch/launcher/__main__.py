"""`python -m launcher`: runs a config, prints its plan, draws a run's timeline, exports its policy.

python -m launcher --config=configs/arithmetic.py [--config.sync.mode=asynchronous …]
python -m launcher plan --config=configs/arithmetic.py
python -m launcher timeline --workdir=runs/… [--steps=1:8]
python -m launcher export --workdir=runs/… --to=… [--dtype=bfloat16]
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

COMMANDS = ("run", "plan", "timeline", "export")
MISTAKE = 2

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "A config file; --config.SECTION.FIELD=VALUE changes a field.", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "timeline, export: the work directory of a run.")
_OUT = flags.DEFINE_string(
    "out", None, "timeline: where the pictures go; the work directory if not set."
)
_STEPS = flags.DEFINE_string("steps", None, "timeline: which trainer steps to draw, as FIRST:LAST.")
_TO = flags.DEFINE_string("to", None, "export: a new directory for the checkpoint.")
_DTYPE = flags.DEFINE_string(
    "dtype", None, "export: what parameters are stored as; as imported, or float32, if not set."
)


def main(argv: Sequence[str]) -> int:
    """Runs one command; returns the exit status."""
    command, *rest = [*argv[1:], *(["run"] if len(argv) < 2 else [])]
    if rest or command not in COMMANDS:
        words = " ".join(argv[1:])
        _fail(f"{words!r} is not a command; it is one of {', '.join(COMMANDS)} (run if left out).")
    # JAX and the rest load only once the command line is known to make sense.
    from launcher.run import RunFailedError
    from rl_sync.runtime.settings import ConfigError

    try:
        if command == "timeline":
            return _timeline()
        if command == "export":
            return _export()
        return _plan() if command == "plan" else _run()
    except ConfigError as error:
        _fail(str(error))
    except RunFailedError as error:
        print(f"\nThe run failed: {error}", file=sys.stderr)
        return 1


def _run() -> int:
    from launcher import run

    return run.start(_config())


def _plan() -> int:
    import jax

    jax.config.update("jax_platforms", "cpu")  # Shapes need no accelerator: leave it to others.
    from launcher.memory import describe_memory
    from launcher.plan import describe
    from rl_sync.runtime.settings import RunSettings

    settings = RunSettings.from_config(_config())
    task = settings.load_task()
    print(describe(settings), task.describe(), describe_memory(settings, task), sep="\n\n")
    return 0


def _timeline() -> int:
    if not _WORKDIR.value:
        _fail("timeline draws the run of a work directory: give --workdir=runs/….")
    if not os.path.isdir(_WORKDIR.value):
        _fail(f"--workdir={_WORKDIR.value} is not a directory.")

    from rl_sync.observe.timeline import draw_timeline, parse_steps
    from rl_sync.observe.trace import write_trace

    try:
        steps = None if _STEPS.value is None else parse_steps(_STEPS.value)
        pictures = draw_timeline(_WORKDIR.value, _OUT.value, steps=steps)
        trace = write_trace(_WORKDIR.value, Path(_OUT.value or _WORKDIR.value) / "trace.json")
    except (FileNotFoundError, ValueError) as error:
        _fail(str(error))
    for path in (*pictures, trace):
        print(path)
    return 0


def _export() -> int:
    from rl_sync.runtime.export import export

    if not _WORKDIR.value or not _TO.value:
        _fail("export writes the policy of a run: give --workdir=runs/… and --to=….")
    logging.set_verbosity(logging.WARNING)  # Orbax tells of every file that it reads.
    step = export(Path(_WORKDIR.value), Path(_TO.value), _DTYPE.value)
    print(f"The policy after trainer step {step} is in {_TO.value}.")
    return 0


def _config() -> dict[str, object]:
    if _CONFIG.value is None:
        _fail("Give a config, such as --config=configs/arithmetic.py.")
    from launcher import workdir

    config = _CONFIG.value.to_dict()
    config["workdir"] = str(workdir.choose(config))
    return config


def _parse(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it becomes one line."""
    sys.path.insert(0, os.getcwd())  # So that config files may import each other.
    for argument in argv:
        path = re.fullmatch(r"--?config=([^:]*)(:.*)?", argument)
        if path is not None and not os.path.isfile(path[1]):
            _fail(f"{argument}: no such file.")
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        _fail(str(error).splitlines()[0])
    except (AttributeError, KeyError) as error:
        _fail(f"Unknown setting: {_unknown_setting(argv, error)}")
    except (ValueError, TypeError, OSError) as error:
        _fail(f"The config cannot be used: {error}")


def _unknown_setting(argv: Sequence[str], error: Exception) -> str:
    """Which argument it was, and the nearest name there is."""
    from configs import base

    known = list(_paths(base.get_config().to_dict()))
    given = [match[1] for match in map(re.compile(r"--?config\.([^=]+)").match, argv) if match]
    wrong = next((path for path in given if path not in known), None)
    if wrong is None:
        return str(error)
    meant = " or ".join(f"--config.{path}" for path in _meant(wrong, known))
    hint = f"did you mean {meant}?" if meant else "configs/base.py has all there are."
    return f"--config.{wrong}; {hint}"


def _paths(config: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yields the dotted names of all settings."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _meant(wrong: str, known: Sequence[str]) -> list[str]:
    """The settings that a wrong name is likely to stand for: none, one, or of equal names all."""
    section, _, word = wrong.rpartition(".")
    if section not in {path.rpartition(".")[0] for path in known} - {""}:
        named = [path for path in known if path.rpartition(".")[2] == word]
        return named or difflib.get_close_matches(wrong, known, 1)
    words = [path.rpartition(".")[2] for path in known if path.rpartition(".")[0] == section]
    in_section = [f"{section}.{near}" for near in difflib.get_close_matches(word, words, 1)]
    return in_section or [path for path in known if path.rpartition(".")[2] == word]


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(MISTAKE)


def run_from_command_line() -> None:
    """The entry point of `python -m launcher` and of the `launcher` script."""
    app.run(main, flags_parser=_parse)


if __name__ == "__main__":
    run_from_command_line()
