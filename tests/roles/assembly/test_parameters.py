"""Transfer of a run's parameters, and their form at explorers."""

import contextlib
import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from rl_sync.checkpoints.snapshot_folder import SnapshotFolder, load_part
from rl_sync.models import lora
from rl_sync.models.config import HEAD, Lora
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.placement import as_computed, shardings
from rl_sync.roles.assembly.parameters import BorrowedBase, Parameters
from rl_sync.settings.records import ConfigError
from rl_sync.transfers.checkpoint import CheckpointPublisher, CheckpointPuller
from rl_sync.transfers.local import LocalPublisher, LocalPuller
from rl_sync.transfers.server import ServerPuller
from rl_sync.transfers.server_delta_publisher import DeltaPublisher
from rl_sync.transfers.server_deltas import DeltaPuller
from rl_sync.transfers.server_publisher import ServerPublisher
from rl_sync.transfers.trainer_processes import TrainerContact
from rl_sync.weights.digest import digest
from tests.models import tiny
from tests.models.meshes import layout

CHECKPOINT = Path(__file__).resolve().parents[2] / "data" / "models" / "qwen2"
ADAPTED = dataclasses.replace(load_config(CHECKPOINT), lora=Lora(2, 4.0, ("q", "down")))


class Pulled:
    """A puller that has one version."""

    def __init__(self, params):
        self.params = params

    def pull(self, *, exactly=None, at_least=None, timeout_secs):
        return 7, self.params

    def newest(self, at_least=-1, timeout_secs=0.0):
        return 7


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)
    return True


@pytest.fixture(scope="module")
def adapted():
    return Parameters(ADAPTED, str(CHECKPOINT), 3, layout(), "float32")


def test_without_adapters_everything_travels_as_it_is():
    params = tiny.params()
    parameters = Parameters(tiny.CONFIG, None, 0, layout(), "float32")
    assert parameters.published(params) is params
    puller = Pulled(params)
    assert parameters.receiving(puller) is puller
    assert jax.tree.structure(parameters.blank()) == jax.tree.structure(params)


@pytest.mark.gate
def test_adapters_alone_travel_and_arrive_merged_into_the_base(adapted):
    initial = adapted.initial()
    moved = jax.tree.map(lambda x: x + 0.1, adapted.published(initial))
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(moved)]
    assert all("_lora" in name for name in names)
    version, received = adapted.receiving(Pulled(moved)).pull(timeout_secs=1.0)
    assert version == 7
    expected = lora.merge(ADAPTED, lora.join(moved, lora.split(initial)[1]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), received, expected)
    assert jax.tree.map(np.shape, received) == jax.tree.map(np.shape, adapted.blank())


@pytest.mark.gate
def test_a_lent_base_is_read_where_it_is_and_copied_once_to_other_devices(adapted):
    adapters, base = lora.split(adapted.initial())
    here = BorrowedBase(lambda: base, adapted.abstract_base)
    for held, lent in zip(jax.tree.leaves(here()), jax.tree.leaves(base), strict=True):
        assert held.unsafe_buffer_pointer() == lent.unsafe_buffer_pointer()
    elsewhere = dataclasses.replace(adapted, layout=layout(data=2))
    there = BorrowedBase(lambda: base, elsewhere.abstract_base)
    assert there() is there()
    assert same(there(), base)
    _, own = adapted.receiving(Pulled(adapters)).pull(timeout_secs=1.0)
    _, found = adapted.receiving(Pulled(adapters), lambda: base).pull(timeout_secs=1.0)
    assert same(found, own)


@pytest.mark.gate
def test_a_checkpoint_starts_with_fresh_adapters_that_change_nothing(adapted):
    initial = adapted.initial()
    assert same(initial, adapted.initial())
    plain = Parameters(load_config(CHECKPOINT), str(CHECKPOINT), 9, layout(), "float32").initial()
    assert same(lora.split(initial)[1], plain)
    assert same(lora.merge(ADAPTED, initial), plain)


@pytest.mark.nightly
@pytest.mark.samples("None")
@pytest.mark.parametrize("path", [None, str(CHECKPOINT)])
def test_adapters_alone_are_kept_and_what_they_adapt_is_made_again(path, adapted):
    parameters = dataclasses.replace(adapted, path=path)
    initial = parameters.initial()
    kept = parameters.kept(jax.tree.map(lambda x: x + 0.1, initial))
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(kept)]
    assert all("_lora" in name for name in names)
    expected = lora.join(kept, lora.split(initial)[1])
    assert same(parameters.completed(kept, parameters.base_digest(initial)), expected)
    # A trainer that computes in bfloat16 holds the rest in it.
    rough = as_computed(dataclasses.replace(parameters.model, dtype="bfloat16"), initial)
    assert same(parameters.completed(kept, parameters.base_digest(rough)), expected)
    start = "seed=3" if path is None else "model.path="
    with pytest.raises(ConfigError, match=rf"digest 0123, but the one of config.{start}.* changed"):
        parameters.completed(kept, "0123")


def test_without_adapters_everything_is_kept(adapted):
    params = tiny.params()
    parameters = Parameters(tiny.CONFIG, None, 0, layout(), "float32")
    assert parameters.kept(params) is params
    assert parameters.base_digest(params) is None
    assert parameters.completed(params, None) is params


def laid_out(tree):
    return jax.tree.map(lambda x: (x.dtype, x.sharding.devices_indices_map(x.shape)), tree)


@pytest.mark.gate
def test_a_checkpoint_comes_onto_a_mesh_and_from_its_snapshot_onto_another(tmp_path):
    config = load_config(CHECKPOINT)
    whole = Parameters(config, str(CHECKPOINT), 0, layout(), "float32").initial()
    of_trainer = Parameters(config, str(CHECKPOINT), 0, layout(fsdp=2, tensor=2), "float32")
    params = of_trainer.initial()
    assert same(params, whole)
    assert laid_out(params) == laid_out(of_trainer.abstract)
    SnapshotFolder(tmp_path).save(1, {"params": params}, {})
    other = Parameters(config, None, 0, layout(data=2, tensor=2), "float32").abstract
    _, restored, _ = load_part(tmp_path, None, {"params": other})
    assert same(restored["params"], whole)
    assert laid_out(restored["params"]) == laid_out(other)


@pytest.mark.gate
def test_explorers_hold_the_dtype_that_they_ask_for_on_a_mesh_of_their_own(tmp_path):
    sent = Parameters(tiny.CONFIG, None, 0, layout(fsdp=2), "bfloat16")
    received = Parameters(tiny.CONFIG, None, 0, layout(tensor=2), "bfloat16")
    params = jax.device_put(tiny.params(), shardings(sent.abstract))
    end = {"run": "ours", "deltas": False}
    publisher = CheckpointPublisher(tmp_path, sent.abstract_published(), chain="first", **end)
    publisher.publish(4, sent.published(params))
    publisher.close()
    puller = received.receiving(CheckpointPuller(tmp_path, received.abstract_published(), **end))
    version, found = puller.pull(timeout_secs=5.0)
    assert version == 4
    assert same(found, jax.tree.map(lambda x: x.astype("bfloat16"), params))
    assert laid_out(found) == laid_out(received.blank())


@pytest.mark.gate
def test_adapters_are_merged_in_float32_and_cast_on_arrival(adapted):
    to = dataclasses.replace(adapted, layout=layout(tensor=2), dtype="bfloat16")
    moved = jax.tree.map(lambda x: x + 0.1, adapted.published(adapted.initial()))
    assert laid_out(to.published(moved)) == laid_out(moved), "adapters travel as they are"
    _, found = to.receiving(Pulled(jax.device_put(moved, layout(tensor=2).repeated))).pull(
        timeout_secs=1.0
    )
    _, wide = adapted.receiving(Pulled(moved)).pull(timeout_secs=1.0)
    assert laid_out(found) == laid_out(to.blank())
    assert {x.dtype.name for x in jax.tree.leaves(found)} == {"bfloat16"}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.float32(a), b, rtol=2**-7, atol=1e-6),
        found,
        wide,
    )


@pytest.mark.gate
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_what_adapters_adapt_is_held_as_the_trainer_computes_with_it(quantization, adapted):
    rounded = dataclasses.replace(
        adapted, dtype="bfloat16", base_dtype="bfloat16", quantization=quantization
    )
    base = rounded.base()
    model = dataclasses.replace(ADAPTED, dtype="bfloat16")
    assert same(base, as_computed(model, adapted.base()))
    assert laid_out(base) == laid_out(rounded.abstract_base)
    assert {x.dtype.name for x in jax.tree.leaves(base)} == {"bfloat16", "float32"}
    moved = jax.tree.map(lambda x: x + 0.1, adapted.published(adapted.initial()))
    _, found = rounded.receiving(Pulled(moved)).pull(timeout_secs=1.0)
    wide = jax.tree.map(lambda x: x.astype("float32"), base)
    merged = lora.merge(ADAPTED, lora.join(moved, wide))
    # Explorers hold the whole policy in the form that they give to one layer after another.
    whole = Parameters(lora.merged_config(ADAPTED), None, 3, layout(), "bfloat16", quantization)
    assert same(found, whole.published(merged))


@pytest.mark.gate
@pytest.mark.samples("qwen2_score-None", "qwen2-None", gate=("qwen2-adapters1",))
@pytest.mark.parametrize("adapters", [None, Lora(2, 4.0, ("q", "down"))])
@pytest.mark.parametrize("name", ["qwen2", "qwen2_score"])
def test_a_reward_model_begins_with_the_head_of_its_checkpoint_or_else_a_drawn_one(name, adapters):
    path = CHECKPOINT.parent / name
    model = dataclasses.replace(load_config(path), scalar_head=True, lora=adapters)
    parameters = Parameters(model, str(path), 3, layout(), "float32")
    initial, other = parameters.initial(), dataclasses.replace(parameters, seed=4).initial()
    stored = load_file(path / "model.safetensors")
    np.testing.assert_array_equal(initial["final_norm"]["scale"], stored["model.norm.weight"])
    kernels = [np.asarray(params[HEAD]["kernel"]) for params in (initial, other)]
    if name == "qwen2_score":
        np.testing.assert_array_equal(kernels, [stored["score.weight"][0]] * 2)
    else:
        assert np.abs(kernels[0] - kernels[1]).max() > 0.01
    kept = parameters.kept(initial)
    assert HEAD in kept
    assert same(parameters.completed(kept, parameters.base_digest(initial)), initial)


def both_ends(kind, params, directory):
    """Makes a trainer's and an explorer's end of a transfer, in one process."""
    place = {"host": "127.0.0.1", "secret": "only ours"}
    if kind == "local":
        publisher = LocalPublisher(1, keep=1)
        return publisher, LocalPuller(publisher, params, 1)
    if kind.startswith("checkpoint"):
        end = {"run": "ours", "deltas": kind == "checkpoint, changes"}
        publisher = CheckpointPublisher(directory, params, chain="first", **end)
        return publisher, CheckpointPuller(directory, params, **end)
    if kind == "server":
        publisher = ServerPublisher(params, **place)
    else:
        publisher = DeltaPublisher(params, chain="first", **place)
    trainer = TrainerContact(
        "explorer1", lambda: [publisher.address], lambda *_: 0, place["secret"], 30.0, 20.0
    )
    if kind == "server":
        return publisher, ServerPuller(params, trainer, host=place["host"])
    return publisher, DeltaPuller(params, trainer)


@pytest.mark.gate
@pytest.mark.parametrize(
    "kind", ["local", "checkpoint", "checkpoint, changes", "server", "server, changes"]
)
def test_explorers_hold_the_trainers_weights_with_its_adapters_at_every_version(
    kind, adapted, tmp_path
):
    merged = jax.jit(functools.partial(lora.merge, ADAPTED))
    explorer = Parameters(ADAPTED, str(CHECKPOINT), 3, layout(), "float32")
    publisher, puller = both_ends(kind, adapted.abstract_published(), tmp_path)
    receiving, held = explorer.receiving(puller), []
    with contextlib.closing(publisher), contextlib.closing(puller):
        params = adapted.initial()
        for version in range(4):
            if version == 2:  # Both begin again: the trainer from a snapshot.
                kept, of_base = adapted.kept(params), adapted.base_digest(params)
                params = dataclasses.replace(adapted).completed(kept, of_base)
                receiving = dataclasses.replace(explorer).receiving(puller)
            publisher.publish(version, adapted.published(params))
            number, found = receiving.pull(exactly=version, timeout_secs=20.0)
            assert number == version
            assert digest(found) == digest(merged(params))
            held.append(digest(found))
            adapters, base = lora.split(params)
            params = lora.join(jax.tree.map(lambda x: x + 0.1, adapters), base)
    assert len({*held, digest(lora.split(adapted.initial())[1])}) == 4, "B is 0 at first"
