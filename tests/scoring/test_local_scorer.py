"""Worker processes that judge: their answers, their limits, and their end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.scoring.local_scorer import LocalScorer
from rl_sync.scoring.waiting_room import QueueTimeoutError
from tests.processes import lives

ROOT = Path(__file__).parents[2]
OWN = "tests.rewards.own"
HOLDER = """
import sys, threading, time
from pathlib import Path
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.scoring.local_scorer import LocalScorer

if __name__ == "__main__":
    judges = LocalScorer("tests.rewards.own:hostile", RewardSettings(workers=2))
    # From a thread that ends, as a server's may.
    item = ScoringRequest({}, Completion("x"))
    ask = threading.Thread(target=judges.judge, args=[[item] * 4])
    ask.start()
    ask.join()
    if sys.argv[1] == "stuck":
        for _ in range(2):
            judges._submit(judges._pool, [ScoringRequest({}, Completion("loop"))])
    time.sleep(0.5)
    server = judges._pool._server._process.pid
    workers = Path(f"/proc/{server}/task/{server}/children").read_text()
    print(server, workers, flush=True)
    time.sleep(1000)
"""


def items(*texts):
    return [ScoringRequest({"prompt": "1+1=", "answer": "2"}, Completion(text)) for text in texts]


@contextlib.contextmanager
def judging(reward, **settings):
    judges = LocalScorer(reward, RewardSettings(**settings))
    try:
        yield judges
    finally:
        judges.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_judgements_come_in_the_order_of_the_completions(workers):
    with judging("exact + 0 * format(pattern='.')", workers=workers) as judges:
        for _ in range(2):  # The second time it is known how long one takes.
            judged = judges.judge(items(*"2332" * 20))
            assert [one.score for one in judged] == [1.0, 0.0, 0.0, 1.0] * 20
        assert judges.judge([]) == []


def test_quick_rewards_need_no_worker():
    for reward in ("exact", "exact + 0.5 * length_band(greatest=3, unit='characters')"):
        with judging(reward, workers=2) as judges:
            assert not multiprocessing.active_children()
            before = judges.judged
            assert judges.judge(items("2", "3"))[0].components["exact"] == 1.0
            assert judges.judged == before + 2
    for reward in ("math", f"exact + {OWN}:tokens"):
        assert not Rubric(reward).is_quick


def test_a_completion_that_takes_too_long_or_kills_its_worker_costs_itself_alone():
    texts = ["ok", "sleep", "exit", "ok", "crash", "loop", "memory", "ok"]
    with judging(f"{OWN}:hostile", workers=2, limit_secs=1.0, attempts=1) as judges:
        judges.judge(items(*["ok"] * 50))  # Several are handed to a worker at once from here on.
        judged = judges.judge(items(*texts))
    assert [one.score for one in judged] == [1.0, None, None, 1.0, None, None, None, 1.0]
    took = "judging took longer than reward.limit_secs=1"
    assert [judged[1].why, judged[5].why] == [took, took]
    assert judged[2].why == "the worker that judged it ended with exit code 3"
    assert judged[4].why == "the worker that judged it was killed by SIGSEGV"
    assert "MemoryError" in judged[6].why


def test_a_reward_that_ends_its_worker_without_a_fault_is_noticed_at_once():
    with judging(f"{OWN}:hostile", workers=1, limit_secs=60.0, attempts=1) as judges:
        judges.judge(items("ok"))
        began = time.monotonic()
        lost, fine = judges.judge(items("exit without a fault", "ok"))
        assert time.monotonic() - began < 30
    assert (lost.score, fine.score) == (None, 1.0)
    assert lost.why == "the worker that judged it ended with exit code 0"


def test_the_clock_starts_when_a_worker_starts_on_the_completion():
    with judging(f"{OWN}:patient", workers=1, limit_secs=0.8, batch=1) as judges:
        judged = judges.judge(items(*["0.4"] * 5))  # The last ones wait 1.6 s for their turn.
    assert [one.score for one in judged] == [1.0] * 5


def test_workers_stay_warm_and_only_the_one_in_question_is_replaced():
    with judging(f"{OWN}:process", workers=1) as judges:
        (first,), (second,) = judges.judge(items("x")), judges.judge(items("x"))
        assert first == second != os.getpid()


@pytest.mark.gate
def test_what_could_not_be_judged_is_tried_again(tmp_path):
    for attempts, score in ((1, None), (2, 1.0)):
        with judging(f"{OWN}:once", workers=1, attempts=attempts) as judges:
            (judged,) = judges.judge(items(str(tmp_path / f"seen{attempts}")))
            assert judged.score == score


def test_a_batch_is_as_large_as_the_settings_allow():
    with judging(f"{OWN}:batch", workers=1, batch=4) as judges:
        assert [one.score for one in judges.judge(items(*"x" * 6))] == [4, 4, 4, 4, 2, 2]


@pytest.mark.gate
def test_completions_wait_for_room_in_the_queue():
    with judging(f"{OWN}:patient", workers=1, queue=2) as judges:
        first = threading.Thread(target=judges.judge, args=[items("1.5", "1.5")])
        first.start()
        time.sleep(0.3)
        with pytest.raises(QueueTimeoutError, match=r"1 completions waited 0\.1 s for room among"):
            judges.judge(items("0"), timeout_secs=0.1)
        assert judges.judge(items("0"), timeout_secs=30.0)[0].score == 1.0
        first.join()


def test_lost_workers_are_replaced_even_if_all_are_lost_at_once():
    with judging(f"{OWN}:process", workers=2) as judges:
        pids = {one.score for one in judges.judge(items(*"x" * 20))}
        for pid in pids:
            os.kill(int(pid), 9)
        after = judges.judge(items(*"x" * 20))
        assert all(one.is_known for one in after)
        assert not pids & {one.score for one in after}


def test_rewards_are_importable_without_jax():
    code = "import sys, rl_sync.scoring.local_scorer; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("case", ["idle", "stuck"])
def test_judges_end_with_who_started_them_even_if_it_is_killed(case, tmp_path):
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)
    holder = subprocess.Popen(
        [sys.executable, str(script), case],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    processes = [int(word) for word in holder.stdout.readline().split()]
    assert len(processes) == 3
    assert all(map(lives, processes))
    holder.kill()
    holder.communicate()
    deadline = time.monotonic() + 10
    while any(map(lives, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(lives, processes))


@pytest.mark.gate
def test_workers_say_once_that_they_have_prepared_the_reward():
    with judging("exact + tests.rewards.own:tokens", workers=2) as judges:
        assert judges.are_prepared(60)
        assert judges.are_prepared()
    with judging("exact", workers=0) as judges:
        assert judges.are_prepared()
    with judging(f"exact + {OWN}:NeedsDevices", workers=2) as judges:
        with pytest.raises(ValueError, match=r"exact .*NeedsDevices: a mesh of 64 devices"):
            judges.are_prepared(60)
        # It is up to the caller: what these can judge by, they do.
        assert judges.judge(items("2"))[0].is_known
