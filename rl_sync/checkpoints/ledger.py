"""The ledger: a record of every group of a run, and of the groups that each step consumed."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence

import numpy as np

from rl_sync.messages.events import LiveLease, Record
from rl_sync.messages.run_result import Balance
from rl_sync.records.json_lines import (
    JsonLinesReader,
    JsonLinesWriter,
    JsonObject,
    each_json_line,
    plain,
    read_json_lines,
)
from rl_sync.records.resumption import RESUMED_AT, mark, standing
from rl_sync.types import Group
from rl_sync.workdir import Workdir

LOST = "not trained when the run went on from step"


class Ledger:
    """Writes every change of a lease to `workdir/ledger.jsonl`."""

    def __init__(self, workdir: str | os.PathLike[str]):
        self._lines = JsonLinesWriter(Workdir(workdir).ledger)

    def resume(self, step: int) -> int:
        """Marks the step where the run resumes, and drops groups that were not trained by then.

        Args:
          step: trainer step to resume from; groups of later steps will be trained on again.

        Returns:
          The first unused lease id.
        """
        first_free, lost = 0, dict[int, JsonObject]()
        for line in each_json_line(self._lines.path):
            leases = {lease["lease_id"]: lease for lease in line.get("leases", ())}
            first_free = max([first_free, *(lease_id + 1 for lease_id in leases)])
            if line["event"] == "leased":
                lost |= leases
            elif line["event"] == "dropped" or (line["event"] == "trained" and _step(line) <= step):
                lost = {i: lease for i, lease in lost.items() if i not in leases}
        self._lines.write(mark(step, event="resumed"))
        if lost:
            why = f"{LOST} {step}"
            line = {"time": time.time(), "event": "dropped", "leases": [*lost.values()]}
            self._lines.write({**line, "reason": why})
        return first_free

    def write(self, record: Record) -> None:
        """Writes one event and the leases that it affects."""
        self._lines.write({"time": time.time(), **_line(record)})

    def flushed_bytes(self) -> int:
        """Brings the ledger to the disk, and returns its size in bytes."""
        with open(self._lines.path, "rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def restore(self, start: int, records: Sequence[Record]) -> None:
        """Makes the lines after the first `start` bytes those of some events.

        A killed master may have left lines of events that nobody learned of, which never happened,
        or may lack lines of its last events.
        """
        path, end = self._lines.path, start
        late = JsonLinesReader(path, offset=start).read_all().lines
        expected = [plain(_line(record)) for record in records]
        known = 0
        for line, wanted in zip(late, expected, strict=False):
            if {name: line.record[name] for name in line.record.keys() - {"time"}} != wanted:
                break
            known, end = known + 1, line.offset + line.size + 1
        if path.stat().st_size > end:
            os.truncate(path, end)
        self._lines.write_all({"time": time.time(), **one} for one in expected[known:])

    def write_balance(self, balance: Balance) -> None:
        """Writes the balance of the run so far."""
        self._lines.write({"time": time.time(), "event": "balance", **balance._asdict()})

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


def _line(record: Record) -> JsonObject:
    """Returns the ledger's line of an event, without the time."""
    line = {"event": record.event, "leases": [_described(lease) for lease in record.leases]}
    reason = {"reason": record.reason} if record.reason else {}
    episode = {"episode": record.episode._asdict()} if record.episode else {}
    return {**line, **reason, **episode}


def _described(lease: LiveLease) -> JsonObject:
    """Returns the ledger's fields of a lease."""
    why = {"why": lease.choice.why} if lease.choice.why else {}
    success = {} if lease.success is None else {"success": lease.success}
    return {
        "lease_id": lease.lease_id,
        "ordinal": lease.ordinal,
        "attempt": lease.attempt,
        "replacement": lease.replacement,
        "explorer": lease.explorer,
        "prompt_id": lease.choice.prompt,
        **why,
        **success,
    }


class ConsumptionRecord:
    """Writes the groups that each trainer step consumed to `workdir/consumed.jsonl`.

    Args:
      workdir: work directory of the run; None in a process that does not record.
      start: trainer step that the run resumes from; lines of later steps become void.
    """

    def __init__(self, workdir: str | os.PathLike[str] | None, start: int = 0):
        self._lines = None if workdir is None else JsonLinesWriter(Workdir(workdir).consumed)
        if self._lines is not None and self._lines.path.stat().st_size:
            self._lines.write(mark(start))

    def write(self, step: int, groups: list[Group]) -> None:
        """Writes the groups of one step in the batch's order, with the version of every token."""
        if self._lines is None:
            return
        self._lines.write(
            {
                "step": step,
                "groups": [
                    {
                        "lease_id": group.lease_id,
                        "ordinal": group.ordinal,
                        "prompt_id": group.prompt_id,
                        "explorer": group.explorer,
                        "versions": _version_runs(group),
                    }
                    for group in groups
                ],
            }
        )

    def close(self) -> None:
        """Closes the file."""
        if self._lines is not None:
            self._lines.close()


def _version_runs(group: Group) -> list[list[list[int]]]:
    """Splits each trajectory into runs of tokens of one version, each as [version, tokens]."""
    rows = []
    for versions, mask in zip(group.policy_versions, group.completion_mask, strict=True):
        runs = itertools.groupby(np.asarray(versions)[mask].tolist())
        rows.append([[version, len(list(tokens))] for version, tokens in runs])
    return rows


def read_ledger(workdir: str | os.PathLike[str]) -> list[JsonObject]:
    """Reads the events of a run's ledger in order.

    Groups whose training was lost in a crash count as dropped, not as trained.
    """

    def is_void(line: JsonObject, mark: JsonObject) -> bool:
        return line["event"] == "trained" and _step(line) > mark[RESUMED_AT]

    return standing(read_json_lines(Workdir(workdir).ledger), is_void)


def read_consumed(workdir: str | os.PathLike[str]) -> list[JsonObject]:
    """Reads the groups that each trainer step consumed, once each, in the order of the steps."""
    lines = read_json_lines(Workdir(workdir).consumed)
    return standing(lines, lambda line, mark: line["step"] > mark[RESUMED_AT])


def _step(line: JsonObject) -> int:
    """Returns the trainer step of an event "trained"."""
    return int(line["reason"].removeprefix("step "))
