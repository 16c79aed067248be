"""Sums over a run: tokens so far, and the time of each phase."""

from types import SimpleNamespace

import numpy as np

from rl_sync.records.metrics_writer import MetricsWriter
from rl_sync.records.run_totals import Pace, RunTotals, draft_counts, sizes


def test_prompts_end_at_the_first_token_that_was_drawn():
    one = np.array([[-1, -1, 3, 3, -1, -1], [-1, -1, 4, -1, 4, 4]])  # Two turns in the second.
    none = np.full((1, 8), -1)
    other = np.array([[-1, 5, -1, -1]])
    groups = [SimpleNamespace(policy_versions=versions) for versions in (one, none, other)]
    assert sizes(groups) == {
        "prompt_tokens_mean": (2 + 2 + 1) / 3,
        "prompt_tokens_max": 2.0,
        "num_tokens": 4 + 6 + 2,
    }
    assert sizes([])["prompt_tokens_max"] == 0


def test_the_time_left_follows_the_last_steps_and_does_not_count_the_first():
    pace = Pace()
    assert pace.left_secs(100, 0.0) is None
    for step, now in ((1, 60.0), (2, 62.0), (2, 63.0)):
        pace.note(step, now)
    assert pace.left_secs(100, 63.0) is None
    pace.note(4, 66.0)
    assert pace.left_secs(100, 67.0) == 96 * 2.0 - 1.0
    assert pace.left_secs(4, 90.0) == 0.0
    for step in range(5, 30):  # Steps get slower: those long ago count no more.
        pace.note(step, 66.0 + (step - 4) * 10.0)
    assert pace.left_secs(30, 316.0) == 10.0


def test_time_is_told_once_for_all_lives_of_all_explorers(tmp_path):
    progress = RunTotals(str(tmp_path))
    progress.spend("explorer", "explorer1:7", {"rollout": 2.0, "wait": 1.0})
    progress.spend("explorer", "explorer2:8", {"rollout": 3.0})
    assert progress.step({"num_tokens": 10.0}) == {
        "num_tokens": 10.0,
        "time/explorer/rollout": 5.0,
        "time/explorer/wait": 1.0,
    }
    progress.spend("explorer", "explorer1:9", {"rollout": 0.5})  # Another life.
    progress.spend("explorer", "explorer2:8", {"rollout": 4.0})
    assert progress.step({"num_tokens": 5.0}) == {
        "num_tokens": 15.0,
        "time/explorer/rollout": 1.5,
        "time/explorer/wait": 0.0,
    }


def test_drafted_tokens_are_told_for_the_steps_that_have_them(tmp_path):
    progress = RunTotals(str(tmp_path))
    progress.spend("explorer", "explorer1:7", draft_counts(sampled=60, drafted=80, accepted=20))
    progress.spend("explorer", "explorer2:8", draft_counts(sampled=40, drafted=50, accepted=30))
    assert progress.step({}) == {
        "num_tokens": 0.0,
        "drafts/drafted_tokens": 130,
        "drafts/accepted_tokens": 50,
        "drafts/tokens_a_step": 2.0,
    }
    assert "drafts/tokens_a_step" not in progress.step({})


def test_a_run_that_resumes_goes_on_counting_from_its_snapshot(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.write("rl", step, {"num_tokens": 10.0 * step})
        writer.resume(2)
        progress = RunTotals(str(tmp_path))
        progress.resume()
        assert progress.step({"num_tokens": 7.0})["num_tokens"] == 27
