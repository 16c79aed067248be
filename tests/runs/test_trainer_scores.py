"""Runs whose trainer scores the explorers' tokens by the weights that drew them."""

from __future__ import annotations

import os
import signal

import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.workdir import Workdir
from tests.models.test_invariant import SAME_BITS
from tests.runs.conftest import EMBEDDED, RunRecord, launch
from tests.runs.living import ended

SCORES = "--config.rollout.score=trainer"


@pytest.mark.parametrize(
    ("flags", "least", "most"),
    [
        pytest.param(
            ("--config.sync.mode=synchronous", "--config.optimizer.updates_per_batch=1"),
            0.0,
            0.0,
            marks=pytest.mark.gate,
        ),
        pytest.param(("--config.sync.mode=synchronous",), 0.0, 1e-6, marks=pytest.mark.nightly),
        pytest.param(
            (
                "--config.sync.mode=asynchronous",
                "--config.sync.max_staleness=3",
                "--config.trainer.mesh.fsdp=2",
                "--config.model.lora.rank=4",
            ),
            1e-5,
            1.0,
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            (
                "--config.sync.mode=custom",
                "--config.sync.interval=2",
                "--config.sync.offset=1",
                "--config.trainer.batching=shared",
            ),
            1e-5,
            1.0,
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["one update", "several updates", "asynchronous", "interval"],
)
def test_every_token_is_scored_by_the_weights_that_drew_it(memory_runs, flags, least, most):
    run = memory_runs(*flags, SCORES, "--config.trainer.steps=6")
    lines = read_metrics(run.workdir, "rl")
    assert max(line["mismatch"] for line in lines) < 1e-5
    gaps = [line["logprob_gap"] for line in lines]
    assert least <= max(gaps) <= most


INVARIANT = "--config.model.batch_invariant=true"
EXACTLY = {
    "synchronous": ("--config.sync.mode=synchronous", "--config.trainer.batching=packed"),
    "one step off-policy": (
        "--config.sync.mode=one_step_off_policy",
        "--config.trainer.mesh.fsdp=2",
        "--config.explorer.mesh.data=2",
    ),
    "swaps in flight": (
        "--config.sync.mode=asynchronous",
        "--config.sync.max_staleness=3",
        "--config.rollout.swap=in_flight",
        "--config.rollout.cache=recompute",
        "--config.rollout.chunk_tokens=1",
        "--config.trainer.batching=packed",
    ),
    "several turns": (
        "--config.sync.mode=synchronous",
        "--config.environment.name=guess(guesses=3)",
    ),
}


@SAME_BITS
@pytest.mark.samples(gate=("swaps in flight", "one step off-policy"))
@pytest.mark.parametrize("name", EXACTLY)
def test_a_batch_invariant_model_gives_explorers_and_trainer_the_same_bits(memory_runs, name):
    run = memory_runs(*EXACTLY[name], SCORES, INVARIANT, "--config.trainer.steps=6")
    lines = read_metrics(run.workdir, "rl")
    assert [line["mismatch"] for line in lines] == [0.0] * 6
    is_fresh = name in ("synchronous", "several turns")
    assert is_fresh or max(line["staleness_max"] for line in lines) > 0


@pytest.mark.nightly
def test_an_interrupted_run_keeps_the_versions_that_score(started, runs):
    flags = ("--config.sync.mode=one_step_off_policy", SCORES)
    process, workdir = started(*flags)
    os.kill(process.pid, signal.SIGTERM)
    ended(process)
    last = RunRecord(Workdir(workdir), "").consumed[-1]["step"]
    steps = f"--config.trainer.steps={last + 3}"
    again = launch(*flags, EMBEDDED, steps, workdir=workdir)
    output = ended(again)
    assert again.returncode == 0, output
    assert RunRecord(Workdir(workdir), output).digest == runs.get(*flags, EMBEDDED, steps).digest
    assert max(line["mismatch"] for line in read_metrics(workdir, "rl")) < 1e-5
