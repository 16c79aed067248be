"""What `Result` reads of a run's records."""

import base64
import io
import re

import numpy as np
import PIL.Image
import pytest

import rl_sync
from rl_sync.api.result import Result, as_html
from rl_sync.images import Image
from rl_sync.records.rollouts.recorded_images import ImageFiles
from tests.page.small_run import write_run, write_step


@pytest.fixture(name="result", scope="module")
def _result(tmp_path_factory):
    return rl_sync.open_run(write_run(tmp_path_factory.mktemp("result") / "run"))


def test_the_summary_has_the_steps_and_the_age_of_their_data(result):
    summary = result.summary
    assert summary.trainer_steps == 4
    assert summary.max_staleness <= 2
    assert 0 <= summary.trainer_idle_share < 1


def _window(figure):
    low, high = figure.axes[0].get_xlim()
    return high - low


def test_the_timeline_shows_steps_or_as_many_seconds_as_asked_for(result):
    all_steps, one = result.timeline(), result.timeline(2, 2)
    assert 0 < _window(one) < _window(all_steps)
    assert _window(result.timeline(2, secs=1.5)) == pytest.approx(1.5)
    start = result.timeline(2, secs=1.5).axes[0].get_xlim()[0]
    assert start == pytest.approx(one.axes[0].get_xlim()[0], abs=0.1)
    assert "Mine" in [text.get_text() for text in result.timeline(title="Mine").texts]


def test_steps_that_the_run_does_not_have_are_refused_with_those_that_it_has(result):
    with pytest.raises(rl_sync.ConfigError, match="no trainer steps 9 to 4: it has 1 to 4"):
        result.timeline(9)


def test_rollouts_are_those_of_the_steps_and_the_pattern(result):
    assert {one.step for one in result.rollouts()} == {1, 2, 3, 4}
    assert {one.step for one in result.rollouts(2, 3)} == {2, 3}
    some = result.rollouts()[0]
    found = result.rollouts(pattern=f"^{some.prompt[:-3]}\\+")
    assert found
    assert all(one.prompt == some.prompt for one in found)


def test_a_run_without_spans_or_snapshots_says_so(tmp_path):
    empty = Result(tmp_path)
    for read in (lambda: empty.summary, empty.timeline, lambda: empty.export(tmp_path / "to")):
        with pytest.raises(rl_sync.ConfigError):
            read()
    assert empty.rollouts() == []


HOSTILE = '"><script>alert(1)</script>'


def _workdir_with_images(path, images):
    folder = write_run(path, steps=1)
    write_step(folder, 2, prompt=HOSTILE, images=images)
    return folder


def _sources(shown):
    return re.findall(r'<img src="data:image/png;base64,([^"]*)" alt="([^"]*)">', shown)


def test_a_notebook_shows_rollouts_by_group_with_the_images_of_their_prompts(tmp_path):
    from IPython.core.formatters import DisplayFormatter

    drawing = np.full((9, 7), 255, np.uint8)
    stored = ImageFiles(tmp_path / "run", 1 << 20).store([Image.of_array(drawing)])
    folder = _workdir_with_images(tmp_path / "run", [*stored, {"error": HOSTILE}])
    result = rl_sync.open_run(folder)
    found = result.rollouts(2, 2)
    assert len(found) == 4
    shown = DisplayFormatter().format(found)[0]["text/html"]
    sources = _sources(shown)
    assert len(sources) == 2, "one for each of two groups, not one for each completion"
    for encoded, label in sources:
        picture = PIL.Image.open(io.BytesIO(base64.b64decode(encoded)))
        assert picture.size == (7, 9)
        assert label.startswith("image 1: 7x9")
    assert "<script>" not in shown
    assert shown.count("image 2: &#34;&gt;&lt;script&gt;") == 2
    assert shown.count("<article>") == 4
    assert "<img" not in result.rollouts(1, 1)._repr_html_()


def test_slices_of_rollouts_are_shown_and_stay_lists(tmp_path):
    result = rl_sync.open_run(write_run(tmp_path / "run"))
    found = result.rollouts()
    some = found[1:3]
    assert some == list(found)[1:3]
    assert found[1] == some[0]
    assert some._repr_html_().count("<article>") == 2
    assert "No rollouts" in found[:0]._repr_html_()


def test_a_notebook_bounds_the_rollouts_and_the_bytes_of_images(tmp_path):
    drawings = [Image.of_array(np.full((8, 8), shade, np.uint8)) for shade in range(18)]
    stored = ImageFiles(tmp_path / "run", 1 << 20).store(drawings)
    folder = _workdir_with_images(tmp_path / "run", stored)
    found = rl_sync.open_run(folder).rollouts(2, 2)
    whole = as_html(folder, found)
    assert len(_sources(whole)) == 2 * 16
    assert "2 more images" in whole
    each = max(len("data:image/png;base64,") + len(one) for one, _ in _sources(whole))
    bounded = as_html(folder, found, most_rollouts=3, most_image_bytes=3 * each)
    assert len(_sources(bounded)) == 3
    assert bounded.count("not shown: too many bytes") == 2 * 16 - 3
    assert bounded.count("<article>") == 3
    assert "3 of 4 rollouts" in bounded
