"""Runs go on when a role dies: others wait for it, and exact modes come to the same bits."""

from __future__ import annotations

import collections
import os
import signal

import pytest

from rl_sync.checkpoints.audit import audit
from rl_sync.checkpoints.ledger import read_consumed
from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.metrics import read_metrics
from rl_sync.records.spans import SpanKind
from rl_sync.workdir import Workdir
from tests.runs.conftest import (
    EMBEDDED,
    TEAMS,
    RunRecord,
    assert_every_token_is_accounted_for,
    assert_nothing_is_lost_or_doubled,
    assert_within_the_staleness_bound,
    flags,
)
from tests.runs.living import ended, processes_of, wait_for

STEPS = 30


def disturbed(started, victim, given, steps=(7, 19), **start):
    """Kills a role after these steps, for 0 as soon as it is there; returns the run's records."""
    return killed(started, [(step, victim) for step in steps], given, **start)


def killed(started, deaths, given, **start):
    """Kills roles, each after a step; returns the run's records."""
    process, workdir = started(*given, **start)
    for step, victim in deaths:
        wait_for(lambda step=step: not step or len(read_consumed(workdir)) >= step, process)
        wait_for(lambda one=victim: one in processes_of(workdir), process)
        before = processes_of(workdir)
        os.kill(before[victim], signal.SIGKILL)
        wait_for(
            lambda one=victim, before=before: (
                processes_of(workdir).get(one) not in (None, before[one])
            ),
            process,
        )
    output = ended(process)
    assert process.returncode == 0, output
    for victim, times in collections.Counter(victim for _, victim in deaths).items():
        told = output.count(f"{victim} was killed by SIGKILL. It is started again (")
        assert told == times
    assert processes_of(workdir) == {}
    return RunRecord(Workdir(workdir), output)


def assert_each_step_once(run):
    every = list(range(1, STEPS + 1))
    assert [step["step"] for step in run.consumed] == every
    assert [line["step"] for line in read_metrics(run.workdir, "rl")] == every
    assert [span.step for span in run.spans(SpanKind.TRAIN)] == every


@pytest.mark.parametrize(
    ("victim", "given"),
    [
        pytest.param(
            "trainer",
            flags("one_step_off_policy", transfer="server"),
            marks=pytest.mark.gate,
            id="the trainer, one step off-policy by server",
        ),
        pytest.param(
            "trainer",
            flags("synchronous", transfer="collective"),
            marks=pytest.mark.nightly,
            id="the trainer, synchronous by collective",
        ),
        *(
            pytest.param(victim, given, marks=pytest.mark.nightly, id=f"{victim}, {name}")
            for victim, given, name in [
                (
                    "trainer",
                    flags("custom", interval=1, offset=4, transfer="server"),
                    "four steps ahead by server",
                ),
                (
                    "trainer",
                    flags("custom", interval=4, offset=2, transfer="checkpoint"),
                    "interval 4, offset 2, by checkpoint",
                ),
                (
                    "trainer",
                    (*flags("one_step_off_policy", transfer="server"), "--config.sync.delta=on"),
                    "what changed by server",
                ),
                ("trainer", flags("synchronous", count=2, transfer="server"), "two explorers"),
                ("explorer1", flags("one_step_off_policy"), "one step off-policy by collective"),
                ("explorer2", flags("synchronous", count=2), "two explorers by collective"),
                ("trainer", ("--config.algorithm.name=sft",), "without explorers"),
                (
                    "trainer",
                    (*flags("one_step_off_policy"), "--config.algorithm.name=ppo"),
                    "with a critic",
                ),
                (
                    "trainer/1",
                    (*flags("synchronous", transfer="server"), *TEAMS),
                    "teams by server",
                ),
            ]
        ),
    ],
)
def test_an_exact_run_comes_to_the_same_bits_whoever_died(started, runs, victim, given):
    given = (*given, f"--config.trainer.steps={STEPS}")
    run = disturbed(started, victim, given, steps=(11,))
    assert_each_step_once(run)
    assert run.digest == runs.get(EMBEDDED, *given).digest
    assert run.spans(SpanKind.TRAIN_AGAIN, role="trainer") or not victim.startswith("trainer")
    if run.settings.explorers:
        assert_every_token_is_accounted_for(run)


@pytest.mark.parametrize(
    ("victim", "given"),
    [
        pytest.param(
            "trainer",
            flags("one_step_off_policy", transfer="server"),
            marks=pytest.mark.nightly,
            id="the trainer, by server",
        ),
        *(
            pytest.param(victim, given, marks=pytest.mark.nightly, id=f"{victim}, {name}")
            for victim, given, name in [
                ("explorer1", flags("synchronous", transfer="checkpoint"), "by checkpoint"),
                ("explorer2", flags("synchronous", count=2), "two explorers by collective"),
                ("trainer", flags("one_step_off_policy"), "by collective"),
            ]
        ),
    ],
)
def test_a_role_that_is_killed_while_the_master_loads_is_started_again(
    started, runs, victim, given
):
    given = (*given, f"--config.trainer.steps={STEPS}")
    run = disturbed(started, victim, given, steps=(0,), until=None, forks=False)
    (restart,) = read_json_lines(run.workdir.restarts)
    assert restart["time"] < run.workdir.versions.stat().st_mtime, "the master was up already"
    assert_each_step_once(run)
    assert run.digest == runs.get(EMBEDDED, *given).digest


@pytest.mark.nightly
def test_a_role_that_crashes_while_the_master_loads_ends_the_run(started):
    process, workdir = started(until=None, forks=False)
    wait_for(lambda: "trainer" in processes_of(workdir), process)
    os.kill(processes_of(workdir)["trainer"], signal.SIGSEGV)
    output = ended(process)
    assert process.returncode == 1
    assert output.count("trainer was killed by SIGSEGV") == 1
    assert "It is started again" not in output
    assert processes_of(workdir) == {}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(
            flags("synchronous", transfer="server"), marks=pytest.mark.nightly, id="synchronous"
        ),
        pytest.param(
            (*flags("synchronous", transfer="server"), *TEAMS),
            marks=pytest.mark.nightly,
            id="teams",
        ),
    ],
)
def test_a_trainer_goes_on_from_the_snapshot_in_memory(started, runs, given):
    """It does few steps again, and so comes to the same bits sooner."""
    given = (*given, f"--config.trainer.steps={STEPS}", "--config.checkpoint.every_steps=0")
    victim = "trainer/1" if "--config.trainer.processes=2" in given else "trainer"
    run = disturbed(started, victim, (*given, "--config.checkpoint.memory_every_steps=2"))
    assert_each_step_once(run)
    assert run.digest == runs.get(EMBEDDED, *given).digest
    again = run.spans(SpanKind.TRAIN_AGAIN, role="trainer")
    assert len(again) < 19, "it began at step 0 after the second death"
    inside = [span.attributes.get("tier") for span in run.spans(SpanKind.SNAPSHOT)]
    assert inside.count("memory") > 3
    assert not run.workdir.memory.exists()


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(
            flags("asynchronous", transfer="checkpoint"), marks=pytest.mark.nightly, id="checkpoint"
        ),
        *(
            pytest.param(given, marks=pytest.mark.nightly, id=name)
            for given, name in [
                (flags("multi_explorer", count=2, transfer="server"), "two explorers by server"),
                (flags("asynchronous", transfer="collective"), "collective"),
                (
                    (
                        *flags("asynchronous", transfer="server"),
                        "--config.replay.times_sampled=2",
                        "--config.sync.max_staleness=4",
                    ),
                    "groups are used twice",
                ),
                ((*flags("asynchronous"), "--config.launch.colocate=true"), "one process"),
            ]
        ),
    ],
)
def test_where_nobody_waits_nothing_is_lost_or_trained_twice(started, given):
    given = (*given, f"--config.trainer.steps={STEPS}")
    victim = "trainer+explorers" if "--config.launch.colocate=true" in given else "trainer"
    run = disturbed(started, victim, given)
    assert_each_step_once(run)
    assert_within_the_staleness_bound(run)
    if "--config.replay.times_sampled=2" not in given:
        assert_nothing_is_lost_or_doubled(run)
    assert_every_token_is_accounted_for(run)


@pytest.mark.gate
def test_the_account_of_tokens_closes_over_the_deaths_of_both_roles(started):
    given = (*flags("asynchronous", transfer="server"), f"--config.trainer.steps={STEPS}")
    run = killed(started, [(7, "explorer1"), (15, "trainer")], given)
    for role in ("explorer1", "trainer"):
        lines = read_json_lines(run.workdir.tokens_of(role))
        assert len({line["life"] for line in lines}) == 2
        assert [line["life"] for line in lines if line.get("is_over")] == [lines[-1]["life"]]
    assert_every_token_is_accounted_for(run)


@pytest.mark.nightly
def test_a_log_that_is_lost_ends_the_run_with_the_way_on(started):
    process, workdir = started(*flags("asynchronous", transfer="server"))
    wait_for(lambda: len(read_consumed(workdir)) >= 8, process)
    for path in Workdir(workdir).batches.glob("batch_*"):
        path.unlink(missing_ok=True)  # One may be written just now.
    os.kill(processes_of(workdir)["trainer"], signal.SIGKILL)
    output = ended(process)
    assert process.returncode == 1
    assert "cannot go on in place" in output
    assert f"workdir={workdir}" in output
    assert processes_of(workdir) == {}


@pytest.mark.nightly
def test_a_trainer_that_dies_before_its_first_snapshot_goes_on_from_sft(started):
    given = flags("one_step_off_policy", transfer="server", steps=STEPS)
    more = ("--config.sft.steps=4", "--config.checkpoint.every_steps=0")
    run = disturbed(started, "trainer", (*given, *more, EMBEDDED), steps=(7,))
    assert_each_step_once(run)
    assert audit(run.settings, run.workdir) == []
