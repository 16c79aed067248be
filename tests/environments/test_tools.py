import dataclasses
import threading
import time

import pytest

from rl_sync.environments import validation
from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.environments.dialogue.tool_call_text import call_format, read_reply
from rl_sync.environments.interface import Message, Outcome, Reply, ToolCall, Turn
from rl_sync.environments.tools import Tool, Toolbox, ToolEnvironment
from rl_sync.sandbox.layer import SandboxError
from tests.environments.families import family


def add(left: int, right: int) -> int:
    """Adds two numbers.

    Args:
      left: a number.
      right: another.
    """
    return left + right


def answer(function, **arguments):
    """Returns the text of a call's answer."""
    return Toolbox([function]).answer(ToolCall(Tool.of(function).name, arguments)).content


def returns(value):
    """Makes a tool that returns a value."""

    def tool() -> str:
        """Returns it."""
        return value

    return tool


def test_a_call_is_answered_by_the_tool_with_its_name_and_the_calls_id():
    call = ToolCall("add", {"left": 7, "right": 5}, "call00003")
    message = Toolbox([add]).answer(call)
    assert message == Message("tool", "12", name="add", tool_call_id="call00003")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a door", "a door"),
        (None, "null"),
        ({"é": [1, True]}, '{"é": [1, true]}'),
        ({1, }, "{1}"),
        ("half \ud800", "half ?"),
    ],
)  # fmt: skip
def test_a_result_becomes_text(value, text):
    assert answer(returns(value)).strip('"') == text


def test_a_wrong_argument_is_answered_with_its_error():
    text = answer(add, left=7, right="5")
    assert text == "Error: in a call of add, 'right' must be of type integer, not '5'."


def test_a_call_of_no_tool_is_answered_with_the_tools_that_there_are():
    message = Toolbox([add]).answer(ToolCall("sub", {}))
    assert message.content == "Error: there is no tool 'sub'; the tools are add."


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_an_exception_of_a_tool_is_its_answer(error):
    def fails() -> str:
        """Fails."""
        raise error("no")

    assert answer(fails) == f"Error: {error.__name__}: no"


def test_a_call_that_takes_too_long_is_answered_with_an_error_and_left_alone():
    end = threading.Event()

    def waits() -> str:
        """Waits."""
        end.wait(30)
        return "late"

    toolbox = Toolbox([waits], call_secs=0.05)
    began = time.monotonic()
    assert toolbox.answer(ToolCall("waits", {})).content.endswith("did not answer within 0.05 s.")
    assert time.monotonic() - began < 10
    assert toolbox.calls_left_alone == 1
    end.set()
    deadline = time.monotonic() + 10
    while toolbox.calls_left_alone and time.monotonic() < deadline:
        time.sleep(0.01)
    assert toolbox.calls_left_alone == 0


def test_the_limit_holds_outside_the_main_thread():
    texts = []
    toolbox = Toolbox([add])
    call = ToolCall("add", {"left": 1, "right": 2})
    thread = threading.Thread(target=lambda: texts.append(toolbox.answer(call).content))
    thread.start()
    thread.join()
    assert texts == ["3"]


def test_a_tool_may_have_a_time_limit_of_its_own():
    end = threading.Event()

    def waits() -> str:
        """Waits."""
        end.wait(30)
        return "late"

    own = dataclasses.replace(Tool.of(waits), call_secs=0.05)
    texts = [
        Toolbox([own], call_secs=20.0).answer(ToolCall("waits", {})).content,
        Toolbox([waits]).answer(ToolCall("waits", {}), most_secs=0.05).content,
    ]
    end.set()
    assert texts == ["Error: waits did not answer within 0.05 s."] * 2


def test_calls_of_a_reply_share_its_time():
    end = threading.Event()

    class Waiting(Sums):
        def __init__(self):
            ToolEnvironment.__init__(self, [self.wait], reply_secs=0.2)

        def wait(self) -> str:
            """Waits."""
            end.wait(30)
            return "late"

    calls = (ToolCall("wait", {}),) * 3
    first, second, third = Waiting().step(Reply("", calls)).messages
    end.set()
    assert first.content.startswith("Error: wait did not answer within 0.")
    assert second.content == third.content
    assert third.content == "Error: wait was not called: no time was left for this reply's calls."
    with pytest.raises(ValueError, match="a reply's calls must be above 0 s, not 0"):
        ToolEnvironment.__init__(Sums(), [add], reply_secs=0)


def test_a_sandbox_that_fails_is_not_the_calls_fault():
    def fails() -> str:
        """Fails."""
        raise SandboxError("no namespaces")

    with pytest.raises(SandboxError, match="no namespaces"):
        Toolbox([fails]).answer(ToolCall("fails", {}))


def test_tools_that_cannot_be_called_are_refused():
    async def later() -> str:
        """Later."""

    with pytest.raises(ValueError, match="later is async"):
        Tool.of(later)
    with pytest.raises(ValueError, match="names of their own, not add, add"):
        Toolbox([add, add])
    with pytest.raises(ValueError, match="above 0 s, not 0"):
        Toolbox([add], call_secs=0)


class Sums(ToolEnvironment):
    """Asks for a sum, and has a method as a tool."""

    def __init__(self):
        super().__init__([self.remember, add])
        self.memory = ""

    def remember(self, text: str) -> str:
        """Remembers a text.

        Args:
          text: the text.
        """
        self.memory = text
        return "ok"

    def question(self, task, seed):
        self.answer = task["answer"]
        return (Message("user", task["question"]),)

    def outcome(self, reply):
        return Outcome({"correct": float(reply.text == self.answer)}, {"memory": len(self.memory)})


TASK = {"question": "7 + 5?", "answer": "12"}


def test_an_episode_of_calls_ends_with_the_reply_that_has_none():
    environment = Sums()
    turn = environment.reset(TASK, 0)
    assert turn.messages == (Message("user", "7 + 5?"),)
    assert [tool["function"]["name"] for tool in turn.tools] == ["remember", "add"]
    calls = (
        ToolCall("add", {"left": 7, "right": 5}, "call00000"),
        ToolCall("remember", {"text": "abc"}, "call00001"),
    )
    turn = environment.step(Reply("", calls))
    assert [message.content for message in turn.messages] == ["12", "ok"]
    outcome = environment.step(Reply("12"))
    assert (outcome.rewards, outcome.metrics) == ({"correct": 1.0}, {"memory": 3})
    for value in (turn, outcome):
        assert validation.check_answer(environment, value) is value


def test_the_error_of_a_malformed_call_is_answered():
    environment = Sums()
    environment.reset(TASK, 0)
    assert environment.step(Reply("", malformed=("a", "b"))) == Turn(
        (Message("tool", "Error: a"), Message("tool", "Error: b"))
    )
    environment.malformed_role = "user"
    assert environment.step(Reply("", malformed=("a",))).messages == (Message("user", "Error: a"),)
    both = environment.step(Reply("", (ToolCall("add", {}),), malformed=("a",)))
    assert [message.role for message in both.messages] == ["tool", "tool"]


@pytest.mark.parametrize("name", ["chatml", "thinking", "headers", "brackets"])
def test_an_episode_of_tools_goes_over_the_bridge_of_each_family(name):
    tokenizer = family(name)
    bridge, reads, environment = Bridge(tokenizer), call_format(tokenizer), Sums()
    step = bridge.first(environment.reset(TASK, 0))
    assert "Remembers a text." in tokenizer.decode_all(step.ids.tolist())
    text = {
        "headers": '{"name": "add", "parameters": {"left": 7, "right": 5}}<|eot_id|>',
        "brackets": '[TOOL_CALLS][{"name": "add", "arguments": {"left": 7, "right": 5}}]</s>',
    }.get(
        name,
        '<think>\nadd\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"left": 7, "right":'
        " 5}}\n</tool_call><|im_end|>",
    )
    drawn = tokenizer.encode(text)
    reply = read_reply(tokenizer, drawn, is_cut=False, reads=reads)
    step = bridge.next(step.conversation, reply.message(), drawn, environment.step(reply))
    assert not step.begins_segment
    assert "12" in tokenizer.decode_all(step.ids.tolist())
