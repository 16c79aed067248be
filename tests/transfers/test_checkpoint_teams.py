"""Checkpoint transfer with a trainer of several processes, which save each version together."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import jax.numpy as jnp
import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.team import Follower, Leader
from rl_sync.transfers import checkpoint
from rl_sync.transfers.checkpoint import CheckpointPublisher

SECRET = "of this test"


class NotedStorage:
    """Storage that records what each publisher's thread writes, and takes its time."""

    written: ClassVar[dict[tuple, list[str]]] = {}

    def __init__(self, name, processes):
        self.saved = self.written.setdefault(tuple(processes), [])

    def write(self, directory, arrays):
        time.sleep(0.02)
        self.saved.append(directory.name)

    def close(self):
        pass


@pytest.mark.parametrize("late", [0, 1])
def test_the_processes_of_a_trainer_save_the_same_versions_whoever_is_behind(
    tmp_path, monkeypatch, late
):
    monkeypatch.setattr(checkpoint, "ArrayStorage", NotedStorage)
    monkeypatch.setattr(NotedStorage, "written", {})
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
                may_skip=True,
                timeout_secs=20.0,
                on_saved=lambda version, _: saved.append(version),
                processes=[index],
                agree=team[index].agree,
                agree_saving=team[index].thread("weights"),
            )
            for version in range(8):
                time.sleep(0.01 if index == late else 0.0)
                publisher.publish(version, {"w": jnp.full((3,), version)})
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
    assert NotedStorage.written[0,] == NotedStorage.written[1,]
    assert NotedStorage.written[0,][-1] == "version_00000007"
    assert len(saved) == len(NotedStorage.written[0,]), "the first process alone tells"
