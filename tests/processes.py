"""State of processes that tests have started."""

from pathlib import Path


def lives(pid: int) -> bool:
    """Says whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
