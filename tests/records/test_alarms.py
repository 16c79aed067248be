"""Alarms: each on a run that deserves it, and none on those that do not."""

import dataclasses

import pytest

from rl_sync.records import accuracy, alarms, metric_catalog
from rl_sync.records.alarms import (
    ALARMS,
    UNPRINTABLE,
    AlarmLimits,
    Evidence,
    Watch,
    history,
    raised,
)

HEALTHY = {
    "reward_mean": 0.5,
    "reward_min": 0.0,
    "reward_max": 1.0,
    "groups_without_spread": 0.5,
    "groups_shaped_only": 0.2,
    "entropy": 1.0,
    "logprob_gap": 0.01,
    "truncated_fraction": 0.1,
    UNPRINTABLE: 0.0,
    "clip_fraction": 0.1,
    "kl_reference": 0.05,
    "kl_teacher": 0.4,
    "kl_behavior_proximal": 0.02,
    "kl_proximal_current": 0.02,
    "effective_sample_share": 0.9,
    "reward/unjudged": 0,
    "skipped_updates": 0,
    "explained_variance": 0.4,
    "episode/ended/time-out": 0.0,
    "episode/ended/environment_failure": 0.01,
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
    "unjudged completions": {"reward/unjudged": 1},
    **{
        f"coordinates of another scale ({words})": {f"reward/{name}/off_scale": 0.5}
        for name, words in [
            ("iou", "iou"),
            ("point_in_box", "point in box"),
            ("vision", "vision"),
        ]
    },
    "shaping alone": {"groups_shaped_only": 0.5},
    "teacher": {"kl_teacher": 0.0},
    "skipped updates": {"skipped_updates": 2},
    "failed episodes (time-out)": {"episode/ended/time-out": 0.1},
    "failed episodes (environment failure)": {"episode/ended/environment_failure": 0.4},
}
FALLING = {
    "clip fraction": {"clip_fraction": 0.31},
    "kl reference": {"kl_reference": 0.76},
    "kl behavior proximal": {"kl_behavior_proximal": 0.2},
    "kl proximal current": {"kl_proximal_current": 0.2},
    "effective sample share": {"effective_sample_share": 0.08},
}
"""Troubles while rewards fall."""
LIMITS = AlarmLimits(steps=3, group_size=4, logprob_gap=0.5)


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


@pytest.mark.parametrize("name", ["no reward", "no spread", "shaping alone"])
def test_rewards_raise_no_alarm_where_a_teacher_alone_teaches(name):
    limits = LIMITS._replace(follows_rewards=False)
    assert _names(*[{}] * 3, *[TROUBLES[name]] * 3, limits=limits) == []


def test_every_alarm_is_tried_and_says_what_to_do():
    names = [kind.name for kind in ALARMS]
    assert sorted(names) == sorted(
        [*TROUBLES, *FALLING, "explained variance", "accuracy fell", "restarts"]
    )
    falling = {name: {**one, "reward_mean": 0.2} for name, one in FALLING.items()}
    for name, trouble in {**TROUBLES, **falling}.items():
        (alarm,) = raised(_watched({}, {}, {}, *[trouble] * 3))
        (kind,) = [kind for kind in ALARMS if kind.name == name]
        assert alarm.text.endswith(f". {kind.advice}")
        assert kind.condition.endswith(".")


def test_restarts_are_an_alarm():
    (alarm,) = raised(Evidence(AlarmLimits(), restarts={"explorer1": 2, "explorer2": 0}))
    assert alarm.text.startswith("Roles died and were started again: explorer1 2×. ")


def test_a_run_that_is_healthy_or_has_not_begun_has_none():
    assert raised(Evidence(AlarmLimits())) == []
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


def test_groups_that_are_left_out_are_no_alarm():
    limits = LIMITS._replace(group_mean_low=0.11)
    assert _names(*[TROUBLES["shaping alone"]] * 3, limits=limits) == []


def test_the_share_of_advantages_from_shaping_decides_where_it_is_measured():
    shaped = TROUBLES["shaping alone"]
    assert _names(*[shaped | {"shaped_advantages": 0.2}] * 3) == []
    assert _names(*[{"shaped_advantages": share} for share in (0.5, 0.9, 0.7)]) == ["shaping alone"]
    assert _names(*[{"shaped_advantages": share} for share in (0.5, 0.49, 0.7)]) == []


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


@pytest.mark.parametrize("name", FALLING)
def test_a_policy_that_moves_far_is_an_alarm_while_rewards_fall_alone(name):
    trouble = FALLING[name]
    assert _names(*[{}] * 3, *[trouble] * 9) == []
    better = [{**trouble, "reward_mean": 0.5 + 0.1 * i} for i in range(4)]
    assert _names(*[{}] * 3, *better) == []
    worse = [{**trouble, "reward_mean": 0.5 - 0.1 * i} for i in range(4)]
    assert _names(*[{}] * 3, *worse) == [name]
    noisy = [{**trouble, "reward_mean": one} for one in (0.46, 0.52, 0.44, 0.47, 0.5, 0.45)]
    assert _names(*[{}] * 3, *noisy) == []


def test_a_critic_may_be_wrong_in_the_first_steps():
    wrong = {"explained_variance": -0.5}
    assert _names(*[wrong] * 22) == []
    assert _names(*[wrong] * 23) == ["explained variance"]


def test_the_text_about_a_metric_and_its_alarm_have_the_same_numbers():
    kinds = {kind.name: kind for kind in ALARMS}
    found = dict(metric_catalog.thresholds())
    assert len(found) == 16
    for metric, threshold in found.items():
        name = next(name for name in kinds if metric in kinds[name].condition)
        said = str(metric_catalog.find("rl", metric).alarm)
        assert threshold.bound in said
        assert threshold.bound in kinds[name].condition
        number = threshold.most if threshold.least is None else threshold.least
        assert f"{number:g}" in threshold.bound


def _evaluated(solved, of):
    problems = [accuracy.Problem([accuracy.JudgedAnswer(i < solved)]) for i in range(of)]
    return accuracy.measure(problems)


def _accuracies(*counts, of):
    watch = Watch(LIMITS)
    for step, solved in enumerate(counts):
        watch.add_evaluation(step, _evaluated(solved, of))
    return [alarm.name for alarm in raised(watch.evidence())]


def test_accuracy_that_fell_by_more_than_its_interval_is_an_alarm():
    assert _accuracies(112, 17, of=150) == ["accuracy fell"]
    assert _accuracies(112, 140, 100, of=150) == ["accuracy fell"]  # From the best one.
    assert _accuracies(112, 104, 99, of=150) == []  # Within the intervals.
    assert _accuracies(112, 17, 110, of=150) == []  # It has come back.
    assert _accuracies(6, 3, of=8) == []  # So few problems say nothing.
    assert _accuracies(112, of=150) == _accuracies(of=150) == []


def test_an_evaluation_in_which_nothing_was_judged_is_no_fall():
    watch = Watch(LIMITS)
    watch.add_evaluation(0, _evaluated(112, 150))
    watch.add_evaluation(
        5, {"accuracy": 0.0, "accuracy_low": 0.0, "accuracy_high": 0.1, "problems": 0}
    )
    watch.add_evaluation(6, {"accuracy": float("nan"), "accuracy_low": 0.0, "accuracy_high": 0.1})
    assert raised(watch.evidence()) == []


def test_the_history_of_a_run_has_the_fall_with_its_numbers_in_whatever_order_lines_come():
    evaluations = [
        {**_evaluated(112, 150), "phase": "evaluation", "step": 0},
        {**_evaluated(20, 150), "phase": "evaluation", "step": 2},
        {**_evaluated(17, 150), "phase": "evaluation", "step": 4},
    ]
    steps = [{**HEALTHY, "phase": "rl", "step": step} for step in range(1, 5)]
    warm = [{"phase": "sft", "step": 100, "loss": 1.0}]
    for lines in (warm + evaluations + steps, steps + warm + evaluations[::-1]):
        (period,) = history(lines, LIMITS)
        assert (period.first_step, period.last_step) == (2, 4) == (2, alarms.last_step(lines))
        assert period.alarm.text.startswith(
            "Held-out accuracy fell from 74.7% before RL (95% interval 67.2% to 81.0%) to 11.3%"
            " after trainer step 4 (95% interval"
        )
        assert "optimizer.learning_rate" in period.alarm.text
