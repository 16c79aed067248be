"""`plan --compile`: what is printed of a run's programs."""

import re

import pytest

from rl_sync.plan.compile_text import describe_compiled
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from tests.runs import tiny

pytestmark = pytest.mark.aot

# XLA finds no tiles for the smallest products on GPUs.
SIZES = {"embed_dim": 128, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "mlp_dim": 256}


@pytest.mark.parametrize("name", ["v5e:2x2", pytest.param("h100:4", marks=pytest.mark.nightly)])
def test_every_program_has_its_memory_and_the_mode_its_pace(name, devices):
    devices(name)
    config = tiny.get_config()
    config.trainer.mesh.fsdp = 2
    config.model.update(SIZES)
    settings = read_settings({**config.to_dict(), "workdir": "none"})
    text = "\n".join(describe_compiled(settings, wiring.load_task(settings), name))
    for program in ("step", "prefill", "insert", "decode"):
        assert re.search(
            rf" {program} \[[\d, ×]+\], compiled in \d+ s\n    .* a device at most", text
        )
    assert text.count(": fits") == 5  # And the explorer with all that it holds.
    assert text.count("from shapes") == 5
    assert re.search(r"all-gather +\d+ of", text)
    assert re.search(r"at most [\d,]+ tokens/s", text)
    assert "a trainer step every" in text
    counted = re.search(r" kernels for a token of each slot: [\d.]+ a layer \(4 products", text)
    assert bool(counted) == bool(re.search(r"\d kernels a step", text)) == name.startswith("h100")


def test_a_mesh_that_is_larger_than_the_target_is_refused(devices):
    devices("v5e:2x2")
    config = tiny.get_config()
    config.trainer.mesh.update({"fsdp": 2, "tensor": 4})
    settings = read_settings({**config.to_dict(), "workdir": "none"})
    with pytest.raises(ConfigError, match="has 8 devices, but v5e:2x2 has 4"):
        [*describe_compiled(settings, wiring.load_task(settings), "v5e:2x2")]
