"""The run that is disturbed for hours: what ends it, and what its report says."""

import json
import sys

import pytest

pytestmark = pytest.mark.gate


@pytest.fixture
def long_run(benchmarks):
    return benchmarks("long_run")


@pytest.fixture
def command(long_run, monkeypatch, tmp_path):
    """Runs the command with arguments, as root; returns the path of its results."""
    results = tmp_path / "long_run.jsonl"

    def run(*arguments):
        given = ["long_run.py", "--disk=0", f"--workdir={tmp_path}", f"--results={results}"]
        monkeypatch.setattr(sys, "argv", [*given, *arguments])
        monkeypatch.setattr(long_run.os, "geteuid", lambda: 0)
        long_run.main()

    run.results = results
    return run


@pytest.mark.parametrize("told", ["--hours=-1", "--hours=0", "--every=nan", "--attempt=0"])
def test_times_are_above_0(command, capsys, told):
    with pytest.raises(SystemExit, match="2"):
        command(told)
    assert f"{told.split('=')[1]} is not above 0" in capsys.readouterr().err
    assert not command.results.exists()


def test_a_launcher_that_refuses_the_settings_ends_it_with_what_it_said(
    command, long_run, monkeypatch
):
    def refuse(run, number, secs, last_step):
        run.lines.write({"what": "attempt", "number": number, "secs": 1.0, "said": "No such mode."})
        return long_run.MISTAKE

    monkeypatch.setattr(long_run.LongRun, "attempt", refuse)
    with pytest.raises(SystemExit, match=r"No such mode\."):
        command("--hours=1")


def test_results_that_are_missing_are_named(command):
    with pytest.raises(SystemExit, match=r"long_run\.jsonl: there is no such file"):
        command("--report")


def test_attempts_go_on_until_their_hours_are_over_and_the_last_one_ends_the_run(
    command, long_run, monkeypatch, capsys
):
    asked = []

    def attempt(run, number, secs, last_step):
        asked.append((number, secs, last_step))
        run.lines.write({"what": "attempt", "number": number, "secs": 1800.0, "step": 40})
        return 0

    monkeypatch.setattr(long_run.LongRun, "attempt", attempt)
    monkeypatch.setattr(long_run.LongRun, "step", lambda run: 40)
    monkeypatch.setattr(long_run, "judged", lambda workdir: ENDED)
    command.results.write_text(
        json.dumps({"what": "attempt", "number": 0, "secs": 3000.0, "step": 10}) + "\n"
    )
    monkeypatch.setattr(long_run.time, "monotonic", iter(range(0, 90000, 1800)).__next__)
    command("--hours=1.5", "--attempt=2000")
    assert asked == [(1, 2000.0, None), (2, 600.0, None), (3, 2300.0, 40 + long_run.LAST_STEPS)]
    said = capsys.readouterr().out
    assert "4 attempts, 2.3 hours, 40 trainer steps." in said
    assert "Greatest staleness 3, bound 4." in said
    assert "- steps 7 to 9: slow" in said


ENDED = {
    "disturbances": [{"kind": "kill", "process": "trainer", "window": None}],
    "lost_secs": {"trainer": 12.0},
    "outages": {"trainer": 1},
    "effective_share": 0.9,
    "staleness": [3, 4],
    "faults": [],
    "alarms": [["slow", 7, 9, "slow"]],
}
