"""Prompts with images as tokens: equal to transformers' processors, and literal names stay text."""

import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from rl_sync.images import Image
from rl_sync.tasks.pictures.checkpoint_tiles import checkpoint_tiles
from rl_sync.tasks.pictures.places import PLACE, placed, unused_character
from rl_sync.tasks.pictures.prompt_encoder import PromptEncoder
from rl_sync.tasks.pictures.tile_processor import PictureMarks, SquareTiles
from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from tests.odd_images import drawn
from tests.tasks.pictures.checkpoints import gemma3, smolvlm
from tests.tasks.pictures.vocabularies import gemma3_tokenizer, smolvlm_tokenizer

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "smolvlm_prompts.json"
"""Ids of `SmolVLMProcessor` of transformers 5.24, which needs torchvision and num2words."""


def _tokenizer(backend, directory, chat="yes", system=None):
    directory.mkdir(exist_ok=True)
    backend.save_pretrained(directory)
    return pretrained.load(TokenizerConfig(str(directory), chat, system))


@pytest.fixture
def gemma(tmp_path):
    path = gemma3(tmp_path / "gemma")
    return PromptEncoder(_tokenizer(gemma3_tokenizer(), tmp_path / "gemma"), checkpoint_tiles(path))


@pytest.fixture
def smol(tmp_path):
    path = smolvlm(tmp_path / "smol")
    return PromptEncoder(_tokenizer(smolvlm_tokenizer(), tmp_path / "smol"), checkpoint_tiles(path))


def _row(*sizes):
    return {"images": [Image.of(drawn(*size, seed=i)) for i, size in enumerate(sizes)]}


def _spans(at):
    """Returns the runs of `at` at images, in the order of the sequence."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], at >= 0, [False]]).astype(int)))
    return [at[start:stop].tolist() for start, stop in edges.reshape(-1, 2)]


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("How many squares?", 1),
        ("Compare <image>\n\n with\n<image>: ü 图片?", 2),
        ("\n\n<image><image>\n\nTwo", 2),
        ("The last: <image>", 1),
        ("No image at all.\n", 0),
    ],
)
def test_ids_of_gemma3_are_those_of_its_processor_in_transformers(gemma, tmp_path, text, images):
    from transformers import AutoImageProcessor, Gemma3Processor

    backend = AutoImageProcessor.from_pretrained(tmp_path / "gemma", backend="pil")
    tokenizer = gemma3_tokenizer()
    theirs = Gemma3Processor(
        backend, tokenizer, chat_template=tokenizer.chat_template, image_seq_length=4
    )
    row = _row(*[(40, 30)] * images)
    parts = placed(text, images).split(PLACE)
    content = [{"type": "text", "text": parts[0]}] if parts[0] else []
    for part in parts[1:]:
        content += [{"type": "image"}, *([{"type": "text", "text": part}] if part else [])]
    written = theirs.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    pictures = [PIL.Image.fromarray(image.pixels()) for image in row["images"]]
    made = theirs(text=[written], images=[pictures] if pictures else None, add_special_tokens=False)
    found = gemma.pictured(text, row)
    assert found.ids.tolist() == list(made["input_ids"][0])
    assert (found.at >= 0).tolist() == [bool(kind) for kind in made["token_type_ids"][0]]
    assert _spans(found.at) == [list(range(4 * i, 4 * i + 4)) for i in range(images)]
    assert found.tiles.shape == (images, 56, 56, 3)


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text()))
def test_ids_of_smolvlm_are_those_of_its_processor_in_transformers(smol, case):
    text = "".join(PLACE if part is None else part for part in case["parts"])
    found = smol.pictured(text, _row(*case["sizes"]))
    assert found.ids.tolist() == case["ids"]
    image = smol.tokenizer.image_id(smol.processor.marks)
    assert (found.at >= 0).tolist() == [i == image for i in case["ids"]]
    assert _spans(found.at) == [list(range(4 * i, 4 * i + 4)) for i in range(len(found.tiles))]


def test_a_prompt_has_tiles_and_digests_in_the_order_of_its_images(smol):
    row = _row((100, 60), (64, 64))
    found = smol.pictured("a <image> b <image>", row)
    first, second = row["images"]
    parts = [smol.processor.tiles(first), smol.processor.tiles(second)]
    np.testing.assert_array_equal(found.tiles, np.concatenate(parts))
    digests = [f"{one.digest}:{i}" for one, of in zip((first, second), parts, strict=True)
               for i in range(len(of))]  # fmt: skip
    assert found.digests == tuple(digests)
    assert found.ids.dtype == found.at.dtype == np.int32


@pytest.mark.parametrize("name", ["gemma", "smol"])
@pytest.mark.parametrize("chat", ["yes", "no"])
@pytest.mark.parametrize("images", [0, 1])
def test_names_of_image_tokens_in_a_text_stay_text(name, chat, images, tmp_path):
    make, backend = {
        "gemma": (gemma3, gemma3_tokenizer()),
        "smol": (smolvlm, smolvlm_tokenizer()),
    }[name]
    path = make(tmp_path / name)
    tokenizer = _tokenizer(backend, tmp_path / name, chat, "Say <image_soft_token> <image>.")
    encoder = PromptEncoder(tokenizer, checkpoint_tiles(path))
    literal = "<image_soft_token><start_of_image> <image> <row_1_col_1><global-img> ok"
    text = f"{PLACE * images}{literal}"
    found = encoder.expanded(text, _row(*[(40, 30)] * images))
    image = tokenizer.image_id(encoder.processor.marks)
    assert ((found.ids == image) == (found.at >= 0)).all()
    assert (found.at >= 0).any() == bool(images)
    assert literal in tokenizer.decode_all(found.ids)
    answer = encoder.completion(literal, None)
    assert image not in answer
    assert tokenizer.decode_all(answer) == literal
    assert encoder.completion_length(literal, None) == len(answer) + 1


def test_lengths_are_known_without_decoding_an_image(smol, monkeypatch):
    row = _row((100, 60))
    expected = len(smol.pictured("How many?", row).ids)
    monkeypatch.setattr(Image, "pixels", lambda image: pytest.fail("decoded"))
    assert smol.length("How many?", row) == expected == len(smol.expanded("How many?", row).ids)
    assert smol.images_length(row) == smol.processor.layout(row["images"][0].size()).tiles * 4


def test_a_prompt_without_images_is_encoded_as_a_prompt_of_text(gemma):
    found = gemma.pictured("Only text.", None)
    assert found.ids.tolist() == gemma.tokenizer.encode_prompt("Only text.")
    assert (found.at == -1).all()
    assert found.tiles.shape == (0, 56, 56, 3)
    assert found.digests == ()


def test_a_template_that_writes_only_parts_keeps_texts_without_images(smol):
    found = smol.expanded("Only text.", None)
    assert "Only text." in smol.tokenizer.decode_all(found.ids)


def test_characters_have_an_id_for_images_behind_the_others():
    text_only = CharacterTokenizer("ab?")
    tokenizer = CharacterTokenizer("ab?", shows_images=True)
    encoder = PromptEncoder(tokenizer, SquareTiles(8, 4))
    found = encoder.pictured("a<image>?", _row((8, 8)))
    assert found.ids.tolist() == [*text_only.encode("a"), *[5] * 4, *text_only.encode("?")]
    assert found.at.tolist() == [-1, 0, 1, 2, 3, -1]
    assert (text_only.vocab_size, tokenizer.vocab_size) == (5, 6)
    assert tokenizer.decode_all(found.ids) == f"a{PLACE * 4}?"
    with pytest.raises(ValueError, match="no id for images"):
        text_only.image_id()
    with pytest.raises(ValueError, match="outside the 5"):
        text_only.decode_all([5])


def test_square_tiles_are_pixels_as_they_are_or_resized_bilinearly():
    tiles = SquareTiles(16, 4)
    fitting, other = drawn(16, 16), drawn(30, 20)
    np.testing.assert_array_equal(tiles.tiles(Image.of(fitting))[0], np.asarray(fitting))
    resized = other.resize((16, 16), PIL.Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(tiles.tiles(Image.of(other))[0], np.asarray(resized))


def test_a_policy_that_reads_text_alone_leaves_images_out(gemma):
    blind = PromptEncoder(gemma.tokenizer)
    row = {"images": ["/nowhere.png"]}
    ids = gemma.tokenizer.encode_prompt("a <image>")
    assert blind.length("a <image>", row) == len(ids)
    assert blind.expanded("a <image>", row).ids.tolist() == ids


@pytest.mark.parametrize(
    ("text", "images", "message"),
    [
        (
            "<image> and <image>",
            1,
            r"has 2 places for images \('<image>'\), and the row has 1 image",
        ),
        (
            "<image>",
            3,
            r"has 1 place for images \('<image>'\), and the row has 3 images: give each",
        ),
        (f"{PLACE} <image>", 2, r"has 1 place for images \(parts or U\+FFFC\), and the row has 2"),
    ],
)
def test_other_numbers_of_places_than_of_images_are_refused(gemma, text, images, message):
    row = _row(*[(9, 9)] * images)
    with pytest.raises(ValueError, match=message):
        gemma.length(text, row)
    placing = [Image(data=one.data, place="a.jsonl, line 7: 'photo' [0]") for one in row["images"]]
    with pytest.raises(ValueError, match=r"^a.jsonl, line 7: 'photo' \[0\]: the prompt has"):
        gemma.length(text, {"images": placing})


def test_places_are_marked_placeholders_or_before_the_text():
    assert placed("a <image> b", 0) == "a <image> b"
    assert placed("a <image> b", 1) == f"a {PLACE} b"
    assert placed("a <img> b", 1, "<img>") == f"a {PLACE} b"
    assert placed("a <image> b", 2, "") == f"{PLACE}{PLACE}a <image> b"
    assert placed(f"a {PLACE} <image>", 1) == f"a {PLACE} <image>"


def test_a_text_with_reserved_characters_is_cut_at_another_one():
    assert unused_character(["\ufdd0", "a\ufdd1"]) == "\ufdd2"
    with pytest.raises(ValueError, match="U\\+FDD0"):
        unused_character(["".join(map(chr, range(0xFDD0, 0xFDF0)))])


def test_a_vocabulary_without_an_image_token_is_refused(gemma, smol):
    with pytest.raises(ValueError, match=r"no token for images \(<image_soft_token>\).*use the"):
        smol.tokenizer.image_id(gemma.processor.marks)
    with pytest.raises(ValueError, match="no token for images"):
        smol.tokenizer.image_id(None)


def test_a_template_without_images_is_refused(gemma, tmp_path):
    backend = gemma3_tokenizer()
    backend.chat_template = "{% for m in messages %}{{ m['role'] }}{% endfor %}"
    tokenizer = _tokenizer(backend, tmp_path / "other")
    encoder = PromptEncoder(tokenizer, gemma.processor)
    with pytest.raises(ValueError, match="does not write a user's text with 1 images"):
        encoder.length("What?", _row((9, 9)))


def test_a_template_of_texts_gets_the_names_of_images_in_its_text(gemma, tmp_path):
    backend = gemma3_tokenizer()
    backend.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    )
    encoder = PromptEncoder(_tokenizer(backend, tmp_path / "plain"), gemma.processor)
    found = encoder.expanded("What?", _row((9, 9)))
    assert (found.at >= 0).sum() == 4
    assert encoder.tokenizer.decode_all(found.ids[-8:]).endswith("\n\nWhat?\n")


def test_own_marks_let_any_vocabulary_show_square_tiles(smol):
    marks = PictureMarks("<global-img>", "<image>", "<global-img>|<image>")
    encoder = PromptEncoder(smol.tokenizer, SquareTiles(8, 4, marks))
    assert (encoder.expanded("What?", _row((9, 9))).at >= 0).sum() == 4
