"""Runs that go on where they were: after an interruption, and after a crash."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from rl_sync.checkpoints.ledger import read_consumed
from rl_sync.records.metrics import read_metrics
from rl_sync.records.rollouts.rollout_records import read_rollouts
from rl_sync.records.spans import SpanKind
from rl_sync.workdir import Workdir
from tests.runs.conftest import (
    EMBEDDED,
    RunRecord,
    assert_every_token_is_accounted_for,
    launch,
)
from tests.runs.conftest import flags as modes
from tests.runs.living import ended, processes_of, wait_for


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("asynchronous", marks=pytest.mark.gate),
        pytest.param("one_step_off_policy", marks=pytest.mark.nightly),
    ],
)
def test_an_interrupted_run_saves_and_goes_on_where_it_was(started, mode):
    flag = f"--config.sync.mode={mode}"
    process, workdir = started(flag)
    os.killpg(process.pid, signal.SIGINT)  # As a terminal does it: to the whole group.
    output = ended(process)
    assert process.returncode == 130, output
    assert f"resume --workdir={workdir}" in output
    assert processes_of(workdir) == {}
    before = RunRecord(Workdir(workdir), output)
    balance = before.ledger[-1]
    kept = balance["trained"] + balance["buffered"] + sum(balance["dropped"].values())
    assert balance["leased"] == kept
    assert balance["generating"] == 0
    last = before.consumed[-1]["step"]
    assert len(list(Workdir(workdir).snapshots.glob(f"snapshot_*{last}"))) == 1

    steps = last + 6
    again = launch(flag, EMBEDDED, f"--config.trainer.steps={steps}", workdir=workdir)
    output = ended(again)
    assert again.returncode == 0, output
    assert f"Goes on from trainer step {last}" in output
    run = RunRecord(Workdir(workdir), output)
    assert [step["step"] for step in run.consumed] == list(range(1, steps + 1))
    ordinals = [group["ordinal"] for step in run.consumed for group in step["groups"]]
    assert len(set(ordinals)) == len(ordinals), "a prompt was trained twice"
    schedule = run.settings.schedule
    for step in run.consumed:
        for version in run.versions(step):
            assert 0 <= schedule.staleness(step["step"], version) <= schedule.staleness_bound
    assert_every_token_is_accounted_for(run)


@pytest.mark.nightly
def test_interrupted_sft_goes_on_where_it_was_and_comes_to_the_same_bits(started, runs):
    flags = ("--config.sft.steps=300", "--config.sft.probe_every_steps=100")
    process, workdir = started(*flags, until="sft")
    os.kill(process.pid, signal.SIGTERM)
    output = ended(process)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert processes_of(workdir) == {}
    step = int(re.search(r"To go on from SFT step (\d+),", output)[1])
    assert 100 <= step < 300

    short = "--config.trainer.steps=2"
    again = launch(*flags, EMBEDDED, short, workdir=workdir)
    output = ended(again)
    assert again.returncode == 0, output
    assert f"Goes on from SFT step {step}." in output
    assert not Workdir(workdir).sft_snapshots.exists()
    # In the tests' process SFT is compiled with other settings, and so rounds otherwise.
    whole = runs.get(*flags, EMBEDDED, short, apart=True)
    assert RunRecord(Workdir(workdir), output).digest == whole.digest
    probed = [line["step"] for line in read_metrics(workdir, "sft")]
    assert probed == [100, 200, 300]


@pytest.mark.nightly
def test_an_interrupted_synchronous_run_comes_to_the_same_bits(started, runs):
    flags = ("--config.sync.mode=synchronous",)
    process, workdir = started(*flags)
    os.kill(process.pid, signal.SIGTERM)
    output = ended(process)
    assert process.returncode == 128 + signal.SIGTERM, output
    taken = len(read_consumed(workdir))
    steps = f"--config.trainer.steps={taken + 3}"

    again = launch(*flags, EMBEDDED, steps, workdir=workdir)
    output = ended(again)
    assert again.returncode == 0, output
    assert f"Goes on from trainer step {taken}." in output
    whole = runs.get(*flags, EMBEDDED, steps)
    assert RunRecord(Workdir(workdir), output).digest == whole.digest


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        pytest.param("asynchronous", None, marks=pytest.mark.nightly),
        pytest.param("one_step_off_policy", None, marks=pytest.mark.nightly),
        pytest.param("one_step_off_policy", 5, marks=pytest.mark.nightly),
    ],
)
def test_a_run_that_goes_on_after_a_crash_has_each_step_and_each_lease_once(started, mode, seed):
    """With another seed it cannot go on as it was: it begins at its newest snapshot."""
    flags = (f"--config.sync.mode={mode}", "--config.checkpoint.every_steps=4")
    process, workdir = started(*flags)

    def saved() -> int:
        names = Workdir(workdir).snapshots.glob("snapshot_*")
        return max((int(path.name.rpartition("_")[2]) for path in names), default=0)

    wait_for(lambda: 0 < saved() < read_consumed(workdir)[-1]["step"], process)
    process.kill()
    deadline = time.monotonic() + 20
    while processes_of(workdir) and time.monotonic() < deadline:
        time.sleep(0.1)
    killed_after = read_consumed(workdir)[-1]["step"]
    steps = killed_after + 4
    changed = (f"--config.seed={seed}", "--config.launch.resume_changed=true")
    flags = (*flags, *changed) if seed else flags

    again = launch(*flags, EMBEDDED, f"--config.trainer.steps={steps}", workdir=workdir)
    output = ended(again)
    assert again.returncode == 0, output
    told = re.search(r"Goes on from trainer step (\d+)(, from its snapshot)?\.", output)
    assert (told[2] is None) == (seed is None), "another seed makes other weights"
    run = RunRecord(Workdir(workdir), output)
    every = list(range(1, steps + 1))
    assert [step["step"] for step in run.consumed] == every
    assert [line["step"] for line in read_metrics(workdir, "rl")] == every
    recorded = [(one.step, one.lease) for one in read_rollouts(workdir) if one.sample == 0]
    assert sorted(set(recorded)) == sorted(recorded), "a group was recorded twice"
    trained_on = {(s["step"], g["lease_id"]) for s in run.consumed for g in s["groups"]}
    # A step counts before its rollouts are written, which nothing depends on.
    missing = trained_on - set(recorded)
    assert set(recorded) <= trained_on
    assert {step for step, _ in missing} <= {killed_after - 1, killed_after}
    assert [span.step for span in run.spans(SpanKind.TRAIN)] == every
    leased, trained, dropped = (run.leases(event) for event in ("leased", "trained", "dropped"))
    assert set(leased.values()) == set(run.leases("buffered").values()) == {1}
    assert trained + dropped == leased, "a lease ended in no way, or in two"
    consumed = [group["lease_id"] for step in run.consumed for group in step["groups"]]
    assert sorted(consumed) == sorted(trained)
    ordinals = [group["ordinal"] for step in run.consumed for group in step["groups"]]
    assert len(set(ordinals)) == len(ordinals), "a prompt was trained twice"
    assert_every_token_is_accounted_for(run)


@pytest.mark.parametrize(
    ("end", "given"),
    [
        pytest.param(
            signal.SIGKILL,
            modes("one_step_off_policy", transfer="server"),
            marks=pytest.mark.nightly,
            id="killed, one step off-policy by server",
        ),
        *(
            pytest.param(end, given, marks=pytest.mark.nightly, id=name)
            for end, given, name in [
                (signal.SIGKILL, modes("synchronous"), "killed, synchronous by collective"),
                (signal.SIGTERM, modes("one_step_off_policy"), "ended, one step by collective"),
                (
                    signal.SIGTERM,
                    modes("custom", interval=2, offset=4, transfer="checkpoint"),
                    "ended, interval 2, offset 4, by checkpoint",
                ),
                (
                    signal.SIGKILL,
                    modes("synchronous", count=2, transfer="checkpoint"),
                    "killed, two explorers by checkpoint",
                ),
            ]
        ),
    ],
)
def test_an_exact_run_comes_to_the_same_bits_whenever_it_ended(started, runs, end, given):
    given = (*given, "--config.trainer.steps=24")
    process, workdir = started(*given)
    wait_for(lambda: len(read_consumed(workdir)) >= 13, process)
    os.kill(process.pid, end)
    ended(process)
    deadline = time.monotonic() + 20
    while processes_of(workdir) and time.monotonic() < deadline:
        time.sleep(0.1)
    again = launch(*given, EMBEDDED, workdir=workdir)
    output = ended(again)
    assert again.returncode == 0, output
    assert re.search(r"Goes on from trainer step \d+\.", output)
    run = RunRecord(Workdir(workdir), output)
    every = list(range(1, 25))
    assert [step["step"] for step in run.consumed] == every
    assert [line["step"] for line in read_metrics(workdir, "rl")] == every
    assert run.digest == runs.get(EMBEDDED, *given).digest
