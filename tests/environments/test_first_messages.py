import numpy as np
import pytest

from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.environments.environments_by_set import EnvironmentBySet
from rl_sync.environments.first_messages import first_messages
from rl_sync.environments.interface import ANEW, Message, ToolCall, Turn
from rl_sync.images import Image
from rl_sync.tasks.dialogues import prompt_of
from rl_sync.tasks.pictures.places import PLACE
from tests.environments.families import FAMILIES, family
from tests.tasks.tokenizers.test_prompt_messages import CONVERSATIONS, TOOL

CONVERSATION = CONVERSATIONS["tools"]
IMAGE = Image.of(np.zeros((4, 4, 3), np.uint8))


def row_of(messages, tools=(), **fields):
    asked = prompt_of(messages, list(tools))
    return {"prompt": asked.text, "answer": "", **asked.fields, **fields}


def test_a_text_is_a_users_message_with_its_images():
    row = {"prompt": "Why?", "images": [IMAGE]}
    assert first_messages(row) == (Message("user", f"{PLACE}Why?", images=(IMAGE,)),)
    assert first_messages(row, shows_images=False) == (Message("user", "Why?"),)


def test_a_conversation_is_the_first_turn():
    first = first_messages(row_of(CONVERSATION, [TOOL]))
    assert [one.role for one in first] == [one["role"] for one in CONVERSATION]
    assert first[1].tool_calls[1] == ToolCall("look", {"at": 1}, "call00001")
    assert (first[2].name, first[2].tool_call_id) == ("look", "call00000")


def test_images_of_a_conversation_stand_at_their_places():
    messages = [{"role": "user", "content": f"A {PLACE}"}, {"role": "user", "content": "b"}]
    row = row_of(messages, images=[IMAGE])
    assert [len(one.images) for one in first_messages(row)] == [1, 0]
    assert first_messages(row, shows_images=False)[0] == Message("user", "A ")


def test_an_episode_begins_with_the_ids_of_the_prompt(subtests):
    for name in FAMILIES:
        if name == "plain":
            continue
        tokenizer = family(name)
        for kind, messages in CONVERSATIONS.items():
            if name == "brackets" and messages[0]["role"] == "system":
                continue
            with subtests.test(name=name, kind=kind):
                tools = [TOOL] if kind == "tools" else []
                row = row_of(messages, tools)
                turn = EnvironmentBySet(guesses="guess").reset(row, 0)
                found = Bridge(tokenizer).first(turn).ids.tolist()
                assert found == tokenizer.encode_messages(*prompt_of(messages, tools))


@pytest.mark.parametrize("name", ["chatml", "headers"])
def test_a_reply_that_is_begun_is_one_message_with_its_rest(name):
    tokenizer = family(name)
    bridge = Bridge(tokenizer)
    begun = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "It is"}]
    first = bridge.first(Turn(first_messages(row_of(begun))))
    drawn = [*tokenizer.encode(" 12"), tokenizer.eos_id]
    ask = Turn((Message("user", "x 9?"),))
    after = bridge.next(first.conversation, Message("assistant", " 12"), drawn, ask)
    assert not after.begins_segment
    said = [*begun[:-1], {"role": "assistant", "content": "It is 12"}]
    whole = [*said, {"role": "user", "content": "x 9?"}]
    written = tokenizer.backend.apply_chat_template(
        whole, add_generation_prompt=True, tokenize=False
    )
    ids = [*first.ids.tolist(), *drawn, *after.ids.tolist()]
    assert tokenizer.decode_all(ids) == written


def test_a_request_of_an_agent_that_ends_with_a_reply_asks_for_another():
    tokenizer = family("chatml")
    messages = (Message("user", "Why?"), Message("assistant", "So."))
    asked = Bridge(tokenizer).first(Turn(messages, after=ANEW))
    assert tokenizer.decode_all(asked.ids).endswith("<|im_start|>assistant\n")
    assert not asked.conversation.is_begun
