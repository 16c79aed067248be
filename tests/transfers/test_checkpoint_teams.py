"""Checkpoint transfer with a trainer of several processes, which save each version together."""

from __future__ import annotations

import threading
import time

import jax.numpy as jnp
import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.team import Follower, Leader
from rl_sync.transfers.checkpoint import CheckpointPublisher
from rl_sync.weights.background_publisher import QueueRules
from rl_sync.weights.deltas.version_files import VersionFiles

SECRET = "of this test"


@pytest.mark.parametrize("late", [0, 1])
def test_the_processes_of_a_trainer_save_the_same_versions_whoever_is_behind(
    tmp_path, monkeypatch, late
):
    written: dict[int, list[int]] = {}
    write = VersionFiles.write_parts

    def note(files, artifact, *arguments):
        time.sleep(0.02)
        written.setdefault(threading.get_ident(), []).append(artifact.key.version)
        return write(files, artifact, *arguments)

    monkeypatch.setattr(VersionFiles, "write_parts", note)
    (port,) = free_ports("127.0.0.1", 1)
    address = f"127.0.0.1:{port}"
    team = [
        Leader("trainer", 1, address, SECRET),
        Follower("trainer", 1, address, start_secs=20.0, wait_secs=20.0, secret=SECRET),
    ]
    saved, failures = [], []

    def run(index: int) -> None:
        try:
            publisher = CheckpointPublisher(
                tmp_path,
                {"w": jnp.zeros(3)},
                run="ours",
                chain="one",
                deltas=False,
                rules=QueueRules(
                    may_skip=True,
                    timeout_secs=20.0,
                    agree=team[index].agree,
                    agree_in_thread=team[index].thread("weights"),
                ),
                on_saved=lambda version, *_: saved.append(version),
                agree_wishes=team[index].thread("wishes"),
            )
            for version in range(8):
                time.sleep(0.01 if index == late else 0.0)
                publisher.publish(version, {"w": jnp.full((3,), float(version))})
            publisher.close()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=[index]) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for member in team:
        member.close()
    assert not failures
    one, other = written.values()
    assert one == other
    assert one[-1] == 7
    assert len(one) < 8, "no version was skipped"
    assert saved.count(7) == 2, "each process tells of the versions that it wrote"
