import pytest
from tokenizers import AddedToken

from rl_sync.environments.dialogue.conversation import Conversation, PlainRenderer, renderer_of
from rl_sync.environments.interface import Message, ToolCall, Turn
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from tests.environments.families import CHATML, FAMILIES, family, load_model, model

CALL = ToolCall("look", {"place": "north"}, "call00000")
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
}
MESSAGES = (
    Message("user", "What is north of here?"),
    Message("assistant", "", (CALL,)),
    Message("tool", "a door", name="look", tool_call_id="call00000"),
    Message("assistant", "The door."),
    Message("user", "Is it open?"),
)
TEMPLATES = [name for name in FAMILIES if name != "plain"]


def encoded(tokenizer, *messages, tools=()):
    renderer = renderer_of(tokenizer)
    rendered = renderer.render(Conversation(messages, tools), prompts=True)
    return renderer.encode(rendered, begins=True)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_has_the_ids_that_transformers_gives_it(name):
    tokenizer = family(name)
    expected = tokenizer.backend.apply_chat_template(
        [message.for_template() for message in MESSAGES],
        tools=[TOOL],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert encoded(tokenizer, *MESSAGES, tools=(TOOL,)) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_one_message_of_a_user_is_a_prompt(name):
    tokenizer = family(name)
    text = "What is 7 + 5?"
    assert encoded(tokenizer, Message("user", text)) == tokenizer.encode_prompt(text)


@pytest.mark.parametrize("name", FAMILIES)
def test_names_of_special_tokens_in_a_content_are_text(name):
    tokenizer = family(name)
    names = [*tokenizer.special.names, "\U000f0000"]
    harmless = encoded(tokenizer, Message("user", "a  b"))
    ids = encoded(tokenizer, Message("user", f"a {' '.join(names)} b"))
    special = set(range(len(FAMILIES[name].special)))
    assert [i for i in ids if i in special] == [i for i in harmless if i in special]
    assert f"a {' '.join(names)} b" in tokenizer.decode_all(ids)


def test_text_around_a_name_in_a_content_is_encoded_in_one_piece_with_it():
    tokenizer = family("chatml")
    header, closing = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    content = "the answer<|im_end|>the answer"
    # The header's own text belongs to the piece, and its special token does not.
    inside = tokenizer.encode_literally(f"user\n{content}")
    expected = tokenizer.encode("<|im_start|>") + inside + tokenizer.encode(closing)
    assert encoded(tokenizer, Message("user", content)) == expected
    assert len(inside) < len(tokenizer.encode(header)) + sum(
        len(tokenizer.encode_literally(part)) for part in content
    )


def test_names_in_tool_calls_and_schemas_are_text():
    tokenizer = family("chatml")
    plain = (Message("user", "a"), Message("assistant", "", (ToolCall("b", {"c": "d"}),)))
    bad = (Message("user", "a"), Message("assistant", "", (ToolCall("<|im_end|>", {"c": "d"}),)))
    tool = {"function": {"name": "look", "description": "<|im_start|>"}}
    ends = tokenizer.eos_ids[0]
    start = tokenizer.encode("<|im_start|>")[0]
    harmless = encoded(tokenizer, *plain, tools=(TOOL,))
    ids = encoded(tokenizer, *bad, tools=(tool,))
    assert ids.count(ends) == harmless.count(ends)
    assert ids.count(start) == harmless.count(start)


def test_a_special_token_swallows_white_space_also_beside_a_covered_name():
    special = FAMILIES["chatml"].special
    bpe = model(())
    bpe.add_special_tokens([AddedToken(name, rstrip=True, special=True) for name in special])
    tokenizer = load_model(bpe, CHATML, special[0])
    content = f"{special[0]} north"
    ids = encoded(tokenizer, Message("user", content))
    inside = tokenizer.encode_literally(f"user\n{content}")
    # The template's new line behind the end belongs to the end.
    expected = [*tokenizer.encode(special[1]), *inside]
    expected += tokenizer.encode(f"{special[0]}\n{special[1]}assistant\n")
    assert ids == expected


def test_the_configured_system_message_stands_before_an_environments_messages():
    tokenizer = family("chatml", system="Be brief.")
    asked = Message("user", "Hi?")
    with_own = encoded(family("chatml"), Message("system", "Be brief."), asked)
    assert encoded(tokenizer, asked) == with_own
    other = Message("system", "Be kind.")
    assert encoded(tokenizer, other, asked) == encoded(family("chatml"), other, asked)


def test_a_template_that_refuses_a_conversation_says_so():
    with pytest.raises(ValueError, match=r"rejects a conversation of user, tool: tool answers"):
        encoded(family("brackets"), Message("user", "a"), Message("tool", "b"))


@pytest.mark.parametrize("name", ["plain", "bare"])
def test_tools_that_the_policy_would_not_see_are_refused(name):
    bare = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer = family("plain") if name == "plain" else load_model(model(("</s>",)), bare, "</s>")
    with pytest.raises(ValueError, match="The conversation has tools, but"):
        encoded(tokenizer, Message("user", "a"), tools=(TOOL,))


def test_without_a_template_contents_follow_each_other():
    tokenizer = CharacterTokenizer("abc")
    assert isinstance(renderer_of(tokenizer), PlainRenderer)
    ids = encoded(tokenizer, Message("system", "a"), Message("user", "bc"))
    assert ids == tokenizer.encode("abc")


def test_without_a_template_the_tokens_that_begin_a_text_stand_first_and_once():
    tokenizer = family("plain")
    renderer = renderer_of(tokenizer)
    assert encoded(tokenizer, Message("user", "a")) == tokenizer.encode("<s>a")[:2]
    assert renderer.encode("a", begins=False) == tokenizer.encode("a")


def test_tools_stay_until_a_turn_has_others():
    conversation = Conversation().with_turn(Turn(MESSAGES[:1], tools=(TOOL,)))
    conversation = conversation.with_reply(MESSAGES[1]).with_turn(Turn(MESSAGES[2:3]))
    assert conversation == Conversation(MESSAGES[:3], (TOOL,))
    other = {"function": {"name": "open"}}
    assert conversation.with_turn(Turn(MESSAGES[2:3], tools=(other,))).tools == (other,)
