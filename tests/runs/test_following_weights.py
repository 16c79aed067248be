"""Programs that follow a run: each version is a checkpoint, verified, in one step."""

from __future__ import annotations

import json
import os
import threading

import jax
import pytest

from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.placement import abstract_params
from rl_sync.models.sharding import Layout
from rl_sync.roles.version_follower import follow
from rl_sync.settings.mesh_settings import ShardingSettings
from rl_sync.settings.records import ConfigError
from rl_sync.weights.digest import digest
from tests.runs.conftest import EMBEDDED, flags

FOLLOWED = (
    *flags("asynchronous", transfer="checkpoint", steps=6),
    "--config.sync.delta=on",
    EMBEDDED,
)


def digest_of(checkpoint) -> str:
    layout = Layout(MeshShape().mesh(jax.devices()[:1]), ShardingSettings().rules)
    config = load_config(checkpoint)
    return digest(load_params(checkpoint, config, abstract_params(config, layout)))


@pytest.mark.gate
def test_a_follower_has_the_newest_version_as_a_checkpoint_with_its_digest(runs, tmp_path):
    run, told, target = runs.get(*FOLLOWED), [], tmp_path / "served"
    follow(str(run.workdir.weights), target, told.append, idle_secs=0.5)
    assert told[-1].version == 5
    assert digest_of(target) == told[-1].digest
    assert (target / "tokenizer.json").exists()
    assert target.is_symlink()
    assert not list(run.workdir.weights.glob("readers/follow-*"))


@pytest.mark.gate
def test_a_follower_goes_on_while_versions_come(runs, tmp_path):
    """A copy of the run's files appears one by one, as a trainer writes them."""
    written, target = runs.get(*FOLLOWED).workdir.weights, tmp_path / "served"
    source, told, come = tmp_path / "weights", [], threading.Event()
    source.mkdir()

    def tell(version):
        told.append((version, digest_of(target)))
        come.set()

    (source / "model").symlink_to(written / "model")
    manifests = sorted(written.glob("*.json"), key=lambda path: (path.stem[-8:], path.stem))
    follower = threading.Thread(
        target=follow, args=(str(source), target, tell), kwargs={"idle_secs": 3.0}
    )
    follower.start()
    begun = False
    for manifest in manifests:
        begun = begun or manifest.stem.startswith("full")
        if not begun:
            continue
        come.clear()
        for name in json.loads(manifest.read_text())["files"]:
            os.link(written / name, source / name)
        os.link(manifest, source / manifest.name)
        if manifest.stem.startswith("delta") or not told:
            assert come.wait(60)
    follower.join(60)
    assert not follower.is_alive()
    assert [version.version for version, _ in told][-1] == 5
    assert all(version.digest == found for version, found in told)
    kept = [path.name for path in tmp_path.iterdir() if path.name.startswith(".served-version")]
    assert len(kept) <= 2


def test_mistakes_get_one_line(tmp_path):
    empty, there = tmp_path / "empty", tmp_path / "there"
    told = []
    empty.mkdir()
    there.mkdir()
    with pytest.raises(ConfigError, match=r"no versions after 0\.1 s.* sync\.transfer=checkpoint"):
        follow(str(empty), tmp_path / "served", print, start_secs=0.1, on_wait=told.append)
    assert told == [f"Waiting for the first version in {empty}, at most 0.1 s."]
    with pytest.raises(ConfigError, match=r"nowhere is no directory\. Start the run first"):
        follow(str(tmp_path / "nowhere"), tmp_path / "served", print)
    with pytest.raises(ConfigError, match="exists already; name a new directory"):
        follow(str(empty), there, print)
