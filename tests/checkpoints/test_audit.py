"""The audit of a run's records finds what is missing, doubled or too stale."""

from __future__ import annotations

import json
import re

import pytest

from rl_sync.checkpoints.audit import audit
from rl_sync.workdir import Workdir
from tests.settings.changed import settings_with

SETTINGS = settings_with(
    sync__mode="asynchronous",
    sync__max_staleness=1,
    trainer__steps=2,
    trainer__groups_per_step=2,
    optimizer__updates_per_batch=1,
)


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def event(name, *leases, reason=""):
    fields = {"event": name, "leases": [{"lease_id": lease} for lease in leases]}
    return {**fields, "reason": reason} if reason else fields


def step(number, **versions):
    groups = [
        {"lease_id": int(lease[1:]), "versions": [[[version, 3]]]}
        for lease, version in versions.items()
    ]
    return {"step": number, "groups": groups}


def faults(tmp_path, ledger, consumed):
    lines(Workdir(tmp_path).ledger, ledger)
    lines(Workdir(tmp_path).consumed, consumed)
    return audit(SETTINGS, tmp_path)


LEDGER = [
    event("leased", 0, 1, 2, 3, 4),
    event("buffered", 0, 1, 2, 3),
    event("trained", 0, 1, reason="step 1"),
    event("dropped", 4, reason="its explorer died"),
    event("trained", 2, 3, reason="step 2"),
]
CONSUMED = [step(1, l0=0, l1=0), step(2, l2=1, l3=0)]


def test_records_that_are_whole_have_no_fault(tmp_path):
    assert faults(tmp_path, LEDGER, CONSUMED) == []


@pytest.mark.parametrize(
    ("ledger", "consumed", "fault"),
    [
        (LEDGER, CONSUMED[:1], r"steps missing: \[2\]"),
        (LEDGER, [*CONSUMED, CONSUMED[1]], r"recorded twice: \[2\]"),
        (LEDGER, [CONSUMED[0], step(2, l2=1, l3=2)], r"Step 2 .* beyond the bound: \[2\]"),
        ([event("leased", 0), *LEDGER], CONSUMED, r"granted twice: \[0\]"),
        ([*LEDGER, event("trained", 1, reason="step 2")], CONSUMED, r"more than 1 times: \[1\]"),
        ([event("leased", 9), *LEDGER], CONSUMED, r"not ended: \[9\]"),
        ([*LEDGER, event("dropped", 3, reason="?")], CONSUMED, r"trained and as dropped: \[3\]"),
        (LEDGER, [CONSUMED[0], step(2, l2=1, l5=1)], r"as recorded: \[3, 5\]"),
    ],
)
def test_each_fault_is_named(tmp_path, ledger, consumed, fault):
    found = "\n".join(faults(tmp_path, ledger, consumed))
    assert re.search(fault, found), found
