"""The benchmark over seeds: its runs, its table and its picture."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

_PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "seeds.py"
_SPEC = importlib.util.spec_from_file_location("seeds", _PATH)
seeds = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(seeds)


def _line(mode, seed, accuracy, secs=(0.0, 5.0, 10.0)):
    curves = {name: [0.5, 0.25] for name in seeds.CURVES}
    case = seeds.Case("configs/x.py", mode, seed, ())._asdict()
    steps = {"steps": [0, 1, 2], "secs": list(secs), "accuracy": accuracy, "total_secs": 60.0}
    return {**case, **steps, **curves}


def test_a_custom_mode_names_its_interval_and_its_offset():
    flags = seeds.Case("configs/x.py", "custom:4:0", 7, ("trainer.steps=3",)).flags()
    assert flags == [
        "--config=configs/x.py",
        "--config.sync.mode=custom",
        "--config.sync.interval=4",
        "--config.sync.offset=0",
        "--config.seed=7",
        "--config.trainer.steps=3",
    ]


@pytest.mark.parametrize(("text", "numbers"), [("3:5", [3, 4, 5]), ("7,1", [7, 1]), ("4", [4])])
def test_seeds_are_a_range_with_both_ends_or_a_list(text, numbers):
    assert seeds.seeds_of(text) == numbers


def test_the_table_has_the_least_the_median_and_the_greatest_of_each_mode():
    ends = ((100, 0.9), (101, 1.0), (102, 0.95))
    lines = [_line("synchronous", seed, [0.4, 0.5, after]) for seed, after in ends]
    head, _, row = seeds.table(lines, ["synchronous", "asynchronous"])
    assert head.startswith("| mode | seeds | accuracy before RL, % |")
    assert row == (
        "| synchronous | 3 | 40.0 / 40.0 / 40.0 | 90.0 / 95.0 / 100.0 | 10.0 / 10.0 / 10.0"
        " | 60.0 / 60.0 / 60.0 |"
    )


def test_runs_of_unequal_length_share_the_seconds_that_they_are_drawn_over():
    lines = [_line("a", 0, [0.0, 0.5, 1.0]), _line("a", 1, [0.0, 1.0, 1.0], secs=(0.0, 10.0, 20.0))]
    x, curves = seeds._curves(lines, "accuracy over seconds")
    assert (x[0], x[-1]) == (0.0, 20.0)
    np.testing.assert_allclose(curves[:, -1], 1.0)
    np.testing.assert_allclose(np.interp(10.0, x, curves[0]), 1.0, atol=0.02)


def test_the_picture_has_a_panel_for_each_curve():
    figure = seeds.figure([_line("synchronous", 1, [0.4, 0.5, 0.9])], ["synchronous"])
    assert [axis.get_title() for axis in figure.axes[:2]] == ["accuracy", "accuracy over seconds"]
    assert len(figure.axes) == 2 + len(seeds.CURVES)
