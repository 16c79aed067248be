"""The names in a work directory, which runs that were begun earlier are found by."""

from __future__ import annotations

from pathlib import Path

from rl_sync.workdir import Workdir


def test_files_have_the_names_that_users_and_earlier_runs_know():
    workdir = Workdir("/runs/mine")
    paths = {
        "config.json": workdir.config,
        "checkpoints": workdir.snapshots,
        "checkpoints/sft": workdir.sft_snapshots,
        "weights": workdir.weights,
        "logs/trainer.1.log": workdir.log("trainer/1"),
        "spans/explorer1.jsonl": workdir.spans_of("explorer1"),
        "metrics.jsonl": workdir.metrics,
        "tensorboard": workdir.tensorboard,
        "backends": workdir.backends,
        "ledger.jsonl": workdir.ledger,
        "batches": workdir.batches,
        "published.jsonl": workdir.published,
        "consumed.jsonl": workdir.consumed,
        "replay/checkpoints": workdir.replay_checkpoints,
        "rollouts": workdir.rollouts,
        "restarts.jsonl": workdir.restarts,
        "timeline.png": workdir.timeline[0],
        "trace.json": workdir.trace,
    }
    assert {str(path.relative_to("/runs/mine")): path for path in paths.values()} == paths


def test_a_work_directory_is_a_path():
    assert Path(Workdir("/runs/mine"), "notes") == Path("/runs/mine/notes")
    assert f"{Workdir(Path('runs'))}" == "runs"


def test_a_new_attempt_leaves_what_is_the_users_own_and_what_was_moved_aside():
    workdir = Workdir("/runs/mine")
    kept = {workdir.lock, workdir.secret, workdir.earlier, *workdir.timeline, workdir.trace}
    assert not kept & set(workdir.of_attempt)
    assert len(set(workdir.of_attempt)) == 26
