"""Tiles of checkpoints' processors: the pixels and the layouts of transformers, to the bit."""

import base64
import json

import numpy as np
import PIL.Image
import pytest

from rl_sync.image_files import Size
from rl_sync.images import Image
from rl_sync.tasks.pictures.checkpoint_tiles import checkpoint_tiles
from tests.odd_images import odd_files
from tests.tasks.pictures.checkpoints import gemma3, smolvlm


def _reference(path):
    from transformers import AutoImageProcessor

    # The processor of Gemma 3 sets do_convert_rgb, which is null in its file.
    return AutoImageProcessor.from_pretrained(path, backend="pil", do_convert_rgb=True)


@pytest.mark.parametrize("make", [gemma3, smolvlm])
def test_pixels_of_fifty_odd_images_are_those_of_transformers(make, tmp_path):
    from transformers.image_utils import load_image

    path = make(tmp_path / "model")
    ours, theirs = checkpoint_tiles(path), _reference(path)
    for name, content in odd_files(50).items():
        image = Image(data=content)
        loaded = load_image("data:image/any;base64," + base64.encodebytes(content).decode())
        tiles = ours.tiles(image)
        assert tiles.dtype == np.uint8
        assert len(tiles) == ours.layout(image.size()).tiles, name
        assert tiles.shape[1:] == (ours.tile_size, ours.tile_size, 3)
        raw = theirs(images=[loaded], do_rescale=False, do_normalize=False)["pixel_values"]
        raw = np.asarray(raw).reshape(-1, 3, *tiles.shape[1:3]).transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(tiles, raw, err_msg=name)
        scaled = np.asarray(theirs(images=[loaded])["pixel_values"])
        scaled = scaled.reshape(-1, 3, *tiles.shape[1:3]).transpose(0, 2, 3, 1)
        np.testing.assert_allclose((tiles / 255 - 0.5) / 0.5, scaled, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("longest", [128, 80, 32, 33])
@pytest.mark.parametrize("family", ["smolvlm", "idefics3"])
def test_the_size_alone_says_how_many_tiles_transformers_makes(longest, family, tmp_path):
    path = smolvlm(tmp_path / "model", side=32, longest=longest, family=family)
    ours, theirs = checkpoint_tiles(path), _reference(path)
    random = np.random.default_rng(longest)
    sizes = [tuple(map(int, pair)) for pair in random.integers(1, 300, (40, 2))]
    sizes += [(1, 1), (1, 900), (900, 1), (2, 3), (128, 128), (128, 32), (32, 33), (128, 97)]
    for width, height in sizes:
        made = theirs(images=[PIL.Image.new("RGB", (width, height))], return_row_col_info=True)
        [[rows]], [[columns]] = made["rows"], made["cols"]
        found = ours.layout(Size(width, height))
        assert (found.rows, found.columns) == (rows, columns), (width, height)
        assert found.tiles == np.shape(made["pixel_values"])[1], (width, height)


def test_images_of_any_length_are_cut_from_at_most_4096_pixels(tmp_path):
    path = smolvlm(tmp_path / "model", side=512, longest=5000)
    ours, theirs = checkpoint_tiles(path), _reference(path)
    made = theirs(images=[PIL.Image.new("RGB", (300, 40))], return_row_col_info=True)
    assert ours.layout(Size(300, 40)) == (made["rows"][0][0], made["cols"][0][0]) == (2, 8)


def test_images_are_whole_if_the_checkpoint_does_not_split_them(tmp_path):
    path = smolvlm(tmp_path / "model", do_image_splitting=False)
    ours = checkpoint_tiles(path)
    image = Image.of(np.zeros((90, 200, 3), np.uint8))
    assert ours.layout(image.size()).tiles == len(ours.tiles(image)) == 1


def test_a_newer_file_with_a_section_for_images_is_read_too(tmp_path):
    path = tmp_path / "model"
    gemma3(path)
    old = path / "preprocessor_config.json"
    nested = {"image_processor": json.loads(old.read_text()), "image_seq_length": 4}
    (path / "processor_config.json").write_text(json.dumps(nested))
    old.unlink()
    assert checkpoint_tiles(str(path)).tile_tokens == 4


def test_a_text_checkpoint_has_no_tiles(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gemma3_text"}')
    assert checkpoint_tiles(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("make", "changed", "message"),
    [
        (
            gemma3,
            {"image_mean": [0.48, 0.45, 0.4]},
            r"image_mean=\[0.48.*must be \[0.5, 0.5, 0.5\]",
        ),
        (gemma3, {"size": {"height": 28, "width": 28}}, r"size=.*28.*must be .*56"),
        (gemma3, {"image_seq_length": 9}, r"image_seq_length=9 .*must be 4"),
        (gemma3, {"do_pan_and_scan": True}, r"do_pan_and_scan=True is not supported"),
        (gemma3, {"do_rescale": False}, r"do_rescale=False is not supported"),
        (gemma3, {"rescale_factor": 1.0}, r"rescale_factor=1.0 is not supported"),
        (smolvlm, {"max_image_size": {"longest_edge": 64}}, r"max_image_size=.*64.*must be .*32"),
        (smolvlm, {"image_seq_len": 64}, r"image_seq_len=64 .*must be 4"),
        (smolvlm, {"size": {"height": 9, "width": 9}}, r"must have a longest_edge"),
    ],
)
def test_processing_that_the_model_does_not_expect_is_refused(make, changed, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        checkpoint_tiles(make(tmp_path / "model", **changed))


def test_a_checkpoint_without_the_files_of_its_processor_is_refused(tmp_path):
    path = gemma3(tmp_path / "model")
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match=r"has no preprocessor_config.json .* fetch one of them"):
        checkpoint_tiles(path)
