"""Messages with images: their places, their tokens after each turn, and what is refused."""

import base64

import numpy as np
import pytest

from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.environments.dialogue.excerpts import shortened
from rl_sync.environments.dialogue.sight import Sight
from rl_sync.environments.hosts.plain_data import plain
from rl_sync.environments.interface import Message, Turn
from rl_sync.environments.tools import Toolbox, ToolCall
from rl_sync.images import Image
from rl_sync.isolation.codec import decode, encode
from rl_sync.tasks.pictures.checkpoint_tiles import checkpoint_tiles
from rl_sync.tasks.pictures.prompt_encoder import PromptEncoder
from rl_sync.tasks.pictures.tile_processor import SquareTiles
from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from tests.odd_images import drawn
from tests.tasks.pictures.checkpoints import gemma3, smolvlm
from tests.tasks.pictures.vocabularies import gemma3_tokenizer, smolvlm_tokenizer

ONE, TWO, THREE = (Image.of(drawn(40, 30, seed=i)) for i in range(3))
CHARACTERS = CharacterTokenizer("abc:\ufffd", shows_images=True)
SQUARE = Sight(SquareTiles(8, 4), CHARACTERS.image_id())
FAMILIES = {"gemma": (gemma3, gemma3_tokenizer), "smol": (smolvlm, smolvlm_tokenizer)}


def asked(*parts, role="user"):
    return Turn((Message(role, list(parts)),))


@pytest.fixture(name="family", params=FAMILIES)
def _family(request, tmp_path):
    files, backend = FAMILIES[request.param]
    path = files(tmp_path)
    made_backend = backend()
    # As Gemma 3 writes replies.
    made_backend.chat_template = made_backend.chat_template.replace(
        "message['role'] + '\n'",
        "message['role'].replace('assistant', 'model') + '\n'",
    )
    made_backend.save_pretrained(tmp_path)
    processor = checkpoint_tiles(path)

    def made(chat="yes"):
        return PromptEncoder(pretrained.load(TokenizerConfig(str(tmp_path), chat, None)), processor)

    made.name = request.param
    return made


def bridge_of(encoder):
    token = encoder.tokenizer.image_id(encoder.processor.marks)
    return Bridge(encoder.tokenizer, Sight(encoder.processor, token))


def test_parts_become_a_text_with_places_and_images():
    parts = [
        {"type": "text", "text": "Is "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(ONE)}"}},
        " like ",
        TWO,
        "? \ufffc",
    ]
    message = Message("user", parts)
    assert message.content == "Is \ufffc like \ufffc? \ufffd"
    assert [one.digest for one in message.images] == [ONE.digest, TWO.digest]
    assert decode(encode(message)) == message
    assert Message("tool", "Look", images=(ONE,)).content == "\ufffcLook"
    assert Message("user", ["a", "\ufffc"]) == Message("user", "a\ufffc")


def _base64(image):
    return base64.b64encode(image.content()).decode()


@pytest.mark.parametrize(
    ("content", "images", "rule"),
    [
        ([{"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}], (), "is fetched"),
        ([3], (), r"content\[0\]: 3 is not an image"),
        (["a", {"type": "input_audio"}], (), r"content\[1\]: .* is not an image"),
        ("\ufffc and \ufffc", (ONE,), "1 images and 2 places"),
    ],
)
def test_messages_with_other_parts_are_refused(content, images, rule):
    with pytest.raises(ValueError, match=rule):
        Message("user", content, images=images)


def test_images_of_files_travel_as_bytes_and_unreadable_ones_are_refused(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(ONE.content())
    turn = plain(asked(Image.of(str(path)), ":"), "Env.step")
    path.unlink()
    assert turn.messages[0].images[0].digest == ONE.digest
    with pytest.raises(ValueError, match=r"images\[0\].*a.png cannot be read: there is no such"):
        plain(asked(Image.of(str(path)), ":"), "Env.step")


def test_a_tools_answer_may_be_an_image():
    def look(where: str):
        """Looks.

        Args:
            where: A place.
        """
        return ONE if where == "a" else ["there: ", TWO, 3]

    box = Toolbox([look])
    answer = box.answer(ToolCall("look", {"where": "a"}, "7"))
    assert (answer.content, answer.images, answer.tool_call_id) == ("\ufffc", (ONE,), "7")
    answer = box.answer(ToolCall("look", {"where": "b"}))
    assert (answer.content, answer.images) == ("there: \ufffc3", (TWO,))


def test_an_excerpt_leaves_out_the_images_of_the_middle():
    turn = asked(ONE, "a" * 300, TWO, "b" * 300, THREE)
    short = shortened(turn, 60, cuts=True).messages[0]
    assert short.images == (ONE, THREE)
    assert short.content.count("\ufffc") == 2
    assert len(short.content) == 60


def test_tokens_of_an_image_follow_a_reply():
    bridge = Bridge(CHARACTERS, SQUARE)
    first = bridge.first(asked("a", ONE, "b:"))
    image = [CHARACTERS.image_id()] * 4
    assert first.ids.tolist() == [2, *image, 3, 5]
    assert first.images.at.tolist() == [-1, 0, 1, 2, 3, -1, -1]
    said = Message("assistant", "c")
    step = bridge.next(first.conversation, said, [4], asked(TWO, THREE, ":"))
    assert step.ids.tolist() == [*image, *image, 5]
    assert step.images.at.tolist() == [*range(8), -1]
    shown = bridge.decoded(step.images)
    assert shown.digests == (f"{TWO.digest}:0", f"{THREE.digest}:0")
    plain_turn = bridge.next(step.conversation, said, [4], asked("a:"))
    assert plain_turn.images is None
    # A reply that names the character of places is text.
    spoken = bridge.next(first.conversation, Message("assistant", "\ufffd"), [6], asked("a:"))
    assert spoken.ids.tolist() == [2, 5]


def test_the_first_turn_is_the_prompt_of_the_same_row(family):
    encoder = family()
    row = {"images": [ONE, TWO]}
    wanted = encoder.pictured("\ufffcIs it like \ufffc <image> <start_of_image>?", row)
    text = "Is it like ", " <image> <start_of_image>?"
    bridge = bridge_of(encoder)
    found = bridge.first(asked(ONE, text[0], TWO, text[1]))
    assert found.ids.tolist() == wanted.ids.tolist()
    assert found.images.at.tolist() == wanted.at.tolist()
    decoded = bridge.decoded(found.images)
    assert decoded.digests == wanted.digests
    assert np.array_equal(decoded.tiles, wanted.tiles)


@pytest.mark.parametrize("chat", ["yes", "no"])
def test_turns_joined_are_the_whole_conversation(family, chat):
    """Token in, token out: the ids after a reply are those of the conversation from the start."""
    encoder = family(chat)
    bridge, tokenizer = bridge_of(encoder), encoder.tokenizer
    first = bridge.first(asked("Look: ", ONE, "?"))
    text = " Fine." if family.name == "smol" and chat == "yes" else "Fine."
    drawn_ids = tokenizer.encode(text)
    said = Message("assistant", "Fine.")
    step = bridge.next(first.conversation, said, drawn_ids, asked(TWO, "And <image> this?"))
    assert not step.begins_segment
    whole = Bridge(tokenizer, bridge._sight)._anew(
        step.conversation, bridge._renderer.render(step.conversation, prompts=True)
    )
    size = encoder.processor.tile_tokens
    joined = [*first.ids.tolist(), *drawn_ids, *step.ids.tolist()]
    assert tokenizer.decode_all(joined) == tokenizer.decode_all(whole.ids.tolist())
    shown = joined.count(bridge._sight.token)
    assert shown == (whole.images.at >= 0).sum() > 0
    assert shown % size == 0
    at = step.images.at
    assert at[at >= 0].tolist() == list(range((at >= 0).sum()))
    assert step.images.images[0].digest == TWO.digest


def test_images_that_cannot_be_shown_are_refused():
    with pytest.raises(ValueError, match="the policy reads text alone"):
        Bridge(CHARACTERS).first(asked(ONE, ":"))
    with pytest.raises(ValueError, match="ends with an image"):
        Bridge(CHARACTERS, SQUARE).first(asked("a", ONE))
    small = Sight(SQUARE.processor, SQUARE.token, most_pixels=100)
    with pytest.raises(ValueError, match="40 × 30 pixels, and 100 are allowed"):
        Bridge(CHARACTERS, small).first(asked(ONE, ":"))
    damaged = Image(data=ONE.content()[:60])
    bridge = Bridge(CHARACTERS, SQUARE)
    step = bridge.first(asked(damaged, ":"))  # Its header is whole.
    with pytest.raises(ValueError, match="an image of 60 bytes"):
        bridge.decoded(step.images)
