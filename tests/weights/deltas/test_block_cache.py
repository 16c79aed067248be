"""Blocks come from the first source that does well, each once, and nothing that arrived is lost."""

from __future__ import annotations

import concurrent.futures
import random
import threading
from collections.abc import Sequence

import pytest

from rl_sync.weights.deltas import block_cache
from rl_sync.weights.deltas.artifact import (
    FULL,
    Artifact,
    ArtifactKey,
    BlockName,
    PartBlocks,
    check_of,
)
from rl_sync.weights.deltas.block_cache import BlockCache
from rl_sync.weights.ends_interface import WeightsTransferError

TRAINER = "trainer"
BATCH, PARTS = 1000, [0, 1, 2]


class Content:
    """The blocks of some artifacts, as the trainer has them."""

    def __init__(self, *versions: int, sizes: Sequence[int] = (300,) * 20) -> None:
        draw = random.Random(0)
        self.payloads, self.artifacts = {}, {}
        for version in versions:
            key, tables = ArtifactKey("chain", version, FULL, 0), {}
            for part in PARTS:
                blocks = [draw.randbytes(size) for size in sizes]
                checks = [check_of(one) for one in blocks]
                tables[part] = PartBlocks(b"\1" * len(sizes), [*sizes], checks)
                for number, block in enumerate(blocks):
                    if block:
                        self.payloads[BlockName(key, part, number)] = block
            self.artifacts[key] = Artifact(key, "", "", tables, 0, 0)
        self.nbytes = {
            key: sum(len(p) for name, p in self.payloads.items() if name.key == key)
            for key in self.artifacts
        }

    def artifact(self, version: int) -> Artifact:
        return next(one for key, one in self.artifacts.items() if key.version == version)

    def names(self, version: int) -> list:
        return [*self.artifact(version).blocks(PARTS)]

    def of(self, version: int) -> dict:
        return {name: self.payloads[name] for name in self.names(version)}


class Source:
    """A source that notes what it is asked for; `trouble` may raise, wait, or change the answer."""

    def __init__(self, name: str, content: Content, trouble=lambda names, via, blocks: blocks):
        self.name, self._content, self._trouble = name, content, trouble
        self.requests = []
        self.reconnections = []
        self.sent = []
        self._lock = threading.Lock()

    def blocks(self, names, via, stream):
        with self._lock:
            self.requests.append((tuple(names), tuple(via), stream))
        blocks = self._trouble(names, via, [self._content.payloads[name] for name in names])
        with self._lock:
            self.sent += names
        return blocks

    def reconnect(self, stream):
        self.reconnections.append(stream)


class Relay:
    """An explorer's cache, as a source of others."""

    def __init__(self, name: str, cache: BlockCache):
        self.name, self._cache = name, cache

    def blocks(self, names, via, stream):
        try:
            return [bytes(one) for one in self._cache.get(names, via)]
        except WeightsTransferError as error:
            raise ConnectionError(str(error)) from error

    def reconnect(self, stream):
        pytest.fail("only the last source gets a second chance")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(block_cache, "BATCH_BYTES", BATCH)


def cache_of(content: Content, *sources, name="here", **options) -> BlockCache:
    return BlockCache(name, lambda key: sources, lambda key: content.artifacts[key], **options)


def fetch(cache: BlockCache, content: Content, *versions: int) -> dict:
    return cache.fetch([content.artifact(version) for version in versions], PARTS)


def is_dead(names, via, blocks):
    raise ConnectionError("it is gone")


def test_all_blocks_come_from_the_trainer_and_each_once():
    content = Content(1, 2)
    trainer = Source(TRAINER, content)
    cache = cache_of(content, trainer)
    assert fetch(cache, content, 1, 2) == content.payloads
    assert sorted(trainer.sent) == sorted(content.payloads)
    assert fetch(cache, content, 1, 2) == content.payloads
    assert len(trainer.sent) == len(content.payloads)


def test_only_the_parts_that_are_asked_for_are_fetched():
    content = Content(1)
    trainer = Source(TRAINER, content)
    found = cache_of(content, trainer).fetch([content.artifact(1)], [0, 2, 9])
    assert found == {name: one for name, one in content.payloads.items() if name.part != 1}
    assert {name.part for name in trainer.sent} == {0, 2}


def test_there_is_nothing_to_fetch_where_no_block_has_bytes():
    content = Content(1, sizes=(0, 0))
    trainer = Source(TRAINER, content, is_dead)
    assert fetch(cache_of(content, trainer), content, 1) == {}
    assert trainer.requests == []


def test_a_request_asks_for_some_bytes_of_one_artifact_and_a_large_block_travels_alone():
    content = Content(1, 2, sizes=(300, 700, 1, 2500, 1000, 600, 600))
    trainer = Source(TRAINER, content)
    assert fetch(cache_of(content, trainer), content, 1, 2) == content.payloads
    for names, _, _ in trainer.requests:
        nbytes = sum(len(content.payloads[name]) for name in names)
        assert len(names) == 1 or nbytes <= BATCH
        assert len({name.key for name in names}) == 1
    assert max(len(names) for names, _, _ in trainer.requests) > 1


def test_a_fetch_returns_only_after_its_last_batch():
    content = Content(1)
    last, has_returned = content.names(1)[-1], threading.Event()

    def slow_at_the_end(names, via, blocks):
        if last in names:
            has_returned.wait(0.5)  # It does not return, or it does so too early.
        return blocks

    def run():
        found = fetch(cache_of(content, Source(TRAINER, content, slow_at_the_end)), content, 1)
        has_returned.set()
        return found

    assert run() == content.payloads


def test_wrong_bytes_of_a_relay_are_fetched_elsewhere_and_the_relay_is_left_out_afterwards():
    content, reports = Content(1, 2), []

    def flip(names, via, blocks):
        return [bytes([blocks[0][0] ^ 1]) + blocks[0][1:], *blocks[1:]]

    relay, trainer = Source("relay", content, flip), Source(TRAINER, content)
    cache = cache_of(content, relay, trainer, on_report=reports.append)
    assert fetch(cache, content, 1) == content.of(1)
    assert 1 <= len(relay.requests) <= cache.streams
    before = len(relay.requests)
    assert fetch(cache, content, 2) == content.of(2)
    assert len(relay.requests) == before
    assert sorted(trainer.sent) == sorted(content.payloads)
    bad = [one for one in reports if one.source == "relay"]
    assert len(bad) == before
    assert all("check sum" in one.failure and not one.nbytes for one in bad)
    good = [one for one in reports if one.source == TRAINER]
    assert sum(one.nbytes for one in good) == sum(content.nbytes.values())
    assert not any(one.failure for one in good)


@pytest.mark.parametrize(
    "answer",
    [
        lambda names, via, blocks: blocks[:-1],
        lambda names, via, blocks: [*blocks, b""],
        lambda names, via, blocks: [],
        lambda names, via, blocks: [one[:-1] for one in blocks],
        lambda names, via, blocks: [b"" for one in blocks],
        is_dead,
    ],
    ids=["too few", "too many", "none", "cut", "empty", "dead"],
)
def test_a_relay_that_fails_is_left_out(answer):
    content = Content(1, 2)
    relay, other = Source("relay", content, answer), Source("other", content)
    trainer = Source(TRAINER, content)
    cache = cache_of(content, relay, other, trainer)
    assert fetch(cache, content, 1) == content.of(1)
    before = len(relay.requests)
    assert fetch(cache, content, 2) == content.of(2)
    assert len(relay.requests) == before
    assert sorted(other.sent) == sorted(content.payloads)
    assert trainer.requests == []


def test_a_relay_that_dies_in_the_middle_is_followed_by_the_next_source():
    content = Content(1)
    answers = iter(range(4))

    def die(names, via, blocks):
        if next(answers, None) is None:
            raise ConnectionError("it is gone")
        return blocks

    relay, trainer = Source("relay", content, die), Source(TRAINER, content)
    assert fetch(cache_of(content, relay, trainer), content, 1) == content.payloads
    assert relay.sent
    assert trainer.sent
    assert sorted([*relay.sent, *trainer.sent]) == sorted(content.payloads)


def test_a_relay_that_stalls_holds_up_only_what_it_was_asked_for():
    content, others_are_there = Content(1), threading.Event()
    stalled = []

    def stall(names, via, blocks):
        if not stalled:
            stalled.extend(names)
            assert others_are_there.wait(60)
        raise ConnectionError("it took too long")

    def note(names, via, blocks):
        if len(trainer.sent) + len(names) + len(stalled) >= len(content.payloads):
            others_are_there.set()
        return blocks

    relay, trainer = Source("relay", content, stall), Source(TRAINER, content, note)
    assert fetch(cache_of(content, relay, trainer), content, 1) == content.payloads
    assert trainer.sent[-len(stalled) :] == stalled


def test_a_source_is_asked_again_after_a_while():
    content = Content(1, 2)
    relay, trainer = Source("relay", content), Source(TRAINER, content)
    cache = cache_of(content, relay, trainer)
    cache.skip("relay", 60)
    fetch(cache, content, 1)
    assert (relay.sent, len(trainer.sent)) == ([], len(content.of(1)))
    cache.skip("relay", 0)
    fetch(cache, content, 2)
    assert sorted(relay.sent) == sorted(content.of(2))


def test_the_trainer_is_asked_even_if_it_has_just_failed():
    content = Content(1)
    trainer = Source(TRAINER, content, is_dead)
    cache = cache_of(content, trainer)
    for _ in range(2):
        before = len(trainer.requests)
        with pytest.raises(
            WeightsTransferError, match=r"version 1 cannot be .*trainer: it is gone"
        ):
            fetch(cache, content, 1)
        assert len(trainer.requests) > before


def test_the_trainer_gets_a_second_chance_over_a_new_connection():
    content = Content(1)

    def fail_once(names, via, blocks):
        if len(trainer.requests) == 1:
            raise ConnectionError("the connection hangs")
        return blocks

    trainer = Source(TRAINER, content, fail_once)
    assert fetch(cache_of(content, trainer), content, 1) == content.payloads
    assert len(trainer.reconnections) == 1


def test_two_caches_that_wait_for_each_other_do_not_wait_long(monkeypatch):
    monkeypatch.setattr(block_cache, "_BUSY_SECS", 0.2)
    content, meet = Content(1), threading.Barrier(2)
    trainer = Source(TRAINER, content)
    caches, reports = {}, []

    class Other:
        """The other cache; both ask each other at the same moment."""

        def __init__(self, name):
            self.name = name

        def blocks(self, names, via, stream):
            if len(via) == 1:
                meet.wait(30)
            return [bytes(one) for one in caches[self.name].get(names, via)]

        def reconnect(self, stream):
            pytest.fail("only the last source gets a second chance")

    for name, other in (("one", "two"), ("two", "one")):
        caches[name] = cache_of(content, Other(other), trainer, name=name, on_report=reports.append)
    block = content.names(1)[:1]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answers = [pool.submit(cache.get, block) for cache in caches.values()]
        assert [answer.result(30) for answer in answers] == [[content.payloads[block[0]]]] * 2
    assert not any(report.failure for report in reports)


def test_a_fetch_without_sources_says_so():
    content = Content(1)
    with pytest.raises(WeightsTransferError, match="there is no source"):
        fetch(cache_of(content), content, 1)


@pytest.mark.parametrize("answers", [0, 1, 5, 19])
def test_a_broken_fetch_goes_on_with_what_had_arrived(answers):
    content = Content(1)
    left = iter(range(answers))
    dead = threading.Event()

    def fail(names, via, blocks):
        if next(left, None) is None and not dead.is_set():
            raise ConnectionError("it is gone")
        return blocks

    trainer = Source(TRAINER, content, fail)
    cache = cache_of(content, trainer)
    with pytest.raises(WeightsTransferError):
        fetch(cache, content, 1)
    arrived = [*trainer.sent]
    assert bool(arrived) == bool(answers)
    dead.set()  # From here on all is well.
    assert fetch(cache, content, 1) == content.payloads
    assert sorted(trainer.sent) == sorted(content.payloads), "a block was fetched twice"
    assert trainer.sent[: len(arrived)] == arrived


def test_any_other_error_of_a_source_ends_the_fetch():
    content = Content(1)

    def broken(names, via, blocks):
        raise KeyError("a mistake in the program")

    with pytest.raises(KeyError, match="a mistake"):
        fetch(cache_of(content, Source(TRAINER, content, broken)), content, 1)


def test_a_request_that_comes_back_is_refused():
    content = Content(1)
    trainer = Source(TRAINER, content)
    cache = cache_of(content, trainer)
    with pytest.raises(ConnectionError, match="here has asked for this itself"):
        cache.get(content.names(1)[:2], ["there", "here"])
    assert trainer.requests == []
    assert cache.get(content.names(1)[:1], ["there"]) == [*content.of(1).values()][:1]
    assert trainer.requests[0][1] == ("there", "here")


def test_relays_in_a_circle_still_get_everything_from_the_trainer():
    content = Content(1)
    trainer = Source(TRAINER, content)
    caches: dict[str, BlockCache] = {}
    names = ["a", "b", "c"]
    for name, parent in zip(names, ["b", "c", "a"], strict=True):

        def sources(key, parent=parent):
            return [Relay(parent, caches[parent]), trainer]

        caches[name] = BlockCache(name, sources, lambda key: content.artifacts[key])
    for name in names:
        assert fetch(caches[name], content, 1) == content.payloads
    assert sorted(trainer.sent) == sorted(content.payloads)


def test_relays_in_a_row_pass_on_blocks_that_the_trainer_sends_once():
    content = Content(1)
    trainer = Source(TRAINER, content)
    first = cache_of(content, trainer, name="first")
    second = cache_of(content, Relay("first", first), trainer, name="second")
    third = cache_of(content, Relay("second", second), trainer, name="third")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = [pool.submit(fetch, one, content, 1) for one in (third, first, second)]
        assert all(one.result(60) == content.payloads for one in results)
    assert sorted(trainer.sent) == sorted(content.payloads)


def test_a_block_is_fetched_once_if_several_ask_at_the_same_time():
    content, all_ask = Content(1), threading.Barrier(9)
    names = content.names(1)[:3]
    asked = threading.Event()

    def slow(names, via, blocks):
        assert asked.wait(60)
        return blocks

    trainer = Source(TRAINER, content, slow)
    cache = cache_of(content, trainer)

    def ask(number):
        all_ask.wait(60)
        return cache.get(names[number % 3 :] + names[: number % 3], ["other"])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, number) for number in range(8)]
        all_ask.wait(60)
        asked.set()
        for number, answer in enumerate(answers):
            expected = names[number % 3 :] + names[: number % 3]
            assert answer.result(60) == [content.payloads[name] for name in expected]
    assert sorted(trainer.sent) == sorted(names)


def test_a_name_that_is_asked_for_twice_is_answered_twice_and_fetched_once():
    content = Content(1)
    trainer = Source(TRAINER, content)
    name = content.names(1)[0]
    assert cache_of(content, trainer).get([name, name]) == [content.payloads[name]] * 2
    assert trainer.sent == [name]


def test_who_waits_for_a_block_learns_that_it_did_not_come_and_may_ask_again():
    content, second_asks = Content(1), threading.Event()
    name = content.names(1)[0]

    def fail_first(names, via, blocks):
        if len(trainer.requests) <= 2:
            assert second_asks.wait(60)
            raise ConnectionError("it is gone")
        return blocks

    trainer = Source(TRAINER, content, fail_first)
    cache = cache_of(content, trainer)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answers = [pool.submit(cache.get, [name], ["other"]) for _ in range(2)]
        second_asks.set()
        failures = [answer.exception(60) for answer in answers]
    assert any(isinstance(one, WeightsTransferError) for one in failures)
    assert cache.get([name]) == [content.payloads[name]]


def asked_again(cache: BlockCache, content: Content, trainer: Source) -> list[int]:
    """Returns the versions of which the cache has a block no longer."""
    gone = []
    for version in sorted(key.version for key in content.artifacts):
        before = len(trainer.sent)
        cache.get(content.names(version)[:1])
        gone += [version] * (len(trainer.sent) > before)
    return gone


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
@pytest.mark.parametrize("more", [0, -1])
def test_as_many_of_the_newest_blocks_stay_as_fit(kept, more):
    content = Content(1, 2, 3)
    trainer = Source(TRAINER, content)
    size = content.nbytes[content.artifact(1).key]
    cache = cache_of(content, trainer, most_bytes=max(0, kept * size + more))
    for version in (1, 2, 3):
        fetch(cache, content, version)
        cache.release()
    fitting = kept if not more else max(0, kept - 1)
    assert asked_again(cache, content, trainer) == [1, 2, 3][: 3 - fitting]


def test_the_artifact_that_was_used_last_stays_longest():
    content = Content(1, 2)
    trainer = Source(TRAINER, content)
    cache = cache_of(content, trainer, most_bytes=content.nbytes[content.artifact(1).key])
    for version in (1, 2, 1):
        fetch(cache, content, version)
    cache.release()
    assert asked_again(cache, content, trainer) == [2]


def test_blocks_that_arrive_during_a_release_are_released_by_the_next_one():
    content, released = Content(1, 2), []

    def release_meanwhile(names, via, blocks):
        if not released:
            released.append(True)
            fetch(cache, content, 2)
            cache.release()
        return blocks

    trainer = Source(TRAINER, content, release_meanwhile)
    cache = cache_of(content, trainer)
    cache.get(content.names(1)[:2], ["other"])
    cache.release()
    assert asked_again(cache, content, trainer) == [1, 2]
