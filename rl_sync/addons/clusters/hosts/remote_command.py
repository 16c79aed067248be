"""Makes a command for another machine; it ends when this process ends."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from rl_sync.cluster import malloc

_CARRIED = ("GLIBC_TUNABLES", "HF_HOME", "JAX_", "LIBTPU_", "NCCL_", "TPU_", "XLA_")


def remote_command(shell: str, host: str, command: Sequence[str]) -> list[str]:
    """Returns the command that starts a command on a remote machine.

    It passes on some environment variables, and starts in this directory if it exists there. The
    command reads the shell's standard input, so it ends when the shell here ends.

    Args:
      shell: `launch.remote_shell`.
      command: the path of a program there, and its arguments.
    """
    environment = malloc.environment(os.environ)
    carried = [
        f"{name}={value}" for name, value in environment.items() if name.startswith(_CARRIED)
    ]
    there = shlex.join(["env", "PYTHONUNBUFFERED=1", *sorted(carried), *command])
    words = [word.format(host=host) for word in shlex.split(shell)]
    return [*words, f"cd {shlex.quote(os.getcwd())} 2>/dev/null; exec {there}"]
