"""Whole runs that distill another run's policy into theirs."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from rl_sync.cluster.secret import secret_in
from rl_sync.launcher import command_line
from rl_sync.launcher.commands.teacher import served_settings
from rl_sync.models.sharding import Layout
from rl_sync.records.metrics import read_metrics
from rl_sync.roles.assembly import wiring
from rl_sync.roles.teaching.teacher_server import TeacherModel, TeacherServer
from tests.runs.conftest import CONFIG, assert_nothing_is_lost_or_doubled, flags

SYNCHRONOUS = flags("synchronous")
FAST = (
    "--config.algorithm.name=on_policy_distillation",
    "--config.algorithm.entropy_coefficient=0.0",
    "--config.trainer.group_size=1",
    "--config.optimizer.learning_rate=0.003",
)


def _teacher(memory_runs):
    """Returns the words that name the policy with which a run of another seed began."""
    run = memory_runs(*SYNCHRONOUS, "--config.seed=7", "--config.trainer.steps=1")
    return f"--config.teacher.path={run.workdir}", "--config.teacher.step=0"


@pytest.mark.samples(gate=("exact",))
@pytest.mark.parametrize("kind", ["sampled", "exact", "topk"])
def test_the_policy_comes_nearer_to_its_teacher_without_a_reward(memory_runs, kind):
    run = memory_runs(
        *SYNCHRONOUS, *FAST, *_teacher(memory_runs), f"--config.algorithm.distillation={kind}"
    )
    assert_nothing_is_lost_or_doubled(run)
    divergences = [metrics["kl_teacher"] for metrics in read_metrics(run.workdir, "rl")]
    assert len(divergences) == 12
    assert sum(divergences[-3:]) < 0.8 * sum(divergences[:3])


@pytest.mark.gate
def test_a_teacher_and_a_reward_teach_stale_data_together(memory_runs):
    run = memory_runs(
        *flags("one_step_off_policy"),
        *_teacher(memory_runs),
        "--config.algorithm.distillation=topk",
        "--config.algorithm.distillation_top_k=4",
        "--config.trainer.batching=shared",
        "--config.teacher.offload=true",
    )
    assert_nothing_is_lost_or_doubled(run)
    for metrics in read_metrics(run.workdir, "rl"):
        assert metrics["kl_teacher"] > 0


@pytest.mark.gate
def test_each_set_of_a_mixture_has_its_own_teacher(memory_runs):
    mixture = (
        *SYNCHRONOUS,
        "--config.task.name=mixture",
        "--config.task.mixture.sets=arithmetic + 2 * arithmetic(least_operand=80, set='large')",
    )
    one, other = (
        memory_runs(*mixture, f"--config.seed={seed}", "--config.trainer.steps=1")
        for seed in (7, 8)
    )
    run = memory_runs(
        *mixture,
        *FAST,
        "--config.algorithm.distillation=exact",
        f"--config.teacher.sets=arithmetic={one.workdir},large={other.workdir}",
        "--config.teacher.step=0",
    )
    assert_nothing_is_lost_or_doubled(run)
    divergences = [metrics["kl_teacher"] for metrics in read_metrics(run.workdir, "rl")]
    assert sum(divergences[-3:]) < sum(divergences[:3])


@pytest.mark.gate
@pytest.mark.parametrize("kind", ["topk", "sampled"])
def test_a_teacher_on_a_server_gives_the_run_of_one_beside_the_trainer(memory_runs, tmp_path, kind):
    words = (
        *SYNCHRONOUS,
        *FAST,
        f"--config.algorithm.distillation={kind}",
        "--config.algorithm.distillation_top_k=8",
        "--config.rollout.top_k=12",
        "--config.trainer.steps=3",
    )
    teacher = _teacher(memory_runs)
    beside = memory_runs(*words, *teacher)
    given = command_line.parse([f"--config={CONFIG}", *words, *teacher]).config.to_dict()
    settings = served_settings(given)
    loaded = TeacherModel.loaded(settings, wiring.load_task(settings), Layout.single())
    secret = secret_in(tmp_path / "secret")
    with contextlib.closing(
        TeacherServer(loaded, host="127.0.0.1", port=0, secret=secret)
    ) as server:
        apart = memory_runs(
            *words,
            f"--config.teacher.address={server.address}",
            f"--config.teacher.secret_path={tmp_path / 'secret'}",
        )
    assert_nothing_is_lost_or_doubled(apart)
    expected, found = (
        [(one["loss"], one["kl_teacher"]) for one in read_metrics(run.workdir, "rl")]
        for run in (beside, apart)
    )
    assert len(found) == 3
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
def test_adapters_follow_a_teacher(memory_runs):
    run = memory_runs(
        *SYNCHRONOUS,
        *FAST,
        *_teacher(memory_runs),
        "--config.model.lora.rank=4",
        "--config.optimizer.learning_rate=0.01",
        "--config.algorithm.distillation=exact",
    )
    divergences = [metrics["kl_teacher"] for metrics in read_metrics(run.workdir, "rl")]
    assert sum(divergences[-3:]) < 0.9 * sum(divergences[:3])
