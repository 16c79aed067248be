"""The master's server: remote calls that wait, without processes."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from rl_sync.checkpoints.ledger import read_ledger
from rl_sync.cluster import pending
from rl_sync.cluster.pending import Await, Pending
from rl_sync.configs import arithmetic
from rl_sync.display.live import plain_line
from rl_sync.ending import Ending
from rl_sync.isolation.codec import decode, encode
from rl_sync.messages import master_calls, scoring_calls, weight_calls
from rl_sync.messages.call import Call
from rl_sync.messages.events import (
    BatchTrained,
    ExplorerDied,
    Finish,
    GrantBatch,
    GroupsBuffered,
    GroupsRefused,
    HoldBack,
    LeaseGrant,
    Position,
    StopRequested,
    VersionPublished,
)
from rl_sync.messages.master_calls import (
    AskBatch,
    AskKeptSnapshots,
    AskLease,
    AskStatus,
    AwaitEvaluations,
    Claim,
    CloseLedger,
    EnterPhase,
    Fail,
    HandInEvaluation,
    Happened,
    Heartbeat,
    Report,
    Resumed,
    Trained,
    TrainerReady,
    WriteMetrics,
)
from rl_sync.messages.run_result import Best, LogprobGap, RunResult, Skipped, Summary
from rl_sync.messages.run_status import RoleStatus
from rl_sync.messages.scoring_calls import CompletionToScore, RequestScores, ScoredCompletion
from rl_sync.messages.weight_calls import AskNewest
from rl_sync.records.metrics import read_metrics
from rl_sync.records.run_outcome import read_outcome, read_versions
from rl_sync.records.spans import Span, SpanKind
from rl_sync.roles.evaluation.master_evaluations import EvaluationResult
from rl_sync.roles.master.service import MasterServer
from rl_sync.settings.config_reading import read_settings
from rl_sync.workdir import Workdir
from tests.page.small_run import append
from tests.records.full_disk import files_of_at_most
from tests.records.judgement_lines import read_judgements
from tests.roles.master.test_unsolved import CHECKPOINT
from tests.settings.changed import settings_with


@pytest.fixture
def program(tmp_path):
    config = arithmetic.get_config()
    config.sync.mode = "multi_explorer"
    config.task.arithmetic.greatest_operand = 19
    config.task.arithmetic.held_out_problems = 8
    config.reward.workers = 0
    config.trainer.steps = 10
    settings = read_settings({**config.to_dict(), "workdir": str(tmp_path)})
    server = MasterServer(settings)
    server.answer(TrainerReady(Position(step=0, next_ordinal=0, again=(), next_lease=0)))
    yield server
    server.answer(CloseLedger())


@pytest.fixture
def master(program):
    return program.answer


def fill(master):
    """Leases groups until the staleness bound holds the explorers back."""
    master(Happened(VersionPublished(0)))
    while isinstance(answer := master(AskLease(1)), LeaseGrant):
        master(Happened(GroupsBuffered(tuple(lease.lease_id for lease in answer.leases))))
    return answer


def heartbeat(**status):
    """A sign of life of a role's first process."""
    return Heartbeat(RoleStatus(since_secs=0.0, **status), status["role"], 1, "at work", {})


def test_an_explorer_that_is_held_back_learns_the_reason_and_goes_on_at_a_publication(master):
    assert master(AskLease(1)) == HoldBack("the first weights")
    assert fill(master) == HoldBack("synchronization")
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(master(AskLease(2, poll_secs=20.0))))
    waiting.start()
    master(Trained(BatchTrained(1, tuple(range(64))), {}, {}))
    master(Happened(VersionPublished(1)))
    waiting.join(timeout=10)
    assert (answers[0].version, answers[0].exactly) == (1, False)


def test_who_is_held_back_sees_that_the_trainer_goes_on(master):
    for step in (3, 4):
        master(heartbeat(role="trainer", activity="sft", step=step))
        assert master(AskLease(1)) == HoldBack("the first weights", trainer_step=step)


def test_a_request_that_waits_does_not_get_the_leases_that_its_explorers_death_makes_free(master):
    master(Happened(VersionPublished(0)))
    while isinstance(master(AskLease(2)), LeaseGrant):
        pass
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(master(AskLease(2, poll_secs=20.0))))
    waiting.start()
    time.sleep(0.3)  # It waits at the master.
    master(Happened(ExplorerDied(2)))
    waiting.join(timeout=10)
    assert [type(answer) for answer in answers] == [HoldBack]
    assert isinstance(master(AskLease(2)), LeaseGrant), "its next life gets no leases"


def test_explorers_that_wait_do_not_keep_the_master_busy(master):
    fill(master)
    cpu_secs = []

    def ask(explorer):
        master(AskLease(explorer, poll_secs=1.0))
        cpu_secs.append(time.thread_time())

    threads = [threading.Thread(target=ask, args=[i]) for i in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cpu_secs) == 3
    assert sum(cpu_secs) < 0.3


def asked_for_version(master, version: int) -> tuple[threading.Thread, list[int]]:
    """Asks for the newest version, and waits up to 20 s for one; with what it is to be told."""
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(master(AskNewest(version, 20.0))))
    thread.start()
    return thread, answers


def test_who_waits_for_a_version_is_told_at_its_publication_without_asking_again(master):
    master(Happened(VersionPublished(0)))
    waiting, answers = asked_for_version(master, 1)
    assert master(AskNewest()) == 0
    waiting.join(timeout=0.3)
    assert waiting.is_alive()
    master(Happened(VersionPublished(1)))
    waiting.join(timeout=10)
    assert answers == [1]


def test_who_waits_for_a_version_is_told_when_the_run_is_being_stopped(master):
    master(Happened(VersionPublished(0)))
    waiting, answers = asked_for_version(master, 1)
    master(Happened(StopRequested("because")))
    waiting.join(timeout=10)
    assert answers == [0]


def test_groups_whose_lease_is_over_are_named_when_the_trainer_takes_them(master):
    fill(master)
    assert master(Claim([0, 1, 100_000])) == [100_000]
    master(Happened(GroupsRefused((1,), "too stale")))
    assert master(Claim([0, 1])) == [1]


def test_the_trainer_is_told_which_groups_at_hand_are_its_batch(program, master):
    fill(master)
    size = program._settings.groups_generated
    assert master(AskBatch(1, [*range(size - 1), 100_000])) == GrantBatch((), over=(100_000,))
    answer = decode(encode(master(AskBatch(1, [*range(size)]))))
    assert answer == GrantBatch(tuple(range(size)))


def test_a_stop_reaches_every_role_with_its_next_sign_of_life(master, tmp_path):
    fill(master)
    sign = heartbeat(role="explorer1", activity="rollout")
    assert master(sign) is None
    master(Happened(StopRequested("because")))
    assert master(sign) == "because"
    assert master(AskLease(1, poll_secs=5.0)) == Finish("because")
    balance = master(CloseLedger()).balance
    assert balance.leased == balance.buffered
    assert read_ledger(tmp_path)[-1]["event"] == "balance"


def test_the_status_of_sft_counts_its_own_steps(master):
    master(heartbeat(role="trainer", activity="sft", step=7, loss=0.5))
    master(EnterPhase("sft"))
    shown = master(AskStatus())
    assert (shown.step, shown.steps, shown.loss) == (7, 400, 0.5)
    assert decode(encode(shown)) == shown
    # The evaluation after it is of step 0, and the counter does not go back there.
    master(heartbeat(role="trainer", activity="evaluation", step=0, loss=0.5, done=3, of=8))
    shown = master(AskStatus())
    assert (shown.step, shown.steps) == (7, 400)
    assert plain_line(shown).startswith("[0:00] sft 7/400, loss 0.5 | trainer: evaluation 3/8")
    master(EnterPhase("rl"))
    shown = master(AskStatus())
    assert (shown.step, shown.steps, shown.loss) == (0, 10, None)


def test_completions_are_judged_by_the_tasks_reward(master, tmp_path):
    master(Happened(VersionPublished(0)))
    prompt = master(AskLease(1)).leases[0].prompt
    answer, number = prompt.answer, prompt.prompt_id
    texts = (answer, f" {answer}", answer[::-1] + "1")
    items = [
        CompletionToScore(
            prompt_id=number,
            held_out=False,
            lease_id=17,
            text=text,
            tokens=[1, 2],
            truncated=False,
        )
        for text in texts
    ]
    judged = master(Await("key", RequestScores(items), 10.0))
    assert judged.verdicts == [
        ScoredCompletion(1.0, True),
        ScoredCompletion(1.0, True),
        ScoredCompletion(0.0, False),
    ]
    assert judged.admitted == [17]
    deadline = time.monotonic() + 10  # Judgements are recorded after the verdicts are given.
    while len(records := read_judgements(tmp_path)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [one["score"] for one in records] == [1.0, 1.0, 0.0]
    assert records[2]["why"] == f"the answer is {answer!r}"


def test_judgements_of_a_group_that_is_dropped_are_forgotten(program, master):
    master(Happened(VersionPublished(0)))
    kept, dropped = [lease.lease_id for lease in master(AskLease(1)).leases][:2]
    items = [CompletionToScore(0, False, lease_id, "1", [1], False) for lease_id in (kept, dropped)]
    master(Await("key", RequestScores(items), 10.0))
    master(Happened(GroupsRefused((dropped,), "too stale")))
    assert set(program._judging._by_lease) == {kept}


def test_the_status_gives_both_accuracies_where_held_out_prompts_are_trained_on_too(program):
    values = {"accuracy": 0.4, "problems": 50, "accuracy_seen": 0.4, "problems_seen": 50}
    program._evaluated(EvaluationResult("after RL", 10, values, None))
    assert program.answer(AskStatus()).message == (
        "held-out accuracy after RL: 40.0% (40.0% of 50 whose prompts are trained on too)"
    )


def test_the_status_warns_of_a_checkpoint_that_solves_nothing_before_rl(program):
    values = {"accuracy": 0.0, "problems": 50}
    program._settings = settings_with(model__path=CHECKPOINT)
    program._evaluated(EvaluationResult("before RL", 0, values, None))
    assert program.answer(AskStatus()).message == (
        "held-out accuracy before RL: 0.0%: rewards may have nothing to tell apart; see Small"
        " models in docs/tasks.md"
    )


def test_an_evaluation_is_measured_when_all_its_completions_are_judged(master, tmp_path):
    """The reward of the tiny sums is exact; whoever hands in twice is heard once."""
    items = [
        CompletionToScore(
            prompt_id=number,
            held_out=True,
            lease_id=-1,
            text="no sum",
            tokens=[1],
            truncated=False,
        )
        for number in range(8)
    ]
    master(HandInEvaluation("after step 5", 5, items[:6]))
    assert isinstance(master(Await("early", AwaitEvaluations(), 0.2)), Pending)
    for _ in range(2):
        master(HandInEvaluation("after step 5", 5, items))
    assert master(Await("late", AwaitEvaluations(), 10.0)) is None
    (line,) = read_metrics(tmp_path, "evaluation")
    assert (line["step"], line["accuracy"], line["problems"]) == (5, 0.0, 8)
    assert line["accuracy_high"] < 0.5
    # Nobody waits for the records of judgements, which a thread of their own writes.
    end = time.monotonic() + 10
    while len(read_judgements(tmp_path)) < 8 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(read_judgements(tmp_path)) == 8
    assert master(AskKeptSnapshots()) == []


def test_a_run_whose_ledger_cannot_be_written_is_stopped_and_says_why(master, tmp_path):
    fill(master)
    with files_of_at_most(10):
        master(Trained(BatchTrained(1, tuple(range(64))), {}, {}))
    stop = master(heartbeat(role="trainer", activity="train"))
    assert stop.startswith(f"{tmp_path}/ledger.jsonl cannot be written: File too large")
    master(Fail("another"))
    assert master(CloseLedger()).result.failed == stop
    assert read_ledger(tmp_path)[-1]["event"] == "balance"


def test_every_call_of_the_master_is_answered(program):
    every = [
        one
        for module in (master_calls, scoring_calls, pending, weight_calls)
        for one in vars(module).values()
    ]
    kinds = {one for one in every if isinstance(one, type) and issubclass(one, Call)}
    assert kinds - {Call} == {*program._desk._answers, *program._pending._desk._answers}


def test_troubles_of_so_many_steps_are_in_the_status_with_completions(master):
    master(
        Await("key", RequestScores([CompletionToScore(0, False, 3, "no", [1], False)] * 2), 10.0)
    )
    nothing = {"reward_min": 0.0, "reward_max": 0.0, "reward_mean": 0.0}
    for step in range(1, 6):
        status = master(AskStatus())
        assert (status.alarms, status.examples) == ((), ())
        master(Trained(BatchTrained(step, ()), nothing, {}))
    status = master(AskStatus())
    assert [alarm.name for alarm in status.alarms] == ["no reward"]
    assert len(status.examples) == 2
    assert "→ 'no': " in status.examples[0]
    assert decode(encode(status)) == status


def test_accuracy_that_falls_during_the_run_is_an_alarm_at_once(program, master):
    master(EnterPhase("rl", ""))
    for step, accuracy in ((0, 0.747), (10, 0.113)):
        assert master(AskStatus()).alarms == ()
        ends = {"accuracy_low": accuracy - 0.07, "accuracy_high": accuracy + 0.07}
        values = {"accuracy": accuracy, "problems": 150, **ends}
        program._evaluated(EvaluationResult(f"after step {step}", step, values, None))
    (alarm,) = master(AskStatus()).alarms
    assert alarm.name == "accuracy fell"
    assert "from 74.7% before RL" in alarm.text


def test_what_is_reported_of_a_run_adds_up(program, master):
    master(Report(RunResult(resumed=0, skipped={"sft": Skipped(1, 2, 2)})))
    best = Best(10, "accuracy", 1.0)
    for moment, step, accuracy in (("before RL", 0, 0.5), ("after RL", 10, 1.0)):
        values = {"accuracy": accuracy, "problems": 2}
        program._evaluated(EvaluationResult(moment, step, values, best if step else None))
    fill(master)
    master(Trained(BatchTrained(1, tuple(range(64))), {"loss": 0.5}, {}))
    gap = LogprobGap(3, 1, 2.0, 0.5)
    master(Report(RunResult(logprob_gap=gap, skipped={"rl": Skipped(2, 3, 4)})))
    summary = master(CloseLedger())
    assert summary.result == RunResult(
        resumed=0,
        rl={"step": 1, "loss": 0.5},
        evaluations={
            "before RL": {"accuracy": 0.5, "problems": 2},
            "after RL": {"accuracy": 1.0, "problems": 2},
        },
        best=best,
        skipped={"sft": Skipped(1, 2, 2), "rl": Skipped(2, 3, 4)},
        logprob_gap=gap,
    )
    assert type(decode(encode(summary))) is Summary
    assert decode(encode(summary)) == summary


def test_a_run_that_goes_on_knows_the_evaluations_before_it_was_interrupted(program, master):
    first, later = {"accuracy": 0.25, "problems": 8}, {"accuracy": 0.75, "problems": 8}
    for step, values in ((0, first), (4, later), (8, {"accuracy": 0.5, "problems": 8})):
        master(WriteMetrics("evaluation", step, values))
    master(Resumed(5, None))
    assert master(CloseLedger()).result.evaluations == {"before RL": first, "after step 4": later}


def test_an_evaluation_that_is_left_out_is_told_at_once_and_in_the_result(program, master):
    program._state = dataclasses.replace(
        program._state,
        settings=dataclasses.replace(program._state.settings, evaluate_every_steps=2, steps=9),
    )
    for version in (1, 2, 4):
        master(Happened(VersionPublished(version)))
    why = "that of version 4 was due before an explorer had room for it"
    assert master(AskStatus()).message == f"no evaluation after step 2: {why}"
    master(Report(RunResult(left_out={"after step 3": "its weights are gone"})))
    left_out = master(CloseLedger()).result.left_out
    assert left_out == {
        "after step 2": why,
        "after step 3": "its weights are gone",
        "after step 4": "the run ended before an explorer began it",
    }


def test_the_end_of_a_run_is_recorded_with_what_stopped_it(master, tmp_path):
    assert read_outcome(tmp_path) is None
    assert "jax" in read_versions(tmp_path)
    master(master_calls.Report(RunResult(digest="c80fe1")))
    master(master_calls.Happened(StopRequested("trainer died")))
    master(master_calls.CloseLedger())
    found = read_outcome(tmp_path)
    assert (found.digest, found.failed, found.stopped) == ("c80fe1", None, "trainer died")


def test_groups_that_teach_nothing_are_judged_and_not_admitted(tmp_path):
    """A completion without a reward counts as the mean of the others, as its explorer has it."""
    settings = settings_with(sync__mode="asynchronous", algorithm__name="dapo", reward__workers=0)
    server = MasterServer(dataclasses.replace(settings, workdir=str(tmp_path)))
    server.answer(TrainerReady(Position(step=0, next_ordinal=0, again=(), next_lease=0)))
    server.answer(Happened(VersionPublished(0)))
    same, mixed, *_ = server.answer(AskLease(1)).leases
    unjudged = Ending({}, {}, "environment failure", "", 0)
    texts = {same: same.prompt.answer, mixed: "no"}
    items = [
        CompletionToScore(
            one.prompt.prompt_id, False, one.lease_id, text, [1], False, ending=ending
        )
        for one in (same, mixed)
        for text, ending in ((one.prompt.answer, None), (texts[one], None), ("?", unjudged))
    ]
    judged = server.answer(Await("key", RequestScores(items), 10.0))
    assert [one.score for one in judged.verdicts] == [1.0, 1.0, None, 1.0, 0.0, None]
    assert judged.admitted == [mixed.lease_id]
    again = server.answer(AskLease(1)).leases
    assert same.ordinal in {one.ordinal for one in again}
    server.answer(CloseLedger())


def test_the_report_of_a_step_is_answered_with_the_judgements_of_what_is_recorded(master):
    master(Happened(VersionPublished(0)))
    one, other = (lease.lease_id for lease in master(AskLease(1)).leases[:2])
    items = [CompletionToScore(0, False, lease, "no", [1], False) for lease in (one, one, other)]
    master(Await("key", RequestScores(items), 10.0))
    metrics = {"reward_mean": 0.0}
    judgements = master(Trained(BatchTrained(1, (one, other)), metrics, {}, [other, 99]))
    assert (judgements.counts, judgements.scores) == ([1, 0], [0.0])
    assert decode(encode(judgements)) == judgements


def test_the_metrics_of_a_step_have_the_time_that_deaths_cost(program, master, tmp_path):
    fill(master)
    master(Trained(BatchTrained(1, tuple(range(64))), {}, {}))
    at = Workdir(tmp_path)
    for role, kind, starts in (
        ("explorer1", SpanKind.ROLLOUT, (100.0,)),
        ("trainer", SpanKind.TRAIN, (105.0, 130.0, 149.0)),
    ):
        lines = [Span(role, kind, one, one + 1).to_json() for one in starts]
        append(at.spans_of(role), *lines)
    append(at.restarts, {"time": 120.0, "role": "trainer", "why": "killed"})
    program._accounts.look()
    fill(master)
    master(Trained(BatchTrained(2, tuple(range(64, 128))), {}, {}))
    first, second = read_metrics(tmp_path, "rl")
    assert (first["run/effective_share"], first["run/failures"]) == (1.0, 0.0)
    assert "run/secs_per_failure" not in first
    assert (second["run/effective_share"], second["run/failures"]) == (0.8, 1.0)
    assert second["run/secs_per_failure"] == 10.0
