"""The pictures of the modes: their table of runs and of predictions."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

FIGURES = {
    "steps_an_hour": 1000.0,
    "explorer_idle": 0.25,
    "trainer_idle": 0.5,
    "mean_staleness": 0.0,
    "max_staleness": 0.0,
}


@pytest.fixture
def pictures(benchmarks):
    return benchmarks("mode_pictures")


def line(pictures, mode, seed, steps_an_hour, reward=(0.5, 0.9, 1.0)):
    made = {
        "mode": mode,
        "seed": seed,
        "figures": FIGURES | {"steps_an_hour": steps_an_hour},
        "parts": {"rollout": 0.5, "train step": 0.25},
        "secs": [1.0, 2.0, 3.0],
        "reward": [*reward],
        "accuracy": [0.2, 1.0],
    }
    if mode == pictures.MEASURED:
        made["predicted"] = {mode: FIGURES for mode in pictures.MODES}
    return made


def test_measured_figures_stand_beside_those_predicted_from_the_same_seed(pictures):
    lines = [
        line(pictures, "synchronous", 0, 800.0),
        line(pictures, "synchronous", 1, 1000.0),
        line(pictures, "interval 4, offset 0", 0, 2000.0, reward=(0.1, 0.2, 0.3)),
        line(pictures, "interval 4, offset 0", 2, 4000.0),
    ]
    rows = pictures.report(lines)
    assert (
        rows[2] == "| `synchronous` | 2 | 900 (800 to 1,000) | 25 | 50 | 0.00 | 0 | 2.0 | 100.0 |"
    )
    assert rows[3] == (
        "| interval 4, offset 0 | 2 | 3,000 (2,000 to 4,000) | 25 | 50 | 0.00 | 0"
        " | inf (2.0 to inf) | 100.0 |"
    )
    assert "| `synchronous` | 1.12 (1.00 to 1.25) | 25 | 50 | 0.00 |" in rows
    assert "| interval 4, offset 0 | 0.50 | 25 | 50 | 0.00 |" in rows
    assert rows[-1] == "In the synchronous runs: rollout 0.50 s, train step 0.25 s."


def test_curves_end_with_the_shortest_run_of_their_mode(pictures):
    longer = line(pictures, "synchronous", 0, 1.0) | {"secs": [1.0, 2.0, 30.0]}
    (axis,) = pictures.figure([longer, line(pictures, "synchronous", 1, 1.0)]).axes
    (curve,) = axis.lines
    assert curve.get_xdata()[-1] == 3.0
    assert curve.get_ydata()[0] == 0.5


def test_each_mode_is_a_schedule_of_the_job(pictures):
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "equal_parts.py"
    counts = {}
    for mode, changes in pictures.MODES.items():
        given = [
            f"--config={path}",
            "--config.workdir=none",
            *(f"--config.{k}={v}" for k, v in changes.items()),
        ]
        counts[mode] = pictures._explorers(given)
    assert counts == {mode: 1 if mode == "asynchronous" else 4 for mode in pictures.MODES}
