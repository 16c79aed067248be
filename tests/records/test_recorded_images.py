import base64
import io

import numpy as np
import PIL.Image
import pytest

from rl_sync.images import Image
from rl_sync.records.rollouts.recorded_images import (
    MOST_SHOWN,
    ImageFiles,
    described,
    shown_images,
)
from rl_sync.workdir import Workdir


def _image(level=0, height=28, width=20):
    return Image.of_array(np.full((height, width, 3), level, np.uint8))


def _files(workdir):
    return sorted(Workdir(workdir).rollouts.glob("images/*"))


def test_an_image_is_stored_once_by_its_digest(tmp_path):
    image = _image()
    files = ImageFiles(tmp_path, 1 << 20)
    (one,) = files.store([image])
    assert one == {"digest": image.digest, "width": 20, "height": 28, "bytes": len(image.data)}
    (path,) = _files(tmp_path)
    assert path.name == f"{image.digest}.png"
    stamp = path.stat().st_mtime_ns
    assert files.store([image]) == ImageFiles(tmp_path, 1 << 20).store([image]) == [one]
    assert path.stat().st_mtime_ns == stamp


def test_a_reader_gets_the_pixels_in_a_data_url(tmp_path):
    (shown,) = shown_images(tmp_path, ImageFiles(tmp_path, 1 << 20).store([_image(7)]))
    assert shown.label.startswith("image 1: 20x28, ")
    kind, _, data = shown.source.partition(",")
    assert kind == "data:image/png;base64"
    pixels = np.array(PIL.Image.open(io.BytesIO(base64.b64decode(data))))
    assert pixels.shape == (28, 20, 3)
    assert (pixels == 7).all()


def test_a_large_image_is_stored_small(tmp_path):
    (shown,) = shown_images(tmp_path, ImageFiles(tmp_path, 1 << 20).store([_image(7, 40, 2000)]))
    data = base64.b64decode(shown.source.partition(",")[2])
    assert PIL.Image.open(io.BytesIO(data)).size == (512, 10)
    assert "2000x40" in shown.label


def test_images_are_stored_up_to_a_size(tmp_path):
    files = ImageFiles(tmp_path, 150)
    images = [_image(level) for level in range(9)]
    told = files.store(images)
    assert 1 <= len(_files(tmp_path)) < 9
    assert sum(path.stat().st_size for path in _files(tmp_path)) <= 150
    assert [one["digest"] for one in told] == [image.digest for image in images]
    assert shown_images(tmp_path, told)[-1].source == ""


@pytest.mark.parametrize("content", [b"no image", None])
def test_an_image_that_cannot_be_read_is_recorded_with_the_reason(tmp_path, content):
    image = Image(path=str(tmp_path / "gone.png")) if content is None else Image(data=content)
    (one,) = told = ImageFiles(tmp_path, 1 << 20).store([image])
    assert set(one) == {"error"}
    (shown,) = shown_images(tmp_path, told)
    assert shown == (f"image 1: {one['error']}", "")
    assert list(described(told)) == [shown.label]


def test_a_damaged_image_is_recorded_with_the_reason(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (28, 28, 3), np.uint8)
    content = Image.of_array(noise).data
    (one,) = ImageFiles(tmp_path, 1 << 20).store([Image(data=content[:-400])])
    assert "damaged" in one["error"]


def test_a_disk_that_cannot_be_written_does_no_harm(tmp_path):
    (tmp_path / "rollouts").write_text("a file")
    (one,) = told = ImageFiles(tmp_path, 1 << 20).store([_image()])
    assert one["width"] == 20
    assert shown_images(tmp_path, told)[0].source == ""


def test_a_record_cannot_name_files_elsewhere(tmp_path):
    outside = tmp_path / "outside.png"
    outside.write_bytes(b"secret")
    workdir = tmp_path / "run"
    folder = Workdir(workdir).rollouts / "images"
    folder.mkdir(parents=True)
    link = "a" * 64
    (folder / f"{link}.png").symlink_to(outside)
    told = [
        {"digest": name, "width": 1, "height": 1, "bytes": 1} for name in ("../../outside", link)
    ]
    assert [one.source for one in shown_images(workdir, told, workdir)] == ["", ""]


def test_a_reader_shows_a_bounded_number_of_images(tmp_path):
    told = ImageFiles(tmp_path, 1 << 20).store([_image()] * (MOST_SHOWN + 3))
    shown = shown_images(tmp_path, told)
    assert len(shown) == MOST_SHOWN + 1
    assert shown[-1] == ("3 more images", "")
