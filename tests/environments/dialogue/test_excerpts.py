"""Excerpts: the middle of a long text is left out, and the text says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_sync.environments.dialogue.excerpts import MARK, excerpt, shortened
from rl_sync.environments.interface import Message, ToolCall, Turn


def test_an_excerpt_has_the_beginning_and_the_end_and_counts_what_is_missing():
    text = "a" * 500 + "b" * 500
    found = excerpt(text, 100)
    assert found == "a" * 36 + "\n[928 characters left out]\n" + "b" * 36
    assert 36 + 928 + 36 == 1000
    assert excerpt(text, 1000) is text
    assert excerpt(text, 10, mark="") == "aaaaabbbbb"
    assert excerpt(text, 1, mark="") == "a"


@pytest.mark.gate
@given(st.text(max_size=300), st.integers(50, 400))
def test_an_excerpt_is_as_long_as_it_may_be_or_the_text(text, most):
    found = excerpt(text, most)
    assert found == text if len(text) <= most else most - 5 <= len(found) <= most
    gap = found.partition(MARK.partition("{")[0])[0]
    assert text.startswith(gap)


def test_each_message_of_a_turn_is_cut_by_itself_and_keeps_its_fields():
    call = ToolCall("look", {"place": "north"}, "c1")
    turn = Turn(
        (
            Message("system", "short"),
            Message("assistant", "x" * 300, tool_calls=(call,)),
            Message("tool", "é" * 300, name="look", tool_call_id="c1"),
        ),
        stop_strings=("\n",),
        reward=0.5,
    )
    first, second, third = shortened(turn, 100, cuts=True).messages
    assert first == turn.messages[0]
    assert (second.tool_calls, third.name, third.tool_call_id) == ((call,), "look", "c1")
    assert len(second.content) <= 100
    assert third.content.startswith("é" * 20)
    with pytest.raises(ValueError, match=r"300 characters, more than .*observation_chars=299"):
        shortened(turn, 299, cuts=False)
    assert shortened(turn, 300, cuts=False) is turn
