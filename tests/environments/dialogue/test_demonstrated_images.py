"""Conversations about images as demonstrations: tokens, places, rows, and what is refused."""

import base64

import numpy as np
import pytest

from rl_sync.configs import base
from rl_sync.environments.dialogue.episode_demonstrations import demonstrated
from rl_sync.images import Image, images_of
from rl_sync.learning.rows.batching import lay_out
from rl_sync.models.vision.vision_config import Vision
from rl_sync.settings.records import build
from rl_sync.tasks.demonstrations import draw
from rl_sync.tasks.pictures.checkpoint_tiles import checkpoint_tiles
from rl_sync.tasks.pictures.places import PLACE
from rl_sync.tasks.pictures.tile_processor import SquareTiles
from rl_sync.tasks.task_catalog import EpisodeNeeds, TaskConfig, load_task
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from tests.odd_images import drawn, encoded
from tests.tasks.loading import write_lines
from tests.tasks.pictures.checkpoints import gemma3, smolvlm
from tests.tasks.pictures.vocabularies import gemma3_tokenizer, smolvlm_tokenizer

FAMILIES = {"gemma": (gemma3, gemma3_tokenizer), "smol": (smolvlm, smolvlm_tokenizer)}
TILES = SquareTiles(16, 4)
PNGS = [encoded(drawn(40, 30, seed=seed), "PNG") for seed in range(3)]
URLS = ["data:image/png;base64," + base64.b64encode(png).decode() for png in PNGS]


def _load(path, processor=TILES, tokenizer=None, **fields):
    config = base.get_config().task
    config.name, config.dataset.path, config.dataset.held_out_path = "dataset", str(path), str(path)
    config.dataset.format = "messages"
    for name, value in fields.items():
        (config if name in config else config.dataset)[name] = value
    task = build(TaskConfig, config.to_dict(), "config.task")
    named = TokenizerConfig(None if tokenizer is None else str(tokenizer), "auto", None)
    return load_task(task, named, 0, EpisodeNeeds(rendering=demonstrated), processor)


def user(*parts):
    made = [
        {"type": "image"}
        if part is None
        else {"type": "image_url", "image_url": {"url": part}}
        if part.startswith("data:")
        else {"type": "text", "text": part}
        for part in parts
    ]
    return {"role": "user", "content": made}


def text(written):
    return {"role": "user", "content": written}


def says(written):
    return {"role": "assistant", "content": written}


def _written_by_transformers(backend, messages, processor, images, mark, prompts=False):
    """Encodes what the chat template of transformers writes, with the tokens of images in it."""
    written = backend.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompts)
    before, *others = written.split(mark)
    made = before
    for image, other in zip(images, others, strict=True):
        pieces = processor.written(processor.layout(image.size()))
        token = processor.marks.token * processor.tile_tokens
        made += "".join(token if isinstance(one, int) else one for one in pieces) + other
    return backend(made, add_special_tokens=False).input_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_are_those_of_the_chat_template_with_images_at_every_turn(family, tmp_path):
    files, made_tokenizer = FAMILIES[family]
    model, backend = files(tmp_path / "model"), made_tokenizer()
    backend.chat_template = backend.chat_template.replace(
        "message['role'] + '\n'", "message['role'].replace('assistant', 'model') + '\n'"
    )
    backend.save_pretrained(model)
    said = ["A cat.", "Two <image> dogs.", "No."]
    if family == "smol":  # Its template writes a space in front of a text.
        said = [f" {one}" for one in said]
    conversation = [
        user(URLS[0], "What is it?"),
        says("A cat."),
        text("And [img] here, beside [img]?"),
        says("Two <image> dogs."),
        text("Is it late?"),
        says("No."),
    ]
    row = {"messages": conversation, "images": [URLS[1], URLS[2]]}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    processor = checkpoint_tiles(model)
    task = _load(path, processor, model, image_placeholder="[img]")
    [one] = task.demonstrations
    in_parts = [
        *[user(None, "What is it?"), {"role": "assistant", "content": [_of_text("A cat.")]}],
        user("And ", None, " here, beside ", None, "?"),
        {"role": "assistant", "content": [_of_text("Two \uffff dogs.")]},
        *[user("Is it late?"), {"role": "assistant", "content": [_of_text("No.")]}],
    ]
    images = [Image.of(url) for url in URLS]
    expected = _written_by_transformers(
        backend, in_parts, processor, images, processor.marks.template
    )
    stop = len(expected) - 1 - expected[::-1].index(task.tokenizer.eos_id) + 1
    named = task.tokenizer.decode_all(list(one.tokens))
    assert named == task.tokenizer.decode_all(expected[:stop]).replace("\uffff", "<image>")
    image = task.tokenizer.image_id(processor.marks)
    tokens, mask = np.array(one.tokens), np.array(one.mask)
    end = task.tokenizer.decode_all([task.tokenizer.eos_id])
    assert task.tokenizer.decode_all(tokens[mask].tolist()) == "".join(f"{it}{end}" for it in said)
    assert image not in tokens[mask], "a name in a reply is text"
    [shown] = task.shown([one])
    np.testing.assert_array_equal(shown.over(len(tokens)) >= 0, tokens == image)
    assert shown.at[shown.at >= 0].tolist() == list(range((tokens == image).sum()))
    digests = [digest.partition(":")[0] for digest in shown.digests]
    assert list(dict.fromkeys(digests)) == [one.digest for one in images]
    # The problem of the row is the conversation before its last reply, with its images.
    [problem] = task.train
    assert problem.text.startswith(f"user: {PLACE}What is it?\n\nassistant: A cat.\n\nuser: And")
    assert [one.digest for one in images_of(problem.row)] == [one.digest for one in images]
    asked, mark = in_parts[:-1], processor.marks.template
    expected = _written_by_transformers(backend, asked, processor, images, mark, prompts=True)
    [found] = task.asked([problem])
    shown = task.tokenizer.decode_all(found.ids.tolist())
    assert shown == task.tokenizer.decode_all(expected).replace("\uffff", "<image>")
    np.testing.assert_array_equal(found.images.at >= 0, found.ids == image)


def _of_text(written):
    return {"type": "text", "text": written}


def _rows(tmp_path, *conversations):
    rows = [{"messages": messages, "images": images} for messages, images in conversations]
    return write_lines(tmp_path / "rows.jsonl", rows)


LATER = ([text("ab?"), says("c"), text("d<image>e?"), says("fg")], URLS[:1])
FIRST = ([text("ab?"), says("c"), text("de?"), says("fg")], URLS[:2])
NOTHING = ([text("a<image>?"), says("c"), text("d?"), says("f")], [])


def test_images_stand_at_placeholders_or_before_the_first_question(tmp_path):
    task = _load(_rows(tmp_path, LATER, FIRST, NOTHING))
    image, eos = task.tokenizer.image_id(), task.tokenizer.eos_id
    later, first, nothing = task.demonstrations
    ids = task.tokenizer.encode
    assert list(later.tokens) == [
        *(*ids("ab?"), *ids("c"), eos, *ids("d"), *[image] * 4),
        *(*ids("e?"), *ids("fg"), eos),
    ]
    assert np.flatnonzero(later.mask).tolist() == [3, 4, 12, 13, 14]
    shown = [one.over(15).tolist() for one in task.shown([later, first])]
    assert shown[0] == [-1] * 6 + [0, 1, 2, 3] + [-1] * 5
    assert shown[1] == [*range(8), *[-1] * 7]
    assert nothing.images is None
    assert task.tokenizer.decode_all(nothing.tokens[:9]) == "a<image>?"
    assert [one.text for one in task.train] == [
        f"user: ab?\n\nassistant: c\n\nuser: d{PLACE}e?",
        f"user: {PLACE * 2}ab?\n\nassistant: c\n\nuser: de?",
        "user: a<image>?\n\nassistant: c\n\nuser: d?",
    ]
    assert [len(images_of(one.row)) for one in task.train] == [1, 2, 0]
    asked = task.asked(task.train)[0].ids.tolist()
    assert asked == [*ids("ab?cd"), *[image] * 4, *ids("e?")]
    assert task.demonstrated_tiles == 2
    assert task.shows_images
    assert _load(_rows(tmp_path, LATER)).shows_images, "though the first question has none"


@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed", "shared"])
def test_a_batch_of_them_has_each_image_at_its_tokens(tmp_path, kind):
    task = _load(_rows(tmp_path, LATER, FIRST, NOTHING))
    drawn_rows = draw(task, 8, [1])
    image = task.tokenizer.image_id()
    vision = Vision(
        image_size=16,
        patch_size=8,
        embed_dim=8,
        num_layers=1,
        num_heads=1,
        mlp_dim=8,
        tile_tokens=4,
        token_id=image,
    )
    for one in (drawn_rows, lay_out(drawn_rows, kind, vision)):
        tokens, at = np.asarray(one.tokens), np.asarray(one.images.at)
        np.testing.assert_array_equal(at >= 0, tokens == image)
        assert not np.asarray(one.mask)[at >= 0].any()
        tiles = np.asarray(one.images.tiles)[np.unique(at[at >= 0]) // 4]
        pixels = {TILES.tiles(Image.of(url)).tobytes() for url in URLS[:2]}
        assert {tile.tobytes() for tile in tiles} == pixels


def test_a_conversation_that_is_cut_keeps_only_the_images_before(tmp_path, monkeypatch):
    long = [*LATER[0], text("<image>?"), says("h" * 20)], URLS[:2]
    path = _rows(tmp_path, long)
    task = _load(path, too_long="truncate", max_completion_tokens=16)
    [one] = task.demonstrations
    assert len(one.tokens) == 15
    [shown] = task.shown([one])
    assert shown.digests == (f"{Image.of(URLS[0]).digest}:0",)
    assert task.demonstrated_tiles == 1


def test_a_task_with_conversations_is_loaded_without_decoding_an_image(tmp_path, monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    task = _load(_rows(tmp_path, LATER, FIRST))
    task.encode_demonstrations(task.demonstrations)


@pytest.mark.parametrize(
    ("messages", "images", "rule"),
    [
        (LATER[0], URLS[:2], r"'messages' has 1 place for images of 'images', which has 2: give"),
        ([*LATER[0], user(None), says("a")], URLS[:1], "'messages' has 2 places for images of"),
        ([user(URLS[0], "a"), says("b")] * 2, URLS[:1], "'messages' has 0 places for images of"),
        (
            [text("a"), {**user(None), "role": "assistant"}, text("b"), says("c")],
            URLS[:1],
            "'messages' has the content .*, which must be text",
        ),
        (
            [text("a"), {**user(None), "role": "assistant"}],
            URLS[:1],
            "'messages' has the content .*, which must be text",
        ),
        (
            [text("a"), says("b"), user(URLS[0], PLACE), says("c")],
            [],
            r"'messages' message 3 has U\+FFFC in a text",
        ),
        (LATER[0], ["https://x.org/a.png"], r"'images' \[0\]: .* is an address"),
        (LATER[0], ["nothing.png"], r"'images' \[0\]: nothing.png cannot be read: there is no"),
        (
            [text("a"), says("b"), user("data:image/png;base64,AAAA", "c"), says("d")],
            [],
            "'messages' message 3: .*is not an image",
        ),
    ],
)
def test_wrong_images_are_refused_by_row_and_column_in_one_line(tmp_path, messages, images, rule):
    path = _rows(tmp_path, FIRST, (messages, images))
    with pytest.raises(ValueError, match=f"rows.jsonl, line 2: {rule}") as refused:
        _load(path)
    assert "\n" not in str(refused.value)


def test_a_large_image_of_a_later_turn_is_refused_by_its_header(tmp_path):
    with pytest.raises(ValueError, match=r"line 1: 'images' \[0\]: .* 40 × 30 pixels, and 99"):
        _load(_rows(tmp_path, LATER), max_image_pixels=99)


def test_images_of_conversations_are_not_exchanged(tmp_path):
    path = _rows(tmp_path, LATER, FIRST)
    with pytest.raises(ValueError, match="cannot exchange the images of conversations"):
        _load(path, exchange_images=True)


def test_a_policy_that_reads_text_alone_imitates_the_text(tmp_path):
    task = _load(_rows(tmp_path, LATER), processor=None)
    [one] = task.demonstrations
    assert task.tokenizer.decode_all(one.tokens) == "ab?cde?fg"
    assert one.images is None


def test_a_reply_that_would_follow_an_image_directly_is_not_imitated(tmp_path):
    ends_with_image = [user("Цвет?", URLS[0]), says("b"), user(URLS[1], "d?"), says("e")]
    task = _load(_rows(tmp_path, LATER, (ends_with_image, [])))
    assert len(task.demonstrations) == len(_load(_rows(tmp_path, LATER)).demonstrations) == 1
