"""Transfer inside one process: every version wanted, on other devices, safe from donation."""

from __future__ import annotations

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rl_sync.records.spans import SpanRecorder
from rl_sync.transfers import local
from rl_sync.transfers.local import LocalPublisher, LocalPuller
from rl_sync.weights.ends_interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
)

SECS = 30.0


def _sharded(first: int, axes: tuple[str | None, ...]) -> NamedSharding:
    mesh = Mesh(np.array(jax.devices()[first : first + 2]), ("x",))
    return NamedSharding(mesh, PartitionSpec(*axes))


TRAINER, EXPLORER = _sharded(0, ("x", None)), _sharded(2, (None, "x"))


def _params(version: int) -> dict:
    values = {"w": jnp.arange(24.0).reshape(4, 6) + version, "b": jnp.full((2, 2), version)}
    return jax.device_put(values, TRAINER)


def _like(sharding: NamedSharding) -> dict:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), _params(0)
    )


def test_what_is_lent_is_the_same_object_as_long_as_its_arrays_are(publisher):
    with pytest.raises(AssertionError, match="lends before it publishes"):
        publisher.lent()
    first, other = _params(0), _params(0)
    publisher.lend(first)
    publisher.lend(dict(first))
    assert publisher.lent() is first
    publisher.lend(other)
    assert publisher.lent() is other


@pytest.fixture
def publisher():
    return LocalPublisher(1, keep=3)


@pytest.fixture
def puller(publisher):
    return LocalPuller(publisher, _like(EXPLORER), 1)


def test_weights_arrive_on_the_explorers_devices_in_its_shards(publisher, puller):
    publisher.publish(0, _params(0))
    version, params = puller.pull(timeout_secs=SECS)
    assert version == 0
    assert {leaf.sharding for leaf in jax.tree.leaves(params)} == {EXPLORER}
    jax.tree.map(np.testing.assert_array_equal, params, _params(0))


def test_the_trainer_may_donate_what_it_has_published(publisher):
    puller = LocalPuller(publisher, _like(TRAINER), 1)
    params = _params(0)
    publisher.publish(0, params)
    step = jax.jit(lambda p: jax.tree.map(lambda x: x + 1, p), donate_argnums=0)
    params = step(params)
    _, pulled = puller.pull(timeout_secs=SECS)
    params = step(params)
    jax.tree.map(np.testing.assert_array_equal, pulled, _params(0))
    jax.tree.map(np.testing.assert_array_equal, params, _params(2))


def test_a_version_is_offered_before_it_is_computed_and_travels_once_it_is(publisher, monkeypatch):
    spans = SpanRecorder(None, "explorer1")
    puller = LocalPuller(publisher, _like(EXPLORER), 1, spans=spans)
    publisher.publish(0, _params(0))
    ready, began = jax.block_until_ready, spans.now()
    monkeypatch.setattr(jax, "block_until_ready", lambda params: time.sleep(0.2) or ready(params))
    puller.pull(timeout_secs=SECS)
    assert spans.now() >= puller.computed_secs >= began + 0.2
    assert 0.2 <= spans.spent["wait"] <= puller.computed_secs - began


def test_an_exact_version_is_waited_for(publisher, puller):
    publisher.publish(0, _params(0))
    threading.Timer(0.2, publisher.publish, [1, _params(1)]).start()
    assert puller.pull(exactly=1, timeout_secs=SECS)[0] == 1


def test_each_exact_version_is_kept_until_every_explorer_has_had_it():
    publisher = LocalPublisher(2, keep=3)
    first, second = (LocalPuller(publisher, _like(EXPLORER), i) for i in (1, 2))
    for version in range(3):
        publisher.publish(version, _params(version))
        first.pull(exactly=version, timeout_secs=SECS)
    for version in range(3):
        taken, params = second.pull(exactly=version, timeout_secs=SECS)
        assert taken == version
        jax.tree.map(np.testing.assert_array_equal, params, _params(version))
    assert [offer.version for offer in publisher._offers] == [2]


def test_the_newest_is_given_and_given_again(publisher, puller):
    for version in range(3):
        publisher.publish(version, _params(version))
    for _ in range(2):
        assert puller.pull(at_least=1, timeout_secs=SECS)[0] == 2


def test_no_more_versions_are_held_than_are_to_be_kept(publisher, puller):
    for version in range(5):
        publisher.publish(version, _params(version))
    assert len(publisher._offers) == 3
    with pytest.raises(WeightsTransferError, match="version 1, which is gone: versions 2, 3, 4"):
        puller.pull(exactly=1, timeout_secs=SECS)


def test_a_version_that_does_not_come_is_awaited_until_the_deadline(publisher, puller):
    publisher.publish(0, _params(0))
    with pytest.raises(WeightsTimeoutError, match="at least 1 of the weights; the newest is 0"):
        puller.pull(at_least=1, timeout_secs=0.05)


def test_who_waits_is_told_that_the_trainer_has_ended(publisher, puller):
    threading.Timer(0.2, publisher.close).start()
    with pytest.raises(WeightsTransferError, match="trainer has ended"):
        puller.pull(exactly=1, timeout_secs=SECS)


def test_versions_go_up(publisher):
    publisher.publish(1, _params(1))
    with pytest.raises(ValueError, match="Version 1 cannot follow version 1"):
        publisher.publish(1, _params(1))


def test_what_changed_on_the_way_is_refused(publisher, puller, monkeypatch):
    publisher.publish(0, _params(0))
    wrong = jax.device_put(_params(1), EXPLORER)
    monkeypatch.setattr(local.jax, "device_put", lambda *_: wrong)
    with pytest.raises(WeightsMismatchError):
        puller.pull(timeout_secs=SECS)


def test_a_version_to_evaluate_is_there_after_explorers_have_taken_newer_ones():
    publisher = LocalPublisher(1, keep=1, evaluated_every=2)
    puller = LocalPuller(publisher, _like(EXPLORER), 1)
    for version in (1, 2, 3):
        publisher.publish(version, _params(version))
    assert puller.pull(timeout_secs=SECS)[0] == 3
    version, params = puller.pull(exactly=2, timeout_secs=SECS)
    assert version == 2
    jax.tree.map(np.testing.assert_array_equal, params, _params(2))
    publisher.publish(4, _params(4))
    with pytest.raises(WeightsTransferError, match="version 2, which is gone"):
        puller.pull(exactly=2, timeout_secs=SECS)
