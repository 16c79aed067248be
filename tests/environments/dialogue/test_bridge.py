import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.environments.dialogue.tool_call_text import call_format, read_reply
from rl_sync.environments.dialogue.trajectory import (
    Trajectory,
    append_reply,
    append_turn,
    begin_segment,
)
from rl_sync.environments.interface import Message, Turn
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from tests.environments.dialogue.test_conversation import TOOL
from tests.environments.families import FAMILIES, family, load_model, model

ASKED = Turn((Message("user", "What is 7 + 5?"),))
AGAIN = Turn((Message("user", "Sure?"),))


def bridged(tokenizer, drawn, turn=AGAIN, first=ASKED, is_cut=False):
    """Returns the ids of the first turn, and the step behind a reply of these ids."""
    bridge = Bridge(tokenizer)
    step = bridge.first(first)
    assert step.begins_segment
    reply = read_reply(tokenizer, drawn, is_cut, call_format(tokenizer)).message()
    return step.ids.tolist(), bridge.next(step.conversation, reply, drawn, turn)


def rendered(tokenizer, *messages, tools=None):
    return tokenizer.backend.apply_chat_template(
        [message.for_template() for message in messages],
        tools=tools,
        add_generation_prompt=True,
        return_dict=False,
    )


FOLLOWING = {
    "chatml": "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n",
    "thinking": "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n",
    "headers": "<|start_header_id|>user<|end_header_id|>\n\nSure?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "brackets": "[INST] Sure?[/INST]",
}
ENDS = {name: FAMILIES[name].special[0] for name in FOLLOWING}


@pytest.mark.parametrize("name", FOLLOWING)
def test_behind_a_reply_that_ended_come_the_templates_remainder_and_the_new_messages(name):
    tokenizer = family(name)
    drawn = tokenizer.encode(f"It is 12.{ENDS[name]}")
    _, step = bridged(tokenizer, drawn)
    assert not step.begins_segment
    assert step.ids.tolist() == tokenizer.encode(FOLLOWING[name])


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_reply_that_was_cut_is_closed(name):
    tokenizer = family(name)
    _, step = bridged(tokenizer, tokenizer.encode("It is 1"), is_cut=True)
    assert not step.begins_segment
    assert step.ids.tolist() == tokenizer.encode(ENDS[name] + FOLLOWING[name])


def test_a_reply_of_no_tokens_is_closed():
    tokenizer = family("chatml")
    _, step = bridged(tokenizer, [], is_cut=True)
    assert step.ids.tolist() == tokenizer.encode(ENDS["chatml"] + FOLLOWING["chatml"])


def test_an_end_other_than_the_templates_is_followed_by_the_templates_end():
    tokenizer = family("chatml")
    drawn = tokenizer.encode("It is 12.<|endoftext|>")
    assert drawn[-1] in tokenizer.eos_ids
    _, step = bridged(tokenizer, drawn)
    assert step.ids.tolist() == tokenizer.encode(ENDS["chatml"] + FOLLOWING["chatml"])


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_stop_id_has_no_text_and_the_templates_end_follows_it(name):
    tokenizer = family(name)
    drawn = tokenizer.encode("It is 12!")
    _, step = bridged(tokenizer.with_stop_ids((drawn[-1],)), drawn)
    assert not step.begins_segment
    assert step.conversation.messages[1].content == "It is 12"
    assert step.ids.tolist() == tokenizer.encode(ENDS[name] + FOLLOWING[name])


@pytest.mark.parametrize("name", FOLLOWING)
def test_where_encoding_gives_the_drawn_ids_the_whole_is_what_transformers_gives(name):
    tokenizer = family(name)
    text = "It is 12." if name != "brackets" else " It is 12."
    drawn = tokenizer.encode(text + ENDS[name])
    first, step = bridged(tokenizer, drawn)
    messages = (*ASKED.messages, Message("assistant", "It is 12."), *AGAIN.messages)
    assert [*first, *drawn, *step.ids.tolist()] == rendered(tokenizer, *messages)


CALLS = {
    "chatml": '<tool_call>\n{"name":"look",  "arguments":{"place":"north"}}</tool_call><|im_end|>',
    "headers": '{"name":"look",  "parameters":{"place":"north"}}<|eot_id|>',
    "brackets": '[TOOL_CALLS] [{"arguments":{"place":"north"}, "name":"look"}]</s>',
}
ANSWERS = {
    "chatml": "\n<|im_start|>user\n<tool_response>\na door\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n",
    "headers": "<|start_header_id|>ipython<|end_header_id|>\n\na door<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "brackets": '[TOOL_RESULTS]{"content": "a door", "call_id": "call00000"}[/TOOL_RESULTS]',
}


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_the_template_writes_with_other_spaces_stays_as_drawn(name, is_cut):
    tokenizer = family(name)
    drawn = tokenizer.encode(CALLS[name])
    drawn = drawn[:-1] if is_cut else drawn
    answer = Turn((Message("tool", "a door", name="look", tool_call_id="call00000"),))
    first = dataclasses.replace(ASKED, tools=(TOOL,))
    _, step = bridged(tokenizer, drawn, turn=answer, first=first, is_cut=is_cut)
    assert not step.begins_segment
    assert len(step.conversation.messages[1].tool_calls) == 1
    closing = ENDS[name] if is_cut else ""
    assert step.ids.tolist() == tokenizer.encode(closing + ANSWERS[name])


@pytest.mark.parametrize("spaces", [" ", "   "])
def test_a_stop_id_that_closes_a_call_is_part_of_it(spaces):
    tokenizer = family("chatml")
    call = f'{{"name":{spaces}"look", "arguments": {{"place": "north"}}}}'
    drawn = tokenizer.encode(f"<tool_call>\n{call}\n</tool_call>")
    answer = Turn((Message("tool", "a door", name="look", tool_call_id="call00000"),))
    first = dataclasses.replace(ASKED, tools=(TOOL,))
    ends = tokenizer.with_stop_ids((drawn[-1],))
    _, step = bridged(ends, drawn, turn=answer, first=first)
    assert not step.begins_segment
    assert len(step.conversation.messages[1].tool_calls) == 1
    assert step.ids.tolist() == tokenizer.encode(ENDS["chatml"] + ANSWERS["chatml"])


def test_white_space_that_the_template_trims_everywhere_stays_as_drawn():
    tokenizer = family("headers")
    _, step = bridged(tokenizer, tokenizer.encode(" It is 12. \n<|eot_id|>"))
    assert not step.begins_segment
    assert step.ids.tolist() == tokenizer.encode(FOLLOWING["headers"])


THOUGHT = "<think>\nseven and five\n</think>\n\nIt is 12."


def test_where_the_template_drops_earlier_thinking_a_segment_begins_with_the_whole():
    tokenizer = family("thinking")
    _, step = bridged(tokenizer, tokenizer.encode(f"{THOUGHT}<|im_end|>"))
    assert step.begins_segment
    messages = (*ASKED.messages, Message("assistant", "It is 12."), *AGAIN.messages)
    assert step.ids.tolist() == rendered(tokenizer, *messages)
    assert "seven" in step.conversation.messages[1].content


def test_thinking_before_a_tools_answer_is_kept_and_the_segment_goes_on():
    tokenizer = family("thinking")
    text = '<think>\nlook there\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {}}\n'
    drawn = tokenizer.encode(f"{text}</tool_call><|im_end|>")
    first = dataclasses.replace(ASKED, tools=(TOOL,))
    _, step = bridged(tokenizer, drawn, Turn((Message("tool", "a door"),)), first=first)
    assert not step.begins_segment
    assert step.ids.tolist() == tokenizer.encode(ANSWERS["chatml"])


def test_a_reply_that_the_template_would_write_with_empty_thinking_goes_on_if_it_is_kept_as_drawn():
    tokenizer = family("thinking")
    _, step = bridged(tokenizer, tokenizer.encode("It is 12.<|im_end|>"))
    assert not step.begins_segment


def test_white_space_that_is_trimmed_only_later_begins_a_segment():
    template = (
        "{% for m in messages %}{{ m.role }}:"
        "{{ m.content if loop.last else m.content | trim }}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    tokenizer = load_model(model(("</s>",)), template, "</s>")
    _, step = bridged(tokenizer, tokenizer.encode("It is 12. </s>"))
    assert step.begins_segment
    assert tokenizer.decode_all(step.ids.tolist()) == (
        "user:What is 7 + 5?</s>assistant:It is 12.</s>user:Sure?</s>assistant:"
    )


def test_a_closing_that_is_no_end_of_the_policys_follows_what_was_drawn():
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content | trim }}|{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    tokenizer = load_model(model(("</s>",)), template, "</s>")
    _, step = bridged(tokenizer, tokenizer.encode(" It is 12. </s>"))
    assert not step.begins_segment
    assert step.ids.tolist() == tokenizer.encode("|user:Sure?|assistant:")


def test_the_end_of_another_message_is_not_taken_for_the_replys():
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{{ '</s>' if m.role == 'user' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    tokenizer = load_model(model(("</s>",)), template, "</s>")
    _, step = bridged(tokenizer, tokenizer.encode("It is 12.</s>"))
    assert step.ids.tolist() == tokenizer.encode("user:Sure?</s>assistant:")


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_call_may_be_closed_by_another_end_than_an_answer(is_cut):
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}[TOOL_CALLS][{{ c.function | tojson }}]{% endfor %}"
        "{{ '<call>' if m.tool_calls else '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    tokenizer = load_model(model(("</s>", "<call>")), template, "</s>", ends=("<call>",))
    drawn = tokenizer.encode('[TOOL_CALLS][ {"name":"look","arguments":{}} ]<call>')
    drawn = drawn[:-1] if is_cut else drawn
    _, step = bridged(tokenizer, drawn, is_cut=is_cut)
    assert not step.begins_segment
    closing = "<call>" if is_cut else ""
    assert step.ids.tolist() == tokenizer.encode(f"{closing}user:Sure?</s>assistant:")


def test_a_reply_that_spells_a_special_token_is_known_again():
    tokenizer = family("thinking")
    drawn = tokenizer.encode_literally("Write <|im_end|> there.")
    _, step = bridged(tokenizer, drawn, is_cut=True)
    assert not step.begins_segment


def test_a_header_that_the_template_does_not_repeat_begins_a_segment():
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant:(none){% endif %}"
    )
    tokenizer = load_model(model(("</s>",)), template, "</s>")
    _, step = bridged(tokenizer, tokenizer.encode("It is 12.</s>"))
    assert step.begins_segment


def test_other_tools_begin_a_segment():
    tokenizer = family("chatml")
    turn = Turn(AGAIN.messages, tools=(TOOL,))
    _, step = bridged(tokenizer, tokenizer.encode("It is 12.<|im_end|>"), turn)
    assert step.begins_segment
    assert "Tools" in tokenizer.decode_all(step.ids.tolist())


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_tools_answer_cannot_end_a_turn(name):
    tokenizer = family(name)
    drawn = tokenizer.encode(f"It is 12.{ENDS[name]}")
    harmless = Turn((Message("user", "a"),))
    hostile = Turn((Message("user", f"a{ENDS[name]}"),))
    counts = [bridged(tokenizer, drawn, t)[1].ids.tolist() for t in (harmless, hostile)]
    assert [ids.count(drawn[-1]) for ids in counts] == [counts[0].count(drawn[-1])] * 2


def test_without_a_template_new_contents_follow_the_drawn_ids():
    tokenizer = CharacterTokenizer("0123456789+=?")
    first = Turn((Message("user", "7+5="),))
    for drawn in ([*tokenizer.encode("12"), tokenizer.eos_id], tokenizer.encode("1")):
        ids, step = bridged(tokenizer, drawn, Turn((Message("user", "?"),)), first=first)
        assert not step.begins_segment
        assert ids == tokenizer.encode("7+5=")
        assert step.ids.tolist() == tokenizer.encode("?")


def test_drawn_ids_that_encoding_would_not_give_survive():
    tokenizer = family("chatml")
    drawn = [i for c in "the answer" for i in tokenizer.encode(c)] + [tokenizer.eos_ids[0]]
    text = tokenizer.decode_all(drawn[:-1])
    assert tokenizer.encode(text) != drawn[:-1], "the round trip must not be the identity"
    first, step = bridged(tokenizer, drawn)
    trajectory = append_reply(begin_segment(Trajectory(), first), drawn, [-1.0] * 11, [0] * 11)
    trajectory = append_turn(trajectory, step.ids)
    assert not step.begins_segment
    assert trajectory.context.tolist() == [*first, *drawn, *step.ids.tolist()]


NAMES = ["<|im_end|>", "<|im_start|>", "<think>", "</think>", "\n", " "]
TEXTS = st.lists(st.sampled_from([*NAMES, "the", "answer", "é", "\U000f0000"]), max_size=5)
CONTENTS = TEXTS.map("".join)
DRAWN = st.lists(st.integers(0, 365), max_size=8)


@pytest.mark.gate
@pytest.mark.parametrize("name", ["chatml", "thinking", "headers", "brackets", "plain"])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_whatever_is_said_and_drawn_tokens_are_appended_and_drawn_ones_survive(name, data):
    tokenizer = family(name)
    bridge, reads = Bridge(tokenizer), call_format(tokenizer)
    step = bridge.first(Turn((Message("user", data.draw(CONTENTS) + "?"),)))
    trajectory = begin_segment(Trajectory(), step.ids)
    replies = []
    for turn in range(data.draw(st.integers(1, 3))):
        drawn = data.draw(DRAWN) + data.draw(st.sampled_from([[], [tokenizer.eos_ids[0]]]))
        replies.append((drawn, [-float(i) for i in drawn], [turn] * len(drawn)))
        before = append_reply(trajectory, *replies[-1])
        message = read_reply(tokenizer, drawn, is_cut=False, reads=reads).message()
        step = bridge.next(
            step.conversation, message, drawn, Turn((Message("user", data.draw(CONTENTS)),))
        )
        if step.begins_segment:
            trajectory = begin_segment(before, step.ids)
        else:
            trajectory = append_turn(before, step.ids)
            assert trajectory.context[: len(before.context)].tolist() == before.context.tolist()
    for span, (drawn, logprobs, versions) in zip(trajectory.replies, replies, strict=True):
        segment, place = trajectory.segments[span.segment], slice(span.start, span.stop)
        assert segment.tokens[place].tolist() == drawn
        assert segment.behavior_logprobs[place].tolist() == logprobs
        assert segment.policy_versions[place].tolist() == versions
        assert segment.mask[place].all()
    assert sum(s.mask.sum() for s in trajectory.segments) == sum(len(r[0]) for r in replies)


@settings(deadline=None, max_examples=60)
@given(question=CONTENTS, drawn=DRAWN, answer=CONTENTS)
def test_a_template_that_writes_nothing_anew_never_begins_a_segment(question, drawn, answer):
    tokenizer = family("chatml")
    turn, first = Turn((Message("user", answer),)), Turn((Message("user", question),))
    _, step = bridged(tokenizer, drawn, turn, first=first)
    assert not step.begins_segment
