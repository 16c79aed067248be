"""`python -m rl_sync`: the program `rl-sync`."""

from rl_sync.launcher.__main__ import run_from_command_line

if __name__ == "__main__":
    run_from_command_line()
