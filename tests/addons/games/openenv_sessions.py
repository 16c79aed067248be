"""Sessions of the OpenEnv client at a real server; test_openenv.py runs these tests."""

import pytest

from rl_sync.addons.games.openenv_client import OpenEnvClient
from rl_sync.cluster.ports import free_ports
from rl_sync.environments.hosts.episode_limits import HostLimits
from rl_sync.environments.hosts.process_host import ProcessHost
from rl_sync.environments.interface import Outcome, Reply
from tests.addons.games.openenv_server import serving


@pytest.fixture(name="url", scope="module")
def _url():
    with serving() as url:
        yield url


def _said(turn):
    return turn.messages[0].content


def test_a_session_is_played_to_its_end(url):
    client = OpenEnvClient(url=url, options="length")
    first = client.reset({"prompt": "A game.", "length": 2}, seed=5)
    assert _said(first) == "A game.\n\nSay a word of 2 letters."
    second = client.step(Reply("<think>hm</think> ab "))
    assert (_said(second), second.reward) == ("Now 3 letters.", 0.25)
    assert _said(client.step(Reply("abc"))) == "Now 4 letters."
    assert client.step(Reply("abcd")) == Outcome({"reward": 1.0})
    client.close()


@pytest.mark.nightly
def test_sessions_beside_each_other_are_apart_and_lost_games_cost(url):
    reference = f"rl_sync.addons.games.openenv_client:OpenEnvClient(url={url!r})"
    with ProcessHost(reference, HostLimits(workers=3)) as host:
        for episode in range(3):
            host.begin(episode, {"prompt": "Play."}, seed=episode)
        _answers(host, 3)
        for episode, word in enumerate(["a", "ab", "b"]):
            host.step(episode, Reply(word))
        results = _answers(host, 3)
        assert results[1] == Outcome({"reward": -1.0})
        assert _said(results[0]) == _said(results[2]) == "Now 2 letters."


def _answers(host, count):
    found = {}
    while len(found) < count:
        found |= {answer.episode: answer.result for answer in host.answers(120.0)}
    return found


def test_another_field_can_be_shown_and_a_missing_one_is_named(url):
    client = OpenEnvClient(url=url, observation="seed")
    assert _said(client.reset({}, seed=7)) == "7"
    client.close()
    client = OpenEnvClient(url=url, observation="board")
    with pytest.raises(ValueError, match="no field 'board'; it has message, seed"):
        client.reset({}, seed=7)
    client.close()


def test_a_server_that_is_not_there_fails_the_episode(url):
    (port,) = free_ports("127.0.0.1", 1)
    client = OpenEnvClient(url=f"http://127.0.0.1:{port}")
    with pytest.raises(Exception, match=r"127\.0\.0\.1"):
        client.reset({}, seed=0)
    client.close()
