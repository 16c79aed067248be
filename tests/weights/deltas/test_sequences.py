"""Senders, relays and receivers under any order of events: exact weights, or those from before."""

from __future__ import annotations

import dataclasses
import random
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.weights.deltas import block_cache
from rl_sync.weights.deltas.applying import applied
from rl_sync.weights.deltas.artifact import Artifact, HeldVersion
from rl_sync.weights.deltas.block_cache import BlockCache
from rl_sync.weights.deltas.encoding import EncodingError
from rl_sync.weights.deltas.history import VersionHistory
from rl_sync.weights.ends_interface import WeightsTransferError
from tests.weights.deltas.made import (
    ITEMSIZES,
    SIZES,
    digest_of,
    history_of,
    parts_of,
    same,
    with_changes,
)

pytestmark = pytest.mark.usefixtures("small_blocks")

WAITS = 600.0
FAILURES = (ConnectionError, WeightsTransferError, EncodingError, KeyError)


class Sender:
    """A trainer that publishes, and starts anew with another chain."""

    def __init__(self, draw: random.Random, keep: int):
        self._draw, self._keep, self._chains = draw, keep, 0
        self.dense: dict[tuple[str, int], dict[int, np.ndarray]] = {}
        self.newest = draw.randint(0, 3)
        self.parts = parts_of(draw.randrange(1000))
        self.history = self._begin()
        self.requests_left: int | None = None

    def publish(self) -> None:
        self.newest += self._draw.choice([1, 1, 1, 2, 5])
        share = self._draw.choice([0, 0.01, 0.02, 0.05, 0.05, 0.05, 0.2, 1])
        self.parts = with_changes(self.parts, self._draw.randrange(1 << 30), share)
        self._add()

    def fail_to_publish(self) -> None:
        broken = {**self.parts, max(SIZES) + 1: self.parts[0]}
        with pytest.raises(KeyError):
            self.history.add(self.newest + 1, lambda: "of a broken version", broken)

    def restart(self) -> None:
        """Begins again at an earlier version or the same, with other weights or the same."""
        self.history.close()
        self.newest = max(0, self.newest - self._draw.randint(0, 3))
        if self._draw.random() < 0.5:
            self.parts = with_changes(self.parts, self._draw.randrange(1 << 30), 0.05)
        self.history = self._begin()

    def blocks(self, names, via, stream) -> list[bytes]:
        if self.requests_left is not None:
            if self.requests_left == 0:
                raise ConnectionError("the connection broke")
            self.requests_left -= 1
        try:
            return [bytes(self.history.payload(name)) for name in names]
        except KeyError as error:
            raise ConnectionError(str(error)) from error

    def reconnect(self, stream) -> None:
        """Does nothing: there are no connections."""

    @property
    def name(self) -> str:
        return "trainer"

    def _begin(self) -> VersionHistory:
        self._chains += 1
        self.history = history_of(chain=f"chain {self._chains}", keep=self._keep)
        self._add()
        return self.history

    def _add(self) -> None:
        self.history.add(self.newest, partial(digest_of, self.parts), self.parts)
        self.dense[self.history.chain, self.newest] = self.parts


@dataclasses.dataclass
class Receiver:
    """An explorer's process, which others may ask for blocks."""

    name: str
    cache: BlockCache
    relays: list[str]
    damages: bool = False
    held: HeldVersion | None = None
    parts: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    expected: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    under_way: tuple[VersionHistory, HeldVersion, list[Artifact]] | None = None

    def blocks(self, names, via, stream) -> list[bytes]:
        try:
            blocks = [bytes(one) for one in self.cache.get(names, via)]
        except (WeightsTransferError, KeyError) as error:
            raise ConnectionError(str(error)) from error
        return [one[:-1] + bytes([one[-1] ^ 1]) for one in blocks] if self.damages else blocks

    def reconnect(self, stream) -> None:
        """Does nothing: there are no connections."""


class World:
    """A sender and its receivers; each event is followed by a look at the weights."""

    def __init__(self, seed: int, keep: int, explorers: int):
        self.draw = random.Random(seed)
        self.sender = Sender(self.draw, keep)
        self.receivers: dict[str, Receiver] = {}
        self.joined = self.fetched = self.differences = self.failed = 0
        for _ in range(explorers):
            self.join()

    def join(self) -> None:
        self.joined += 1
        self.receivers[f"explorer {self.joined}"] = self._new(f"explorer {self.joined}")

    def leave(self) -> None:
        if len(self.receivers) > 1:
            name = self._one().name
            self.sender.history.forget(name)
            del self.receivers[name]

    def restart_receiver(self) -> None:
        name = self._one().name
        self.receivers[name] = self._new(name)

    def ask(self) -> None:
        """A receiver learns the way to a version that is offered."""
        one, history = self._one(), self.sender.history
        version = self.draw.choice(history.versions())
        one.under_way = (history, *history.route(version, one.held, one.name, WAITS))

    def fetch(self) -> None:
        """A receiver takes the way that it has learnt, perhaps a while ago."""
        one = self._one()
        if one.under_way is None:
            return
        is_current = one.under_way[0] is self.sender.history
        breaks = self.draw.random() < 0.3
        self.sender.requests_left = self.draw.randint(0, 4) if breaks else None
        try:
            self._take(one)
        except FAILURES:
            # Nothing else may fail: not even if much was published since the receiver has asked.
            assert breaks or not is_current
            self.failed += 1
        finally:
            self.sender.requests_left = None

    def damage(self) -> None:
        one = self._one()
        one.damages = not one.damages

    def change_relays(self) -> None:
        for one in self.receivers.values():
            others = [other for other in self.receivers if other != one.name]
            one.relays = self.draw.sample(others, min(2, len(others)))

    def forget_digest(self) -> None:
        """A receiver takes what it has for another version, or for that of another chain."""
        one = self._one()
        if one.held is not None and one.under_way is None:
            wrong = [one.held._replace(digest="another"), one.held._replace(chain="another")]
            if one.held.digest != digest_of(self.sender.parts):
                wrong.append(one.held._replace(version=self.sender.newest))
            one.held = self.draw.choice(wrong)
            one.expected = parts_of(self.draw.randrange(1000))
            one.parts = {part: content.copy() for part, content in one.expected.items()}

    def check(self) -> None:
        for one in self.receivers.values():
            assert same(one.parts, one.expected)

    def _one(self) -> Receiver:
        return self.draw.choice([*self.receivers.values()])

    def _new(self, name: str) -> Receiver:
        def sources(key):
            relays = [self.receivers.get(one) for one in self.receivers[name].relays]
            return [*filter(None, relays), self.sender]

        def listed(key):
            return self.sender.history.artifact(key)

        cache = BlockCache(name, sources, listed, most_bytes=5000)
        cache.streams = 1  # So that a sequence can be repeated.
        others = [one for one in self.receivers if one != name]
        return Receiver(name, cache, self.draw.sample(others, min(2, len(others))))

    def _take(self, one: Receiver) -> None:
        history, target, route = one.under_way
        payloads = one.cache.fetch(route, [*SIZES])
        parts = applied(route, one.parts, SIZES, ITEMSIZES, payloads)
        assert digest_of(parts) == target.digest, "a full copy would have been needed"
        one.expected = self.sender.dense[target.chain, target.version]
        one.held, one.parts, one.under_way = target, parts, None
        self.fetched += 1
        self.differences += bool(route) and bool(route[0].base_digest)
        one.cache.release()
        if history is self.sender.history:
            history.acknowledge(one.name, target.version)


EVENTS = {
    "publish": 6,
    "ask": 9,
    "fetch": 12,
    "join": 0.5,
    "leave": 0.5,
    "restart_receiver": 0.5,
    "damage": 0.5,
    "change_relays": 1,
    "forget_digest": 0.5,
}


def run(seed: int, keep: int, explorers: int, count: int) -> World:
    world = World(seed, keep, explorers)
    world.sender.publish()
    for _ in range(count):
        (event,) = world.draw.choices([*EVENTS, "restart", "fail"], [*EVENTS.values(), 0.4, 1])
        if event == "publish":
            world.sender.publish()
        elif event == "restart":
            world.sender.restart()
        elif event == "fail":
            world.sender.fail_to_publish()
        else:
            getattr(world, event)()
        world.check()
    return world


@pytest.mark.gate
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 30), keep=st.integers(1, 3), explorers=st.integers(1, 3))
def test_a_receiver_has_exactly_what_was_published_or_what_it_had(seed, keep, explorers):
    """Fetches break, relays send wrong bytes, everybody restarts; versions are skipped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_cache, "BATCH_BYTES", 400)
        run(seed, keep, explorers, 60)


@pytest.mark.gate
def test_the_sequences_have_many_fetches_of_each_kind(monkeypatch):
    monkeypatch.setattr(block_cache, "BATCH_BYTES", 400)
    worlds = [run(seed, 1 + seed % 3, 1 + seed % 3, 60) for seed in range(30)]
    assert sum(world.fetched for world in worlds) > 200
    assert sum(world.differences for world in worlds) > 60
    assert sum(world.failed for world in worlds) > 20
