"""The master's program: remote calls that wait, without processes."""

from __future__ import annotations

import threading
import time

import pytest

from configs import arithmetic
from rl_sync.runtime.master import MasterProgram
from rl_sync.settings.reading import read_settings
from rl_sync.storage.ledger import read_ledger
from tests.observe.full_disk import files_of_at_most


@pytest.fixture
def master(tmp_path):
    config = arithmetic.get_config()
    config.sync.mode = "multi_explorer"
    config.task.arithmetic.greatest_operand = 19
    config.task.arithmetic.held_out_problems = 8
    config.master.reward_workers = 0
    config.trainer.steps = 10
    settings = read_settings({**config.to_dict(), "workdir": str(tmp_path)})
    program = MasterProgram(settings)
    program.methods["begin"](step=0, next_ordinal=0, again=[], next_lease=0)
    yield program.methods
    program.methods["close"]()


def fill(methods):
    """Leases groups until the staleness bound holds the explorers back."""
    methods["published"](version=0)
    while (answer := methods["lease"](explorer=1, poll_secs=0.0))["kind"] == "grant":
        methods["buffered"](lease_ids=[lease[0] for lease in answer["leases"]])
    return answer


def test_an_explorer_that_is_held_back_learns_the_reason_and_goes_on_at_a_publication(master):
    assert master["lease"](explorer=1, poll_secs=0.0)["reason"] == "the first weights"
    assert fill(master)["reason"] == "synchronization"
    answers = []
    waiting = threading.Thread(
        target=lambda: answers.append(master["lease"](explorer=2, poll_secs=20.0))
    )
    waiting.start()
    first = list(range(64))
    master["trained"](step=1, lease_ids=first, left_out=[], values={})
    master["published"](version=1)
    waiting.join(timeout=10)
    assert answers[0]["kind"] == "grant"
    assert (answers[0]["version"], answers[0]["exactly"]) == (1, False)


def test_explorers_that_wait_do_not_keep_the_master_busy(master):
    fill(master)
    threads = [
        threading.Thread(target=master["lease"], kwargs={"explorer": i, "poll_secs": 1.0})
        for i in (1, 2, 3)
    ]
    started = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.process_time() - started < 0.3


def asked_for_version(methods, version: int) -> tuple[threading.Thread, list[int]]:
    """Asks for the newest version, and waits up to 20 s for one; with what it is to be told."""
    answers: list[int] = []
    thread = threading.Thread(
        target=lambda: answers.append(methods["newest"](at_least=version, timeout_secs=20.0))
    )
    thread.start()
    return thread, answers


def test_who_waits_for_a_version_is_told_at_its_publication_without_asking_again(master):
    master["published"](version=0)
    waiting, answers = asked_for_version(master, 1)
    assert master["newest"]() == 0
    waiting.join(timeout=0.3)
    assert waiting.is_alive()
    master["published"](version=1)
    waiting.join(timeout=10)
    assert answers == [1]


def test_who_waits_for_a_version_is_told_when_the_run_is_being_stopped(master):
    master["published"](version=0)
    waiting, answers = asked_for_version(master, 1)
    master["stop"](reason="because")
    waiting.join(timeout=10)
    assert answers == [0]


def test_groups_whose_lease_is_over_are_named_when_the_trainer_takes_them(master):
    fill(master)
    assert master["claim"](lease_ids=[0, 1, 100_000]) == [100_000]
    master["refused"](lease_ids=[1], reason="too stale")
    assert master["claim"](lease_ids=[0, 1]) == [1]


def test_a_stop_reaches_every_role_with_its_next_sign_of_life(master, tmp_path):
    fill(master)
    status = {"role": "explorer1", "activity": "rollout", "since_secs": 0.0}
    assert master["heartbeat"](role="explorer1", status=status) == {"stop": None}
    master["stop"](reason="because")
    assert master["heartbeat"](role="explorer1", status=status) == {"stop": "because"}
    assert master["lease"](explorer=1, poll_secs=5.0) == {"kind": "finish", "reason": "because"}
    summary = master["close"]()
    assert summary["balance"]["leased"] == summary["balance"]["buffered"]
    assert read_ledger(tmp_path)[-1]["event"] == "balance"


def test_the_status_of_a_warm_up_counts_its_own_steps(master):
    status = {"role": "trainer", "activity": "warm_up", "since_secs": 0.0, "step": 7, "loss": 0.5}
    master["heartbeat"](role="trainer", status=status)
    master["phase"](phase="warm-up")
    shown = master["status"]()
    assert (shown["step"], shown["steps"], shown["loss"]) == (7, 400, 0.5)
    master["phase"](phase="rl")
    shown = master["status"]()
    assert (shown["step"], shown["steps"], shown["loss"]) == (0, 10, None)


def test_completions_are_judged_by_the_tasks_reward_model(master):
    items = [["12+11=", "32", "32"], ["12+11=", " 32", "32"], ["12+11=", "23", "32"]]
    assert master["judge"](items=items) == [1.0, 1.0, 0.0]


def test_the_status_gives_both_accuracies_where_held_out_prompts_are_trained_on_too(master):
    values = {"accuracy": 0.4, "problems": 50, "accuracy_seen": 0.4, "problems_seen": 50}
    master["evaluated"](moment="after RL", values=values)
    assert master["status"]()["message"] == (
        "held-out accuracy after RL: 40.0% (40.0% of 50 whose prompts are trained on too)"
    )


def test_a_run_whose_ledger_cannot_be_written_is_stopped_and_says_why(master, tmp_path):
    fill(master)
    with files_of_at_most(10):
        master["trained"](step=1, lease_ids=list(range(64)), left_out=[], values={})
    status = {"role": "trainer", "activity": "train", "since_secs": 0.0}
    stop = master["heartbeat"](role="trainer", status=status)["stop"]
    assert stop.startswith(f"{tmp_path}/ledger.jsonl cannot be written: File too large")
    master["fail"](reason="another")
    assert master["close"]()["result"]["failed"] == stop
    assert read_ledger(tmp_path)[-1]["event"] == "balance"
