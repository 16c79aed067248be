"""Processes of one program: all of them hear what the first one hears, at the same point."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import PeerLostError, RemoteError
from rl_sync.cluster.team import Follower, Leader, Team
from rl_sync.weights.ends_interface import WeightsMismatchError, WeightsTimeoutError

WAIT_SECS = 20.0
SECRET = "only ours"


def nobody() -> None:
    raise AssertionError("a follower does nothing of its own")


@pytest.fixture
def team():
    """Makes a leader and two followers, in threads of one process."""
    (port,) = free_ports("127.0.0.1", 1)
    address = f"127.0.0.1:{port}"
    with contextlib.ExitStack() as closing:
        leader = Leader("trainer", 2, address, SECRET)
        followers = [
            Follower("trainer", index, address, WAIT_SECS, WAIT_SECS, SECRET) for index in (1, 2)
        ]
        for member in (leader, *followers):
            closing.callback(member.close)
        yield leader, followers


def hear(followers, *points: str):
    """Returns what each follower hears at its points, one after the other."""

    def listen(follower: Follower) -> list:
        return [follower.agree(point, nobody) for point in points]

    with ThreadPoolExecutor(len(followers)) as pool:
        return list(pool.map(listen, followers))


def test_all_get_what_the_first_one_got_in_its_order(team):
    leader, followers = team
    counts = iter(range(10))
    assert [leader.agree(point, counts.__next__) for point in ("a", "b")] == [0, 1]
    assert hear(followers, "a", "b") == [[0, 1], [0, 1]]
    assert not leader._said, "what everybody has heard is let go"


def test_followers_wait_for_the_first_one(team):
    leader, followers = team
    heard = []
    threads = [
        threading.Thread(target=lambda f=follower: heard.append(f.agree("batch", nobody)))
        for follower in followers
    ]
    for thread in threads:
        thread.start()
    assert not heard
    leader.agree("batch", lambda: np.arange(3))
    for thread in threads:
        thread.join(WAIT_SECS)
    assert [rows.tolist() for rows in heard] == [[0, 1, 2]] * 2


def test_each_of_the_others_is_handed_its_share_between_what_all_agree_on(team):
    leader, followers = team
    counts = iter(range(10))

    def share(rows: list[str], index: int) -> list[str]:
        return rows[index : index + 1]

    assert leader.agree("before", counts.__next__) == 0
    assert leader.hand_out("rows", lambda: ["a", "b", "c"], share) == ["a", "b", "c"]
    assert leader.agree("after", counts.__next__) == 1
    heard = []
    for follower in followers:
        rows = [follower.agree("before", nobody), follower.hand_out("rows", nobody, share)]
        heard.append([*rows, follower.agree("after", nobody)])
    assert heard == [[0, ["b"], 1], [0, ["c"], 1]]


def test_an_error_in_sharing_is_everybodys(team):
    leader, followers = team
    with pytest.raises(ZeroDivisionError):
        leader.hand_out("rows", lambda: 1, lambda rows, index: rows // (index - 2))
    for follower in followers:
        with pytest.raises(ZeroDivisionError):
            follower.hand_out("rows", nobody, nobody)


def test_a_program_of_one_process_hands_out_nothing():
    assert Team().hand_out("rows", lambda: ["a"], nobody) == ["a"]


def test_an_error_of_the_first_one_is_everybodys(team):
    leader, followers = team

    def late() -> None:
        raise WeightsTimeoutError("nobody came")

    def changed() -> None:
        raise WeightsMismatchError(3, "aa", "bb")  # Does not survive being sent as it is.

    with pytest.raises(WeightsTimeoutError):
        leader.agree("weights", late)
    with pytest.raises(WeightsMismatchError):
        leader.agree("weights", changed)
    for follower in followers:
        with pytest.raises(WeightsTimeoutError, match="nobody came"):
            follower.agree("weights", nobody)
        with pytest.raises(RuntimeError, match="WeightsMismatchError: The weights of version 3"):
            follower.agree("weights", nobody)


def test_what_is_a_part_of_something_agreed_on_is_not_told_by_itself(team):
    leader, followers = team
    assert leader.agree("grant", lambda: leader.agree("call lease", lambda: 7) + 1) == 8
    assert hear(followers, "grant") == [[8], [8]]


def test_another_thread_agrees_by_itself(team):
    leader, followers = team
    saving = leader.thread("weights")
    saving("next version", lambda: 4)
    leader.agree("batch", lambda: "groups")
    assert [f.thread("weights")("next version", nobody) for f in followers] == [4, 4]
    assert hear(followers, "batch") == [["groups"], ["groups"]]


def test_processes_that_have_gone_different_ways_are_found_out(team):
    leader, (follower, _) = team
    leader.agree("call judge", lambda: 1)
    with pytest.raises(
        RemoteError, match=r"turn 1 .*first is at 'call judge', process 1 at 'batch'"
    ):
        follower.agree("batch", nobody)
    leader._said.clear()


def test_a_first_process_that_is_lost_or_slow_is_named(team):
    leader, (follower, other) = team
    other._wait_secs = 0.0
    with pytest.raises(PeerLostError, match=r"Process 2 of trainer has waited 0 s .* 'batch'"):
        other.agree("batch", nobody)
    leader.agree("stop", lambda: None)
    follower.agree("stop", nobody)
    leader._said.clear()
    leader.close()
    with pytest.raises(PeerLostError, match="first process of trainer"):
        follower.agree("batch", nobody)


def test_a_single_process_agrees_with_itself():
    team = Team()
    assert team.leads
    assert team.agree("batch", lambda: 3) == team.thread("weights")("x", lambda: 3) == 3
