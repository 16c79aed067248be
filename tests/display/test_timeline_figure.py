"""Pictures of simulated runs: their contents, and their windows."""

import json
import re

import matplotlib.image
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from rl_sync.display.span_styles import SPAN_STYLES
from rl_sync.display.timeline_figure import (
    default_steps,
    draw,
    draw_timeline,
    figure_of,
    parse_steps,
    run_title,
    steps_window,
)
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import Span, SpanKind
from rl_sync.workdir import Workdir
from tests.records.simulated_runs import GROUPS, MODES, simulate, write_spans


def _drawn(spans, steps=None):
    figure = draw(spans, steps_window(spans, steps or default_steps(spans)), "a title")
    return figure.axes[0]


def _texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def _boxes(axes, kind: SpanKind) -> list[Rectangle]:
    colour = to_rgba(SPAN_STYLES[kind].colour)
    found = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [patch for patch in found if patch.get_facecolor() == colour]


@pytest.mark.gate
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_makes_a_png_and_an_svg(tmp_path, mode):
    write_spans(tmp_path, simulate(mode))
    png, svg = draw_timeline(tmp_path, tmp_path / "pictures", title=mode)
    assert (png, svg) == (
        tmp_path / "pictures" / "timeline.png",
        tmp_path / "pictures" / "timeline.svg",
    )
    image = matplotlib.image.imread(png)
    for kind in (SpanKind.ROLLOUT, SpanKind.TRAIN):
        near = abs(image[..., :3] - to_rgba(SPAN_STYLES[kind].colour)[:3]).max(axis=-1) < 0.01
        assert near.mean() > 0.02
    assert svg.read_text().startswith("<?xml")
    assert len(list(tmp_path.glob("pictures/*"))) == 2


@pytest.mark.parametrize(
    ("mode", "shown", "absent"),
    [
        ("synchronous", SpanKind.SYNC_COLLECTIVE, SpanKind.SYNC_CHECKPOINT),
        ("one_step_off_policy", SpanKind.SYNC_COLLECTIVE, SpanKind.SYNC_CHECKPOINT),
        ("asynchronous", SpanKind.SYNC_CHECKPOINT, SpanKind.SYNC_COLLECTIVE),
        ("multi_explorer", SpanKind.SYNC_CHECKPOINT, SpanKind.SYNC_COLLECTIVE),
    ],
)
def test_syncs_are_purple_or_red(mode, shown, absent):
    axes = _drawn(simulate(mode))
    assert len(_boxes(axes, shown)) >= 10
    assert not _boxes(axes, absent)


def test_blocks_and_waits_carry_their_names():
    texts = _texts(_drawn(simulate("synchronous")))
    assert {"e3 · v2", "e8 · v7", "t3", "t8"} <= set(texts)
    flat = {text.replace("\n", " ") for text in texts}
    assert {"wait for experiences", "wait for synchronization"} <= flat
    assert "t9" not in texts


def test_lanes_are_named_from_the_explorers_down_to_the_trainer():
    def names(mode):
        axes = _drawn(simulate(mode))
        labels = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        return [label.get_text() for _, label in sorted(labels, key=lambda pair: -pair[0])]

    assert names("asynchronous") == ["Explorer", "Buffer", "Trainer"]
    assert names("multi_explorer") == [
        "Explorer 1", "Explorer 2", "Explorer 3", "Buffer", "Trainer",
    ]  # fmt: skip


def test_one_arrow_for_each_explorer_step_and_each_batch():
    axes = _drawn(simulate("synchronous"))
    (shafts,) = [one for one in axes.collections if isinstance(one, LineCollection)]
    assert len(shafts.get_segments()) == 6 + 6


def test_a_sync_of_a_millisecond_is_still_seen():
    spans = [
        Span("explorer1", SpanKind.ROLLOUT, 0.0, 50.0, {"step": 1, "version": 0, "leases": [0]}),
        Span("explorer1", SpanKind.SYNC_COLLECTIVE, 99.999, 100.0, {"version": 1}),
        Span("trainer", SpanKind.TRAIN, 50.0, 99.0, {"step": 1, "leases": [0]}),
        Span("trainer", SpanKind.SYNC_COLLECTIVE, 99.999, 100.0, {"version": 1}),
    ]
    boxes = _boxes(_drawn(spans), SpanKind.SYNC_COLLECTIVE)
    assert len(boxes) == 2
    assert all(box.get_width() > 0.2 for box in boxes)
    assert boxes[0].get_gid().endswith("100.00 s, 0.001 s long")


def test_work_of_another_thread_does_not_cover_the_rollout():
    spans = [
        Span("explorer1", SpanKind.ROLLOUT, 0.0, 4.0, {"step": 1, "version": 0}),
        Span("explorer1", SpanKind.SCORE, 2.0, 3.0, {"step": 1}),
        Span("explorer1", SpanKind.SCORE, 4.0, 5.0, {"step": 1}),
        Span("trainer", SpanKind.TRAIN, 4.0, 5.0, {"step": 1}),
    ]
    aside, alone = _boxes(_drawn(spans), SpanKind.SCORE)
    (rollout,) = _boxes(_drawn(spans), SpanKind.ROLLOUT)
    assert aside.get_height() < 0.5 * rollout.get_height()
    assert alone.get_height() == rollout.get_height()


def test_a_wait_for_the_next_batch_does_not_cover_the_step_that_is_computed():
    spans = [
        Span("explorer1", SpanKind.ROLLOUT, 0.0, 8.0, {"step": 1, "version": 0}),
        Span("trainer", SpanKind.TRAIN, 1.0, 5.0, {"step": 1}),
        Span("trainer", SpanKind.TRAIN, 8.0, 9.0, {"step": 2}),
        Span("trainer", SpanKind.WAIT, 2.0, 8.0, {"reason": "experiences"}),
    ]
    axes = _drawn(spans)
    (wait,) = _boxes(axes, SpanKind.WAIT)
    assert (wait.get_x(), wait.get_width()) == (5.0, 3.0)


def test_a_window_has_few_blocks_however_many_spans_there_are():
    spans = [Span("trainer", SpanKind.TRAIN, t / 10, t / 10 + 0.09, {}) for t in range(20_000)]
    axes = draw(spans, (0.0, 2000.0)).axes[0]
    narrow = [one for one in axes.collections if isinstance(one, PolyCollection)]
    assert sum(len(one.get_paths()) for one in narrow) < 1000
    assert not _boxes(axes, SpanKind.TRAIN)
    assert len(_boxes(draw(spans, (500.0, 501.0)).axes[0], SpanKind.TRAIN)) == 10


def test_the_most_groups_in_the_buffer_are_told():
    assert f"at most {GROUPS}" in _texts(_drawn(simulate("synchronous")))


def test_a_block_says_what_it_is():
    boxes = _boxes(_drawn(simulate("synchronous")), SpanKind.ROLLOUT)
    assert re.fullmatch(r"rollout e3 · v2: [\d.]+ to [\d.]+ s, [\d.]+ s long", boxes[0].get_gid())


def test_roles_that_are_named_have_lanes_also_where_nothing_happened():
    axes = draw(simulate("synchronous"), (0.0, 1.0), roles=["explorer1", "trainer", "master"])
    names = [label.get_text() for label in axes.axes[0].get_yticklabels()]
    assert names == ["Explorer", "Buffer", "Trainer", "Master"]


def test_the_default_window_skips_the_slow_first_steps():
    assert default_steps(simulate("synchronous", 12)) == (3, 8)
    assert default_steps(simulate("synchronous", 4)) == (1, 6)
    assert default_steps([]) == (1, None)


def test_a_window_of_steps_reaches_from_the_step_before_to_the_last_sync():
    spans = simulate("synchronous", 6)
    trains = {span.step: span for span in spans if span.kind is SpanKind.TRAIN}
    sync = next(s for s in spans if s.kind is SpanKind.SYNC_COLLECTIVE and s.version == 4)
    start, end = steps_window(spans, (3, 4))
    assert trains[2].start_secs < start < trains[2].end_secs
    assert sync.end_secs < end < sync.end_secs + 0.5
    first = min(span.start_secs for span in spans if span.kind is SpanKind.ROLLOUT)
    assert steps_window(spans, (1, None))[0] == pytest.approx(first, abs=0.2)


def test_steps_that_the_run_has_not_are_refused(tmp_path):
    write_spans(tmp_path, simulate("synchronous", 4))
    with pytest.raises(ValueError, match="it has 1 to 4"):
        draw_timeline(tmp_path, steps=(9, 12))
    start = read_spans(tmp_path)[0].start_secs
    with pytest.raises(ValueError, match="Nothing happened between 900"):
        draw(read_spans(tmp_path), (start + 900.0, start + 910.0))


def test_a_window_in_seconds_counts_from_the_first_span(tmp_path):
    write_spans(tmp_path, simulate("synchronous", 4))
    spans = read_spans(tmp_path)
    origin = spans[0].start_secs
    axes = draw(spans, (origin + 2.0, origin + 9.0), "").axes[0]
    assert axes.get_xlim() == pytest.approx((2.0, 9.0))
    assert "SFT" in _texts(axes)
    first, _ = figure_of(tmp_path, steps=(2, 3)).axes[0].get_xlim()
    assert figure_of(tmp_path, steps=(2, 3), secs=5).axes[0].get_xlim() == (first, first + 5)


def test_a_run_that_has_only_warmed_up_is_drawn_whole(tmp_path):
    write_spans(tmp_path, [Span("trainer", SpanKind.SFT, 5.0, 9.0, {})])
    png, _ = draw_timeline(tmp_path)
    assert png.exists()


def test_the_title_tells_mode_and_schedule(tmp_path):
    assert run_title(tmp_path) == tmp_path.name
    sync = {"mode": "one_step_off_policy", "interval": 1, "offset": 1, "transfer": "collective"}
    Workdir(tmp_path).config.write_text(json.dumps({"sync": {**sync, "max_staleness": None}}))
    assert run_title(tmp_path) == "One-step off-policy · interval 1, offset 1, collective transfer"


def test_a_range_of_steps_is_read():
    assert parse_steps("3:8") == (3, 8)
    assert parse_steps("3:") == (3, None)
    assert parse_steps("5") == (5, 5)
    assert parse_steps("all") == (1, None)
    with pytest.raises(ValueError, match="3:8"):
        parse_steps("three")


@pytest.mark.parametrize("text", ['{"sync": {"mo', "[]", '{"sync": 3}'])
def test_a_damaged_config_costs_a_picture_its_title_alone(text, tmp_path):
    Workdir(tmp_path).config.write_text(text)
    assert run_title(tmp_path) == tmp_path.name
