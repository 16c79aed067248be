"""References to images: ways to give them, digests, sizes, pixels, and what is refused."""

import base64
import io
import logging
import pickle
import struct
import zlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from rl_sync import images
from rl_sync.cluster.user_errors import is_for_user, log_failure
from rl_sync.images import Image, Size, check_images, images_of
from rl_sync.isolation import codec
from tests.odd_images import drawn, encoded, odd_files, turned

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
    with pytest.raises(ValueError, match=r"/nowhere/cat.png cannot be read: there is no such file"):
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


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _bomb(width, height):
    """Returns a PNG of a few bytes whose header promises many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", pixels), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_size_and_pixels_are_those_of_pillow_for_odd_modes_formats_and_orientations():
    for name, content in odd_files().items():
        image = Image(data=content)
        with PIL.Image.open(io.BytesIO(content)) as opened:
            expected = PIL.ImageOps.exif_transpose(opened).convert("RGB")
            if "transparency" in expected.info:
                whole = PIL.Image.new("RGBA", expected.size, "white")
                whole.alpha_composite(expected.convert("RGBA"))
                expected = whole.convert("RGB")
            expected = np.asarray(expected)
        size = image.size()
        assert (size.height, size.width) == expected.shape[:2], name
        np.testing.assert_array_equal(image.pixels(), expected, err_msg=name)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_turned_photo_stands_upright(kind):
    image = Image(data=turned(40, 20, orientation=6, kind=kind))
    assert image.size() == Size(20, 40)
    assert image.pixels().shape == (40, 20, 3)


def test_an_orientation_behind_the_pixels_of_a_png_counts_too():
    content = turned(40, 20, orientation=6, kind="PNG")
    at = content.index(b"eXIf") - 4
    length = 12 + struct.unpack(">I", content[at : at + 4])[0]
    exif, rest = content[at : at + length], content[:at] + content[at + length :]
    image = Image(data=rest[:-12] + exif + rest[-12:])
    assert image.size() == Size(20, 40)
    assert image.pixels().shape == (40, 20, 3)


def test_the_size_of_a_file_is_known_without_decoding_it(monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    for name, content in odd_files(10).items():
        assert Image(data=content).size() > (0, 0), name


def test_a_bomb_is_refused_by_its_header_and_a_greater_bound_lets_it_pass(tmp_path):
    path = tmp_path / "bomb.png"
    path.write_bytes(_bomb(50_000, 50_000))
    message = r"bomb.png has 50,000 × 50,000 pixels, and 89,478,485 are allowed.*max_image_pixels"
    for ask in (Image.size, Image.pixels):
        with pytest.raises(ValueError, match=message):
            ask(Image(path=str(path)))
    allowed = Image(path=str(path), most_pixels=2_500_000_000)
    assert allowed.size() == Size(50_000, 50_000)
    with pytest.raises(ValueError, match="50,000 pixels"):  # The bound is each image's own.
        Image(path=str(path)).size()


def test_a_bound_below_the_usual_one_holds():
    content = encoded(drawn(30, 20), "PNG")
    with pytest.raises(ValueError, match="has 30 × 20 pixels, and 599 are allowed"):
        Image(data=content, most_pixels=599).pixels()
    assert Image(data=content, most_pixels=600).pixels().shape == (20, 30, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_truncated_file_is_refused_by_its_name_and_place(kind, tmp_path):
    path = tmp_path / "größe 1.img"
    content = encoded(drawn(90, 70), kind)
    path.write_bytes(content[: len(content) // 2])
    image = Image(path=str(path), place="data.jsonl, line 3: 'photo' 2")
    with pytest.raises(
        ValueError, match=r"data.jsonl, line 3: 'photo' 2: .*größe 1.img is damaged"
    ):
        image.pixels()


def test_data_urls_and_parts_of_chat_messages_are_images():
    content = encoded(drawn(5, 4), "PNG")
    text = base64.b64encode(content).decode()
    url = f"data:image/png;base64,{text}"
    broken = f"DATA:image/png;base64,{text[:30]}\n{text[30:]}"
    part = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    for given in (url, broken, part, {"url": url}, {"type": "image", "image": url}):
        assert Image.of(given) == Image(data=content)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("https://example.org/cat.png", "is an address, and nothing is fetched: download"),
        ({"image_url": {"url": "http://a.b/c.png"}}, "is an address, and nothing is fetched"),
        ("s3://bucket/cat.png", "is an address, and nothing is fetched"),
        ("data:image/png,abc", "is not a data URL of an image: it must be data:image/png;base64"),
        ("data:image/png;base64,%%%", "is not base64"),
        ("data:image/png;base64,", "is empty"),
    ],
)
def test_addresses_and_broken_data_urls_are_refused_with_the_way_out(given, message):
    with pytest.raises(ValueError, match=message):
        Image.of(given)


def test_files_that_may_run_programs_are_not_opened(tmp_path):
    script = tmp_path / "a.eps"
    script.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    with pytest.raises(ValueError, match="is not an image that can be read: save it as JPEG, PNG"):
        Image.of(script).size()


def test_images_of_pillow_are_kept_upright_in_any_mode():
    with PIL.Image.open(io.BytesIO(turned(40, 20, orientation=6))) as opened:
        assert Image.of(opened).pixels().shape == (40, 20, 3)
    inks = drawn(9, 7).convert("CMYK")
    np.testing.assert_array_equal(Image.of(inks).pixels(), np.asarray(inks.convert("RGB")))


def test_messages_and_bounds_do_not_make_images_differ():
    image = Image(path="a.png")
    assert image == Image(path="a.png", place="line 1", most_pixels=7)
    assert hash(image) == hash(Image(path="a.png", place="line 1"))
    sent = codec.decode(codec.encode(Image(data=b"x", place="line 1", most_pixels=7)))
    assert (sent.place, sent.most_pixels) == ("line 1", 7)


@pytest.mark.parametrize("damage", ["truncated", "gone"])
def test_a_run_that_meets_a_bad_image_ends_with_its_message_and_no_traceback(
    tmp_path, caplog, damage
):
    path = tmp_path / "bad.png"
    if damage == "truncated":
        noise = np.random.default_rng(0).integers(0, 255, (20, 20, 3), np.uint8)
        path.write_bytes(Image.of_array(noise).content()[:-300])
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 3: .*bad\.png") as failure:
        Image(path=str(path), place="rows.jsonl, line 3").pixels()
    assert is_for_user(failure.value)
    log_failure(logging.getLogger("a run"), "explorer1", failure.value)
    assert "explorer1 failed: rows.jsonl, line 3" in caplog.text
    assert "Traceback" not in caplog.text
