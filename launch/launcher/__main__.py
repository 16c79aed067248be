"""`rl-sync`, or in the clone `python -m launcher`: runs one command of the table in `commands`.

rl-sync --config=arithmetic [--config.sync.mode=asynchronous …]
rl-sync --help
rl-sync COMMAND --help
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from rl_sync.isolation.machine_limits import address_hint, lacking_address_space

FAILED = 1
MISTAKE = 2
INTERRUPTED = 130
_LEAST_ADDRESS_BYTES = 512 << 20


def main(words: Sequence[str]) -> int:
    """Runs the command of a command line without the program's name; returns the exit status."""
    if words[:1] == ["complete"]:  # A shell asks at each Tab, so load only what this needs.
        from rl_sync.launcher.command_table import PROGRAM
        from rl_sync.launcher.completing import Tab

        print(Tab(PROGRAM, words[1:]).complete())
        return 0
    sys.path.insert(0, os.getcwd())  # Config files may import each other.

    if lacking := lacking_address_space(_LEAST_ADDRESS_BYTES, "The launcher"):
        print(f"error: {lacking}", file=sys.stderr)
        return MISTAKE
    # Each command's own modules load only after the command line was found valid.
    try:
        from absl import logging
        from click.exceptions import Exit

        from rl_sync.cluster.parallel_imports import loading
        from rl_sync.launcher import command_line
        from rl_sync.launcher.command_table import COMMANDS
        from rl_sync.settings.records import ConfigError
    except ModuleNotFoundError as error:
        print(_lacking(error), file=sys.stderr)
        return MISTAKE

    logging.set_verbosity(logging.WARNING)  # Orbax logs every file that it reads.
    try:
        with loading():
            arguments = command_line.parse(words)
            module = importlib.import_module(COMMANDS[arguments.command].module)
        status: int = module.execute(arguments)
        return status
    except Exit as end:  # Help, or the version.
        return end.exit_code
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISTAKE
    except (ImportError, MemoryError) as error:  # Libraries fail to load without memory.
        if isinstance(error, ModuleNotFoundError) and _is_of_others(error):
            print(_lacking(error), file=sys.stderr)
            return MISTAKE
        if not (hint := address_hint()):
            raise
        print(f"error: {str(error) or 'There is no more memory'}.{hint}", file=sys.stderr)
        return FAILED
    except RuntimeError as error:
        from rl_sync.cluster.user_errors import explained

        if (shown := explained(error)) is error:
            raise
        print(f"error: {shown}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return INTERRUPTED


def _is_of_others(error: ModuleNotFoundError) -> bool:
    """Says whether a missing module is none of this package."""
    return (error.name or "rl_sync").partition(".")[0] not in {"rl_sync", "launcher", "configs"}


def _lacking(error: ModuleNotFoundError) -> str:
    return (
        f"error: {sys.executable} lacks the package {error.name}: install it (`pip install -r"
        " requirements.txt` installs all that rl_sync needs), or start the Python that has it."
    )


def run_from_command_line() -> None:
    """Runs the command of this process's command line, and ends the process with its status."""
    # Characters that the output's encoding lacks are printed as escapes.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # The reader of the output has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = FAILED
    sys.exit(status)


if __name__ == "__main__":
    run_from_command_line()
