import asyncio
import math

import numpy as np
import pytest

from rl_sync.environments import validation
from rl_sync.environments.interface import Message, Outcome, Reply, Turn

QUESTION = (Message("user", "7 + 5?"),)


class Scripted:
    """Returns what it was given, whatever was asked."""

    def __init__(self, value):
        self.value = value
        self.is_closed = False

    def reset(self, task, seed):
        return self.value

    def step(self, reply):
        return self.value

    def close(self):
        self.is_closed = True


class Asynchronous(Scripted):
    async def reset(self, task, seed):
        return self.value

    async def step(self, reply):
        return self.value

    async def close(self):
        self.is_closed = True


@pytest.mark.parametrize("kind", [Scripted, Asynchronous])
def test_plain_and_async_environments_are_called_alike(kind):
    turn, outcome = Turn(QUESTION), Outcome({"correct": 1.0})
    asked, judged = kind(turn), kind(outcome)
    assert asyncio.run(validation.reset(asked, {}, 0)) is turn
    assert asyncio.run(validation.step(asked, Reply("12"))) is turn
    assert asyncio.run(validation.step(judged, Reply("12"))) is outcome
    asyncio.run(validation.close(judged))
    assert judged.is_closed


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (None, "must return a Turn, not None"),
        (Outcome({"correct": 1.0}), "must return a Turn, not Outcome"),
        (Turn(()), "a Turn with a message"),
        (Turn(list(QUESTION)), "messages as a tuple"),
        (Turn(({"role": "user", "content": "Hi?"},)), "Message records"),
        (Turn((Message("user", None),)), "content is a text"),
        (Turn((Message("", "Hi?"),)), "have a role"),
        (Turn((Message("assistant", "", ({"name": "look"},)),)), "ToolCall records"),
        (Turn(QUESTION, tools=({"name": "look"},)), "JSON schemas of functions"),
        (Turn(QUESTION, stop_strings="\n"), "stop_strings as a tuple"),
        (Turn(QUESTION, stop_strings=("",)), "stop strings that are texts"),
        (Turn(QUESTION, deadline_secs=0), "deadline_secs above 0"),
        (Turn(QUESTION, deadline_secs=math.inf), "deadline_secs above 0"),
        (Turn(QUESTION, reward=1.0), "no reward: no reply came before"),
        (Turn(QUESTION, after=-2), "after of at least -1"),
        (Turn(QUESTION, most_tokens=0), "most_tokens of at least 1"),
        (Turn(QUESTION, most_tokens=1.5), "most_tokens of at least 1"),
    ],
)
def test_a_first_turn_that_is_nonsense_is_refused_by_rule_and_method(value, rule):
    with pytest.raises(ValueError, match=rf"Scripted\.reset\(\) .*{rule}"):
        validation.check_turn(Scripted(value), value)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (None, "a Turn or an Outcome, not None"),
        (1.0, "a Turn or an Outcome, not 1.0"),
        (Turn(QUESTION, reward=math.nan), "the reward of a turn as a finite number, not nan"),
        (Outcome({"correct": math.nan}), r"rewards\['correct'\] as a finite number, not nan"),
        (Outcome({"correct": None}), r"rewards\['correct'\] as a finite number, not None"),
        (Outcome(1.0), "rewards by name"),
        (Outcome({"": 1.0}), "rewards names that are texts"),
        (Outcome({}), "a reward where the reason is 'done'"),
        (Outcome({"won": 1.0}, why=3), "say why in a text"),
        (Outcome({"correct": 1.0}, {"turns": math.inf}), r"metrics\['turns'\]"),
        (Outcome({"correct": 1.0}, reason="bored"), "a known reason, not 'bored'"),
        (Outcome({"correct": 1.0}, messages=("bye",)), "Message records"),
    ],
)
def test_an_answer_that_is_nonsense_is_refused_by_rule_and_method(value, rule):
    with pytest.raises(ValueError, match=rf"Scripted\.step\(\) .*{rule}"):
        validation.check_answer(Scripted(value), value)


@pytest.mark.parametrize(
    "value",
    [
        Turn(QUESTION, stop_strings=("\n",), deadline_secs=1.5, reward=-1.0),
        Outcome({"correct": np.float32(1.0), "short": True}, {"turns": 3}),
        Outcome({}, reason="environment failure"),
    ],
)
def test_proper_answers_pass(value):
    assert validation.check_answer(Scripted(value), value) is value


def test_a_long_value_is_shown_by_its_beginning():
    value = "a" * 1000
    with pytest.raises(ValueError, match=r"not 'a{199}…") as caught:
        validation.check_turn(Scripted(value), value)
    assert len(str(caught.value)) < 400


def test_an_outcome_without_rewards_may_say_why_it_could_not_be_judged():
    outcome = Outcome({}, why="nothing was posted")
    assert validation.check_answer(Scripted(outcome), outcome) is outcome
