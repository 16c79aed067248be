"""Environments of the sets of a mixture."""

import asyncio
import time

import numpy as np
import pytest

from rl_sync.environments.environment_catalog import branches, environments_of_sets, gives_rewards
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.hosts.episode_limits import HostLimits
from rl_sync.environments.hosts.host_choice import host_of
from rl_sync.environments.hosts.inline_host import InlineHost
from rl_sync.environments.interface import Reply, Turn, players_of
from rl_sync.environments.opponents import Seating
from rl_sync.images import Image
from tests.environments.own import Race
from tests.settings.changed import settings_with

NAME = "by_set(guesses='guess', tools='calculator')"
REFERENCE = NAME.replace("by_set(", "rl_sync.environments.environments_by_set:EnvironmentBySet(", 1)
SETS = "arithmetic + arithmetic(set='tools')"


def test_each_row_is_played_in_the_environment_of_its_set():
    made = Construction.of(REFERENCE).make()
    made.reset({"task_set": "tools", "prompt": "3*4", "answer": "12"}, 1)
    assert made.step(Reply("<3*4>")).messages[0].content == "12="
    assert made.step(Reply("12")).rewards == {"answer": 1.0}
    made.close()
    turn = made.reset({"task_set": "sums", "prompt": "1+1=", "answer": "2"}, 1)
    assert turn.messages[0].content == "1+1="
    assert made.step(Reply("2")).rewards == {}
    made.close()
    made.reset({"task_set": "tools", "prompt": "3*4", "answer": "12"}, 1)
    assert made.step(Reply("11")).rewards == {"answer": 0.0}


def test_what_is_known_of_it():
    assert environments_of_sets(NAME) == {"guesses": "guess", "tools": "calculator"}
    assert environments_of_sets("guess") == environments_of_sets(None) == {}
    assert not gives_rewards(NAME), "each set's own reward judges"
    assert not branches(NAME)
    assert set("0123456789+-*=<>eor") <= set(Construction.of(REFERENCE).charset)


def test_it_runs_in_processes_of_its_own():
    with pytest.raises(ValueError, match="does not say that it may run in the"):
        InlineHost(REFERENCE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("by_set", "needs an environment for a set"),
        ("by_set(tools='calculater')", "did you mean 'calculator'"),
        ("by_set(tools=\"agent(command='x')\")", "agents go alone"),
        ("by_set(tools='calculator(opening=3, open=4)')", "has no option 'open'"),
    ],
)
def test_mistakes_are_refused(name, message):
    reference = name.replace(
        "by_set", "rl_sync.environments.environments_by_set:EnvironmentBySet", 1
    )
    with pytest.raises(ValueError, match=message):
        Construction.of(reference).check()


def test_it_fits_a_mixture_with_these_sets():
    mixture = {"task__name": "mixture", "environment__max_tokens": 64}
    tools = {"environment__name": "by_set(tools='calculator')"}
    settings_with(**mixture, **tools, task__mixture__sets=SETS)


def test_worker_processes_play_the_sets_side_by_side():
    host = host_of(REFERENCE, HostLimits(workers=2, limit_secs=30.0))
    rows = {1: ("tools", "3*4", "12"), 2: ("sums", "1+1=", "2")}
    try:
        for episode, (name, prompt, answer) in rows.items():
            host.begin(episode, {"task_set": name, "prompt": prompt, "answer": answer}, 1)
        found = _answers(host, 2)
        assert {i: turn.messages[0].content for i, turn in found.items()} == {1: "3*4", 2: "1+1="}
        for episode in rows:
            host.step(episode, Reply("12"))
        found = _answers(host, 2)
        assert (found[1].rewards, found[2].rewards) == ({"answer": 1.0}, {})
        assert {one.reason for one in found.values()} == {"done"}
    finally:
        host.close()


BY_SET = "rl_sync.environments.environments_by_set:EnvironmentBySet"
RACE = f"{BY_SET}(race='tests.environments.own:Race', sums='calculator')"


def test_the_players_and_the_close_of_a_set_s_game_are_those_of_its_environment():
    made = Construction.of(RACE).make()
    asyncio.run(made.reset({"task_set": "race"}, 1))
    assert players_of(made) == 2
    before = Race.closed
    asyncio.run(made.close())
    assert Race.closed == before + 1
    made.reset({"task_set": "sums", "prompt": "1+1", "answer": "2"}, 1)
    assert players_of(made) == 1
    assert made.close() is None


@pytest.mark.gate
@pytest.mark.parametrize(("seat", "shown", "won"), [(0, "0:", 0.0), (1, "1:", 1.0)])
def test_a_set_may_be_a_game_of_several_players(seat, shown, won):
    host = host_of(RACE, HostLimits(workers=1, limit_secs=30.0))
    try:
        host.begin(1, {"task_set": "race"}, 1, Seating(seat, None, "first"))
        turn = _answers(host, 1)[1]
        assert (turn.messages[0].content, turn.seat, turn.learns) == (shown, seat, True)
        host.step(1, Reply("1"))
        assert isinstance(_answers(host, 1)[1], Turn)
        host.step(1, Reply("1" if seat == 0 else "2"))
        outcome = _answers(host, 1)[1]
        assert (outcome.rewards, outcome.metrics["won"]) == ({"won": won}, won)
    finally:
        host.close()


def test_what_sets_need_of_prompts_is_needed_of_all():
    one = f"{BY_SET}(sums='calculator', code='python')"
    assert Construction.of(one).has_tools
    assert not Construction.of(RACE).has_tools


def _answers(host, count):
    found, until = {}, time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        found |= dict(host.answers(0.5))
    return found


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [("Is \ufffc it?", "Is \ufffc it?"), ("Is <image> it?", "\ufffcIs <image> it?")],
)
def test_a_row_that_is_asked_once_shows_its_images_at_their_places(prompt, shown):
    image = Image.of_array(np.zeros((8, 8), np.uint8))
    made = Construction.of(REFERENCE).make()
    turn = made.reset({"task_set": "sums", "prompt": prompt, "images": [image]}, 1)
    assert turn.messages[0].content == shown
    assert turn.messages[0].images == (image,)
