"""Publishers that compare versions on the devices: the same artifacts, few bytes to the host."""

from __future__ import annotations

import contextlib
import queue
import threading

import jax
import pytest

from rl_sync.weights.background_publisher import QueueRules
from rl_sync.weights.copies import on_host
from rl_sync.weights.deltas import device_changes, history_publisher
from rl_sync.weights.deltas.history import AddedVersion, VersionHistory
from rl_sync.weights.deltas.history_publisher import HistoryPublisher
from rl_sync.weights.digest import digest
from rl_sync.weights.parts import Cutter, plan_manifest
from tests.transfers.changing_weights import abstract_on, placed, weights

SECS = 60.0
UP_BYTES = 512 * 384 * 2


class Published(HistoryPublisher):
    """Keeps what was added; waits before each version until it may go on."""

    def __init__(self, mesh=((0,), ()), rules: QueueRules = QueueRules(), deltas: bool = True):  # noqa: B008
        self.abstract = abstract_on(*mesh)
        manifest = plan_manifest(self.abstract)
        history = VersionHistory("chain", 0, manifest.itemsizes, deltas=deltas)
        self.may_go_on = threading.Semaphore(0)
        self.under_way: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.added: queue.SimpleQueue[tuple[int, AddedVersion]] = queue.SimpleQueue()
        super().__init__(Cutter(manifest, self.abstract), history, "nowhere", rules)

    def _offer(self, version, cut):
        self.under_way.put(version)
        assert self.may_go_on.acquire(timeout=SECS)
        self.added.put((version, self._added(version, cut)))

    def make(self, version: int) -> AddedVersion:
        """Publishes a version, and waits until it is in the history."""
        self.publish(version, placed(version, self.abstract))
        return self.go_on(version)

    def go_on(self, version: int) -> AddedVersion:
        """Lets the next version into the history, which must be this one."""
        self.may_go_on.release()
        number, added = self.added.get(timeout=SECS)
        assert number == version
        return added

    def blocks(self, artifact) -> list[bytes]:
        names = artifact.blocks([*artifact.parts])
        return [bytes(self.history.payload(name)) for name in names]

    def close(self) -> None:
        for _ in range(9):
            self.may_go_on.release()
        self._queue.close()
        self.history.close()


@pytest.fixture
def crossing(monkeypatch) -> list[int]:
    """Bytes of the arrays that crossed to the host."""
    nbytes: list[int] = []

    def counted(arrays):
        arrays = list(arrays)
        nbytes.extend(array.nbytes for array in arrays)
        return on_host(arrays)

    monkeypatch.setattr(device_changes, "on_host", counted)
    return nbytes


@pytest.fixture
def on_devices(monkeypatch):
    monkeypatch.setattr(history_publisher, "platform", lambda: "gpu")


@contextlib.contextmanager
def publishing(**options):
    publisher = Published(**options)
    try:
        yield publisher
    finally:
        publisher.close()


@pytest.mark.usefixtures("on_devices")
def test_only_the_first_version_crosses_whole(crossing):
    with publishing() as publisher:
        publisher.make(0)
        assert max(crossing) == UP_BYTES
        for version in (1, 2, 3):
            crossing.clear()
            publisher.make(version)
            # A bit and 2 bytes for one in a hundred, up to two runs, and the small arrays.
            assert UP_BYTES / 16 < sum(crossing) < UP_BYTES / 7
        assert max(publisher._runs.values()) == 1, "one in a hundred is less than a 64th"


@pytest.mark.gate
@pytest.mark.parametrize(
    "mesh", [((0,), ()), ((0, 1, 2, 3), ("x",)), ((0, 1, 2, 3), (None, "x")), ((3, 2), ())]
)
def test_artifacts_and_digests_do_not_depend_on_where_versions_are_compared(mesh, monkeypatch):
    def artifacts() -> list:
        with publishing(mesh=mesh) as publisher:
            made = []
            for version in range(4):
                delta = publisher.make(version).delta
                full = publisher.history.full(version)
                assert full.digest == digest(placed(version, publisher.abstract))
                made += [(one, publisher.blocks(one)) for one in (delta, full) if one is not None]
            return made

    expected = artifacts()
    monkeypatch.setattr(history_publisher, "platform", lambda: "gpu")
    assert artifacts() == expected


@pytest.mark.usefixtures("on_devices")
def test_after_skipped_versions_the_last_one_in_the_history_is_the_base(crossing):
    with publishing(rules=QueueRules(may_skip=True)) as publisher:
        publisher.make(0)
        publisher.publish(1, placed(1, publisher.abstract))
        while publisher.under_way.get(timeout=SECS) != 1:
            pass  # Only then, no newer version can take its place.
        for version in (2, 3, 4):
            publisher.publish(version, placed(version, publisher.abstract))
        # The newest that is computed comes next.
        jax.block_until_ready([one.awaited for one in publisher._queue._pending.values()])
        publisher.go_on(1)
        crossing.clear()
        delta = publisher.go_on(4).delta
        assert delta is not None
        assert delta.key.base == 1
        publisher.make(5)
        assert max(crossing) < UP_BYTES
        full = b"".join(publisher.blocks(publisher.history.full(5)))
        assert weights(5)["layers"]["up"].tobytes() in full


@pytest.mark.usefixtures("on_devices")
def test_a_version_may_be_published_again():
    with publishing() as publisher:
        publisher.make(0)
        publisher.make(1)
        publisher.publish(1, placed(2, publisher.abstract))
        assert publisher.go_on(1).delta is None
        publisher.make(3)
        full = b"".join(publisher.blocks(publisher.history.full(3)))
        assert weights(3)["layers"]["up"].tobytes() in full


@pytest.mark.parametrize("options", [{}, {"deltas": False}])
def test_nothing_stays_on_a_cpu_nor_where_differences_are_off(options, monkeypatch):
    if options:
        monkeypatch.setattr(history_publisher, "platform", lambda: "gpu")
    with publishing(**options) as publisher:
        publisher.make(0)
        publisher.make(1)
        assert (publisher._handed, publisher._held) == (None, None)
