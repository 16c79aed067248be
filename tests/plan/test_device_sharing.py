"""Memory of devices that roles share, and the cache that `rollout.cache_bytes=0` becomes."""

import pytest

from rl_sync.cluster.gpu_cards import GpuCard
from rl_sync.launcher.processes import run_text
from rl_sync.models.paging.paged_cache import page_bytes
from rl_sync.plan.memory.device_sharing import shared_peak, with_cache
from rl_sync.plan.memory.explorer_memory import CACHE, explorer_estimate
from rl_sync.plan.memory.gpu_fit import fill_gpus, memory_warnings
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.roles.assembly import wiring
from rl_sync.settings.records import ConfigError
from tests.plan.test_memory_text import settings_with

pytestmark = pytest.mark.gate

CARD = GpuCard("NVIDIA L4", (8, 9), 24 * 10**9, 0)
ON_ONE = {
    "launch__colocate": True,
    "launch__share_devices": True,
    "sync__mode": "synchronous",
}
OFF_POLICY = {"sync__mode": "one_step_off_policy"}
ALONE = {"evaluation__every_steps": 0}


def estimated(settings):
    task = wiring.load_task(settings)
    return [estimate(settings, task, "gpu") for estimate in (step_estimate, explorer_estimate)]


@pytest.mark.parametrize(
    ("changes", "beside_step"),
    [
        ({**ALONE}, lambda explorer: sum(explorer.held.values())),
        (
            {
                "sync__mode": "asynchronous",
                "sync__max_staleness": 0,
                "evaluation__every_steps": 2,
            },
            lambda explorer: explorer.peak - explorer.made[CACHE],
        ),
        (OFF_POLICY, lambda explorer: explorer.peak),
        ({**ALONE, "launch__share_devices": False}, lambda explorer: explorer.peak),
    ],
    ids=["in turn", "in turn with evaluations", "a step ahead", "apart"],
)
@pytest.mark.parametrize("slots", [2, 64])
def test_only_explorers_that_rest_beside_a_step_leave_it_their_caches(changes, beside_step, slots):
    settings = settings_with(**{**ON_ONE, "rollout__slots": slots, **changes})
    trainer, explorer = estimated(settings)
    assert settings.takes_turns == (beside_step(explorer) < explorer.peak)
    stepping = trainer.peak + beside_step(explorer)
    expected = max(stepping, sum(trainer.held.values()) + explorer.peak)
    if not settings.takes_turns:
        expected = trainer.peak + explorer.peak
    assert shared_peak(settings, trainer, explorer) == expected
    higher = shared_peak(settings, trainer, explorer, step_peak=trainer.peak + 10**9)
    assert higher == stepping + 10**9


@pytest.mark.parametrize("mode", [{}, OFF_POLICY])
@pytest.mark.parametrize("pages", [9, 25])
def test_the_cache_is_the_largest_that_fits(mode, pages):
    settings = settings_with(**{**ON_ONE, **mode, "rollout__cache_bytes": 0, "rollout__slots": 64})
    task = wiring.load_task(settings)
    model, layout = wiring.explorer_model(settings, task), settings.explorer_layout
    page = page_bytes(model, layout)

    def peak(count):
        chosen = settings_with(
            **{**ON_ONE, **mode, "rollout__cache_bytes": count * page, "rollout__slots": 64}
        )
        return shared_peak(chosen, *estimated(chosen))

    room = round(peak(pages) / 0.95) + 10
    filled = with_cache(settings, task, "gpu", room, shared=True)
    assert filled.rollout.cache_bytes % page == 0
    count = filled.rollout.cache_bytes // page
    assert peak(count) <= 0.95 * room < peak(count + 1)
    width = -(-model.max_length // 32)
    whole = with_cache(settings, task, "gpu", 10**15, shared=True)
    assert whole.rollout.cache_bytes == 64 * width * page
    least = with_cache(settings, task, "gpu", 1, shared=True)
    assert least.rollout.cache_bytes == width * page


def test_a_gpu_is_filled_before_the_run_and_holds_what_it_then_needs(capsys):
    settings = settings_with(**ON_ONE, rollout__cache_bytes=0, rollout__slots=256)
    task = wiring.load_task(settings)
    least = with_cache(settings, task, "gpu", 1, shared=True)
    needed = shared_peak(least, *estimated(least))
    card = CARD._replace(memory=round(1.6 * needed), used=round(0.5 * needed))
    filled = run_text.fill_gpus(settings, task, [card])
    size = filled.rollout.cache_bytes
    assert size > least.rollout.cache_bytes
    assert capsys.readouterr().err.startswith(f"rollout.cache_bytes=0 becomes {size:,}, ")
    assert [*memory_warnings(filled, task, [card], {})] == []
    assert fill_gpus(settings, task, [card], {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"}) != filled
    several = fill_gpus(settings, task, [card, card], {})
    assert several.rollout.cache_bytes > size, "an explorer has its own"
    assert run_text.fill_gpus(filled, task, [card]) is filled
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("changes", "cards", "says"),
    [
        ({}, [], "and nvidia-smi lists none that JAX may use here: give a number of bytes, or"),
        (
            {"launch__hosts": "explorer1=join", "launch__host": "localhost"},
            [CARD],
            "but launch.hosts names others: give",
        ),
    ],
)
def test_without_gpus_here_a_size_is_asked_for(changes, cards, says):
    settings = settings_with(rollout__cache_bytes=0, **changes)
    with pytest.raises(ConfigError, match=r"rollout\.cache_bytes=0 takes what .*" + says):
        run_text.fill_gpus(settings, wiring.load_task(settings), cards)
