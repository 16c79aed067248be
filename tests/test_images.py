"""References to images: ways to give them, digests, sizes, pixels, and what is refused."""

import pickle

import numpy as np
import PIL.Image
import pytest

from rl_sync import images
from rl_sync.images import Image, Size, check_images, images_of
from rl_sync.isolation import codec

GRADIENT = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(4, 6, 3)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "gradient.png"
    PIL.Image.fromarray(GRADIENT).save(path)
    return path


def test_the_same_image_has_the_same_digest_size_and_pixels_however_it_is_given(file):
    content = file.read_bytes()
    with PIL.Image.open(file) as opened:
        pillow = opened.copy()
    given = [str(file), file, content, {"bytes": content, "path": None}, {"path": str(file)}]
    found = [Image.of(one) for one in given]
    assert len({one.digest for one in found}) == 1
    for one in [*found, Image.of(GRADIENT), Image.of(pillow)]:
        assert one.size() == Size(6, 4)
        np.testing.assert_array_equal(one.pixels(), GRADIENT)


def test_grays_become_three_equal_channels():
    pixels = Image.of(np.full((2, 3), 7, np.uint8)).pixels()
    assert pixels.shape == (2, 3, 3)
    assert set(pixels.ravel()) == {7}


def test_a_process_decodes_an_image_once_and_keeps_a_bounded_number(monkeypatch):
    decoded = []
    read = images._read_pixels
    monkeypatch.setattr(images, "_read_pixels", lambda image: decoded.append(image) or read(image))
    monkeypatch.setattr(images, "_pixels", images._Cache(2 * 12))
    first, second, third = (Image.of(np.full((2, 2), i, np.uint8)) for i in range(3))
    for image in (first, Image.of(first.content()), second, first):
        image.pixels()
    assert len(decoded) == 2
    third.pixels()
    second.pixels()  # It was used least recently, and had to go.
    assert len(decoded) == 4


def test_a_reference_reads_nothing_until_it_is_asked():
    image = Image.of("/nowhere/cat.png")
    with pytest.raises(ValueError, match=r"/nowhere/cat.png cannot be read: No such file"):
        image.size()


def test_processes_send_each_other_images(file):
    image = Image.of(file)
    for one in (image, image.packed()):
        assert codec.decode(codec.encode({"images": [one]})) == {"images": [one]}
        assert pickle.loads(pickle.dumps(one)) == one
    file.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        image.packed()


def test_completions_of_a_row_carry_its_image_once():
    image = Image(data=bytes(100_000))
    rows = [{"prompt": str(i), "images": [image]} for i in range(8)]
    assert len(pickle.dumps(rows)) < 110_000


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, r"row\['images'\]\[1\]: 7 is not an image: it must be a path"),
        ("", r"row\['images'\]\[1\]: '' is not an image"),
        ({"path": None}, r"is not an image"),
        (b"no image at all", r"row\['images'\]\[1\]: an image of 15 bytes is not an image that"),
        ("/nowhere/a.png", r"row\['images'\]\[1\]: /nowhere/a.png cannot be read"),
        (np.zeros((2, 2)), r"An array of float64\[2, 2\] is not an image"),
        (np.zeros((2, 2, 4), np.uint8), r"An array of uint8\[2, 2, 4\] is not an image"),
    ],
)
def test_a_row_with_a_bad_image_is_refused_by_the_name_of_its_field(value, message):
    with pytest.raises(ValueError, match=message):
        check_images({"images": [GRADIENT, value]})


def test_a_damaged_file_is_refused_when_its_pixels_are_needed():
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    cut = Image(data=Image.of(noise).content()[:2000])
    assert cut.size() == Size(60, 40)
    with pytest.raises(ValueError, match="is damaged"):
        cut.pixels()


def test_a_row_may_have_one_image_or_none():
    assert images_of({"prompt": "?"}) == images_of({"images": None}) == []
    assert images_of({"images": "cat.png"}) == [Image(path="cat.png")]
    with pytest.raises(ValueError, match="either a path or bytes"):
        Image()
