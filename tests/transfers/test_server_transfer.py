"""Point-to-point transfer: exact between any two shardings, with clear errors when it breaks."""

from __future__ import annotations

import contextlib
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import transfer
from jax.sharding import NamedSharding, PartitionSpec

from rl_sync.cluster.rpc import PeerLostError, RemoteError, RpcClient
from rl_sync.transfers import server_publisher
from rl_sync.transfers.server import ServerPuller
from rl_sync.transfers.server_publisher import (
    AskOffer,
    OpenLine,
    ServerPublisher,
    Taken,
    VersionOffer,
)
from rl_sync.transfers.trainer_processes import TrainerContact
from rl_sync.weights.cells import device_regions, mesh_regions, overlap, within
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import (
    TransferUnavailableError,
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
)
from rl_sync.weights.parts import plan_manifest
from rl_sync.weights.server_transport import start_server

HOST, SECRET = "127.0.0.1", "only ours"


@functools.cache
def values(version: int) -> dict:
    """Makes parameters with a large leaf, small ones of every kind, and NaNs with payloads."""
    rng = np.random.default_rng(version)
    return {
        "large": rng.standard_normal((512, 1536)).astype(np.float32),
        "half": [rng.standard_normal((8, 12)).astype(jnp.bfloat16) for _ in range(3)],
        "scale": np.array([np.nan, -0.0, np.inf, version], np.float32),
        "mask": rng.random((4, 4)) > 0.5,
        "bytes": rng.integers(-128, 127, (4, 12)).astype(np.int8),
        "step": np.int32(version),
        "empty": np.zeros((0, 4), np.float32),
    }


def on(devices, spec: tuple) -> dict:
    """Makes shapes of the parameters, with matrices sharded by a spec over a mesh of 2 axes."""
    mesh = jax.make_mesh(
        (1, len(devices)) if len(devices) < 4 else (2, 2), ("a", "b"), devices=devices
    )

    def abstract(x):
        cuts = PartitionSpec(*spec) if x.ndim == 2 and x.size else PartitionSpec()
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, cuts))

    return jax.tree.map(abstract, values(0))


def placed(version: int, abstract: dict) -> dict:
    return jax.tree.map(
        lambda x, where: jax.device_put(x, where.sharding), values(version), abstract
    )


def devices(*numbers: int) -> list:
    return [jax.devices()[number] for number in numbers]


TRAINERS = {
    "one device": (devices(0), ()),
    "rows over two": (devices(0, 1), ("b",)),
    "both axes over four": (devices(0, 1, 2, 3), ("b", "a")),
    "repeated, and rows over two": (devices(0, 1, 2, 3), ("b",)),
}
EXPLORERS = {
    "one device": (devices(3), ()),
    "columns over two": (devices(2, 3), (None, "b")),
    "rows over two": (devices(2, 3), ("b",)),
    "repeated on two": (devices(3, 2), ()),
    "columns over four": (devices(3, 2, 1, 0), (None, ("a", "b"))),
}


@contextlib.contextmanager
def publishing(abstract, **options):
    publisher = ServerPublisher(abstract, host=HOST, secret=SECRET, **options)
    try:
        yield publisher
    finally:
        publisher.close()


def client_of(publisher: ServerPublisher) -> RpcClient:
    return RpcClient(publisher.address, "trainer", SECRET)


def puller_of(abstract, publisher, newest=0, client=None, check_digest=True, **contact):
    client = client or client_of(publisher)
    trainer = TrainerContact(
        **{
            "reader": "explorer1",
            "addresses": lambda: [publisher.address],
            "newest": lambda version, secs: newest,
            "secret": SECRET,
            "call_secs": 30.0,
            "client": lambda *_: client,
            **contact,
        }
    )
    return ServerPuller(abstract, trainer, host=HOST, check_digest=check_digest)


def assert_same_bits(params: dict, version: int) -> None:
    for mine, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(values(version)), strict=True):
        assert np.asarray(mine).tobytes() == theirs.tobytes()


@pytest.mark.samples(
    "columns over four-rows over two",
    gate=("one device-one device", "columns over two-both axes over four"),
)
@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("explorer", EXPLORERS)
def test_weights_arrive_to_the_bit_in_the_explorers_sharding(trainer, explorer):
    source, target = on(*TRAINERS[trainer]), on(*EXPLORERS[explorer])
    with publishing(source, expected=mesh_regions(target)) as publisher:
        publisher.publish(3, placed(3, source))
        version, params = puller_of(target, publisher).pull(exactly=3, timeout_secs=10)
    assert version == 3
    assert_same_bits(params, 3)
    jax.tree.map(
        lambda x, abstract: x.sharding == abstract.sharding or pytest.fail(str(x)), params, target
    )


@pytest.mark.gate
@pytest.mark.parametrize("explorer", EXPLORERS)
def test_an_explorer_that_was_not_expected_takes_its_share_of_what_is_offered(explorer):
    source, target = on(*TRAINERS["one device"]), on(*EXPLORERS[explorer])
    with publishing(source) as publisher:
        publisher.publish(3, placed(3, source))
        _, params = puller_of(target, publisher).pull(exactly=3, timeout_secs=10)
    assert_same_bits(params, 3)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("explorer", EXPLORERS)
def test_parts_hold_everything_once_and_each_is_needed_whole_or_not_at_all(trainer, explorer):
    source, target = on(*TRAINERS[trainer]), on(*EXPLORERS[explorer])
    expected = mesh_regions(target)
    manifest = plan_manifest(source, expected)
    seen = [np.zeros(leaf.shape, int) for leaf in manifest.leaves]
    for _, device, (leaf, region) in manifest.parts:
        seen[leaf][within(region, [(0, 0)] * len(region))] += 1
        shard = device_regions(jax.tree.leaves(source)[leaf])[jax.devices()[device]]
        assert overlap(region, shard) == region
        assert {overlap(region, held[leaf]) for held in expected} <= {None, region}
    assert all((count == 1).all() for count in seen)


def test_devices_that_hold_the_same_share_the_work():
    source = on(devices(0, 1, 2, 3), ())
    wide = {f"w{i}": source["large"] for i in range(8)}
    assert {part.device for part in plan_manifest(wide).parts} == {0, 1, 2, 3}


@pytest.mark.gate
def test_an_explorer_in_another_sharding_than_was_expected_gets_the_same_bits():
    source, expected = on(*TRAINERS["rows over two"]), on(*EXPLORERS["columns over two"])
    other = on(*EXPLORERS["columns over four"])
    with publishing(source, expected=mesh_regions(expected)) as publisher:
        publisher.publish(0, placed(0, source))
        for reader, abstract in {"explorer1": expected, "explorer2": other}.items():
            _, params = puller_of(abstract, publisher, reader=reader).pull(timeout_secs=10)
            assert_same_bits(params, 0)


def test_parameters_that_lie_elsewhere_than_was_planned_arrive_all_the_same():
    source, target = on(*TRAINERS["rows over two"]), on(*EXPLORERS["one device"])
    with publishing(source, expected=mesh_regions(target)) as publisher:
        publisher.publish(0, placed(0, on(devices(0, 1), (None, "b"))))
        _, params = puller_of(target, publisher).pull(timeout_secs=10)
    assert_same_bits(params, 0)


@pytest.fixture
def source() -> dict:
    return on(*TRAINERS["one device"])


@pytest.fixture
def target() -> dict:
    return on(*EXPLORERS["one device"])


def test_what_was_published_may_be_donated_at_once(source, target):
    overwrite = jax.jit(lambda p: jax.tree.map(lambda x: x + x, p), donate_argnums=0)
    with publishing(source) as publisher:
        params = placed(1, source)
        params.pop("mask"), source.pop("mask"), target.pop("mask")  # Booleans cannot be added.
        publisher = ServerPublisher(source, host=HOST, secret=SECRET)
        expected = digest(params)
        publisher.publish(1, params)
        jax.block_until_ready(overwrite(params))
        _, pulled = puller_of(target, publisher).pull(exactly=1, timeout_secs=10)
        assert digest(pulled) == expected
        publisher.close()


def test_only_the_newest_versions_are_offered_and_the_newest_is_taken(source, target):
    with publishing(source, keep=2) as publisher:
        for version in (1, 2, 3):
            publisher.publish(version, placed(version, source))
        puller = puller_of(target, publisher, newest=3)
        assert puller.pull(exactly=3, timeout_secs=10)[0] == 3
        assert puller.pull(exactly=2, timeout_secs=10)[0] == 2
        assert puller.pull(at_least=1, timeout_secs=10)[0] == 3
        with pytest.raises(
            WeightsTimeoutError, match=r"explorer1 waited 0.2 s for version 1 .* offers is 3"
        ):
            puller.pull(exactly=1, timeout_secs=0.2)
        with pytest.raises(ValueError, match="not for both"):
            puller.pull(exactly=1, at_least=1, timeout_secs=1)


def test_a_pull_waits_for_its_version(source, target):
    with publishing(source) as publisher:
        heard = []
        publisher._on_ready = lambda version: heard.append(version)
        puller = puller_of(target, publisher)
        with pytest.raises(WeightsTimeoutError):
            puller.pull(exactly=0, timeout_secs=0.05)
        publisher.publish(0, placed(0, source))
        assert puller.pull(exactly=0, timeout_secs=10)[0] == 0
    assert heard == [0]


class Tampering(RpcClient):
    """Changes the answers of a publisher."""

    def __init__(self, publisher: ServerPublisher, **changed):
        super().__init__(publisher.address, "trainer", SECRET)
        self.changed = changed

    def call(self, call, deadline_secs):
        answer = super().call(call, deadline_secs)
        if isinstance(call, AskOffer) and "uuid" in self.changed:
            return VersionOffer(answer.version, self.changed["uuid"])
        if isinstance(call, Taken):
            return self.changed.get("digest", answer)
        return answer


def test_weights_that_arrive_changed_are_refused_unless_nobody_looks(source, target):
    with publishing(source) as publisher:
        publisher.publish(4, placed(4, source))
        tampering = Tampering(publisher, digest="0" * 16)
        with pytest.raises(WeightsMismatchError, match="version 4 arrived changed"):
            puller_of(target, publisher, client=tampering).pull(timeout_secs=10)
        careless = puller_of(target, publisher, client=tampering, check_digest=False)
        assert careless.pull(timeout_secs=10)[0] == 4


def test_a_digest_that_fails_is_an_error_of_the_pull_and_not_a_wait(source, target, monkeypatch):
    def fail(params):
        raise RuntimeError("no digest today")

    monkeypatch.setattr(server_publisher, "digest_words", fail)
    with publishing(source) as publisher:
        with pytest.raises(RuntimeError, match="no digest today"):
            publisher.publish(4, placed(4, source))
        with pytest.raises(WeightsTransferError, match="no digest today"):
            puller_of(target, publisher).pull(timeout_secs=10)


def test_a_digest_that_is_not_begun_in_time_is_an_error_that_says_so(source, target, monkeypatch):
    begin, digest_words = threading.Event(), server_publisher.digest_words

    def slow(params):
        assert begin.wait(30)
        return digest_words(params)

    monkeypatch.setattr(server_publisher, "digest_words", slow)
    monkeypatch.setattr(server_publisher, "_DIGEST_SECS", 0.2)
    with publishing(source) as publisher:
        trainer = threading.Thread(target=publisher.publish, args=(4, placed(4, source)))
        trainer.start()
        late = r"explorer1 has waited .* the digest of version 4"
        with pytest.raises(WeightsTransferError, match=late):
            puller_of(target, publisher).pull(timeout_secs=10)
        begin.set()
        trainer.join(30)
        assert puller_of(target, publisher).pull(timeout_secs=10)[0] == 4


def test_a_transfer_that_stands_still_is_given_up_and_the_next_pull_begins_anew(source, target):
    with publishing(source) as publisher:
        publisher.publish(0, placed(0, source))
        tampering = Tampering(publisher, uuid=12345)  # Nothing is registered there.
        puller = puller_of(target, publisher, client=tampering, stall_secs=0.3)
        with pytest.raises(
            WeightsTransferError, match=r"from process 0 of the trainer at .* \(version 0\) for 0.3"
        ):
            puller.pull(timeout_secs=10)
        tampering.changed.clear()
        _, params = puller.pull(timeout_secs=10)
    assert_same_bits(params, 0)


def test_an_explorer_that_does_not_fetch_what_it_asked_for_is_taken_for_dead(source, target):
    with publishing(source, reader_expiry_secs=0.0) as publisher:
        publisher.publish(0, placed(0, source))
        client, offer = client_of(publisher), AskOffer("explorer1", [0], 0, None, 10)
        client.call(OpenLine("explorer1"), 10)
        assert client.call(offer, 10) is not None
        with pytest.raises(RemoteError, match=r"explorer1 has no line .* counts as dead"):
            client.call(offer, 10)


def test_a_pull_that_lost_its_line_says_so_and_the_next_one_opens_another(source, target):
    lost = []
    with publishing(source) as publisher:
        publisher.publish(0, placed(0, source))
        puller = puller_of(target, publisher, on_lost=lambda: lost.append(True))
        assert puller.pull(timeout_secs=10)[0] == 0
        publisher._lines.clear()
        with pytest.raises(WeightsTransferError, match=r"trainer does not answer: .* no line"):
            puller.pull(timeout_secs=10)
        assert lost == [True]
        assert puller.pull(timeout_secs=10)[0] == 0


def test_the_line_of_an_explorer_that_closes_goes(source, target):
    with publishing(source) as publisher:
        publisher.publish(0, placed(0, source))
        puller = puller_of(target, publisher)
        puller.pull(timeout_secs=10)
        puller.close()
        assert not publisher._lines
    with pytest.raises(PeerLostError):
        client_of(publisher).call(OpenLine("explorer1"), 10)
    puller.close()  # Although nobody is there.


def test_an_explorer_of_another_model_is_told_what_differs(source, target):
    target["scale"] = jax.ShapeDtypeStruct((5,), jnp.bfloat16)
    with (
        publishing(source) as publisher,
        pytest.raises(
            ValueError, match=r"offers \['scale'\] of float32\[4\] where .*bfloat16\[5\]"
        ),
    ):
        puller_of(target, publisher).pull(timeout_secs=1)


def test_publishing_another_model_than_was_planned_is_refused(source):
    params = placed(0, source)
    with publishing(source) as publisher:
        with pytest.raises(ValueError, match=r"have nothing where \['step'\] of int32\[\] was"):
            publisher.publish(0, {name: x for name, x in params.items() if name != "step"})
        with pytest.raises(ValueError, match=r"have \['scale'\] of float32\[2\] where"):
            publisher.publish(0, {**params, "scale": params["scale"][:2]})


def test_versions_that_cannot_be_computed_are_reported(source):
    def fail(_):
        raise RuntimeError("no room")

    with publishing(source, on_ready=fail) as publisher:
        publisher.publish(0, placed(0, source))
        publisher._thread.join(10)
        with pytest.raises(WeightsTransferError, match="could not be offered: no room"):
            publisher.publish(1, placed(1, source))


@pytest.mark.gate
def test_without_a_transfer_server_it_says_what_is_missing(monkeypatch):
    def refuse(*_):
        raise RuntimeError("not on this device")

    monkeypatch.setattr(transfer, "start_transfer_server", refuse)
    with pytest.raises(
        TransferUnavailableError, match=r"jax .* has no transfer server on cpu: .* not on this"
    ):
        start_server(HOST)
