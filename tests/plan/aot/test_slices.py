"""Programs on several TPU slices, compiled."""

import re

import pytest

from rl_sync.models.mesh_shape import MeshShape
from rl_sync.plan.compile_text import _layouts
from rl_sync.plan.compiled_text import CompiledProgramText
from rl_sync.plan.mesh_search import _meshes
from rl_sync.plan.targets import target
from rl_sync.settings.records import ConfigError
from tests.plan.aot.test_step import settings_of, step_on

TWO = "2xv5e:2x2"


def test_meshes_are_searched_with_data_across_slices():
    found = list(_meshes(target("2xv5e:2x2")))
    assert MeshShape(data=2, fsdp=4) in found
    assert MeshShape(data=8) in found
    assert all(mesh.data % 2 == 0 and mesh.devices == 8 for mesh in found)


@pytest.mark.aot
@pytest.mark.parametrize("sizes", [(2, 4, 1), (4, 2, 1), (2, 2, 2), (8, 1, 1)])
def test_data_alone_goes_across_slices(devices, sizes):
    mesh = MeshShape(*sizes).mesh(devices(TWO))
    first, second = mesh.devices[: sizes[0] // 2], mesh.devices[sizes[0] // 2 :]
    assert {one.slice_index for one in first.flat} == {0}
    assert {one.slice_index for one in second.flat} == {1}


@pytest.mark.aot
def test_a_mesh_within_a_slice_takes_no_notice_of_the_other(devices):
    mesh = MeshShape(fsdp=4).mesh(devices(TWO))
    assert {one.slice_index for one in mesh.devices.flat} == {0}


@pytest.mark.aot
@pytest.mark.parametrize(("sizes", "count"), [((1, 8), 8), ((3, 2), 6)])
def test_a_mesh_that_slices_cannot_share_is_refused(devices, sizes, count):
    with pytest.raises(ValueError, match=rf"2 TPU slices, with 4, {count - 4} devices .* of 2"):
        MeshShape(*sizes).mesh(devices(TWO))


@pytest.mark.aot
def test_the_step_sends_gradients_from_slice_to_slice_and_no_weights(devices):
    read = CompiledProgramText.of(step_on(devices(TWO), data=2).compile())
    across = re.findall(r"megascale|send-done|all-reduce", read.text)
    assert across, "gradients are summed over both slices"
    gathers = re.findall(r"all-gather[^\n]*replica_groups=(\S+)", read.text)
    assert gathers
    # Weights are gathered within each slice: devices 0 to 3, and 4 to 7.
    assert not [one for one in gathers if re.search(r"\{0,[^}]*[4-7]", one)]


@pytest.mark.aot
def test_plan_refuses_such_a_mesh_in_a_line(devices):
    devices(TWO)
    with pytest.raises(ConfigError, match=r"^2xv5e:2x2: A mesh of data=1, fsdp=8, tensor=1 is on"):
        _layouts(settings_of(data=1, fsdp=8), target(TWO))
