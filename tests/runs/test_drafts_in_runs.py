"""Runs whose explorers draft tokens are those of runs without drafts, in every mode."""

import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.records.spans import SpanKind
from tests.models.test_invariant import SAME_BITS
from tests.runs.conftest import (
    EMBEDDED,
    TEAMS,
    assert_every_token_is_accounted_for,
    assert_nothing_is_lost_or_doubled,
    assert_within_the_staleness_bound,
    flags,
)
from tests.runs.test_conformance import EPISODES
from tests.runs.test_going_on import DEATHS, EXACT, KEEPING, LATEST, drawn, rollouts

pytestmark = pytest.mark.gate

DRAFTS = "--config.rollout.speculation=always"
INVARIANT = "--config.model.batch_invariant=true"


@pytest.mark.samples("synchronous", gate=("one step off-policy",))
@pytest.mark.parametrize("name", EXACT)
def test_an_exact_run_draws_the_tokens_that_it_draws_without_drafts(memory_runs, name):
    run, plain = memory_runs(*EXACT[name], DRAFTS), memory_runs(*EXACT[name])
    assert drawn(run) == drawn(plain)
    # Which of two explorers is faster decides the order of their rollouts.
    assert sorted(one["tokens"] for one in spans(run)) == sorted(
        one["tokens"] for one in spans(plain)
    )
    lines, others = (read_metrics(one.workdir, "rl") for one in (run, plain))
    assert sum(line.get("drafts/accepted_tokens", 0) for line in lines) > 0
    assert max(line.get("drafts/tokens_a_step", 0) for line in lines) > 1
    assert not any(name.startswith("drafts/") for name in others[0])
    assert sum(span["engine"]["accepted_tokens"] for span in spans(run)) > 0


def spans(run):
    """Returns the attributes of a run's rollouts."""
    return [span.attributes for span in run.spans(SpanKind.ROLLOUT)]


@pytest.mark.samples(gate=("asynchronous", "two explorers"))
@pytest.mark.parametrize("name", LATEST)
def test_with_latest_pulls_all_tokens_are_accounted_for(memory_runs, name):
    run = memory_runs(*LATEST[name], DRAFTS, "--config.rollout.chunk_tokens=4")
    assert_nothing_is_lost_or_doubled(run)
    assert_within_the_staleness_bound(run)
    assert_every_token_is_accounted_for(run)
    assert sum(span["engine"]["accepted_tokens"] for span in spans(run)) > 0


@SAME_BITS
@pytest.mark.parametrize("name", ["synchronous", "one step off-policy"])
def test_a_batch_invariant_model_learns_the_bits_that_it_learns_without_drafts(memory_runs, name):
    given = (*EXACT[name], KEEPING[0], "--config.rollout.chunk_tokens=3", INVARIANT)
    plain, run = memory_runs(*given), memory_runs(*given, DRAFTS)
    dying = memory_runs(*given, DRAFTS, deaths=DEATHS)
    assert run.digest == dying.digest == plain.digest
    assert sum(told > 0 for _, told in rollouts(dying).values()) > 0
    by_clock = memory_runs(*given, "--config.rollout.speculation=auto")
    assert by_clock.digest == plain.digest


@SAME_BITS
@pytest.mark.nightly
def test_tokens_that_swaps_in_flight_part_have_the_bits_of_their_versions(memory_runs):
    run = memory_runs(
        "--config.sync.mode=asynchronous",
        "--config.sync.max_staleness=3",
        "--config.rollout.swap=in_flight",
        "--config.rollout.cache=recompute",
        "--config.rollout.chunk_tokens=3",
        "--config.trainer.batching=packed",
        "--config.rollout.score=trainer",
        "--config.trainer.steps=6",
        INVARIANT,
        DRAFTS,
    )
    lines = read_metrics(run.workdir, "rl")
    assert [line["mismatch"] for line in lines] == [0.0] * 6


@pytest.mark.nightly
def test_teams_of_processes_draw_the_tokens_that_they_draw_without_drafts(runs):
    given = (*flags("one_step_off_policy", steps=4), *TEAMS, EMBEDDED)
    plain, run = runs.get(*given), runs.get(*given, DRAFTS)
    assert drawn(run) == drawn(plain)
    lines = read_metrics(run.workdir, "rl")
    assert sum(line.get("drafts/accepted_tokens", 0) for line in lines) > 0


@pytest.mark.nightly
def test_episodes_have_the_replies_that_they_have_without_drafts(memory_runs):
    given = (*flags("synchronous", steps=6), *EPISODES)
    plain, run = memory_runs(*given), memory_runs(*given, DRAFTS)
    assert drawn(run) == drawn(plain)
    assert sum(span["engine"]["accepted_tokens"] for span in spans(run)) > 0
