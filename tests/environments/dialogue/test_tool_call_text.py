import json

import pytest

from rl_sync.environments.dialogue.tool_call_text import (
    CALL_FORMATS,
    ParsedReply,
    call_format,
    read_beginning,
    read_headless,
    read_listed,
    read_reply,
    read_tagged,
)
from rl_sync.environments.interface import ToolCall
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer, begun_reply
from tests.environments.families import family, load_model, model

LOOK = ToolCall("look", {"place": "north"})
OPEN = ToolCall("open", {})
LOOK_TEXT = '{"name": "look", "arguments": {"place": "north"}}'
OPEN_TEXT = '{"name": "open", "arguments": {}}'


@pytest.mark.parametrize(
    ("reads", "text", "reading"),
    [
        (read_tagged, "No call.", ParsedReply("No call.")),
        (
            read_tagged,
            f"Let me see.\n<tool_call>\n{LOOK_TEXT}\n</tool_call>\n"
            f"<tool_call>{OPEN_TEXT}</tool_call>",
            ParsedReply("Let me see.", (LOOK, OPEN)),
        ),
        (read_headless, "No call.", ParsedReply("No call.")),
        (read_headless, '{"answer": 12}', ParsedReply('{"answer": 12}')),
        (read_headless, "{12}", ParsedReply("{12}")),
        (
            read_headless,
            '{"name": "look", "parameters": {"place": "north"}}',
            ParsedReply("", (LOOK,)),
        ),
        (
            read_headless,
            'So: <|python_tag|>{"name": "look", "parameters": {"place": "north"}};'
            ' {"name": "open", "parameters": {}}',
            ParsedReply("So: ", (LOOK, OPEN)),
        ),
        (read_listed, "No call.", ParsedReply("No call.")),
        (
            read_listed,
            f"So:[TOOL_CALLS] [{LOOK_TEXT}, {OPEN_TEXT}]",
            ParsedReply("So:", (LOOK, OPEN)),
        ),
        (
            read_listed,
            '[TOOL_CALLS][{"name": "open", "arguments": {}, "id": "abcdefghi"}]',
            ParsedReply("", (ToolCall("open", {}, "abcdefghi"),)),
        ),
    ],
)
def test_calls_are_read_as_the_families_write_them(reads, text, reading):
    assert reads(text) == reading


@pytest.mark.parametrize(
    ("reads", "text", "reason"),
    [
        (read_tagged, "<tool_call>{look}</tool_call>", "it is not JSON (Expecting property name"),
        (read_tagged, f"<tool_call>{LOOK_TEXT}", "it is not closed by </tool_call>"),
        (read_tagged, "<tool_call>[1]</tool_call>", "it is not an object"),
        (read_tagged, '<tool_call>{"arguments": {}}</tool_call>', 'it has no "name"'),
        (
            read_tagged,
            '<tool_call>{"name": "look", "arguments": "north"}</tool_call>',
            'its "arguments" are not an object',
        ),
        (
            read_tagged,
            '<tool_call>{"name": "look", "arguments": {"a": "\\ud800"}}</tool_call>',
            "it is not JSON ('utf-8' codec can't encode",
        ),
        (read_tagged, f"<tool_call>{'[' * 200_000}</tool_call>", "it is not JSON"),
        (read_headless, '{"name": "look", "parameters": {', "it is not JSON"),
        (read_headless, "<|python_tag|>look(north)", "it is not JSON"),
        (read_headless, "<|python_tag|>", "there is nothing"),
        (read_headless, '<|python_tag|>{"name": "look"}', 'its "parameters" are not an object'),
        (read_headless, '{"name": "a", "parameters": {}} so', "text follows: 'so'"),
        (read_listed, "[TOOL_CALLS]look", "it is not JSON"),
        (read_listed, f"[TOOL_CALLS]{LOOK_TEXT}", "it is not a list of calls"),
        (read_listed, "[TOOL_CALLS][]", "it is not a list of calls"),
        (read_listed, "[TOOL_CALLS][12]", "it is not an object"),
    ],
)
def test_a_malformed_call_stays_in_the_content_and_says_what_is_wrong(reads, text, reason):
    content, calls, (error,) = reads(text)
    assert (content, calls) == (text, ())
    assert error.startswith("Malformed tool call: ")
    assert reason in error
    assert len(error) < 600


def test_good_calls_beside_a_malformed_one_are_read():
    text = f"<tool_call>{LOOK_TEXT}</tool_call><tool_call>{{</tool_call>"
    content, calls, malformed = read_tagged(text)
    assert (content, calls) == ("<tool_call>{</tool_call>", (LOOK,))
    assert len(malformed) == 1


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("chatml", read_tagged),
        ("thinking", read_tagged),
        ("headers", read_headless),
        ("brackets", read_listed),
        ("plain", None),
    ],
)
def test_the_template_tells_the_format(name, reads):
    found = call_format(family(name))
    assert (found and found.read) is reads


def test_a_format_can_be_named_for_any_tokenizer():
    tokenizer = CharacterTokenizer("a")
    assert call_format(tokenizer) is None
    assert {name: call_format(tokenizer, name) for name in CALL_FORMATS} == CALL_FORMATS
    assert call_format(family("chatml"), "none") is None
    with pytest.raises(ValueError, match=r"must be one of auto, none, qwen, .*, not 'xml'"):
        call_format(tokenizer, "xml")


def test_a_template_that_writes_calls_in_xml_has_no_format():
    template = "{{ '<tool_call><function=' }}{{ messages[0].content }}</s>"
    assert call_format(load_model(model(("</s>",)), template, "</s>")) is None


def test_a_reply_is_read_with_special_tokens_kept_but_its_end():
    tokenizer = family("headers")
    text = '<|python_tag|>{"name": "open", "parameters": {}}'
    ids = tokenizer.encode(f"{text}<|eot_id|>")
    reply = read_reply(tokenizer, ids, is_cut=False, reads=call_format(tokenizer))
    assert (reply.text, reply.content) == (text, "")
    assert reply.tool_calls == (ToolCall("open", {}, "call00000"),)
    assert read_reply(tokenizer, ids, is_cut=False).tool_calls == ()


def test_calls_without_ids_are_numbered_through_the_conversation():
    tokenizer = family("chatml")
    ids = tokenizer.encode(f"<tool_call>{LOOK_TEXT}</tool_call><tool_call>{OPEN_TEXT}</tool_call>")
    reply = read_reply(tokenizer, ids, is_cut=True, reads=CALL_FORMATS["qwen"], calls_before=41)
    assert [call.call_id for call in reply.tool_calls] == ["call00041", "call00042"]
    assert reply.is_cut


CALL = f"<tool_call>{OPEN_TEXT}</tool_call>"


@pytest.mark.parametrize("closing", ["", "</think>"])
def test_a_call_in_the_policys_thinking_is_text(closing):
    tokenizer = family("thinking")
    text = f"<think>I could <tool_call>{LOOK_TEXT}</tool_call>{closing}"
    reply = read_reply(tokenizer, tokenizer.encode(text), is_cut=True, reads=CALL_FORMATS["qwen"])
    assert (reply.text, reply.tool_calls, reply.malformed) == (text, (), ())


@pytest.mark.parametrize(
    ("before", "text", "calls", "answer"),
    [
        ("<|im_start|>assistant\n<think>\n", "I could CALL", 0, ""),
        ("<|im_start|>assistant\n<think>\n", "so\n</think>\n\nCALL", 1, "CALL"),
        ("<|im_start|>assistant\n", "I could CALL", 1, "I could CALL"),
        ("<|im_start|>assistant\n", "<think>CALL</think>So.\n<think>CALL", 0, "So."),
        ("<|im_start|>assistant\n", "[THINK]CALL[/THINK]So.", 0, "So."),
        ("", 'CALL is it, as in "</think>".', 1, 'CALL is it, as in "</think>".'),
    ],
)
def test_calls_are_read_behind_thoughts_that_the_prompt_may_have_begun(before, text, calls, answer):
    tokenizer, reads = family("thinking"), CALL_FORMATS["qwen"]
    text, answer = text.replace("CALL", CALL), answer.replace("CALL", CALL)
    ids, begun = tokenizer.encode(text), begun_reply(tokenizer, tokenizer.encode(before))
    reply = read_reply(tokenizer, ids, is_cut=True, reads=reads, begun=begun)
    assert (reply.text, len(reply.tool_calls), reply.answer) == (text, calls, answer)
    assert reply.message().content.startswith(read_beginning(tokenizer, ids, reads, begun))


def test_marks_in_the_arguments_of_a_call_are_text():
    tokenizer = family("thinking")
    said = json.dumps({"name": "say", "arguments": {"text": "a <think> b </think> c"}})
    text = f"<think>so</think>See. <tool_call>{said}</tool_call>"
    reply = read_reply(tokenizer, tokenizer.encode(text), is_cut=False, reads=CALL_FORMATS["qwen"])
    assert [call.arguments for call in reply.tool_calls] == [{"text": "a <think> b </think> c"}]
    assert reply.content.rstrip() == "<think>so</think>See."


def test_thinking_before_a_call_stays_in_the_content():
    tokenizer = family("thinking")
    text = f"<think>so</think>\n\n<tool_call>{OPEN_TEXT}</tool_call>"
    reply = read_reply(tokenizer, tokenizer.encode(text), is_cut=False, reads=CALL_FORMATS["qwen"])
    assert reply.content == "<think>so</think>"
    assert reply.message().tool_calls == (ToolCall("open", {}, "call00000"),)


@pytest.mark.parametrize(
    ("name", "text", "certain"),
    [
        (
            "chatml",
            "\n\nIt is 12 < 13.\n\nSo <tool> it is.\n",
            "\n\nIt is 12 < 13.\n\nSo <tool> it is.",
        ),
        ("chatml", f"\nSee.\n\n{CALL}\n{CALL}", "\nSee."),
        ("chatml", f"\n{CALL}\nSo.\n", ""),
        ("chatml", f"Or <tool_call>{{</tool_call> and\n{CALL}", "Or "),
        (
            "thinking",
            f"<think>I <tool_call>x\n</think>\n\nSee.\n{CALL}",
            "<think>I <tool_call>x\n</think>\n\nSee.",
        ),
        ("thinking", f"No {CALL} yet\n</think>\nyes", f"No {CALL} yet\n</think>\nyes"),
        ("headers", '\n{"name": "open", "parameters": {}}', ""),
        ("headers", '{"answer": 12}\n', ""),
        ("headers", 'So: \n<|python_tag|>{"name": "open", "parameters": {}}', "So: "),
        ("brackets", f"So [TOOL]:\n[TOOL_CALLS] [{LOOK_TEXT}]", "So [TOOL]:"),
        ("plain", "a <tool_call> b\n", "a <tool_call> b\n"),
    ],
)
def test_the_beginning_of_a_reply_is_that_of_its_content_whatever_follows(name, text, certain):
    tokenizer = family(name)
    reads, ids = call_format(tokenizer), tokenizer.encode(text)
    content = read_reply(tokenizer, ids, is_cut=False, reads=reads).message().content
    begun = [read_beginning(tokenizer, ids[:end], reads) for end in range(len(ids) + 1)]
    for one, later in zip(begun, [*begun[1:], content], strict=True):
        assert later.startswith(one)
    assert begun[-1] == certain


def test_text_before_a_call_is_certain_at_once_and_the_call_is_not():
    tokenizer, reads = family("chatml"), CALL_FORMATS["qwen"]

    def begun(text):
        return read_beginning(tokenizer, tokenizer.encode(text), reads)

    assert begun("See.\n") == "See."
    assert begun("See.\nSo") == "See.\nSo"
    assert begun("See. <") == "See. "
    assert begun("See. <b") == "See. <b"
    assert begun(f"See. {CALL} more") == "See. "
    assert begun("<think>See. <tool_call>") == "<think>See. <tool_call>"


def test_characters_whose_bytes_are_incomplete_are_not_certain():
    tokenizer = family("chatml")
    text = "é中😀."
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode()), "no character has several tokens"
    begun = [read_beginning(tokenizer, ids[:end]) for end in range(len(ids) + 1)]
    assert begun == ["", "", *["é"] * 3, *["é中"] * 4, "é中😀", text]
