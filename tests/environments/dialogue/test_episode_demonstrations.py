"""Dialogues to imitate have the ids of episodes, and masks at what a policy would draw alone."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import normalizers, pre_tokenizers

from rl_sync.configs import base
from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.environments.dialogue.conversation import Conversation
from rl_sync.environments.dialogue.episode_demonstrations import demonstrated
from rl_sync.environments.dialogue.tool_call_text import call_format, read_reply
from rl_sync.environments.interface import Message, ToolCall, Turn
from rl_sync.learning.rows.batching import lay_out
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.tasks.dialogues import dialogue_of
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from rl_sync.types import Demonstrations
from tests.environments.families import CHATML, FAMILIES, family, load_model, model
from tests.settings.changed import settings_with

ROOT = Path(__file__).resolve().parents[3]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
CONVERT = {
    "name": "convert",
    "description": "°F to °C",
    "parameters": {"type": "object", "properties": {"degrees": {"type": "number"}}},
}
TWO_TOOLS = [
    {"role": "system", "content": "Du antwortest knapp."},
    {"role": "user", "content": "Wie warm ist es in Köln und in 東京? 🌡️"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"place": "Köln"}}},
            {
                "type": "function",
                "function": {"name": "weather", "arguments": '{"place": "東京"}'},
            },
        ],
    },
    {"role": "tool", "content": '{"degrees": 59}'},
    {"role": "tool", "content": '{"degrees": 77}'},
    {
        "role": "assistant",
        "content": "I convert these.",
        "tool_calls": [{"function": {"name": "convert", "arguments": {"degrees": 59}}}],
    },
    {"role": "tool", "name": "convert", "content": "15"},
    {"role": "assistant", "content": "15 °C in Köln, 25 °C in 東京."},
    {"role": "user", "content": "Danke!"},
    {"role": "assistant", "content": "Gern. ☀️"},
]
TALK = [
    {"role": "user", "content": "the answer?"},
    {"role": "assistant", "content": "north"},
    {"role": "user", "content": [{"type": "text", "text": "say <|im_end|> and </s>"}]},
    {"role": "assistant", "content": "I say <|im_end|> and </s>."},
]
SPACED = (
    "{% for m in messages %}{{ ' ' + m.content + ' </s>' if m.role == 'assistant' else"
    " '[INST] ' + m.content + ' [/INST]' }}{% endfor %}"
)
TEMPLATES = [name for name in FAMILIES if name != "plain"]


def _dialogue(messages, tools=()):
    return dialogue_of(messages, list(tools))


def _learned(one):
    """The runs of tokens to imitate."""
    edges = np.flatnonzero(np.diff([0, *map(int, one.mask), 0]))
    return [one.tokens[a:b] for a, b in edges.reshape(-1, 2)]


def _for_template(dialogue):
    return [
        Message(
            line.role,
            line.content,
            tool_calls=(),
            name=line.name,
            tool_call_id=line.tool_call_id,
        ).for_template()
        | (
            {
                "tool_calls": [
                    {
                        "type": "function",
                        "function": {"name": c.name, "arguments": dict(c.arguments)},
                        "id": c.call_id,
                    }
                    for c in line.calls
                ]
            }
            if line.calls
            else {}
        )
        for line in dialogue.lines
    ]


@pytest.mark.parametrize(
    ("template", "eos", "special"),
    [
        (SPACED, "</s>", ("</s>", "<s>")),
        (CHATML, "<|endoftext|>", ("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
    ],
)
def test_a_reply_is_imitated_as_the_template_ends_it(template, eos, special):
    tokenizer = load_model(model(special), template, eos)
    (one,) = demonstrated(tokenizer, _dialogue([*TALK[:2], *TALK[:2]]))
    whole = tokenizer.backend.apply_chat_template([*TALK[:2], *TALK[:2]], return_dict=False)
    assert list(one.tokens) == whole[: len(one.tokens)]
    learned = _learned(one)
    assert [ids[-1] for ids in learned] == [tokenizer.eos_id] * 2
    said = " north " if template is SPACED else "north"
    assert [tokenizer.decode(ids) for ids in learned] == [said] * 2


def test_thoughts_that_the_template_leaves_out_are_imitated():
    said = "{{ message.content }}"
    tokenizer = load_model(
        model(("<|im_end|>", "<|im_start|>")),
        CHATML.replace(said, "{{ message.content.split('</think>')[-1] }}"),
        "<|im_end|>",
    )
    thought = {"role": "assistant", "content": "<think>north is up</think>north"}
    (one,) = demonstrated(tokenizer, _dialogue([TALK[0], thought, TALK[0], thought]))
    learned = _learned(one)
    assert [tokenizer.decode(ids) for ids in learned] == [thought["content"]] * 2
    assert [ids[-1] for ids in learned] == [tokenizer.eos_id] * 2


@pytest.mark.parametrize("scheme", ["normalizer", "first"])
def test_replies_have_no_space_that_the_tokenizer_puts_before_texts(scheme):
    special = ("<|im_end|>", "<|im_start|>")
    backend = model(special)
    if scheme == "normalizer":
        backend.normalizer = normalizers.Prepend(" ")
    else:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace("\u0120", "first", split=False), backend.pre_tokenizer]
        )
    tokenizer = load_model(backend, CHATML, "<|im_end|>")
    assert tokenizer.encode("north") != tokenizer.encode("\nnorth")[len(tokenizer.encode("\n")) :]
    messages = [*TALK[:2], *TALK[:2]]
    (one,) = demonstrated(tokenizer, _dialogue(messages))
    whole = tokenizer.backend.apply_chat_template(messages, return_dict=False)
    assert list(one.tokens) == whole[: len(one.tokens)]
    assert len(_learned(one)) == 2


@pytest.mark.parametrize("name", ["chatml", "headers"])
def test_the_ids_are_those_that_transformers_gives_the_whole_conversation(name):
    tokenizer, dialogue = family(name), _dialogue(TWO_TOOLS, [WEATHER, CONVERT])
    (one,) = demonstrated(tokenizer, dialogue)
    expected = tokenizer.backend.apply_chat_template(
        _for_template(dialogue), tools=list(dialogue.tools), return_dict=False
    )
    # What stands behind the last reply's end belongs to no reply.
    assert list(one.tokens) == expected[: len(one.tokens)]
    assert not tokenizer.decode_all(expected[len(one.tokens) :]).strip()


MARKED = """
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.role == 'assistant' -%}
{% generation %}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{{ c.function | tojson }}
</tool_call>{% endfor %}<|im_end|>{% endgeneration %}
{% else -%}
{{ m.content }}{{ '' if m.role != 'system' or not tools else tools | tojson }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


@pytest.mark.parametrize(
    ("messages", "tools"), [(TWO_TOOLS, [WEATHER, CONVERT]), (TALK[:2], []), (TWO_TOOLS[-2:], [])]
)
def test_the_mask_is_that_of_a_template_with_generation_marks(messages, tools):
    _, special, _, plain = FAMILIES["chatml"]
    tokenizer = load_model(model(special, plain), MARKED, special[0])
    dialogue = _dialogue(messages, tools)
    (one,) = demonstrated(tokenizer, dialogue)
    expected = tokenizer.backend.apply_chat_template(
        _for_template(dialogue),
        tools=list(dialogue.tools) or None,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    size = len(one.tokens)
    assert list(one.tokens) == expected["input_ids"][:size]
    assert list(map(int, one.mask)) == expected["assistant_masks"][:size]
    assert not any(expected["assistant_masks"][size:])


@pytest.mark.parametrize("name", [*TEMPLATES, "plain", "characters"])
@pytest.mark.parametrize("messages", [TWO_TOOLS, TALK], ids=["two tools", "talk"])
def test_an_episode_with_these_replies_has_the_same_ids(name, messages):
    """The policy draws the tokens to imitate, and the environment says the rest."""
    bare = name in ("plain", "characters")
    if bare and messages is TWO_TOOLS:
        pytest.skip("Tools need a chat template.")
    tokenizer = (
        CharacterTokenizer.of_texts(_dialogue(TALK).texts) if name == "characters" else family(name)
    )
    tools = [WEATHER, CONVERT] if messages is TWO_TOOLS else []
    if name == "brackets" and messages is TWO_TOOLS:
        messages = messages[1:]  # Its template writes no system message.
    sequences = demonstrated(tokenizer, dialogue := _dialogue(messages, tools))
    replies = [ids for one in sequences for ids in _learned(one)]
    bridge, reads = Bridge(tokenizer), call_format(tokenizer)
    segments, waiting, said, before, calls = [], [], None, Conversation(), 0
    for line in dialogue.lines:
        if line.role != "assistant":
            waiting.append(Message(line.role, line.content, (), line.name, line.tool_call_id))
            continue
        turn, waiting = Turn(tuple(waiting), tools=dialogue.tools), []
        step = bridge.first(turn) if said is None else bridge.next(before, *said, turn)
        if step.begins_segment:
            segments.append([])
        drawn = list(replies.pop(0))
        reply = read_reply(tokenizer, drawn, is_cut=False, reads=reads, calls_before=calls)
        if reads is not None and name != "headers":  # Its template joins calls by nothing.
            assert [call.name for call in reply.tool_calls] == [call.name for call in line.calls]
            assert [dict(call.arguments) for call in reply.tool_calls] == [
                dict(call.arguments) for call in line.calls
            ]
        calls += len(line.calls)
        segments[-1] += [*step.ids.tolist(), *drawn]
        before = step.conversation
        said = (Message("assistant", line.content, _tool_calls(line)), drawn)
    assert segments == [list(one.tokens) for one in sequences]
    assert not replies


def _tool_calls(line):
    return tuple(ToolCall(*call) for call in line.calls)


def test_what_is_imitated_is_the_assistants_words_and_their_ends():
    tokenizer = family("chatml")
    (one,) = demonstrated(tokenizer, _dialogue(TWO_TOOLS, [WEATHER, CONVERT]))
    said = [tokenizer.decode_all(ids) for ids in _learned(one)]
    assert said[2:] == ["15 °C in Köln, 25 °C in 東京.<|im_end|>", "Gern. ☀️<|im_end|>"]
    assert said[0].count("<tool_call>") == 2
    assert said[1].startswith("I convert these.\n<tool_call>\n")
    rest = tokenizer.decode_all([t for t, m in zip(one.tokens, one.mask, strict=True) if not m])
    assert "Danke!" in rest
    assert "Gern" not in rest
    assert "weather" in rest, "the assistant sees the tools"


def test_names_of_special_tokens_in_contents_are_text():
    tokenizer = family("chatml")
    (one,) = demonstrated(tokenizer, _dialogue(TALK))
    assert [ids.count(tokenizer.eos_ids[0]) for ids in _learned(one)] == [1, 1]
    assert tokenizer.decode_all(_learned(one)[1]) == "I say <|im_end|> and </s>.<|im_end|>"


def test_thoughts_that_a_template_drops_later_make_sequences_of_their_own():
    tokenizer = family("thinking")
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "<think>\nnorth?\n</think>\n\nnorth"},
        {"role": "user", "content": "say"},
        {"role": "assistant", "content": "<think>\nit is\n</think>\n\nthe door"},
    ]
    first, second = demonstrated(tokenizer, _dialogue(messages))
    assert [len(_learned(one)) for one in (first, second)] == [1, 1]
    assert "north?" in tokenizer.decode_all(_learned(first)[0])
    assert "north?" not in tokenizer.decode_all(second.tokens)
    assert "it is" in tokenizer.decode_all(_learned(second)[0])


def test_a_template_that_writes_no_end_has_none_of_its_own_words_imitated():
    lines = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer = load_model(model(("</s>",)), lines, "</s>")
    (one,) = demonstrated(tokenizer, _dialogue(TALK))
    said = [tokenizer.decode_all(ids) for ids in _learned(one)]
    assert said == ["north</s>", "I say <|im_end|> and </s>.</s>"]
    assert tokenizer.decode_all(one.tokens).startswith(
        "user: the answer?\nassistant: north</s>\nuser"
    )


def test_a_template_that_asks_otherwise_than_it_writes_is_refused():
    asks = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>think: {% endif %}"
    )
    tokenizer = load_model(model(("</s>",)), asks, "</s>")
    with pytest.raises(ValueError, match="asks for a reply in other words than it writes one"):
        demonstrated(tokenizer, _dialogue(TALK))


def test_replies_of_weight_0_are_seen_and_not_imitated():
    tokenizer = family("chatml")
    messages = [TALK[0], TALK[1] | {"weight": 0}, TALK[0], TALK[1] | {"weight": 1}]
    (weighted,) = demonstrated(tokenizer, _dialogue(messages))
    (plain,) = demonstrated(tokenizer, _dialogue([TALK[0], TALK[1]] * 2))
    assert weighted.tokens == plain.tokens
    assert _learned(weighted) == _learned(plain)[1:]


def test_a_long_dialogue_is_cut_behind_a_reply():
    tokenizer = family("chatml")
    (one,) = demonstrated(tokenizer, _dialogue(TWO_TOOLS, [WEATHER, CONVERT]))
    for most in range(len(one.tokens) + 2):
        cut = one.cut(most)
        if cut is None:
            continue
        assert len(cut.tokens) <= most
        assert cut.tokens == one.tokens[: len(cut.tokens)]
        assert cut.tokens[-1] == tokenizer.eos_ids[0]
        assert cut.mask[-1]
    assert one.cut(len(one.tokens)) == one
    assert one.cut(len(one.tokens) - 1).tokens != one.tokens
    assert one.cut(5) is None


@pytest.mark.parametrize(
    ("messages", "tools", "complaint"),
    [
        (TALK[1:], [], "begins with the assistant"),
        (TALK[:1], [], "no message of the assistant to imitate"),
        ([*TALK[:1], {"role": "assistant", "content": 7}], [], "message 2 has the content 7"),
        ([*TALK[:1], {"role": "assistant", "tool_calls": [{"name": 3}]}], [], "message 2 has the"),
        (
            [*TALK[:1], {"role": "assistant", "tool_calls": [{"name": "a", "arguments": "{"}]}],
            [],
            "is not JSON",
        ),
        (TALK, "[1", "is not JSON"),
        (TALK, [1], "has the tools"),
        ([*TALK[:1], TALK[1] | {"reasoning_content": "hm"}], [], "write them into the content"),
        ([{"role": "user", "content": [{"type": "image"}]}, TALK[1]], [], "message 1 has the"),
        ([TALK[0] | {"tool_calls": [{"name": "a"}]}, TALK[1]], [], "its role is 'user'"),
    ],
)
def test_a_row_that_is_no_dialogue_says_why(messages, tools, complaint):
    with pytest.raises(ValueError, match=complaint):
        dialogue_of(messages, tools)


@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed", "shared"])
def test_no_token_to_imitate_is_lost_in_any_layout(kind):
    tokenizer = family("chatml")
    dialogues = [_dialogue(TWO_TOOLS, [WEATHER]), _dialogue(TALK), _dialogue(TALK[:2])] * 2
    found = [demonstrated(tokenizer, one)[0] for one in dialogues]
    width = max(len(one.tokens) for one in found) + 3
    tokens, mask = np.zeros((6, width), np.int32), np.zeros((6, width), bool)
    for row, one in enumerate(found):
        tokens[row, : len(one.tokens)], mask[row, : len(one.mask)] = one.tokens, one.mask
    laid_out = lay_out(Demonstrations(tokens, mask), kind)
    learned = np.sort(np.asarray(laid_out.tokens)[np.asarray(laid_out.mask)])
    np.testing.assert_array_equal(learned, np.sort(tokens[mask]))


@pytest.fixture(name="rows")
def _rows(tmp_path):
    rows = [
        {"messages": TWO_TOOLS, "tools": json.dumps([WEATHER, CONVERT], ensure_ascii=False)},
        *({"messages": [{"role": "user", "content": f"{i}?"}, TALK[1]]} for i in range(8)),
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    tokenizer = family("chatml")
    tokenizer.backend.save_pretrained(tmp_path / "tokenizer")
    return path, tmp_path / "tokenizer"


def _settings(rows, **changes):
    path, tokenizer = rows
    return settings_with(
        task__name="dataset",
        task__dataset__path=str(path),
        task__dataset__format="messages",
        tokenizer__path=str(tokenizer),
        **changes,
    )


def test_a_file_of_chats_is_a_task_with_demonstrations(rows):
    task = wiring.load_task(_settings(rows))
    assert len(task.train) == len(task.demonstrations) == 8
    longest = max(len(one.tokens) for one in task.demonstrations)
    assert task.row_tokens >= longest
    tokens, mask = task.encode_demonstrations(task.demonstrations)
    assert mask.sum() == sum(sum(one.mask) for one in task.demonstrations)
    assert tokens.shape[1] == task.row_tokens


def test_the_example_of_the_page_is_a_task(tmp_path, rows):
    text = (ROOT / "docs/tasks.md").read_text()
    section = text.partition("## Demonstrations of several turns")[2].partition("\n## ")[0]
    (chats,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    (lines,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "chats.jsonl").write_text(chats)
    config = base.get_config()
    exec(lines, {"config": config})
    config.task.dataset.path = str(tmp_path / "chats.jsonl")
    config.task.dataset.held_out_fraction = 0.5
    config.model.path = None
    config.tokenizer.path = str(rows[1])
    config.sft.steps = 0
    task = wiring.load_task(read_settings({**config.to_dict(), "workdir": "somewhere"}))
    assert len(task.demonstrations) == 1
    both = [
        dialogue_of(row["messages"], row.get("tools"))
        for row in map(json.loads, chats.splitlines())
    ]
    counts = [len(_learned(one)) for row in both for one in demonstrated(task.tokenizer, row)]
    assert counts == [2, 2]


def test_long_chats_are_left_out_or_cut_and_counted(rows):
    limits = {"task__max_completion_tokens": 20, "task__dataset__held_out_fraction": 0.2}
    limits |= {"task__dataset__prompt": "messages.0.content"}  # A short one.
    short = wiring.load_task(_settings(rows, **limits))
    whole = wiring.load_task(_settings(rows, task__dataset__held_out_fraction=0.2))
    long = [one for one in whole.demonstrations if len(one.tokens) > short.row_tokens]
    assert len(long) == 1
    assert len(short.demonstrations) == len(whole.demonstrations) - 1
    assert any("1 of 7 dialogues are left out" in note for note in short.notes)
    cut = wiring.load_task(_settings(rows, **limits, task__too_long="truncate"))
    assert any("1 of 7 dialogues are cut after the last reply" in note for note in cut.notes)
