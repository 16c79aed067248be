"""The benchmark of the modes: its table of runs."""

import importlib.util
from pathlib import Path

import pytest

from rl_sync.records.spans import Span, SpanKind

_PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "modes.py"
_SPEC = importlib.util.spec_from_file_location("modes", _PATH)
modes = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(modes)


def _line(mode, curve, **values):
    points = [modes.Point(*point)._asdict() for point in curve]
    return {
        "mode": mode,
        "curve": points,
        "values": {**dict.fromkeys(modes.ROWS, 1.0), **values},
    }


@pytest.mark.parametrize(
    ("steps", "drawn"), [(30, (20, 24)), (100, (66, 70)), (6, (2, 6)), (5, (1, 5)), (1, (1, 1))]
)
def test_the_steps_that_are_drawn_are_chosen_from_the_runs(steps, drawn):
    assert modes.drawn_steps(steps) == drawn


def test_the_time_to_an_accuracy_is_that_of_the_first_policy_that_has_it():
    lines = [
        _line("synchronous", [(2, 0.4, 3.0, 2.0), (4, 0.9, 6.0, 5.0), (6, 0.8, 9.0, 7.0)]),
        _line("synchronous", [(2, 0.4, 4.0, 2.0), (4, 0.5, 7.0, 5.0), (6, 0.95, 8.0, 7.0)]),
        _line("synchronous", [(2, 0.95, 1.0, 1.0)]),
        _line("asynchronous", [(2, 0.4, 3.0, 2.0)]),
    ]
    table = modes.table(lines, 0.9)
    assert table[0] == "|  | synchronous | asynchronous |"
    assert table[2:5] == [
        "| to 90 %, s | 6 (1 to 8) | never |",
        "| … ideal, s | 5 (1 to 7) | never |",
        "| … trainer steps | 4 (2 to 6) | never |",
    ]


def test_a_run_that_never_gets_there_counts_as_slower_than_all():
    curve = [(2, 0.4, 3.0, 2.0)]
    lines = [_line("synchronous", curve), _line("synchronous", [(2, 0.9, 3.0, 2.0)])]
    assert modes.table(lines, 0.9)[2] == "| to 90 %, s | never (3 to never) |"


def test_what_runs_do_not_know_is_left_out():
    table = modes.table([_line("synchronous", [], **{"staleness, mean": None})], 0.9)
    assert "| staleness, mean |  |" in table
    assert not any(row.startswith("| to ") for row in table)


def test_the_ideal_time_is_that_of_the_longer_side_with_the_explorers_side_by_side():
    rollouts = [
        Span("explorer1", SpanKind.ROLLOUT, 0.0, 4.0, {}),
        Span("explorer2", SpanKind.ROLLOUT, 1.0, 3.0, {}),
    ]
    train = Span("trainer", SpanKind.TRAIN, 4.0, 6.0, {"step": 1})
    assert modes._ideal_secs([*rollouts, train]) == 3.0
    assert modes._ideal_secs([rollouts[0], train]) == 4.0
