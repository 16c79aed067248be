"""Meshes and batch shapes that fit accelerators."""

import dataclasses

import pytest

from rl_sync.plan.mesh_search import describe_found, explorers, trainers
from rl_sync.plan.targets import target
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from tests.runs import tiny


@pytest.fixture(scope="module")
def run():
    settings = read_settings({**tiny.get_config().to_dict(), "workdir": "none"})
    return settings, wiring.load_task(settings)


@pytest.mark.nightly
def test_all_meshes_of_the_target_are_tried_and_the_fastest_come_first(run):
    found = list(trainers(*run, target("v5e:1x2")))
    meshes = {one.settings.split(" --config.trainer.microbatch")[0] for one in found}
    assert len(meshes) == 3
    text = describe_found(*run, "v5e:1x2")
    fastest = min(found, key=lambda one: (one.secs, one.estimate.peak))
    assert fastest.settings in text.splitlines()[1]


def test_each_device_of_a_chip_has_a_place_in_a_mesh(run):
    found = {one.settings for one in explorers(*run, target("tpu7x:1x2x1"))}
    assert found == {
        f"--config.explorer.mesh.data={data} --config.explorer.mesh.tensor={4 // data}"
        for data in (1, 2, 4)
    }


def test_what_does_not_fit_is_not_proposed(run):
    room = target("v5e:1x2")
    found = list(explorers(*run, room))
    small = found[0].estimate.peak + 1
    chip = room.chip._replace(memory=small / 0.92)

    class Small(type(room)):
        @property
        def chip(self):
            return chip

    fits = list(explorers(*run, Small(room.name, room.shape)))
    assert 0 < len(fits) <= len(found)
    assert all(one.estimate.peak <= small for one in fits)
    chip = chip._replace(memory=1.0)
    assert list(explorers(*run, Small(room.name, room.shape))) == []


def test_a_target_that_does_not_exist_is_one_line(run):
    with pytest.raises(ConfigError, match="not one of the chips"):
        describe_found(*run, "v9:2x2")


@pytest.mark.nightly
def test_the_least_time_shrinks_with_more_chips(run):
    settings, task = run
    many = dataclasses.replace(
        settings, trainer=dataclasses.replace(settings.trainer, groups_per_step=64)
    )
    secs = [
        min(one.secs for one in trainers(many, task, target(name)))
        for name in ("v5e:1x1", "v5p:1x1x1")
    ]
    assert secs[1] < secs[0]
