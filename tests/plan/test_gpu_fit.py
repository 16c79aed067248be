"""Warnings before a run of GPUs that are too small for it, or have no units for its dtype."""

import pytest

from rl_sync.cluster.gpu_cards import GpuCard
from rl_sync.launcher.processes import run_text
from rl_sync.plan.memory import gpu_fit
from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.memory.gpu_fit import dtype_warning, experts_warning, memory_warnings
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.roles.assembly import wiring
from rl_sync.settings.records import ConfigError
from tests.plan.test_memory_text import settings_with

pytestmark = pytest.mark.gate

OLD = GpuCard("Tesla T4", (7, 5), 16 * 10**9, 0)
NEW = GpuCard("NVIDIA L4", (8, 9), 24 * 10**9, 0)
HOPPER = GpuCard("NVIDIA H100 80GB HBM3", (9, 0), 80 * 10**9, 0)


def warned(cards, environment=(), **fields):
    settings = settings_with(**fields)
    return [*memory_warnings(settings, wiring.load_task(settings), cards, dict(environment))]


@pytest.fixture(scope="module")
def peaks():
    """The bytes of a trainer's step, and of an explorer."""
    settings = settings_with()
    task = wiring.load_task(settings)
    return [estimate(settings, task, "gpu").peak for estimate in (step_estimate, explorer_estimate)]


@pytest.mark.parametrize(
    ("card", "dtype", "installed", "why"),
    [
        (NEW, "bfloat16", True, "(NVIDIA L4), which is before Hopper."),
        (HOPPER, "float32", True, "computes in 16 bits: use model.dtype=bfloat16."),
        (HOPPER, "bfloat16", False, "is missing: pip install 'rl_sync[gpu]'."),
        (HOPPER, "bfloat16", True, ""),
    ],
)
def test_experts_without_a_kernel_are_told_with_their_cost(
    card, dtype, installed, why, monkeypatch
):
    monkeypatch.setattr(gpu_fit, "has_kernel", lambda: installed)
    sizes = {"model__experts__count": 8, "model__experts__per_token": 2}
    settings = settings_with(model__dtype=dtype, **sizes)
    line = experts_warning(settings, wiring.load_task(settings), [card])
    assert line.endswith(why)
    assert bool(line) == bool(why)
    if line:
        assert "with all 8 experts, 4 times the work of its 2, as " in line
    plain = settings_with(model__dtype=dtype)
    assert not experts_warning(plain, wiring.load_task(plain), [card])


def test_a_gpu_that_is_too_small_for_both_roles_is_told_with_what_helps(peaks):
    small = NEW._replace(memory=round(sum(peaks) / 0.9) - 10)
    line, advice = warned([small])
    assert "\n" not in line
    assert line.startswith("WARNING: by estimates from shapes, this run needs ")
    assert "(NVIDIA L4 with " in line
    assert "\n  --config.model.remat=full: " in advice
    assert advice.splitlines()[-1].endswith("of the explorer")
    assert warned([small._replace(memory=round(sum(peaks) / 0.9) + 10)]) == []


def test_what_a_user_reserves_counts(peaks):
    card = NEW._replace(memory=round(sum(peaks) / 0.5) - 10)
    assert warned([card]) == []
    assert len(warned([card], {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"})) == 2
    with pytest.raises(
        ConfigError, match=r"XLA_PYTHON_CLIENT_MEM_FRACTION='half' must be a number"
    ):
        warned([card], {"XLA_PYTHON_CLIENT_MEM_FRACTION": "half"})


def test_of_several_gpus_each_has_to_fit_one_role(peaks):
    card = NEW._replace(memory=round(max(peaks) / 0.75) + 10)
    assert max(peaks) < sum(peaks)
    assert warned([card, card]) == []
    line, advice = warned([card, card._replace(memory=card.memory - 20)])
    assert line.startswith("WARNING: ")
    assert "of the trainer" in advice
    assert "of the explorer" not in advice


def test_memory_that_other_programs_hold_is_told(peaks):
    card = NEW._replace(used=NEW.memory - sum(peaks) + 10)
    (line,) = warned([card])
    assert "where other programs hold 24 GB (nvidia-smi): end them" in line
    assert warned([NEW._replace(used=card.used - 20)]) == []


@pytest.mark.parametrize(
    ("fields", "slow"),
    [
        (
            {"model__dtype": "bfloat16"},
            "trainer.compute_dtype=bfloat16 and explorer.dtype=bfloat16",
        ),
        ({"explorer__dtype": "bfloat16"}, "explorer.dtype=bfloat16"),
        ({"model__dtype": "float16"}, None),
        ({}, None),
    ],
)
def test_a_dtype_without_units_is_told(fields, slow):
    settings = settings_with(**fields)
    assert dtype_warning(settings, [NEW]) == dtype_warning(settings, []) == ""
    found = dtype_warning(settings, [NEW, OLD])
    if slow is None:
        assert found == ""
    else:
        assert f"(Tesla T4) has no units for {slow}, which" in found
        assert found.endswith("use model.dtype=float16.")


def test_a_run_says_it_before_it_starts(monkeypatch, capsys):
    settings = settings_with(model__dtype="bfloat16")
    small = OLD._replace(memory=10**3)
    monkeypatch.setattr(run_text, "cards_of", lambda ids, environment: [small][: len(ids)])
    task = wiring.load_task(settings)
    run_text.print_gpu_warnings(settings, task, run_text.cards_of_run([]))
    assert capsys.readouterr() == ("", "")
    run_text.print_gpu_warnings(settings, task, run_text.cards_of_run(["0"]))
    first, second, *advice = capsys.readouterr().err.splitlines()
    assert "has no units for" in first
    assert "of a GPU (Tesla T4 with 1 kB)" in second
    assert advice[0] == "By estimates from shapes, a device needs less memory with one of these:"


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({"launch__colocate": True, "launch__share_devices": True}, False),
        ({"launch__colocate": True}, True),
        ({}, True),
        # The trainer's parts are not those of the explorer.
        (
            {
                "launch__colocate": True,
                "launch__share_devices": True,
                "trainer__mesh__fsdp": 2,
                "explorer__mesh__tensor": 2,
            },
            True,
        ),
    ],
)
def test_an_explorer_counts_a_base_of_its_own_unless_it_reads_the_trainers(changes, held):
    settings = settings_with(model__lora__rank=2, **changes)
    estimate = explorer_estimate(settings, wiring.load_task(settings), "gpu")
    assert ("base" in estimate.held) == held
