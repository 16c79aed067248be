"""`python -m launcher` in the clone: the program `rl-sync`, whose package is `rl_sync.launcher`.

The wheel does not have this file, so that it takes no name that a user's own files may have.
"""

from rl_sync.aliases import alias

if __name__ == "__main__":
    from rl_sync.launcher.__main__ import run_from_command_line

    run_from_command_line()
else:
    alias(__name__, "rl_sync.launcher")
