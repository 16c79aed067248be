"""`tune`: predicts schedules from the times of a short run, and chooses one."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_sync.launcher import config_file, what_if
from rl_sync.launcher.command import Arguments, program
from rl_sync.launcher.commands.report import check_run
from rl_sync.role_names import TRAINER, explorer_name
from rl_sync.schedule import MODES
from rl_sync.settings.records import ConfigError
from rl_sync.transfer import TRANSFERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rl_sync.settings.run_settings import RunSettings
    from rl_sync.simulation.speed.frontier import Predicted
    from rl_sync.simulation.speed.measured_work import MeasuredWork
    from rl_sync.simulation.speed.network_link import NetworkLink
    from rl_sync.simulation.speed.schedule_grid import Candidate, ScheduleGrid
    from rl_sync.simulation.speed.workload import Workload

_FOLDER = "tune"
_SIMULATED_STEPS = 48
_WITHIN = 2
_INTERVALS, _OFFSETS, _BOUNDS = "1,2,4", "2,4", "1,2,4,8"
_OVERLAPPED = 0.5
_DRAWN_STEPS, _DRAWN_EXPLORERS = (20, 27), 6

_TUNED = '''"""The schedule that `tune` chose from the times of {run}."""

from pathlib import Path

from rl_sync.launcher import config_file


def get_config():
    """Returns the settings of that run with the chosen schedule."""
    config = config_file.of_run(Path({path!r}))
    config.workdir = None
    config.update_from_flattened_dict({changes})
    return config
'''


def execute(arguments: Arguments) -> int:
    """Predicts the schedules, prints the best, and writes pictures and settings.

    Raises:
      ConfigError: a flag is invalid, the run is too short, or no schedule fits.
    """
    flags = arguments.flags
    workdir = flags["workdir"]
    check_run(workdir, f"--workdir={workdir}")
    config = config_file.of_run(Path(workdir)).to_dict()
    if config["explorer"]["count"] == 0:
        raise ConfigError(f"The run in {workdir} has no explorers, so no schedule to choose.")
    asked = _TuneFlags.of(flags, config)

    import jax

    jax.config.update("jax_platforms", "cpu")  # Nothing is computed on devices.
    from rl_sync.addons.tune.frontier_text import describe_work, frontier_table
    from rl_sync.settings.config_reading import read_settings
    from rl_sync.simulation.speed.frontier import choose, frontier, predict_all
    from rl_sync.simulation.speed.schedule_grid import candidates

    settings = read_settings(config)
    found = _work(flags, workdir, settings)
    work = _changed(found.work, asked, settings)
    tried = candidates(config, asked.grid, _SIMULATED_STEPS, found.in_parts)
    if min(one.plan.schedule.staleness_bound for one in tried) > asked.within:
        raise ConfigError(
            f"--within={asked.within}: none of the {len(tried)} schedules has so small a bound of"
            " staleness. Allow more, or give other --modes, --intervals or --bounds."
        )
    print(f"Times of {workdir} ({found.steps} trainer steps):")
    print(f"  {describe_work(work, settings.transfer)}")
    assumed = sorted({one.plan.transfer for one in tried} & {*found.assumed})
    for doubt in _doubts(found, assumed if asked.link is None else (), settings.transfer):
        print(f"  {doubt}")
    predicted = [*predict_all(tried, work, range(asked.seeds))]
    best, chosen = frontier(predicted), choose(predicted, asked.within)
    steps = asked.steps or settings.trainer.steps
    print(f"\nThe best of {len(tried)} schedules, and the chosen one (*):", flush=True)
    shown = best if chosen in best else sorted([*best, chosen], key=lambda one: -one.groups_an_hour)
    print(frontier_table(shown, chosen, steps))
    folder = Path(flags.get("out") or Path(workdir, _FOLDER))
    paths = _write(folder, workdir, found, predicted, chosen, work)
    print(f"\nChosen: the fastest with a staleness of at most {asked.within} (--within).")
    print(f"  {chosen.tokens.describe()}")
    print(f"  {program()} --config={paths[-1]}")
    print(f"or with the flags\n  {' '.join(chosen.candidate.flags)}\n")
    for path in paths:
        print(path)
    return 0


@dataclasses.dataclass(frozen=True)
class _TuneFlags:
    """The flags, read and checked.

    Attributes:
      grid: schedules to try.
      within: maximum staleness that the chosen schedule may allow.
      seeds: number of simulated runs of each schedule.
      steps: number of steps whose time is given; None for the run's.
      link: network between trainer and explorers; None for the measured times.
      devices: other devices.
    """

    grid: ScheduleGrid
    within: int
    seeds: int
    steps: int | None
    link: NetworkLink | None
    devices: what_if.OtherDevices

    @classmethod
    def of(cls, flags: Mapping[str, Any], config: Mapping[str, Any]) -> _TuneFlags:
        from rl_sync.simulation.speed.schedule_grid import ScheduleGrid

        def numbers(name: str, default: object, least: int) -> list[int]:
            return what_if.numbers(name, str(flags.get(name, default)), least)

        own = config["sync"]["transfer"]
        grid = ScheduleGrid(
            modes=what_if.names("modes", flags["modes"], MODES) if "modes" in flags else [*MODES],
            intervals=numbers("intervals", _INTERVALS, 1),
            offsets=numbers("offsets", _OFFSETS, 0),
            bounds=numbers("bounds", _BOUNDS, 0),
            explorers=numbers("explorers", config["explorer"]["count"], 1),
            groups=numbers("groups", config["trainer"]["groups_per_step"], 1),
            transfers=what_if.names("transfers", flags.get("transfers", own), TRANSFERS),
        )
        return cls(
            grid,
            within=flags.get("within", _WITHIN),
            seeds=flags.get("seeds", 2),
            steps=flags.get("steps"),
            link=what_if.network(flags["network"]) if "network" in flags else None,
            devices=what_if.devices(flags.get("devices", "trainer:1")),
        )


def _work(flags: Mapping[str, Any], workdir: str, settings: RunSettings) -> MeasuredWork:
    """Reads the work of the run, or the given one."""
    from rl_sync.simulation.speed.measured_work import read_work
    from rl_sync.simulation.speed.work_file import read_work_file

    if "work" in flags:
        return read_work_file(Path(flags["work"]))
    # Processes on other machines have cores of their own.
    return read_work(workdir, settings, None if settings.launch.elsewhere else os.cpu_count())


def _doubts(found: MeasuredWork, assumed: Sequence[str], transfer: str) -> Iterator[str]:
    """Yields reasons to doubt the times.

    Args:
      assumed: transfers to which the times of the run's `transfer` are given.
    """
    if found.overlapped > _OVERLAPPED:
        yield (
            f"Explorers worked beside {found.overlapped:.0%} of the trainer's time, on the same"
            " cores. What each takes alone is then a guess: a run with sync.mode=synchronous"
            " measures it."
        )
    if assumed:
        yield (
            f"The run did not use {', '.join(assumed)}: the times of {transfer} are assumed, so"
            " measure a run with it before you trust its figures."
        )


def _changed(work: Workload, asked: _TuneFlags, settings: RunSettings) -> Workload:
    """Returns the work with the network and the devices that were asked for."""
    work = work.on_devices(*asked.devices)
    if asked.link is None:
        return work
    from rl_sync.plan.version_bytes import travelling_bytes

    return asked.link.carrying(work, travelling_bytes(settings))


def _write(
    folder: Path,
    workdir: str,
    found: MeasuredWork,
    predicted: Sequence[Predicted],
    chosen: Predicted,
    work: Workload,
) -> list[Path]:
    """Writes pictures, figures, the measured work, and at last the chosen settings."""
    from rl_sync.addons.tune.frontier_text import as_json
    from rl_sync.simulation.speed.work_file import write_work

    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [
            *_draw_frontier(folder, predicted, chosen),
            *_draw_timeline(folder, chosen.candidate, work),
        ]
        schedules, measured, tuned = (
            folder / name for name in ("schedules.json", "work.json", "tuned.py")
        )
        schedules.write_text(json.dumps([*map(as_json, predicted)], indent=1) + "\n")
        write_work(measured, found)
        changes = dict(chosen.candidate.changes)
        absolute = os.path.abspath(workdir)
        tuned.write_text(_TUNED.format(run=workdir, path=absolute, changes=changes))
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror or error}. Give another --out."
        ) from error
    return [*paths, schedules, measured, tuned]


def _draw_frontier(folder: Path, predicted: Sequence[Predicted], chosen: Predicted) -> list[Path]:
    from rl_sync.addons.tune.frontier_figure import SchedulePoint, draw_frontier
    from rl_sync.simulation.speed.frontier import frontier

    best = frontier(predicted)
    groups = {one.candidate.plan.master.groups_per_step for one in predicted}
    several = len(groups) > 1
    points = [
        SchedulePoint(
            mode=one.candidate.settings.sync.mode,
            label=one.candidate.label,
            staleness=one.figures.mean_staleness,
            speed=one.groups_an_hour if several else one.figures.steps_an_hour,
            best=one in best,
            chosen=one is chosen,
        )
        for one in predicted
    ]
    speed = "groups an hour" if several else "trainer steps an hour"
    return _save(folder / "frontier", draw_frontier(points, "Predicted schedules", speed))


def _draw_timeline(folder: Path, candidate: Candidate, work: Workload) -> list[Path]:
    from rl_sync.display.timeline_figure import draw, steps_window
    from rl_sync.simulation.speed.prediction import simulate

    spans = simulate(candidate.plan, work)
    schedule = candidate.plan.schedule
    ahead = f"offset {schedule.offset}" if schedule.pull == "exact" else "latest weights"
    mode = candidate.settings.sync.mode.replace("_", " ")
    title = (
        f"Predicted: {mode} · interval {schedule.interval}, {ahead},"
        f" staleness at most {schedule.staleness_bound}, {candidate.plan.transfer} transfer"
    )
    explorers = range(1, min(_DRAWN_EXPLORERS, candidate.plan.master.explorers) + 1)
    roles = [*map(explorer_name, explorers), TRAINER]
    figure = draw(spans, steps_window(spans, _DRAWN_STEPS), title, roles=roles)
    return _save(folder / "timeline", figure)


def _save(path: Path, figure: Figure) -> list[Path]:
    from rl_sync.display.timeline_figure import encoded

    paths = [path.with_suffix(f".{kind}") for kind in ("png", "svg")]
    for one in paths:
        one.write_bytes(encoded(figure, one.suffix[1:]))
    return paths
