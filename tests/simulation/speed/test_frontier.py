"""Schedules are compared by speed and staleness, and one is chosen."""

import dataclasses

import pytest

from rl_sync.configs import base
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.simulation.speed.frontier import Predicted, choose, frontier, predict_all
from rl_sync.simulation.speed.prediction import SpeedFigures
from rl_sync.simulation.speed.schedule_grid import ScheduleGrid, candidates
from rl_sync.simulation.speed.workload import Decoding, Samples
from rl_sync.transfer import TRANSFERS
from tests.simulation.speed.plans import plan_with, work_with

GRID = ScheduleGrid(
    modes=["synchronous", "one_step_off_policy", "asynchronous", "multi_explorer", "custom"],
    intervals=[1, 2],
    offsets=[0, 1, 3],
    bounds=[0, 2],
    explorers=[1, 2],
    groups=[8],
    transfers=["checkpoint"],
)


def config_of(**trainer):
    config = base.get_config()
    config.workdir = "nowhere"
    config.trainer.update({"groups_per_step": 8, "group_size": 2, **trainer})
    return read_settings(config.to_dict()).resolved()


def names(found):
    shown = []
    for one in found:
        schedule = one.plan.schedule
        last = schedule.offset if schedule.pull == "exact" else schedule.max_staleness
        mode = one.settings.sync.mode
        shown.append((mode, schedule.interval, last, one.plan.master.explorers))
    return shown


def test_a_grid_has_each_schedule_once_and_only_those_that_the_rules_accept():
    found = names(candidates(config_of(), GRID, 16))
    assert len(found) == len({*found})
    for explorers in (1, 2):
        assert ("synchronous", 1, 0, explorers) in found
        assert ("one_step_off_policy", 1, 1, explorers) in found
        assert ("custom", 2, 3, explorers) in found
        # These are the same as named ones.
        assert ("custom", 1, 0, explorers) not in found
        assert ("custom", 1, 1, explorers) not in found
    latest = [one for one in found if one[0] in ("asynchronous", "multi_explorer")]
    assert {(mode, explorers) for mode, _, _, explorers in latest} == {
        ("asynchronous", 1),
        ("multi_explorer", 2),
    }
    assert all(bound >= interval - 1 for _, interval, bound, _ in latest)


@pytest.mark.gate
def test_a_candidate_says_the_settings_that_give_it():
    config = config_of()
    for one in candidates(config, GRID, 16):
        changed = {
            **config,
            **{name: dict(config[name]) for name in ("sync", "explorer", "trainer")},
        }
        for name, value in one.changes.items():
            section, key = name.split(".")
            changed[section][key] = value
        settings = read_settings(changed)
        assert settings.schedule == one.plan.schedule
        assert settings.explorers == one.plan.master.explorers
        assert settings.groups_at_once == one.plan.master.groups_per_lease
        assert one.plan.master.steps == 16
        assert all(f"--config.{name}=" in " ".join(one.flags) for name in ("sync.mode",))
        assert "None" not in " ".join(one.flags)


def test_leases_of_another_size_are_kept_where_the_batch_is_the_same():
    config = config_of()
    config["explorer"]["groups_per_lease"] = 3
    grid = GRID._replace(modes=["synchronous"], intervals=[1])
    own, two = candidates(config, grid, 16)
    assert own.plan.master.groups_per_lease == 3
    assert two.plan.master.groups_per_lease == 4


def test_rules_that_refuse_every_schedule_are_said():
    grid = GRID._replace(modes=["synchronous"], explorers=[9])
    with pytest.raises(ConfigError, match=r"explorer\.count=9"):
        candidates(config_of(), grid, 16)
    with pytest.raises(ConfigError, match="No schedule is left"):
        candidates(config_of(), GRID._replace(modes=["asynchronous"], explorers=[4]), 16)
    config = config_of()
    config["replay"].update({"times_sampled": 2, "sampler": "uniform"})
    config["sync"].update({"mode": "asynchronous", "pull": None, "interval": None})
    with pytest.raises(ConfigError, match="times_sampled"):
        candidates(config, GRID._replace(modes=["asynchronous"], explorers=[1]), 16)


def predicted(*points):
    """Makes predictions (speed, mean staleness, bound, explorers) of schedules."""
    first = candidates(config_of(), GRID, 16)[0]
    found = []
    for speed, stale, bound, explorers in points:
        sync = {"max_staleness": bound}
        plan = plan_with("multi_explorer", explorers=explorers, steps=16, sync=sync)
        figures = SpeedFigures(
            steps_an_hour=speed,
            secs=60.0,
            mean_staleness=stale,
            max_staleness=bound,
            explorer_idle=0.0,
            trainer_idle=0.0,
            buffered=0.0,
            tokens_a_step=0.0,
        )
        found.append(Predicted(dataclasses.replace(first, plan=plan), figures, speed))
    return found


def test_the_frontier_has_what_nothing_beats():
    found = predicted((100, 0, 0, 1), (90, 1, 1, 1), (150, 1, 1, 1), (150, 2, 2, 1), (200, 3, 3, 1))
    assert [one.figures.steps_an_hour for one in frontier(found)] == [200, 150, 100]
    assert frontier(found)[1].figures.mean_staleness == 1


def test_the_choice_is_the_fastest_within_the_bound():
    found = predicted((100, 0, 0, 1), (150, 1, 1, 1), (200, 3, 3, 1))
    assert choose(found, 5).figures.steps_an_hour == 200
    assert choose(found, 2).figures.steps_an_hour == 150
    assert choose(found, 0).figures.steps_an_hour == 100


def test_of_equally_fast_schedules_the_cheapest_and_freshest_is_chosen():
    found = predicted((100, 0.5, 2, 4), (99, 2, 2, 2), (99, 1, 2, 2), (97, 0, 0, 1))
    assert choose(found, 2) is found[2]


def test_more_steps_take_more_time_at_the_same_pace():
    (one,) = predicted((120, 0, 0, 1))
    assert one.secs_to(16) == 60.0
    assert one.secs_to(26) == 60.0 + 10 * 30.0


def test_predictions_stand_beside_closed_forms():
    work = work_with(2.0, 1.0, 0.0, lengths=((1000,),), train_samples=Samples.of(1.0))
    work = dataclasses.replace(work, groups_per_step=8, decoding=Decoding(0.002))
    grid = GRID._replace(modes=["synchronous"], intervals=[1], explorers=[1])
    (one,) = predict_all(candidates(config_of(), grid, 16), work, (0,))
    assert one.figures.steps_an_hour == pytest.approx(3600 / 3.0)
    assert one.steps_an_hour_closed == pytest.approx(3600 / 3.0)
    assert one.groups_an_hour == pytest.approx(8 * 1200)
    assert {*work.transfers} == {*TRANSFERS}
