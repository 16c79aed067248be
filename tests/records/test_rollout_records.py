"""Records of rollouts: parts, what readers find in them, and disks that cannot take them."""

import dataclasses
import json
import re
from pathlib import Path

import orjson
import pytest
import regex

from rl_sync.display.unprintable import escaped, has_unprintable
from rl_sync.records.alarms import ALARMS
from rl_sync.records.rollouts import rollout_records
from rl_sync.records.rollouts.rollout_parts import RolloutParts
from rl_sync.records.rollouts.rollout_records import (
    Rollout,
    RolloutFilter,
    describe_removed,
    digest,
    groups_of,
    parts,
    read_rollouts,
)
from tests.records.full_disk import files_of_at_most


def _lines(step, count=2, **fields):
    return [orjson.dumps(Rollout(step=step, lease=step, sample=i, **fields)) for i in range(count)]


def _steps(workdir, **conditions):
    return [one.step for one in read_rollouts(workdir, RolloutFilter(**conditions))]


def _recorded(workdir, *steps, start=0, part_bytes=1000):
    writer = RolloutParts(workdir, start, part_bytes)
    for step in steps:
        writer.write(step, _lines(step))
    writer.close()


def test_records_come_back_as_they_were_written_and_parts_begin_with_a_step(tmp_path):
    one = Rollout(
        step=1, lease=7, reward=0.5, turns=[{"by": "policy", "text": "ü"}], versions=[[3, 2]]
    )
    writer = RolloutParts(tmp_path, part_bytes=1000)
    writer.write(1, [orjson.dumps(one)])
    for step in range(2, 8):
        writer.write(step, _lines(step))
    assert next(read_rollouts(tmp_path)) == one, "it is there before the writer closes"
    writer.close()
    assert _steps(tmp_path) == [1, *(step for step in range(2, 8) for _ in range(2))]
    names = [part.path.name for part in parts(tmp_path)]
    assert names == ["step-00000001.jsonl", "step-00000003.jsonl", "step-00000005.jsonl",
                     "step-00000007.jsonl"]  # fmt: skip
    sizes = sum(part.path.stat().st_size for part in parts(tmp_path))
    assert writer.size_bytes == RolloutParts(tmp_path, 7).size_bytes == sizes


def test_parts_without_the_steps_that_are_wanted_are_not_opened(tmp_path, monkeypatch):
    _recorded(tmp_path, *range(1, 9))
    opened = []
    monkeypatch.setattr(rollout_records, "_read", lambda path: opened.append(path.name) or iter(()))
    _steps(tmp_path, first_step=4, last_step=5)
    assert opened == ["step-00000003.jsonl", "step-00000005.jsonl"]


@pytest.mark.parametrize("step", [0, 2, 3, 4, 6, 9])
def test_what_a_resumed_run_repeats_is_recorded_once(tmp_path, step):
    _recorded(tmp_path, *range(1, 7))
    with open(parts(tmp_path)[-1].path, "ab") as file:
        file.write(b'{"step": 6, "lea')  # Its writer was killed.
    _recorded(tmp_path, *range(step + 1, 8), start=step)
    before = min(step, 6)
    assert _steps(tmp_path) == sorted([*range(1, before + 1), *range(step + 1, 8)] * 2)


def test_a_run_goes_on_after_its_oldest_records_have_gone(tmp_path):
    most_bytes = 3 * sum(len(line) + 1 for line in _lines(1))
    writer = RolloutParts(tmp_path, most_bytes=most_bytes)
    for step in range(1, 7):
        writer.write(step, _lines(step))
    assert _steps(tmp_path) == [4, 4, 5, 5, 6, 6]
    assert "The completions of steps 1 to 3 are no longer" in describe_removed(tmp_path)
    writer.close()
    writer = RolloutParts(tmp_path, start=5, most_bytes=most_bytes)
    writer.write(6, _lines(6, reward=1.0))
    assert [(one.step, one.reward) for one in read_rollouts(tmp_path)][3:] == [
        (5, None), (6, 1.0), (6, 1.0)
    ]  # fmt: skip
    assert writer.size_bytes == sum(part.path.stat().st_size for part in parts(tmp_path))
    writer.close()
    writer = RolloutParts(tmp_path, start=1, most_bytes=most_bytes)
    writer.write(2, _lines(2))
    assert _steps(tmp_path) == [2, 2]
    assert "The completions of step 1 are no longer" in describe_removed(tmp_path)
    assert describe_removed(tmp_path / "another") == ""


def test_a_part_that_goes_while_all_are_read_is_left_out(tmp_path):
    _recorded(tmp_path, *range(1, 7))
    found = read_rollouts(tmp_path)
    steps = [next(found).step]
    for part in parts(tmp_path)[:2]:
        part.path.unlink()
    steps += [one.step for one in found]
    assert steps[0] == 1
    assert steps[-4:] == [5, 5, 6, 6]
    assert not {3, 4} & {*steps}


def test_a_line_that_is_being_written_is_left_out_and_a_broken_one_is_told_of(tmp_path, caplog):
    _recorded(tmp_path, 1)
    with open(parts(tmp_path)[0].path, "ab") as file:
        file.write(b'not JSON\n[1]\n{"lease": 1}\n{"step": 2, "lease": 1, "new": 1}\n{"step": 3')
    assert _steps(tmp_path) == [1, 1, 2]
    assert "3 lines are broken" in caplog.text


def test_a_full_disk_is_told_of_once_and_what_fits_later_is_recorded(tmp_path, caplog):
    writer = RolloutParts(tmp_path)
    writer.write(1, _lines(1))
    with files_of_at_most(writer.size_bytes + 10):
        for step in (2, 3):
            writer.write(step, _lines(step))
    assert len(caplog.records) == 1
    writer.write(4, _lines(4))
    assert _steps(tmp_path) == [1, 1, 4, 4]


def test_a_directory_that_cannot_be_made_is_told_of_once(tmp_path, caplog):
    (tmp_path / "rollouts").write_text("in the way")
    writer = RolloutParts(tmp_path)
    for step in (1, 2):
        writer.write(step, _lines(step))
    writer.close()
    assert len(caplog.records) == 1
    assert "The run goes on without" in caplog.text
    assert list(read_rollouts(tmp_path)) == []


def test_a_pattern_that_matches_in_too_many_ways_ends_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_records, "SEARCH_SECS", 0.2)
    one = Rollout(step=1, lease=1, prompt="", completion="a" * 60 + "c")
    with pytest.raises(TimeoutError):
        RolloutFilter(pattern=regex.compile("(a|aa)+b")).holds(one)


def test_conditions_are_all_to_be_fulfilled():
    one = Rollout(step=3, lease=8, prompt_id=5, prompt="2+2=", completion="four", reward=0.5)
    told = Rollout(step=3, lease=8, turns=[{"text": "one"}, {"text": "two"}])
    yes = [{}, {"first_step": 3}, {"last_step": 3}, {"prompt_id": 5}, {"lease": 8},
           {"least": 0.5, "greatest": 0.5}, {"pattern": "2[+]"}, {"pattern": "our$"}]  # fmt: skip
    no = [{"first_step": 4}, {"last_step": 2}, {"prompt_id": 0}, {"lease": 0}, {"least": 0.6},
          {"greatest": 0.4}, {"pattern": "five"}]  # fmt: skip
    for conditions, holds in [*((each, True) for each in yes), *((each, False) for each in no)]:
        if "pattern" in conditions:
            conditions = {"pattern": regex.compile(conditions["pattern"])}
        assert RolloutFilter(**conditions).holds(one) is holds, conditions
    assert RolloutFilter(pattern=regex.compile("etw")).holds(told)
    assert not RolloutFilter(least=-1.0).holds(told), "it has no reward"


def test_figures_of_records():
    some = [
        Rollout(step=1, lease=1, reward=1.0, versions=[[-1, 5], [2, 3]], truncated=True),
        Rollout(step=1, lease=1, reward=None, versions=[[2, 5]], staleness=2),
        Rollout(step=1, lease=2, reward=0.0, versions=[]),
        Rollout(step=1, lease=2, reward=0.5, versions=[]),
    ]
    assert digest(some) == (4, 2, 0.5, 0.0, 1.0, 2.0, 0.25, 1, 2)
    assert {name: len(group) for name, group in groups_of(some).items()} == {(1, 1): 2, (1, 2): 2}


def test_a_record_is_plain_json(tmp_path):
    _recorded(tmp_path, 1)
    (line, _) = parts(tmp_path)[0].path.read_text().splitlines()
    assert json.loads(line)["step"] == 1


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand", "日本　語 – ’é 🤖‍🔧", ""])
def test_text_of_any_language_can_be_printed(text):
    assert not has_unprintable(text)


@pytest.mark.parametrize("text", ["\x1b[31m", "a\x00", "\ufffd", "\x9b", "\ue000"])
def test_control_characters_and_bytes_that_are_no_text_cannot(text):
    assert has_unprintable(text)


def test_characters_that_would_disturb_a_terminal_are_escaped():
    assert escaped("a\x1b[2J\r\u202eb\n\tü\ufffd") == "a\\x1b[2J\\r\\u202eb\n\tü\ufffd"


def test_the_pages_have_every_field_and_every_alarm():
    docs = Path(__file__).resolve().parents[2] / "docs"
    page = (docs / "rollouts.md").read_text()
    fields = {name for line in page.splitlines() if line.startswith("| `")
              for name in re.findall(r"`(\w+)`", line.split("|")[1])}  # fmt: skip
    assert fields == {field.name for field in dataclasses.fields(Rollout)}
    for kind in ALARMS:
        assert (
            f"| {kind.name} | {kind.condition} | {kind.advice} |"
            in (docs / "metrics.md").read_text()
        )
