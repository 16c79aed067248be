"""A server of Tinker's API in this process, on a tiny checkpoint, for each file of tests."""

import contextlib
import dataclasses
import threading
from pathlib import Path

import pytest

from rl_sync.addons.tinker.tinker_server import TinkerServer
from rl_sync.addons.tinker.tinker_service import ServiceBounds, TinkerService
from rl_sync.api import loaded_policy

BASE = Path(__file__).resolve().parents[2] / "data" / "models" / "qwen2"
NAME = "tiny/qwen2"
BOUNDS = ServiceBounds(models=3, rows=6, length=96, slots=4, batch_tokens=128, snapshots=2)


@dataclasses.dataclass(frozen=True)
class Served:
    """A server that runs."""

    service: TinkerService
    address: str
    root: Path


@contextlib.contextmanager
def serving(policy, root, bounds=BOUNDS, key=None):
    """Runs a server until the end of the context."""
    ended = threading.Event()
    service = TinkerService(policy, base=BASE, name=NAME, root=root, bounds=bounds)
    server = TinkerServer(service, host="127.0.0.1", port=0, key=key)
    thread = threading.Thread(target=service.run, args=(ended,))
    thread.start()
    try:
        yield Served(service, server.address, root)
    finally:
        ended.set()
        thread.join()
        server.close()
        service.close()


@pytest.fixture(scope="module", name="policy")
def _policy():
    return loaded_policy.load(BASE)


@pytest.fixture(scope="module", name="served")
def _served(policy, tmp_path_factory):
    with serving(policy, tmp_path_factory.mktemp("tinker")) as served:
        yield served
