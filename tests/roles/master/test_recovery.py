"""A master that was killed at any moment: the next one knows what it knew, and answers the same."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from rl_sync.checkpoints.ledger import read_ledger
from rl_sync.cluster.pending import Await
from rl_sync.configs import arithmetic
from rl_sync.ending import Ending, Fault
from rl_sync.messages import weight_calls
from rl_sync.messages.events import (
    BatchTrained,
    ExplorerDied,
    GroupsBuffered,
    GroupsRefused,
    Position,
    SnapshotSaved,
    StopRequested,
    VersionPublished,
)
from rl_sync.messages.master_calls import (
    AskKeptSnapshots,
    AskLease,
    AskPosition,
    AskStatus,
    Claim,
    CloseLedger,
    EnterPhase,
    Fail,
    HandInEvaluation,
    Happened,
    Report,
    Resumed,
    Trained,
    TrainerDied,
    TrainerReady,
    WriteMetrics,
)
from rl_sync.messages.run_result import RunResult
from rl_sync.messages.scoring_calls import CompletionToScore, RequestScores
from rl_sync.messages.weight_calls import Grant, Request
from rl_sync.records.metrics import read_metrics
from rl_sync.roles.master.service import MasterServer
from rl_sync.settings.config_reading import read_settings
from rl_sync.workdir import Workdir
from tests.roles.master.test_journal import without_deadlines

START = Position(step=0, next_ordinal=0, again=(), next_lease=0)
FAULT = Fault("environment failure", "no board")


class Masters:
    """Masters of one run, each of which is killed before the next one starts."""

    def __init__(self, tmp_path):
        self._tmp_path, self._count, self._all = tmp_path, 0, []
        self.server = self._start(recovers=False)

    def __call__(self, call):
        return self.server.answer(call)

    def _start(self, recovers, continues=False):
        config = arithmetic.get_config()
        config.sync.mode, config.reward.workers = "asynchronous", 0
        config.trainer.groups_per_step, config.trainer.group_size = 2, 2
        config.trainer.steps, config.optimizer.updates_per_batch = 10, 1
        config.task.arithmetic.greatest_operand = 19
        config.task.arithmetic.held_out_problems = config.evaluation.problems = 8
        settings = read_settings({**config.to_dict(), "workdir": str(self.workdir)})
        self._all.append(MasterServer(settings, recovers, continues))
        return self._all[-1]

    @property
    def workdir(self):
        return self._tmp_path / f"run{self._count}"

    def kill(self, away_secs=0.0):
        """Goes on with a copy of the files, as they are now.

        Args:
          away_secs: how long ago all processes of the run have ended; 0 if the others go on.
        """
        before, old = without_deadlines(self.server._state), self.workdir
        self._count += 1
        shutil.copytree(old, self.workdir)
        for file in (self.workdir / "journal").iterdir():
            os.utime(file, (time.time() - away_secs,) * 2)
        self.server = self._start(recovers=True, continues=bool(away_secs))
        assert without_deadlines(self.server._state) == before

    def close(self):
        for server in self._all:
            server.answer(CloseLedger())

    def ledger(self):
        return [
            {k: v for k, v in line.items() if k != "time"} for line in read_ledger(self.workdir)
        ]


@pytest.fixture
def master(tmp_path):
    masters = Masters(tmp_path)
    masters(TrainerReady(START))
    masters(EnterPhase("rl"))
    masters(Happened(VersionPublished(0)))
    yield masters
    masters.close()


def test_the_clock_stands_still_between_two_attempts(master):
    master.server._began_secs -= 3140  # It ran for 140 s, and has ended 3000 s ago.
    master.server._begin_file()
    for away_secs, shown in ((0.0, 3140), (3000.0, 140)):
        master.kill(away_secs)
        assert master(AskStatus()).elapsed_secs == pytest.approx(shown, abs=20)


def lease(master, request):
    return tuple(one.lease_id for one in master(AskLease(1, request=request)).leases)


def scores(leases, *texts, ending=None):
    """Asks for the scores of a group of two completions for each lease."""
    return RequestScores(
        [
            CompletionToScore(0, False, one, text, [1], False, ending=ending)
            for one in leases
            for text in texts
        ]
    )


def judge(master, call, key="key"):
    return master(Await(key, call, 20.0))


def buffered(master, request):
    leases = lease(master, request)
    judge(master, scores(leases, "1", "2"))
    master(Happened(GroupsBuffered(leases)))
    return leases


def evaluation(step=3):
    items = [CompletionToScore(i, True, -1, "7", [1], False) for i in range(8)]
    return HandInEvaluation(f"after step {step}", step, items)


def same(master, call):
    """Sends a call, and again after a crash: nothing changes, and the answer is the same."""
    answer = master(call)
    before, ledger = without_deadlines(master.server._state), master.ledger()
    master.kill()
    assert master(call) == answer
    assert without_deadlines(master.server._state) == before
    assert master.ledger() == ledger
    return answer


def test_a_request_for_leases_that_comes_again_gets_the_same_leases(master):
    answer = same(master, AskLease(1, request=5))
    assert len(answer.leases) > 1
    assert not {one.lease_id for one in answer.leases} & {*lease(master, 6)}


def test_a_restarted_explorer_gets_other_leases_for_the_same_number(master):
    first = lease(master, 5)
    master(Happened(ExplorerDied(1)))
    assert not {*lease(master, 5)} & {*first}


def test_a_step_that_is_reported_again_counts_once_and_gets_the_same_scores(master):
    leases = buffered(master, 1)[:2]
    trained = Trained(
        BatchTrained(1, leases),
        {"num_tokens": 7.0, "reward_mean": 0.5},
        {"train": 2.0},
        [leases[0]],
    )
    answer = same(master, trained)
    assert answer.counts == [2]
    (line,) = read_metrics(master.workdir, "rl")
    assert (line["step"], line["num_tokens"], line["reward_mean"]) == (1, 7.0, 0.0)
    with pytest.raises(ValueError, match="trainer step 1 reported after step 1"):
        master(Trained(BatchTrained(1, leases[:1]), {}, {}))


def test_metrics_of_a_step_are_written_if_the_master_died_before(master, monkeypatch):
    leases = buffered(master, 1)[:2]
    monkeypatch.setattr(master.server._accounts._metrics, "write", lambda *_: None)
    master(
        Trained(BatchTrained(1, leases), {"num_tokens": 7.0, "reward_mean": 0.5}, {"train": 2.0})
    )
    assert read_metrics(master.workdir, "rl") == []
    master.kill()
    (line,) = read_metrics(master.workdir, "rl")
    assert (line["num_tokens"], line["reward_mean"], line["time/trainer/train"]) == (7.0, 0.0, 2.0)


def test_every_report_may_come_again(master):
    first = buffered(master, 1)
    for event in (
        GroupsBuffered(first),
        GroupsRefused(first[:1], "too stale"),
        VersionPublished(0),
        SnapshotSaved(0),
    ):
        same(master, Happened(event))
    second = lease(master, 2)
    same(master, Happened(ExplorerDied(1)))
    assert same(master, Claim([*first, *second])) == [first[0], *second]
    same(master, AskPosition())
    same(master, Report(RunResult(digest="abc")))
    same(master, Happened(StopRequested("enough")))
    same(master, Fail("broken"))
    master(Fail("another"))
    summary = master(CloseLedger())
    assert (summary.result.digest, summary.result.failed) == ("abc", "broken")


def test_the_trainer_may_begin_twice(tmp_path):
    masters = Masters(tmp_path)
    same(masters, TrainerReady(START))
    masters.close()


def test_scores_that_are_asked_for_again_admit_the_same_groups_and_count_failures_once(master):
    leases = lease(master, 1)
    failed = Ending({}, {}, FAULT.reason, FAULT.why, 1, faults=(FAULT,))
    call = scores(leases[:1], "1", "1", ending=failed)
    before = judge(master, call)
    lines = len(master.ledger())
    master.kill()
    again = judge(master, call)
    assert [one.solved for one in again.verdicts] == [one.solved for one in before.verdicts]
    assert len(master.ledger()) == lines
    assert master.server._state.failed == {FAULT.reason: 2}
    assert master(Claim([leases[0]])) == [leases[0]], "the dropped group would be trained on"
    good = scores(leases[1:], "1", "2")
    assert judge(master, good, "good") == judge(master, good, "better")


def test_an_evaluation_in_progress_is_scored_by_the_next_master_and_measured_once(
    master, monkeypatch
):
    monkeypatch.setattr(master.server._evaluations, "_take", lambda *_: None)
    master(evaluation())
    assert master(AskKeptSnapshots()) == [3]
    master.kill()
    master(evaluation())
    master.server._evaluations.wait()
    master.kill()
    master(evaluation())
    master.server._evaluations.wait()
    (line,) = read_metrics(master.workdir, "evaluation")
    assert (line["step"], line["problems"]) == (3, 8)
    assert list(master.server._result.evaluations) == ["after step 3"]


def test_metrics_that_are_sent_again_are_written_once(master):
    same(master, WriteMetrics("sft", 4, {"loss": 1.0}))
    assert [line["step"] for line in read_metrics(master.workdir)] == [4]


def test_the_next_master_knows_the_transfer_and_its_holders(master):
    master(weight_calls.DecideTransfer("server"))
    master(weight_calls.HoldWeights(0, "here:1"))
    master(weight_calls.JoinRelays("explorer1.0", "there:2"))
    master(Happened(SnapshotSaved(0)))
    master(weight_calls.JoinRelays("explorer2.0", "there:3"))
    master.kill()
    assert master(weight_calls.AskTransfer()) == "server"
    assert master(weight_calls.AskHolders()) == ["here:1"]
    assert master.server._weights.memory().relays == {
        "explorer1.0": "there:2",
        "explorer2.0": "there:3",
    }
    assert master(AskStatus()).phase == "rl"


def test_a_grant_of_weights_holds_over_a_crash_on_both_sides(master):
    ticket = same(master, weight_calls.AskWeights(1, 0, None, number=9))
    request, grant = Request(1, ticket, 0, None), Grant(0, "abc")
    assert same(master, weight_calls.AskWaiting(0.0)) == [request]
    assert same(master, weight_calls.GrantWeights(request, grant)) is True
    assert same(master, weight_calls.AwaitGrant(ticket, 0.0)) == grant
    assert same(master, weight_calls.Withdraw(ticket)) == grant
    assert master(weight_calls.AskWeights(1, 1, None, number=10)) > ticket


def test_the_next_master_grants_no_weights_to_an_explorer_that_died(master):
    """Its request was on its way when the trainer's death made all requests void."""
    master(TrainerDied("died"))
    master(weight_calls.AskWeights(1, None, 0, number=9))
    master(Happened(ExplorerDied(1)))
    assert master(weight_calls.AskWaiting(0.0)) == []
    master.kill()
    assert master(weight_calls.AskWaiting(0.0)) == []


def test_a_ledger_that_is_ahead_of_the_journal_or_behind_it_is_made_whole(master):
    leases = lease(master, 1)
    whole = master.ledger()
    Workdir(master.workdir).ledger.write_text("")
    master.kill()
    assert master.ledger() == whole
    path = Workdir(master.workdir).ledger
    content = path.read_text()
    path.write_text(content + content.replace('"event":"leased"', '"event":"dropped"'))
    master.kill()
    assert master.ledger() == whole
    assert len(whole[0]["leases"]) == len(leases)


def test_leases_do_not_expire_because_the_master_was_away(master):
    leases = lease(master, 1)
    late = master.server._state.live[leases[0]].deadline_secs
    master.kill()
    assert master.server._state.live[leases[0]].deadline_secs > late


def test_a_resumed_run_is_recovered_from_the_point_of_its_resumption(master):
    lease(master, 1)
    master(Resumed(0, None))
    ledger = master.ledger()
    master.kill()
    assert master.ledger() == ledger
