"""`python -m launcher` in the clone: the program `rl-sync`, whose package is `rl_sync.launcher`.

The wheel does not have this file, so that it takes no name that a user's own files may have.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - pip checks this, and a clone needs no pip.
    print(
        "error: rl_sync needs Python 3.11 or newer, and {} is Python {}.{}: start it with a newer"
        " one, such as that of the environment where its packages are.".format(
            sys.executable, *sys.version_info[:2]
        ),
        file=sys.stderr,
    )
    sys.exit(2)

from rl_sync.aliases import alias

if __name__ == "__main__":
    from rl_sync.launcher.__main__ import run_from_command_line

    run_from_command_line()
else:
    alias(__name__, "rl_sync.launcher")
