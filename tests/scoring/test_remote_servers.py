"""Judging by reward servers: slices, lost servers, and servers of another reward."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from pathlib import Path

import pytest

from rl_sync.cluster.pending import Await, Pending
from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import RpcClient
from rl_sync.rewards.judgement import Completion, Judgement
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.rewards.rubric import ScoringRequest
from rl_sync.scoring import remote_servers, reward_server
from rl_sync.scoring.remote_servers import RemoteScorer, check_server
from rl_sync.scoring.reward_server import RewardServer
from rl_sync.scoring.reward_server_calls import SubmitCompletions
from rl_sync.settings.records import ConfigError

HOST, SECRET = "127.0.0.1", "a secret"


def items(count, text="2"):
    return [
        ScoringRequest({"prompt": f"{i}", "answer": f"{i}"}, Completion(text)) for i in range(count)
    ]


@contextlib.contextmanager
def server(port=0, reward="exact", secret=SECRET, **settings):
    settings = RewardSettings(**{"workers": 0, **settings})
    with contextlib.closing(
        RewardServer(reward, settings, host=HOST, port=port, secret=secret)
    ) as made:
        yield made


@contextlib.contextmanager
def judges(*addresses, reward="exact", wait_secs=20.0, say=print):
    made = RemoteScorer(
        reward,
        RewardSettings(addresses=",".join(addresses)),
        secret=SECRET,
        wait_secs=wait_secs,
        say=say,
        retry_secs=0.1,
    )
    with contextlib.closing(made):
        yield made


class Counted:
    """Judges in place of a server's workers, and counts the completions that it is given."""

    def __init__(self, wait_secs=0.0):
        self.seen: collections.Counter[str] = collections.Counter()
        self.judged, self._wait_secs = 0, wait_secs

    def __call__(self, reward, settings):
        return self

    def judge(self, asked):
        time.sleep(self._wait_secs * len(asked))
        self.seen.update(item.row["prompt"] for item in asked)
        return [Judgement(float(item.row["prompt"])) for item in asked]

    def close(self):
        pass


def test_judgements_come_in_the_order_of_the_completions_from_all_servers(monkeypatch):
    workers = [Counted(0.01), Counted(0.01)]
    made = iter(workers)
    monkeypatch.setattr(reward_server, "LocalScorer", lambda *given: next(made))
    with server() as one, server() as two, judges(one.address, two.address) as remote:
        judged = remote.judge(items(60))
        assert [one.score for one in judged] == [float(i) for i in range(60)]
        assert all(worker.seen for worker in workers), "one server did everything"
        assert sum((worker.seen for worker in workers), collections.Counter()) == {
            str(i): 1 for i in range(60)
        }
        assert remote.judged >= 60
        assert remote.judge([]) == []


def test_a_faster_server_takes_more(monkeypatch):
    slow, fast = Counted(0.1), Counted(0.001)
    made = iter([slow, fast])
    monkeypatch.setattr(reward_server, "LocalScorer", lambda *given: next(made))
    with server() as one, server() as two, judges(one.address, two.address) as remote:
        remote.judge(items(80))
    assert len(fast.seen) > 2 * len(slow.seen)


def test_what_a_lost_server_held_is_judged_by_another():
    (port,) = free_ports(HOST, 1)
    with server() as stays, judges(stays.address, f"{HOST}:{port}") as remote:
        with server(port, workers=1):
            found = []
            asking = threading.Thread(
                target=lambda: found.extend(
                    one for _ in range(40) for one in remote.judge(items(9))
                )
            )
            asking.start()
            time.sleep(0.5)
        asking.join(timeout=60)
        assert len(found) == 360
        assert all(one.is_known for one in found)


def test_a_server_that_comes_back_is_used_again():
    (port,) = free_ports(HOST, 1)
    said = []
    with judges(f"{HOST}:{port}", say=said.append) as remote:
        for _ in range(2):
            with server(port):
                assert [one.score for one in remote.judge(items(3))] == [0.0, 0.0, 1.0]


def test_who_finds_no_server_says_so_and_gives_up_with_their_addresses(monkeypatch):
    monkeypatch.setattr("rl_sync.scoring.remote_servers._SILENT_SECS", 0.2)
    (port,) = free_ports(HOST, 1)
    said = []
    with (
        judges(f"{HOST}:{port}", wait_secs=2.5, say=said.append) as remote,
        pytest.raises(RuntimeError, match=f"launch.wait_secs=2.5.*{HOST}:{port}"),
    ):
        remote.judge(items(1))
    assert len(said) == 1
    assert said[0].startswith(f"No reward server answers ({HOST}:{port}")


def test_a_server_with_another_reward_is_refused():
    with server(reward="final_answer") as other, judges(other.address) as remote:
        with pytest.raises(RuntimeError, match="its reward is 'final_answer', and not 'exact'"):
            remote.judge(items(1))
        with pytest.raises(ConfigError, match="Start it with the run's config"):
            check_server(other.address, SECRET, "exact")
        check_server(other.address, SECRET, "final_answer")


def test_a_file_of_the_users_must_be_the_same_on_both_sides(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def one(row, completion):\n    return 1.0\n")
    reward = f"{path}:one"
    with server(reward=reward) as other:
        check_server(other.address, SECRET, reward)
        path.write_text("def one(row, completion):\n    return 2.0\n")
        with pytest.raises(ConfigError, match=r"its mine\.py is another file"):
            check_server(other.address, SECRET, reward)


def test_a_server_with_another_secret_is_refused():
    with server(secret="another") as other, judges(other.address) as remote:
        with pytest.raises(RuntimeError, match=r"reward\.secret_path"):
            remote.judge(items(1))
        with pytest.raises(ConfigError, match=r"reward\.secret_path"):
            check_server(other.address, SECRET, "exact")


def test_completions_of_a_key_are_judged_once_however_often_they_are_handed_in(monkeypatch):
    counted = Counted()
    monkeypatch.setattr(reward_server, "LocalScorer", counted)
    with server() as one:
        client = RpcClient(one.address, "reward server", SECRET)
        assert client.call(Await("k", None, 0.0), 5.0) == Pending(0, is_known=False)
        for again in (
            SubmitCompletions("exact", items(2)),
            SubmitCompletions("exact", items(2)),
            None,
        ):
            judged = client.call(Await("k", again, 5.0), 9.0)
            assert [one.score for one in judged] == [0.0, 1.0]
        client.close()
    assert counted.seen == {"0": 1, "1": 1}


def test_a_row_that_cannot_be_sent_is_named():
    with server() as one, judges(one.address) as remote:
        row = {"prompt": "1", "answer": "1", "where": Path("/tmp")}
        with pytest.raises(TypeError, match="PosixPath cannot be sent"):
            remote.judge([ScoringRequest(row, Completion("1"))])


def test_work_that_was_withdrawn_goes_to_no_server():
    """As when the run that asked for it is over, or another server has judged it."""
    queue, over = remote_servers._Queue(), threading.Event()
    withdrawn, wanted = (remote_servers._Slice(key, items(1)) for key in "ab")
    with queue.holding([withdrawn]):
        pass
    with queue.holding([wanted]):
        assert queue.take(over) is wanted
        over.set()
        assert queue.take(over) is None
