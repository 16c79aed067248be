"""Classes of tools in the shape of TRL's, as environments."""

from __future__ import annotations

import pytest

from rl_sync.environments.hosts.inline_host import InlineHost
from rl_sync.environments.hosts.process_host import ProcessHost
from rl_sync.environments.interface import Message, Outcome, Reply, ToolCall, Turn
from rl_sync.environments.tool_class import ToolClass, is_tool_class

WORD = f"{__name__}:Word"


class Word:
    """Hides a word of the row."""

    inline = True

    def __init__(self, hint: str = "Guess."):
        self._hint, self.reward, self.closed = hint, 0.0, False

    def reset(self, word, seed=None, **row) -> str:
        self._word, self.seed, self.row = word, seed, row
        return f" {self._hint} It has {len(word)} letters."

    def guess(self, letter: str) -> list[int]:
        """Guesses a letter.

        Args:
            letter: The letter.
        """
        found = [i for i, one in enumerate(self._word) if one == letter]
        self.reward += len(found)
        return found

    async def guess_word(self, word: str) -> bool:
        """Guesses the word.

        Args:
            word: The word.
        """
        return word == self._word

    @classmethod
    def check(cls, hint: str = "Guess."):
        """Checks the options; no tool."""

    @property
    def expensive(self):
        raise AssertionError("properties are not read")

    def _hidden(self):
        pass

    def close(self):
        self.closed = True


class Named:
    """Has rewards by name, and no text of its own."""

    def reset(self, **row):
        self.row = row

    def act(self) -> None:
        """Acts."""

    def get_reward(self):
        return {"format": 1.0, "answer": 0.25}


def call(name, **arguments):
    return Reply("…", tool_calls=(ToolCall(name, arguments, "c1"),))


def test_public_methods_are_tools_and_the_text_of_reset_follows_the_prompt():
    environment = ToolClass(Word(), "Word")
    turn = environment.reset({"word": "adam", "prompt": "Play.", "level": 3}, 7)
    assert turn.messages == (Message("user", "Play. Guess. It has 4 letters."),)
    assert [tool["function"]["name"] for tool in turn.tools] == ["guess", "guess_word"]
    assert environment._made.seed == 7
    assert environment._made.row == {"prompt": "Play.", "level": 3}


def test_calls_are_answered_until_a_reply_has_none():
    made = Word()
    environment = ToolClass(made, "Word")
    environment.reset({"word": "adam"}, 0)
    for name, arguments, answer in (
        ("guess", {"letter": "a"}, "[0, 2]"),
        ("guess_word", {"word": "adam"}, "true"),
        ("guess", {"letter": 3}, "Error: in a call of guess"),
        ("close", {}, "Error: there is no tool 'close'"),
        ("expensive", {}, "Error: there is no tool 'expensive'"),
    ):
        turn = environment.step(call(name, **arguments))
        assert turn.messages[0].role == "tool"
        assert turn.messages[0].content.startswith(answer)
    assert environment.step(Reply("adam")) == Outcome({"reward": 2.0})
    environment.close()
    assert made.closed


def test_a_prompt_may_be_a_conversation():
    environment = ToolClass(Word(), "Word")
    system = {"role": "system", "content": "S"}
    for prompt, contents in (
        ([system, {"role": "user", "content": "U"}], ["S", "U Guess. It has 1 letters."]),
        ([system], ["S", " Guess. It has 1 letters."]),
    ):
        turn = environment.reset({"word": "a", "prompt": prompt}, 0)
        assert [message.content for message in turn.messages] == contents
    with pytest.raises(ValueError, match="must be a text, or a list of messages"):
        environment.reset({"word": "a", "prompt": [3]}, 0)


def test_rewards_may_have_names():
    environment = ToolClass(Named(), "Named")
    assert environment.reset({"prompt": "Go."}, 3) == Turn(
        (Message("user", "Go."),), tools=environment.toolbox.schemas
    )
    assert environment._made.row == {"prompt": "Go."}
    assert environment.step(Reply("x")).rewards == {"format": 1.0, "answer": 0.25}
    with pytest.raises(ValueError, match="one of them must begin the episode"):
        environment.reset({}, 0)


def test_a_reward_that_is_no_number_is_refused():
    made = Word()
    environment = ToolClass(made, "Word")
    environment.reset({"word": "a"}, 0)
    made.reward = "high"
    with pytest.raises(ValueError, match="the reward must be a number, or numbers by name"):
        environment.step(Reply("x"))


def test_a_class_without_tools_or_schemas_is_refused():
    class Toolless:
        reward = 0.0

        def reset(self):
            pass

    class Untyped(Toolless):
        def act(self, x):
            """Acts."""

    with pytest.raises(ValueError, match="Toolless has no tools"):
        ToolClass(Toolless(), "Toolless")
    with pytest.raises(ValueError, match="The tool act has no schema"):
        ToolClass(Untyped(), "Untyped")
    assert is_tool_class(Toolless())
    assert not is_tool_class(ToolClass(Named(), "Named"))


@pytest.mark.gate
@pytest.mark.parametrize("make", [InlineHost, ProcessHost])
def test_hosts_adapt_the_class(make):
    with make(f"{WORD}(hint='What?')") as host:
        host.begin(1, {"word": "adam"}, 0)
        ((_, turn),) = host.answers(60.0)
        assert turn.messages[0].content == " What? It has 4 letters."
        host.step(1, call("guess", letter="d"))
        ((_, turn),) = host.answers(60.0)
        assert turn.messages[0].content == "[1]"
        host.step(1, Reply("done"))
        assert host.answers(60.0) == [(1, Outcome({"reward": 1.0}))]
