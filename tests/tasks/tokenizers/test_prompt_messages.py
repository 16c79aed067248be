"""Prompts that are conversations have the ids that transformers gives them."""

import json

import pytest

from rl_sync.environments.dialogue.episode_demonstrations import demonstrated
from rl_sync.tasks.dialogues import dialogue_of, prompt_of
from rl_sync.tasks.tokenizers.prompt_messages import (
    PromptMessages,
    asked_tokens,
    encode_asked,
    identity,
    messages_of,
)
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from tests.environments.families import CHATML, FAMILIES, family, load_model, model

GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PARTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGED = (  # Like Qwen 3's: the answers to calls in one message are one turn of the user.
    "{% for message in messages %}{% if message.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}\n"
    "<tool_response>\n{{ message.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{{ '' if tools else '' }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DROPS = CHATML.replace(
    "in messages -%}{{ write", "in messages if message.role != 'system' -%}{{ write"
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALLS = [
    {"id": f"call0000{i}", "type": "function", "function": {"name": "look", "arguments": {"at": i}}}
    for i in range(2)
]
USER = {"role": "user", "content": "What is 7 + 5?"}
SYSTEM = {"role": "system", "content": "Answer with a number."}
CONVERSATIONS = {
    "system": [SYSTEM, USER],
    "turns": [USER, {"role": "assistant", "content": "12"}, {"role": "user", "content": "x 9?"}],
    "system and turns": [SYSTEM, USER, {"role": "assistant", "content": "12"}, USER],
    "begun": [USER, {"role": "assistant", "content": "<think>\nThe sum of"}],
    "begun with a space": [SYSTEM, USER, {"role": "assistant", "content": "The answer is "}],
    "tools": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": CALLS},
        {"role": "tool", "content": "a", "name": "look", "tool_call_id": "call00000"},
        {"role": "tool", "content": "b", "name": "look", "tool_call_id": "call00001"},
        {"role": "assistant", "content": "a and b"},
        {"role": "user", "content": "And?"},
    ],
}


def gemma(system=None):
    special = ("<end_of_turn>", "<start_of_turn>", "<bos>")
    return load_model(model(special), GEMMA, special[0], bos="<bos>", system=system)


def parts():
    special = ("<|im_end|>", "<|im_start|>")
    return load_model(model(special), PARTS, special[0])


def merged():
    special = ("<|im_end|>", "<|im_start|>")
    return load_model(model(special), MERGED, special[0])


def of_transformers(tokenizer, messages, tools=(), **arguments):
    way = {"add_generation_prompt": True}
    if messages[-1]["role"] == "assistant":
        way = {"continue_final_message": True}
    return tokenizer.backend.apply_chat_template(
        messages, tools=list(tools) or None, return_dict=False, **way, **arguments
    )


def test_conversations_have_the_ids_of_apply_chat_template(subtests):
    tokenizers = {name: family(name) for name in FAMILIES if name != "plain"} | {
        "gemma": gemma(),
        "merged": merged(),
    }
    compared = 0
    for name, tokenizer in tokenizers.items():
        for kind, messages in CONVERSATIONS.items():
            if name in ("gemma", "brackets") and messages[0] == SYSTEM:
                continue  # Gemma's refuses it, and Mistral's writes it as a reply.
            with subtests.test(name=name, kind=kind):
                tools = [TOOL] if kind == "tools" else []
                asked = prompt_of(messages, tools)
                found = tokenizer.encode_messages(*asked)
                assert found == of_transformers(tokenizer, messages, tools)
                row = asked.fields
                assert encode_asked(tokenizer, asked.text, row) == found
                assert asked_tokens(tokenizer, asked.text, row) == len(found)
                compared += 1
    assert compared == 30


def test_answers_to_parallel_calls_are_one_turn_where_the_template_merges_them():
    tokenizer, messages = merged(), CONVERSATIONS["tools"]
    whole = tokenizer.backend.apply_chat_template(messages[:-1], tools=[TOOL], return_dict=False)
    [shown] = demonstrated(tokenizer, dialogue_of(messages[:-1], [TOOL]))
    stop = len(whole) - whole[::-1].index(tokenizer.eos_id)
    assert list(shown.tokens) == whole[:stop]
    learned = [i for i, is_learned in zip(shown.tokens, shown.mask, strict=True) if is_learned]
    assert "tool_response" not in tokenizer.decode_all(learned)
    assert learned.count(tokenizer.eos_id) == 2


def test_a_template_of_parts_gets_parts():
    tokenizer = parts()
    listed = [
        one | {"content": [{"type": "text", "text": one["content"]}]}
        for one in CONVERSATIONS["system and turns"]
    ]
    expected = of_transformers(tokenizer, listed)
    assert tokenizer.encode_messages(*prompt_of(CONVERSATIONS["system and turns"])) == expected
    assert tokenizer.encode_messages(*prompt_of(listed)) == expected
    assert family("chatml").encode_messages(*prompt_of(listed)) == of_transformers(
        family("chatml"), CONVERSATIONS["system and turns"]
    )


def test_names_of_special_tokens_are_text_except_in_a_reply_that_is_begun(subtests):
    tokenizer = family("chatml")
    ends = tokenizer.eos_id
    prompt = tokenizer.encode_prompt("Say <|im_end|> twice")
    assert prompt.count(ends) == tokenizer.encode_prompt("Say it twice").count(ends) == 1
    assert "Say <|im_end|> twice" in tokenizer.decode_all(prompt)
    named = {"role": "user", "content": "<|im_end|>"}
    for messages, count in (
        ([SYSTEM, named], 2),
        ([named, {"role": "assistant", "content": "<|im_end|>"}], 2),
    ):
        with subtests.test(messages=messages):
            assert tokenizer.encode_messages(messages).count(ends) == count


def test_a_rows_system_message_wins():
    tokenizer = family("chatml", system="Be brief.")
    assert tokenizer.encode_messages([SYSTEM, USER]) == of_transformers(tokenizer, [SYSTEM, USER])
    brief = [{"role": "system", "content": "Be brief."}, *CONVERSATIONS["turns"]]
    found = tokenizer.encode_messages(CONVERSATIONS["turns"])
    assert found == of_transformers(tokenizer, brief)
    assert tokenizer.encode_prompt(USER["content"]) == of_transformers(tokenizer, [brief[0], USER])
    assert "with tokenizer.system='Be brief.'" in tokenizer.describe_prompt(None)
    assert "with the row's system message" in tokenizer.describe_prompt(([SYSTEM, USER], ()))


def test_a_template_that_refuses_or_drops_a_system_message_gives_one_line():
    with pytest.raises(ValueError, match="conversation of system, user: System role not") as raised:
        gemma().encode_messages([SYSTEM, USER])
    assert "\n" not in str(raised.value)
    with pytest.raises(
        ValueError, match=r"tokenizer\.system='Be brief\.'.*System role not"
    ) as raised:
        gemma(system="Be brief.")
    assert "\n" not in str(raised.value)
    special = ("<|im_end|>", "<|im_start|>")
    dropping = load_model(model(special), DROPS, special[0])
    with pytest.raises(ValueError, match="leaves out the system message 'Answer with"):
        dropping.encode_messages([SYSTEM, USER])


def test_without_a_template_contents_follow_each_other():
    characters = CharacterTokenizer("abc")
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "bc"}]
    assert characters.encode_messages(messages) == characters.encode("abc")
    with pytest.raises(ValueError, match="has tools, but without a chat template"):
        characters.encode_messages(messages, [TOOL])


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([{"role": "system", "content": "a"}], "no message of a user"),
        ([{"role": "user", "content": " "}], "no message of a user"),
        ([USER, {"role": "assistant", "content": "", "tool_calls": CALLS}], "ends with tool calls"),
        ([USER, {"role": "assistant", "content": 3}], "message 2 has the content 3"),
        ([{"role": 1, "content": "a"}], "message 1 has the role 1"),
    ],
)
def test_a_prompt_that_is_no_conversation_is_refused(messages, complaint):
    with pytest.raises(ValueError, match=complaint):
        prompt_of(messages)


def test_a_readers_text_has_each_message_with_its_role():
    asked = prompt_of(CONVERSATIONS["tools"], [TOOL])
    assert asked.text.split("\n\n") == [
        "user: What is 7 + 5?",
        'assistant: look({"at": 0})\nlook({"at": 1})',
        "tool: a",
        "tool: b",
        "assistant: a and b",
        "user: And?",
    ]
    assert PromptMessages([USER]).text == USER["content"]


def test_equal_conversations_have_equal_keys():
    asked, other = (PromptMessages([{"role": one, "content": "a"}, USER]) for one in "ab")
    assert identity("t", asked.fields) == identity("t", json.loads(json.dumps(asked.fields)))
    assert identity("t", asked.fields) != identity("t", other.fields)
    assert identity("t", asked.fields) != identity("t", None) == identity("t", {"answer": "1"})
    assert messages_of(asked.fields) == PromptMessages(asked.messages, ())
    assert PromptMessages.of_key(asked.key) == PromptMessages(asked.messages, [])
