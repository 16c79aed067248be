"""The picture of predicted schedules."""

from rl_sync.addons.tune.frontier_figure import MODE_COLOURS, SchedulePoint, draw_frontier
from rl_sync.display.timeline_figure import encoded
from rl_sync.schedule import MODES

POINTS = [
    SchedulePoint("synchronous", "I1 O0 ×1", 0.0, 100.0, best=True),
    SchedulePoint("synchronous", "I2 O0 ×1", 0.5, 90.0),
    SchedulePoint("asynchronous", "I1 S2 ×1", 1.5, 150.0, best=True, chosen=True),
]


def test_the_best_have_names_and_are_joined_and_the_chosen_one_is_marked():
    figure = draw_frontier(POINTS, "Predicted", "steps an hour")
    (axes,) = figure.axes
    assert {text.get_text() for text in axes.texts} == {"I1 O0 ×1", "I1 S2 ×1"}
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["synchronous", "asynchronous", "chosen"]
    joined = [line for line in axes.lines if line.get_linestyle() == "-"]
    assert [line.get_xydata().tolist() for line in joined] == [[[0.0, 100.0], [1.5, 150.0]]]
    marked = [line for line in axes.lines if line.get_label() == "chosen"]
    assert [line.get_xydata().tolist() for line in marked] == [[[1.5, 150.0]]]


def test_every_mode_has_a_colour_and_the_same_points_give_the_same_bytes():
    assert MODE_COLOURS.keys() == MODES.keys()
    first, second = (encoded(draw_frontier(POINTS, "a", "b"), "svg") for _ in range(2))
    assert first == second


def test_fast_schedules_that_are_alike_are_not_cut_off_at_the_top():
    alike = [point._replace(speed=6000.0 + i) for i, point in enumerate(POINTS)]
    (axes,) = draw_frontier(alike, "Predicted", "steps an hour").axes
    figure_px = axes.transData.transform([(point.staleness, point.speed) for point in alike])
    assert axes.bbox.ymax - max(y for _, y in figure_px) > 14  # Half of the chosen one's mark.
    assert axes.get_ylim()[0] == 0
