"""Rewards that misbehave: each costs its own completion alone, and leaves no process behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from pathlib import Path

import pytest

from rl_sync.isolation.codec import decode, encode
from rl_sync.rewards.judgement import Completion, Judgement
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.scoring.local_scorer import LocalScorer
from rl_sync.scoring.remote_servers import RemoteScorer
from rl_sync.scoring.reward_server import RewardServer
from tests.processes import lives

OWN = "tests.rewards.misbehaving"
REWARD = f"{OWN}:misbehaves"
UNKNOWN = {
    "surrogate in an error": r"ValueError: half of a pair: \ud83d",
    "sys.exit": "SystemExit: 3",
    "sys.exit with a text": "SystemExit: that is all",
    "interrupt": "KeyboardInterrupt",
    "outcome": "Outcome: skipped",
    "no words": "NoWordsError",
    "unprintable": "Unprintable",
    "huge integer": "finite",
    "huge negative integer": "finite",
    "huge judgement": "finite",
    "huge component": "finite",
    "more than float32": "finite",
    "nan": "finite",
    "nan of numpy": "finite",
    "infinity": "finite",
    "component without a number": "finite",
    "complex": "not a number",
    "recursion": "RecursionError",
}
FORKS = ["fork that returns", "fork that raises", "fork that exits", "fork that sleeps"]


def item(text, **row):
    return ScoringRequest({"prompt": "1+1=", "answer": "2", **row}, Completion(text))


@contextlib.contextmanager
def local(reward=REWARD, **settings):
    made = LocalScorer(reward, RewardSettings(**{"workers": 2, "attempts": 1, **settings}))
    with contextlib.closing(made):
        yield made


@contextlib.contextmanager
def served(reward=REWARD, **settings):
    settings = RewardSettings(**{"workers": 2, "attempts": 1, **settings})
    with (
        contextlib.closing(
            RewardServer(reward, settings, host="127.0.0.1", port=0, secret="a secret")
        ) as server,
        contextlib.closing(
            RemoteScorer(
                reward,
                RewardSettings(addresses=server.address),
                secret="a secret",
                wait_secs=20.0,
                retry_secs=0.1,
            )
        ) as judges,
    ):
        yield judges


def ended(pids: Path, count: int) -> bool:
    """Waits until noted processes have ended."""
    noted = [int(line) for line in pids.read_text().split()]
    assert len(noted) >= count
    deadline = time.monotonic() + 10
    while any(map(lives, noted)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(lives, noted))


def test_each_fault_of_a_reward_is_a_judgement(subtests):
    for suffix, text in itertools.product(("", "_later", "_in_batches"), UNKNOWN):
        with subtests.test(f"{text}{suffix}"):
            (judged,) = Rubric(f"{REWARD}{suffix}").judge([item(text)], limit_secs=10.0)
            assert judged.score is None
            assert UNKNOWN[text] in judged.why
            assert len(judged.why) < 1000


@pytest.mark.parametrize(
    "text",
    ["decimal", "fraction", "number of numpy", "array of one number", "judgement of arrays"],
)
def test_numbers_of_other_classes_are_scores(text):
    (judged,) = Rubric(REWARD).judge([item(text)])
    assert judged.score == 0.5
    assert type(judged.score) is float


def test_a_sum_that_is_no_finite_number_is_unknown():
    (judged,) = Rubric(f"1e300 * {REWARD} + 1e300 * exact + {REWARD}").judge([item("2")])
    assert judged.score is None
    assert "finite" in judged.why


@pytest.mark.parametrize("where", [local, served])
def test_a_fault_costs_its_own_completion_alone(where):
    texts = [text for fault in UNKNOWN for text in (fault, "fine")]
    with where() as judges:
        judges.judge([item("fine")] * 20)  # Several are handed to a worker at once from here on.
        judged = judges.judge([item(text) for text in texts])
        assert [one.score for one in judged] == [None, 1.0] * len(UNKNOWN)
        for one in judged:
            assert decode(encode(one.why)) == one.why.encode().decode()
        assert judges.judge([item("fine")])[0].score == 1.0


@pytest.mark.gate
@pytest.mark.parametrize("where", [local, served])
def test_text_is_clean_where_it_leaves_the_reward(where):
    with where() as judges:
        reason, codes, long = judges.judge(
            [item("surrogate in a reason"), item("escape codes"), item("long reason")]
        )
    assert reason.score == codes.score == long.score == 1.0
    assert reason.why == r"half of a pair: \ud83d"
    assert set(reason.components) == {r"misbehaves/a\udc00b", "misbehaves"}
    assert reason.answer == r"\udfff"
    assert set(codes.components) == {r"misbehaves/red\x1b[31m", "misbehaves"}
    assert codes.why == r"bell \x07"
    assert len(long.why) < 20_000


def test_rows_of_any_json_can_be_judged_by_servers():
    texts = [r'"half of a pair \ud83d"', "1" + "0" * 60, '{"\\udc00": [-1' + "0" * 30 + "]}"]
    with served("exact") as judges:
        for text in texts:
            asked = item("2", more=json.loads(text))
            assert judges.judge([asked])[0].score == 1.0
            assert decode(encode(asked.row["more"])) == asked.row["more"]


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize("where", [local, served])
def test_processes_that_a_reward_forks_end_with_its_judgement(where, tmp_path):
    pids = tmp_path / "pids"
    with where() as judges:
        for text in (*FORKS, "fork of a fork", "many forks", "fine"):
            (judged,) = judges.judge([item(text, pids=str(pids))])
            assert judged.score == 1.0, (text, judged.why)
        assert ended(pids, 22)  # A fork of a fork may end before it is noted.
        several = judges.judge([item(text, pids=str(pids)) for text in FORKS * 5])
        assert [one.score for one in several] == [1.0] * 20
        assert ended(pids, 32)


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("where", [local, served])
@pytest.mark.parametrize("text", ["process", "program"])
def test_processes_that_a_reward_leaves_end_with_the_workers(where, text, tmp_path):
    pids = tmp_path / "pids"
    with where() as judges:
        (judged,) = judges.judge([item(text, pids=str(pids))])
        assert judged.score == 1.0
    assert ended(pids, 1)


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("where", [local, served])
@pytest.mark.parametrize("text", ["wait for a fork", "wait for a program"])
def test_processes_of_a_completion_that_takes_too_long_end_with_their_worker(where, text, tmp_path):
    pids = tmp_path / "pids"
    with where(limit_secs=1.0) as judges:
        judged = judges.judge([item(text, pids=str(pids)), item("fine")])
        assert [one.score for one in judged] == [None, 1.0]
        assert "limit_secs" in judged[0].why
        assert ended(pids, 1)


def test_a_fork_that_returns_never_goes_on_where_the_caller_judges(tmp_path):
    here, pids = os.getpid(), tmp_path / "pids"
    with local(workers=0) as judges:
        (judged,) = judges.judge([item("fork that returns", pids=str(pids))])
    assert os.getpid() == here, "two processes would go on from here"
    assert judged.score == 1.0
    assert ended(pids, 1)


def test_a_judgement_says_what_its_number_is():
    with pytest.raises(ValueError, match="finite"):
        Judgement(10**400)
