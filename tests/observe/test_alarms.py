"""Alarms: each on a run that deserves it, and none on those that do not."""

import dataclasses

import pytest

from rl_sync.observe import alarms
from rl_sync.observe.alarms import ALARMS, UNPRINTABLE, Evidence, Limits, Watch, history, raised

HEALTHY = {
    "reward_mean": 0.5,
    "reward_min": 0.0,
    "reward_max": 1.0,
    "groups_without_spread": 0.5,
    "entropy": 1.0,
    "logprob_gap": 0.01,
    "truncated_fraction": 0.1,
    UNPRINTABLE: 0.0,
}
NOTHING = {"reward_mean": 0.0, "reward_max": 0.0, "groups_without_spread": 1.0}
SAME = {"groups_without_spread": 1.0, "reward_mean": 0.4}
SURE = {"entropy": 0.02, "groups_without_spread": 0.95}
SOLVED = {"entropy": 0.001, "groups_without_spread": 1.0, "reward_mean": 1.0, "reward_min": 1.0}
TROUBLES = {
    "no reward": NOTHING,
    "no spread": SAME,
    "entropy collapse": SURE,
    "logprob gap": {"logprob_gap": 0.6},
    "unprintable text": {UNPRINTABLE: 0.2},
    "truncation": {"truncated_fraction": 0.5},
}
LIMITS = Limits(steps=3, group_size=4, logprob_gap=0.5)


def _watched(*changes, limits=LIMITS):
    watch = Watch(limits)
    for change in changes:
        watch.add({**HEALTHY, **change})
    return watch.evidence()


def _names(*changes, limits=LIMITS):
    return [alarm.name for alarm in raised(_watched(*changes, limits=limits))]


@pytest.mark.parametrize("name", TROUBLES)
def test_a_trouble_of_so_many_steps_is_an_alarm_and_a_shorter_one_is_none(name):
    trouble = TROUBLES[name]
    healthy = [{}] * 3
    assert _names(*healthy, *[trouble] * 3) == [name]
    assert (_names(*healthy, *[trouble] * 2) == []) is (name != "logprob gap")
    assert _names(*healthy, *[trouble] * 3, {}) == []
    assert (_names(trouble, trouble) == []) is (name != "logprob gap")


def test_every_alarm_is_tried_and_says_what_to_do():
    assert {kind.name for kind in ALARMS} == {*TROUBLES, "restarts"}
    for name, trouble in TROUBLES.items():
        (alarm,) = raised(_watched({}, {}, {}, *[trouble] * 3))
        (kind,) = [kind for kind in ALARMS if kind.name == name]
        assert alarm.text.endswith(f". {kind.advice}")
        assert kind.condition.endswith(".")


def test_restarts_are_an_alarm():
    (alarm,) = raised(Evidence(Limits(), restarts={"explorer1": 2, "explorer2": 0}))
    assert alarm.text.startswith("Roles died and were started again: explorer1 2×. ")


def test_a_run_that_is_healthy_or_has_not_begun_has_none():
    assert raised(Evidence(Limits())) == []
    assert _names(*[{}] * 9) == []
    assert _names(*[{"loss": 1.0}] * 9) == []
    nan = dict.fromkeys(HEALTHY, float("nan"))
    none = dict.fromkeys(HEALTHY)
    assert _names(*[nan] * 9) == _names(*[none] * 9) == []


def test_a_problem_that_is_solved_has_no_spread_and_no_entropy_and_is_no_alarm():
    assert _names(*[{}] * 3, *[SOLVED] * 3) == []
    nearly = {**SURE, "reward_mean": 0.95}
    assert _names(*[{}] * 3, *[nearly] * 3) == []


def test_a_reward_that_never_varied_is_an_alarm_though_it_is_the_greatest():
    assert _names(*[SOLVED] * 3) == ["no spread"]


def test_groups_of_one_need_no_spread():
    one = LIMITS._replace(group_size=1)
    alone = {"groups_without_spread": 1.0}
    assert _names(*[alone] * 3, limits=one) == []
    sure = {"groups_without_spread": None, "entropy": 0.01}
    assert _names(*[alone] * 3, *[sure] * 3, limits=one) == ["entropy collapse"]


def test_without_a_limit_no_gap_is_an_alarm():
    assert _names({"logprob_gap": 9.0}, limits=LIMITS._replace(logprob_gap=0.0)) == []


def test_a_report_has_what_holds_at_the_end_and_a_line_on_what_has_passed():
    cut, gap = TROUBLES["truncation"], TROUBLES["logprob gap"]
    changes = [{}, cut, cut, cut, cut, {}, gap, *[NOTHING] * 4]
    lines = [{**HEALTHY, **change, "step": i} for i, change in enumerate(changes, start=1)]
    periods = history(lines, LIMITS)
    assert [(one.alarm.name, one.first_step, one.last_step) for one in periods] == [
        ("truncation", 4, 5),
        ("logprob gap", 7, 7),
        ("no reward", 10, 11),
    ]
    holds, passed = alarms.describe(periods, last_step=11)
    assert holds.startswith("ALARM since trainer step 10: No completion earned a reward in the")
    assert passed == "Alarms that have passed: truncation (steps 4 to 5); logprob gap (steps 7)"
    assert alarms.describe([], last_step=11) == []


def test_evidence_is_of_the_steps_so_far():
    watch = Watch(LIMITS)
    watch.add(HEALTHY)
    before = watch.evidence()
    watch.add({**HEALTHY, "reward_max": 2.0})
    assert (len(before.last), before.highest, watch.evidence().highest) == (1, 1.0, 2.0)
    assert dataclasses.is_dataclass(before)


def test_the_examples_are_for_alarms_that_completions_explain():
    found = raised(_watched(*[NOTHING] * 3))
    assert alarms.are_of_completions(found)
    assert not alarms.are_of_completions(raised(_watched(TROUBLES["logprob gap"])))
