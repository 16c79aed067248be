"""The audit of a finished run: its records must account for every group and every step."""

from __future__ import annotations

import collections
import os

from rl_sync.checkpoints.ledger import read_consumed, read_ledger
from rl_sync.records.json_lines import JsonObject
from rl_sync.settings.run_settings import RunSettings
from rl_sync.types import NO_LEASE


def audit(settings: RunSettings, workdir: str | os.PathLike[str]) -> list[str]:
    """Returns the faults that the records of a run show, a sentence each; none if all is well.

    Each trainer step must have consumed a whole batch once, within the bound on staleness; each
    lease must have ended in one way; and groups that were trained on must be those of the leases
    that ended as trained.

    Args:
      settings: settings of the run.
      workdir: its work directory.
    """
    consumed = read_consumed(workdir)
    faults = [] if not settings.explorers else _of_leases(settings, workdir, consumed)
    steps = [line["step"] for line in consumed]
    if steps != list(range(1, settings.trainer.steps + 1)):
        twice = [step for step, count in collections.Counter(steps).items() if count > 1]
        missing = sorted({*range(1, settings.trainer.steps + 1)} - {*steps})
        faults.append(f"Trainer steps missing: {missing or 'none'}; recorded twice: {twice}.")
    schedule = settings.schedule
    for line in consumed:
        rows = [rows for group in line["groups"] for rows in group["versions"]]
        versions = {version for runs in rows for version, _ in runs}
        stale = [v for v in versions if not schedule.accepts(line["step"], v)]
        if stale:
            faults.append(f"Step {line['step']} trained on versions beyond the bound: {stale}.")
    return faults


def _of_leases(
    settings: RunSettings, workdir: str | os.PathLike[str], consumed: list[JsonObject]
) -> list[str]:
    faults, counts = [], collections.defaultdict[str, collections.Counter[int]](collections.Counter)
    for line in read_ledger(workdir):
        counts[line["event"]].update(lease["lease_id"] for lease in line.get("leases", ()))
    leased, trained, dropped = (counts[name] for name in ("leased", "trained", "dropped"))
    if again := [lease for lease, count in leased.items() if count > 1]:
        faults.append(f"Leases granted twice: {again[:10]}.")
    times = settings.replay.times_sampled
    if often := [lease for lease, count in trained.items() if count > times]:
        faults.append(f"Leases trained on more than {times} times: {often[:10]}.")
    ended = {*trained, *dropped}
    if lost := sorted({*leased} - ended):
        faults.append(f"Leases that have not ended: {lost[:10]}.")
    if both := sorted({*trained} & {*dropped}):
        faults.append(f"Leases that ended as trained and as dropped: {both[:10]}.")
    used = collections.Counter(
        group["lease_id"]
        for line in consumed
        for group in line["groups"]
        if group["lease_id"] != NO_LEASE
    )
    if used != trained:
        differ = sorted({lease for lease in {*used, *trained} if used[lease] != trained[lease]})
        faults.append(f"Leases whose groups were not trained on as recorded: {differ[:10]}.")
    return faults
