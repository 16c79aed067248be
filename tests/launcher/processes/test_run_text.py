import contextlib
import dataclasses
import math

from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.launcher.processes.run_text import _accuracy, final_report
from rl_sync.messages.run_result import Balance, LogprobGap, RunResult, Skipped, Summary
from rl_sync.records.json_lines import JsonLinesWriter
from rl_sync.records.metrics_writer import MetricsWriter
from rl_sync.roles.trainer.skipped_updates import UNJUDGED
from rl_sync.workdir import Workdir
from tests.roles.master.test_unsolved import CHECKPOINT
from tests.settings.changed import settings_with


def test_the_report_gives_both_accuracies_where_held_out_prompts_are_trained_on_too():
    before = {"accuracy": 0.4, "problems": 50}
    parts = {"accuracy_seen": 0.9, "problems_seen": 20}
    parts |= {"accuracy_unseen": 0.1, "problems_unseen": 30}
    result = RunResult(evaluations={"before RL": before, "after RL": {**before, **parts}})
    assert _accuracy(result, Algorithm()) == [
        "Held-out accuracy before RL: 40.0% of 50 problems",
        "Held-out accuracy after RL: 40.0% of 50 problems (90.0% of 20 whose prompts are trained on"
        " too, 10.0% of 30 others)",
    ]


def test_the_report_says_which_evaluations_were_not_made_and_why():
    result = RunResult(left_out={"after step 3": "its weights are gone"})
    assert _accuracy(result, Algorithm()) == ["No evaluation after step 3: its weights are gone."]


def test_the_final_report_warns_of_a_checkpoint_that_solved_nothing_before_rl(tmp_path):
    settings = settings_with(model__path=CHECKPOINT, sync__mode="synchronous")
    settings = dataclasses.replace(settings, workdir=str(tmp_path))
    result = RunResult(evaluations={"before RL": {"accuracy": 0.0, "problems": 50}})
    balance = Balance(
        leased=0, trained=0, buffered=0, generating=0, dropped={}, out_of_attempts=0, failed={}
    )
    lines = final_report(settings, Summary(result, balance)).splitlines()
    assert lines[1] == "Held-out accuracy before RL: 0.0% of 50 problems"
    assert lines[2].startswith("ALARM: the model solved none of 50 held-out problems before RL")


def test_the_final_report_has_the_alarms_of_the_run(tmp_path):
    settings = settings_with(sync__mode="asynchronous", observe__alarm_steps=2)
    settings = dataclasses.replace(settings, workdir=str(tmp_path))
    balance = Balance(0, 0, 0, 0, {}, 0, {})
    gap = LogprobGap(1, 1, 9.0, 0.5)
    with MetricsWriter(tmp_path) as metrics:
        for step in (1, 2, 3):
            values = {"reward_min": 0.0, "reward_max": 0.0, "reward_mean": 0.0, "logprob_gap": 9.0}
            metrics.write("rl", step, values)
    with contextlib.closing(JsonLinesWriter(Workdir(tmp_path).restarts)) as restarts:
        restarts.write({"role": "explorer1"})
    told = final_report(settings, Summary(RunResult(logprob_gap=gap), balance))
    alarms = [line for line in told.splitlines() if line.startswith("ALARM")]
    assert alarms[0].startswith("ALARM: in 1 steps, the first of them 1, the logprobs of trainer")
    assert alarms[1].startswith("ALARM since trainer step 2: No completion earned a reward in the")
    assert alarms[2].startswith("ALARM: Roles died and were started again: explorer1 1×.")
    assert len(alarms) == 3
    assert "rollouts:" not in told, "it has none"


def test_the_final_report_says_what_was_not_judged():
    settings = settings_with(sync__mode="asynchronous")
    balance = Balance(0, 0, 0, 0, {}, 0, {})
    values = {"step": 2, "loss": 0.0, "entropy": 1.0, "clip_fraction": 0.0}
    for nothing in (math.nan, None):
        result = RunResult(
            rl=values | {"reward_mean": nothing},
            skipped={UNJUDGED: Skipped(3, 1, 2)},
            evaluations={"after RL": {"accuracy": nothing, "problems": 0}},
        )
        told = final_report(settings, Summary(result, balance))
        assert "RL: 2 steps; in the last one no completion could be judged" in told
        assert "accuracy after RL: unknown, as no completion could be judged" in told
        assert "ALARM: 3 updates, from trainer step 1 to 2, were not taken, as none" in told
        assert "judged: judgements/ says why." in told
        left = dataclasses.replace(
            result, rl={**values, "reward_mean": 0.5, "pipeline/left_out": 1.0}
        )
        told = final_report(settings, Summary(left, balance))
        assert "experience.pipeline left out those that were: see" in told


def test_the_final_report_tells_of_a_policy_that_rl_has_wrecked(tmp_path):
    settings = settings_with(sync__mode="asynchronous", observe__alarm_steps=2)
    settings = dataclasses.replace(settings, workdir=str(tmp_path))
    with MetricsWriter(tmp_path) as metrics:
        for step, reward, share in ((1, 0.7, 1.0), (2, 0.6, 0.6), (3, 0.3, 0.1), (4, 0.1, 0.08)):
            values = {"reward_min": 0.0, "reward_max": 1.0, "reward_mean": reward}
            metrics.write("rl", step, {**values, "effective_sample_share": share})
        for step, middle in ((0, 0.75), (4, 0.12)):
            ends = {"accuracy_low": middle - 0.05, "accuracy_high": middle + 0.05}
            metrics.write("evaluation", step, {"accuracy": middle, "problems": 300, **ends})
    balance = Balance(0, 0, 0, 0, {}, 0, {})
    told = final_report(settings, Summary(RunResult(), balance))
    alarms = sorted(line for line in told.splitlines() if line.startswith("ALARM"))
    assert len(alarms) == 2
    assert alarms[0].startswith("ALARM since trainer step 4: Effective_sample_share was 0.09 on")
    assert "the alarm is for 0.5 or less while rewards fall" in alarms[0]
    assert alarms[1].startswith(
        "ALARM since trainer step 4: Held-out accuracy fell from 75.0% before RL (95% interval"
        " 70.0% to 80.0%) to 12.0% after trainer step 4"
    )


def test_the_final_report_says_how_many_episodes_failed_and_for_what(tmp_path):
    settings = settings_with(sync__mode="asynchronous")
    settings = dataclasses.replace(settings, workdir=str(tmp_path))
    failed = {"environment failure": 7, "time-out": 2}
    balance = Balance(9, 8, 0, 0, {"time-out": 1}, 0, failed)
    told = final_report(settings, Summary(RunResult(), balance))
    assert "9 leased = 8 trained, 0 still buffered, 1 dropped (time-out)" in told
    assert "Failed attempts at episodes: 7 (environment failure), 2 (time-out);" in told
    none = final_report(settings, Summary(RunResult(), balance._replace(failed={})))
    assert "failed" not in none
