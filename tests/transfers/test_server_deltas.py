"""Server transfer by differences: the same bits as dense, on verified bases, from anybody."""

from __future__ import annotations

import contextlib

import jax.numpy as jnp
import pytest

from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.transfers.server_delta_publisher import DeltaPublisher, FetchBlocks
from rl_sync.transfers.server_deltas import DeltaPuller, Relaying
from rl_sync.transfers.trainer_processes import TrainerContact
from rl_sync.weights.cells import mesh_regions
from rl_sync.weights.deltas import history_publisher
from rl_sync.weights.ends_interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
)
from tests.transfers.changing_weights import abstract_on, assert_same_bits, placed, weights

HOST, SECRET = "127.0.0.1", "only ours"
ONE = ((0,), ())
MESHES = {
    "one device": ONE,
    "rows": ((0, 1), ("x",)),
    "columns": ((2, 3), (None, "x")),
    "repeated": ((3, 2), ()),
}


@contextlib.contextmanager
def publishing(mesh=ONE, target=ONE, chain="first", **options):
    source = abstract_on(*mesh)
    publisher = DeltaPublisher(
        source,
        host=HOST,
        secret=SECRET,
        chain=chain,
        expected=mesh_regions(abstract_on(*target)),
        **options,
    )

    def publish(*versions: int) -> None:
        for version in versions:
            publisher.publish(version, placed(version, source))
            assert publisher.history.await_version(version, None, 30) == version

    try:
        yield publisher, publish
    finally:
        publisher.close()


@contextlib.contextmanager
def pulling(addresses, mesh=ONE, reader="explorer1.0", **options):
    trainer = TrainerContact(reader, lambda: addresses, lambda *_: -1, SECRET, 30.0, 20.0)
    puller = DeltaPuller(abstract_on(*mesh), trainer, Relaying(**options))
    try:
        yield puller
    finally:
        puller.close()


def pulled(puller, version):
    number, params = puller.pull(exactly=version, timeout_secs=20)
    assert number == version
    assert_same_bits(params, version)
    return puller.stats


@pytest.mark.gate
@pytest.mark.parametrize("target", MESHES)
@pytest.mark.parametrize("source", MESHES)
def test_versions_arrive_to_the_bit_over_any_two_meshes_first_whole_then_as_changes(source, target):
    with (
        publishing(MESHES[source], MESHES[target]) as (publisher, publish),
        pulling([publisher.address], MESHES[target]) as puller,
    ):
        publish(0)
        assert pulled(puller, 0).full
        for version in (1, 2):
            publish(version)
            stats = pulled(puller, version)
            assert not stats.full
            assert stats.received_bytes < stats.dense_bytes / 20


@pytest.mark.parametrize("source", ["one device", "columns"])
def test_versions_that_were_compared_on_the_trainer_s_devices_arrive_to_the_bit(
    source, monkeypatch
):
    monkeypatch.setattr(history_publisher, "platform", lambda: "gpu")
    with (
        publishing(MESHES[source]) as (publisher, publish),
        pulling([publisher.address]) as puller,
    ):
        publish(0)
        assert pulled(puller, 0).full
        for version in (1, 2, 3):
            publish(version)
            assert not pulled(puller, version).full


@pytest.mark.gate
def test_an_explorer_with_unexpected_shards_gets_the_same_bits():
    with (
        publishing(MESHES["rows"]) as (publisher, publish),
        pulling([publisher.address], MESHES["columns"]) as puller,
    ):
        publish(0)
        pulled(puller, 0)
        publish(1)
        assert not pulled(puller, 1).full


def test_an_explorer_that_missed_versions_gets_the_chain_and_a_late_one_a_full_copy():
    with publishing() as (publisher, publish), pulling([publisher.address]) as first:
        publish(0)
        pulled(first, 0)
        publish(1, 2, 3)
        stats = pulled(first, 3)
        assert not stats.full
        with pulling([publisher.address], reader="explorer2.0") as late:
            assert pulled(late, 3).full
            publish(4)
            assert not pulled(late, 4).full


def test_a_version_that_is_here_is_not_fetched_again():
    with publishing() as (publisher, publish), pulling([publisher.address]) as puller:
        publish(0)
        pulled(puller, 0)
        assert puller.pull(at_least=0, timeout_secs=5)[0] == 0
        assert puller.stats is None


def test_a_restarted_trainer_gives_full_copies_and_no_chain_goes_on():
    addresses = []
    with pulling(addresses) as puller:
        with publishing() as (publisher, publish):
            addresses[:] = [publisher.address]
            publish(0)
            pulled(puller, 0)
        with pytest.raises(WeightsTransferError, match="the trainer does not answer"):
            puller.pull(exactly=1, timeout_secs=1)
        with publishing(chain="second") as (publisher, publish):
            addresses[:] = [publisher.address]
            publish(0, 1)
            assert pulled(puller, 1).full


class _Damaging:
    """Damages what a publisher sends, or the digests that it names, when asked to."""

    def __init__(self, publisher, monkeypatch):
        self._publisher = publisher
        history = publisher.history
        route, payload = history.route, history.payload
        self.digests = self.blocks = 0

        def wrong_route(version, held, reader, secs):
            target, artifacts = route(version, held, reader, secs)
            if self.digests:
                self.digests -= 1
                target = target._replace(digest="0" * 16)
            return target, artifacts

        def wrong_payload(name):
            right = payload(name)
            if self.blocks:
                self.blocks -= 1
                return bytes([right[0] ^ 1]) + bytes(right[1:])
            return right

        monkeypatch.setattr(history, "route", wrong_route)
        monkeypatch.setattr(history, "payload", wrong_payload)


def test_a_version_with_a_wrong_digest_is_refused_and_replaced_by_a_full_copy(monkeypatch):
    with publishing() as (publisher, publish), pulling([publisher.address]) as puller:
        damage = _Damaging(publisher, monkeypatch)
        publish(0)
        pulled(puller, 0)
        publish(1)
        damage.digests = 1
        stats = pulled(puller, 1)
        assert (stats.full, stats.refused) == (True, True)
        publish(2)
        assert not pulled(puller, 2).full


def test_if_the_full_copy_is_wrong_too_nothing_is_used_and_the_next_pull_begins_anew(monkeypatch):
    with publishing() as (publisher, publish), pulling([publisher.address]) as puller:
        damage = _Damaging(publisher, monkeypatch)
        publish(0)
        pulled(puller, 0)
        publish(1)
        damage.digests = 2
        with pytest.raises(WeightsMismatchError, match="version 1 arrived changed"):
            puller.pull(exactly=1, timeout_secs=10)
        assert pulled(puller, 1).full


def test_a_damaged_block_never_reaches_the_weights(monkeypatch):
    with publishing() as (publisher, publish), pulling([publisher.address]) as puller:
        damage = _Damaging(publisher, monkeypatch)
        publish(0)
        pulled(puller, 0)
        publish(1)
        damage.blocks = 100  # More than the trainer has second chances.
        with pytest.raises(WeightsTransferError, match="check sum"):
            puller.pull(exactly=1, timeout_secs=10)
        damage.blocks = 0
        assert not pulled(puller, 1).full  # What is held was right, and still is.
        publish(2)
        damage.blocks = 1
        assert not pulled(puller, 2).refused


def test_blocks_come_from_a_relay_and_from_the_trainer_if_it_lies_or_is_gone():
    with publishing() as (publisher, publish):
        publish(0)
        serving, reports = [], []
        with pulling(
            [publisher.address], reader="explorer1.0", serve_at=HOST, on_serving=serving.append
        ) as relay:
            path = [("explorer1.0", serving[0])]
            with pulling(
                [publisher.address],
                reader="explorer2.0",
                relays=lambda: path,
                on_report=reports.append,
            ) as leaf:
                pulled(relay, 0)
                pulled(leaf, 0)
                assert {report.source for report in reports} == {"explorer1.0"}
                publish(1)
                pulled(leaf, 1)  # The relay fetches what it is asked for.
                assert {report.source for report in reports} == {"explorer1.0"}
                pulled(relay, 1)
                assert relay.stats.received_bytes

                lies = CallHandlers(
                    FetchBlocks.answered_by(lambda call: [b"wrong" for _ in call.names])
                )
                liar = RpcServer(lies, 0, HOST, secret=SECRET)
                path[:] = [("liar.0", f"{HOST}:{liar.port}")]
                reports.clear()
                publish(2)
                pulled(leaf, 2)
                assert reports[0].source == "liar.0"
                assert "check sum" in reports[0].failure
                assert reports[-1].source.startswith("process 0 of the trainer")
                liar.close()
                path[:] = [("gone.0", f"{HOST}:{liar.port}")]
                reports.clear()
                publish(3)
                pulled(leaf, 3)
                assert reports[0].failure
                assert not reports[-1].failure


def test_other_models_and_dtypes_are_refused_in_one_line():
    with publishing() as (publisher, publish):
        publish(0)
        with pulling([publisher.address]) as puller:
            leaf = puller._params["layers"]["up"]
            puller._params["layers"]["up"] = type(leaf)(
                leaf.shape, jnp.float32, sharding=leaf.sharding
            )
            with pytest.raises(ValueError, match=r"the same explorer\.dtype"):
                puller.pull(exactly=0, timeout_secs=5)


def test_a_version_that_never_comes_is_an_error_with_the_wait():
    with publishing() as (publisher, publish), pulling([publisher.address]) as puller:
        publish(0)
        with pytest.raises(WeightsTimeoutError, match=r"waited 0\.2 s for version 5"):
            puller.pull(exactly=5, timeout_secs=0.2)


def test_the_test_weights_change_a_little():
    assert (weights(1)["layers"]["up"] != weights(0)["layers"]["up"]).mean() < 0.02
