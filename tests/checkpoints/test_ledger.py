"""The ledger and the record of what was consumed, over the attempts of a run."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from rl_sync.checkpoints.ledger import LOST, ConsumptionRecord, read_consumed, read_ledger
from rl_sync.cluster.pending import Await
from rl_sync.configs import arithmetic
from rl_sync.ending import Ending, Fault
from rl_sync.messages.events import (
    BatchTrained,
    FailedEpisode,
    GroupsBuffered,
    Position,
    VersionPublished,
)
from rl_sync.messages.master_calls import (
    AskLease,
    AskPosition,
    CloseLedger,
    Happened,
    Resumed,
    Trained,
    TrainerReady,
)
from rl_sync.messages.scoring_calls import CompletionToScore, RequestScores
from rl_sync.records.metrics import read_metrics
from rl_sync.roles.master.group_admission import EPISODE_FAILED
from rl_sync.roles.master.service import MasterServer
from rl_sync.settings.config_reading import read_settings
from rl_sync.types import Group


@pytest.fixture
def attempt(tmp_path):
    """Starts the master of another attempt of one run."""
    config = arithmetic.get_config()
    config.sync.mode, config.reward.workers = "asynchronous", 0
    config.trainer.groups_per_step, config.trainer.steps = 2, 10
    config.optimizer.updates_per_batch = 1
    config.task.arithmetic.greatest_operand, config.task.arithmetic.held_out_problems = 19, 8
    settings = read_settings({**config.to_dict(), "workdir": str(tmp_path)})
    masters = []

    def start(position, **resumed):
        master = MasterServer(settings).answer
        masters.append(master)
        if resumed:
            master(Resumed(**resumed))
        master(TrainerReady(position))
        master(Happened(VersionPublished(position.step)))
        return master

    yield start
    for master in masters:
        master(CloseLedger())


def train(master, step):
    """Takes one step on the groups of one lease; returns their ids."""
    lease_ids = lease(master)
    master(Happened(GroupsBuffered(lease_ids)))
    master(Trained(BatchTrained(step, lease_ids), {"reward": float(step)}, {}))
    master(Happened(VersionPublished(step)))
    return lease_ids


def lease(master):
    return tuple(lease.lease_id for lease in master(AskLease(1)).leases)


def counted(ledger, event):
    return collections.Counter(
        one["lease_id"] for line in ledger if line["event"] == event for one in line["leases"]
    )


FIRST = Position(step=0, next_ordinal=0, again=(), next_lease=0)


def test_after_a_crash_no_lease_id_is_used_again_and_every_lease_ends_once(attempt, tmp_path):
    master = attempt(FIRST)
    train(master, 1)
    snapshot = master(AskPosition())
    lost = train(master, 2)
    buffered, leased = lease(master), lease(master)
    master(Happened(GroupsBuffered(buffered)))
    # It crashes, and goes on from step 1; and does so again before it has saved.
    for _ in range(2):
        master = attempt(snapshot, step=1, sft_step=None)
        again = train(master, 2)
        assert min(again) > max([*lost, *buffered, *leased])
        lost = again
    train(master, 3)
    master(CloseLedger())
    ledger = read_ledger(tmp_path)
    given, trained, dropped = (counted(ledger, e) for e in ("leased", "trained", "dropped"))
    assert set(given.values()) == {1}
    assert trained + dropped == given, "a lease ended in no way, or in two"
    reasons = [line["reason"] for line in ledger if line["event"] == "trained"]
    assert reasons == ["step 1", "step 2", "step 3"]
    assert f"{LOST} 1" in [line.get("reason") for line in ledger if line["event"] == "dropped"]
    steps = [(line["step"], line["reward"]) for line in read_metrics(tmp_path, "rl")]
    assert steps == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_failed_episodes_have_a_line_each_and_their_prompt_is_leased_again(attempt, tmp_path):
    master = attempt(FIRST)
    grant = master(AskLease(1))
    first, *others = grant.leases
    failed = [
        FailedEpisode(first.lease_id, first.prompt.prompt_id, 1, i, "time-out", "asleep", i == 1)
        for i in (0, 1)
    ]
    faults = (Fault("time-out", "asleep"),) * 2
    fine = Ending({"won": 1.0}, {}, "done", "", 1)
    lost = Ending({}, {}, "time-out", "asleep", 0, faults=faults)
    items = [
        CompletionToScore(one.prompt.prompt_id, False, one.lease_id, "1", [1], False, ending=ending)
        for one in grant.leases
        for ending in (fine, lost if one is first else fine)
    ]
    judged = master(Await("key", RequestScores(items), 10.0))
    assert judged.admitted == [one.lease_id for one in others]
    again = master(AskLease(1)).leases[0]
    assert (again.ordinal, again.attempt, again.prompt) == (first.ordinal, 1, first.prompt)
    balance = master(CloseLedger()).balance
    assert (balance.failed, balance.dropped["time-out"]) == ({"time-out": 2}, 1)
    ledger = read_ledger(tmp_path)
    told = [line for line in ledger if line["event"] == EPISODE_FAILED]
    assert [line["reason"] for line in told] == ["time-out"] * 2
    assert [line["leases"][0]["ordinal"] for line in told] == [first.ordinal] * 2
    assert [line["episode"] for line in told] == [one._asdict() for one in failed]
    assert ledger[-1]["failed"] == {"time-out": 2}
    later = lease(attempt(FIRST, step=0, sft_step=None))
    assert min(later) > again.lease_id
    given, dropped = counted(read_ledger(tmp_path), "leased"), counted(ledger, "dropped")
    assert dropped[first.lease_id] == given[first.lease_id] == 1


def test_a_run_that_goes_on_in_order_drops_what_stood_in_the_buffer(attempt, tmp_path):
    master = attempt(FIRST)
    train(master, 1)
    buffered = lease(master)
    master(Happened(GroupsBuffered(buffered)))
    position = master(AskPosition())
    master(CloseLedger())
    again = lease(attempt(position, step=1, sft_step=None))
    assert min(again) > max(buffered)
    dropped = counted(read_ledger(tmp_path), "dropped")
    assert dropped == collections.Counter(buffered)


def test_what_lost_steps_consumed_does_not_count(tmp_path):
    def groups(lease_id):
        rows = np.zeros((1, 2), np.int32)
        return [
            Group(
                lease_id=lease_id,
                ordinal=0,
                prompt_id=0,
                explorer=1,
                tokens=rows,
                completion_mask=rows > 0,
                behavior_logprobs=rows,
                policy_versions=rows,
                rewards=rows[:, 0],
            )
        ]

    for start, steps in ((0, [1, 2, 3]), (1, [2]), (1, [2, 3])):
        record = ConsumptionRecord(tmp_path, start)
        for step in steps:
            record.write(step, groups(10 * start + step))
        record.close()
    found = [(line["step"], line["groups"][0]["lease_id"]) for line in read_consumed(tmp_path)]
    assert found == [(1, 1), (2, 12), (3, 13)]
