import re

import pytest

from rl_sync.page.charts import Series, chart, log_ticks, nice_ticks, short, smoothed, thinned


def test_a_chart_keeps_peaks_and_ends_and_leaves_out_what_is_no_number():
    points = [(float(x), float((x == 700) - (x == 720))) for x in range(10_000)]
    kept = thinned(points)
    assert len(kept) <= 322
    assert {(700.0, 1.0), (720.0, -1.0)} <= {*kept}
    assert kept == sorted(kept)
    svg = chart([Series("a<b", [(1, 2.0), (2, None), (3, float("nan")), (4, 5.0)])], bound=6.0)
    assert "a&lt;b" in svg
    assert "a<b" not in svg
    assert 'class="bound"' in svg
    assert svg.count("points=") == 1
    assert "nothing yet" in chart([Series("a", [(1, None)])])


def test_ticks_are_round_and_enclose_the_values():
    assert nice_ticks(0.0, 1.0) == [0.0, 0.25, 0.5, 0.75, 1.0]
    for low, high in ((3.0, 3.0), (0.0, 0.0), (-7.3, 1e6), (1e-9, 2e-9)):
        ticks = nice_ticks(low, high)
        assert ticks[0] <= low <= high <= ticks[-1] + 1e-15
        assert 2 <= len(ticks) <= 8


def test_axes_of_constants_begin_at_0_and_rounding_is_no_negative_share():
    assert nice_ticks(0.0, 0.0)[0] == 0.0
    assert nice_ticks(3.0, 3.0)[0] == 0.0
    assert nice_ticks(-3e-8, 0.0) == nice_ticks(-3e-8, -1e-8) == nice_ticks(0.0, 0.0)
    assert nice_ticks(-3e-8, 0.5)[0] == 0.0
    assert nice_ticks(2e-7, 5e-7)[-1] == pytest.approx(5e-7), "a learning rate may be this small"
    assert short(-0.0) == "0"


def test_a_constant_with_errors_of_rounding_has_the_axis_of_a_constant():
    rounded = 0.7, 0.7 + 1e-16
    assert nice_ticks(*rounded)[0] == 0.0
    assert nice_ticks(-3.0, -3.0 + 1e-9)[-1] == 0.0
    smooth = smoothed([(x, 0.0014) for x in range(12)], 0.6)
    assert len({y for _, y in smooth}) > 1
    assert "<polyline" in chart([Series("a", smooth)])


def test_the_marks_of_an_axis_differ_and_thousands_are_whole():
    svg = chart([Series("a", [(8, 0.99991), (82090, 0.99995)])])
    marks = re.findall(r'text-anchor="end">([^<]*)<', svg)
    assert len(set(marks)) == len(marks)
    assert marks[-1] == "82090"


def test_a_log_axis_has_powers_of_ten_and_leaves_out_what_is_not_positive():
    assert log_ticks(0.003, 40.0) == [0.001, 0.1, 10.0, 1000.0]
    assert log_ticks(1.0, 1.0) == [1.0, 10.0]
    svg = chart([Series("a", [(0, 0.0), (1, 0.01), (2, 10.0)])], is_log=True)
    (points,) = re.findall(r'points="([^"]*)"', svg)
    assert len(points.split()) == 2
    negative = [Series("a", [(0, -1.0), (1, 0.0)])]
    assert chart(negative, is_log=True) == chart(negative)


def test_smoothing_has_no_bias_to_the_beginning_and_forgets_by_its_weight():
    constant = [(x, 5.0) for x in range(4)]
    assert smoothed(constant, 0.9) == [(x, pytest.approx(5.0)) for x in range(4)]
    points = [(0, 1.0), (1, None), (2, 3.0)]
    assert smoothed(points, 0.5) == [(0, 1.0), (2, pytest.approx((0.25 * 1 + 0.5 * 3) / 0.75))]
    assert smoothed(points, 0.0) == [(0, 1.0), (2, 3.0)]
