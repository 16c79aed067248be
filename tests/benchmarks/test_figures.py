"""Figures by commit: what is a regression, which lines are added, and their picture."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECS = 900.0
"""Of the wall: it takes two or three minutes of CPU time, and other tests run beside it."""

LINE = {
    "commit": "0123456789",
    "python": "3.12",
    "jax": "0.12.0",
    "cores": 2,
    "speed": {"decode": [0.9, 1.0, 1.3], "judging": [1.8, 2.0, 2.2]},
    "reference_ms": {"products": 100.0, "interpreter": 50.0},
    "programs": {"h100": {"cases": 2, "peak_gb": 30.0, "kernels": 400}},
    "sizes": {"lines": 1000, "files": 10},
    "tests": {"readme": 100, "gate": 50},
    "test_secs": {"readme": 60, "gate": 500},
}

OTHERS = {"products": 100.0, "interpreter": 500.0}
"""References as on another kind of machine."""


def _decoding(median):
    return LINE | {"speed": LINE["speed"] | {"decode": [median - 0.1, median, median + 0.1]}}


def _checked(benchmarks, monkeypatch, first, second=None):
    """Returns the status of a check, and the pieces of work that it measured again."""
    figures, asked = benchmarks("figures"), []

    def speed(rounds, only):
        asked.extend(only)
        return {"speed": {name: second["speed"][name] for name in only}, "reference_ms": OTHERS}

    monkeypatch.setattr(figures, "speed", speed)
    return figures.check(5, first, LINE), asked


def test_a_regression_that_repeats_fails_with_a_line(benchmarks, monkeypatch, capsys):
    status, asked = _checked(benchmarks, monkeypatch, _decoding(1.11), _decoding(1.12))
    assert (status, asked) == (1, ["decode"])
    assert capsys.readouterr().out.splitlines()[-1] == (
        "speed decode grew from 1 to 1.11 and, measured again, 1.12: more than 10%."
    )


def test_one_that_does_not_repeat_passes(benchmarks, monkeypatch, capsys):
    status, asked = _checked(benchmarks, monkeypatch, _decoding(1.5), _decoding(1.02))
    assert (status, asked) == (0, ["decode"])
    assert "No figure is worse than at 0123456789" in capsys.readouterr().out


def test_a_growth_of_nine_percent_passes_at_once(benchmarks, monkeypatch):
    assert _checked(benchmarks, monkeypatch, _decoding(1.09)) == (0, [])


def test_larger_programs_fail_without_another_measurement(benchmarks, monkeypatch, capsys):
    programs = {"h100": {"cases": 2, "peak_gb": 30.0, "kernels": 441}}
    assert _checked(benchmarks, monkeypatch, LINE | {"programs": programs}) == (1, [])
    assert "programs h100 kernels grew from 400 to 441" in capsys.readouterr().out


def test_a_new_quantity_passes_and_a_missing_one_is_told(benchmarks):
    compare = benchmarks("figure_lines").compare
    new = LINE | {"speed": LINE["speed"] | {"transfer": [8.0, 9.0, 10.0]}}
    assert compare(new, LINE) == ({}, ["speed transfer: there is no earlier figure."])
    assert compare(LINE, new) == ({}, ["speed transfer: it was not measured."])


def test_sums_over_other_programs_are_not_compared(benchmarks):
    more = LINE | {"programs": {"h100": {"cases": 3, "peak_gb": 60.0, "kernels": 900}}}
    worse, (note,) = benchmarks("figure_lines").compare(more, LINE)
    assert not worse
    assert note == "programs h100: 3 cases, and 2 before: not compared."


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"jax": "0.13.0"}, "this is jax 0.13.0, and the newest line is of jax 0.12.0"),
        ({"reference_ms": OTHERS}, "of another kind"),
    ],
)
def test_speeds_of_another_library_or_machine_are_not_compared(benchmarks, change, told):
    worse, (note,) = benchmarks("figure_lines").compare(_decoding(2.0) | change, LINE)
    assert not worse
    assert told in note


def test_a_machine_that_is_slower_in_everything_is_compared(benchmarks):
    slower = {"reference_ms": {"products": 300.0, "interpreter": 150.0}}
    assert benchmarks("figure_lines").compare(_decoding(2.0) | slower, LINE).worse


def test_a_line_is_added_once_a_commit_and_only_for_a_change(benchmarks, tmp_path):
    figures, path = benchmarks("figures"), tmp_path / "figures.jsonl"
    same = LINE | {"commit": "abc", "sizes": {"lines": 1029, "files": 10}}
    larger = LINE | {"commit": "def", "sizes": {"lines": 1031, "files": 10}}
    same["speed"] = _decoding(1.04)["speed"]
    for line in (LINE, same, larger, larger):
        before = figures.read_json_lines(path) if path.exists() else []
        said = figures.append(line, before, path)
    assert figures.read_json_lines(path) == [LINE, larger]
    assert said == "figures.jsonl has a line of def: nothing is appended."


def test_the_picture_draws_each_quantity_over_commits(benchmarks):
    newer = _decoding(1.2) | {"commit": "abc", "sizes": {"lines": 1100, "files": 10}}
    figure = benchmarks("figure_lines").picture([LINE, newer])
    speed, programs, sizes, *_ = figure.axes
    (decode, judging) = speed.lines
    assert list(decode.get_ydata()) == [1.0, 1.2]
    assert list(judging.get_ydata()) == [1.0, 1.0]
    assert [line.get_label() for line in programs.lines][1:] == [
        "h100 peak_gb, 30",
        "h100 kernels, 400",
    ]
    assert list(sizes.lines[0].get_ydata()) == [1.0, 1.1]
    assert [label.get_text() for label in speed.get_xticklabels()] == ["0123456789", "abc"]


def test_test_functions_are_counted_in_their_tiers(benchmarks, monkeypatch, tmp_path):
    figures = benchmarks("figures")
    (tmp_path / "tests").mkdir()
    gate = "mark." + "gate"  # Apart, as files are put into tiers by their text.
    of_both = f"def test_a():\n    pass\n\n\n@pytest.{gate}\ndef test_b():\n    pass\n"
    nightly = "pytestmark = [pytest.mark.nightly]\n\n\ndef test_c():\n    pass\n\n\nno = test_c\n"
    (tmp_path / "tests" / "test_a.py").write_text(of_both)
    (tmp_path / "tests" / "test_c.py").write_text(nightly)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    assert figures.tests() == {"nightly": 1, "aot": 0, "gate": 1, "readme": 1}


@pytest.mark.nightly
@pytest.mark.timeout(DEADLINE_SECS + 60)
def test_no_figure_is_worse_than_in_the_newest_line():
    command = [sys.executable, "benchmarks/figures.py", "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECS
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    if "Speed is not compared" in done.stdout:
        pytest.skip(done.stdout[done.stdout.index("Speed is not compared") :])
