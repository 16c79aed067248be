"""`completion`: the script by which a shell completes the launcher's command lines."""

from __future__ import annotations

from importlib import resources

from rl_sync.launcher.command import Arguments
from rl_sync.launcher.completing import SHELLS
from rl_sync.settings.records import ConfigError
from rl_sync.spelling import hint


def execute(arguments: Arguments) -> int:
    """Prints the script of the shell that is named.

    Raises:
      ConfigError: it is none of those that are known.
    """
    shell = arguments.text
    if shell not in SHELLS:
        named = f"{shell!r} is not a shell that there is a script for" if shell else "Name a shell"
        end = hint(shell, SHELLS) if shell else "."
        raise ConfigError(f"{named}: completion takes {', '.join(SHELLS)}{end}")
    script = resources.files("rl_sync.launcher") / "shells" / f"rl_sync.{shell}"
    print(script.read_text(), end="")
    return 0
