"""Reads the records of judgements of a run."""

from pathlib import Path
from typing import Any

from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.rollouts.record_parts import parts_in
from rl_sync.workdir import Workdir


def read_judgements(workdir: Workdir | Path) -> list[dict[str, Any]]:
    """Reads the judgements that are kept, in the order in which they were made."""
    parts = parts_in(Workdir(workdir).judgements)
    return [line for part in parts for line in read_json_lines(part.path)]
