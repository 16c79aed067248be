"""A run's programs, compiled for accelerators that this machine need not have."""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

import jax

from rl_sync.aot.estimate import Estimate, step_estimate
from rl_sync.aot.programs import Program, rollout_programs, train_step
from rl_sync.aot.reading import Collective, Reading
from rl_sync.aot.rollout_estimate import ESTIMATES, explorer_estimate
from rl_sync.aot.roofline import Passes, Work, decode_work, link_bytes, step_work
from rl_sync.aot.targets import Target, target
from rl_sync.forecast import Durations, forecast
from rl_sync.launcher.memory import format_bytes
from rl_sync.learning import objective
from rl_sync.models import lora, memory
from rl_sync.models.placement import like_cast, param_like
from rl_sync.models.sharding import Layout
from rl_sync.roles import TRAINER, explorer_name, split
from rl_sync.runtime import wiring
from rl_sync.runtime.colocation import allot
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task

HOST_GPUS = 8
_FORECAST_STEPS = 64


class _Compiled(NamedTuple):
    """A program as compiled, or the reason why it is not."""

    program: Program
    reading: Reading | None
    secs: float
    why: str = ""


def describe_compiled(settings: RunSettings, task: Task, name: str) -> str:
    """Compiles a run's programs for a target, and describes what was read from them.

    Raises:
      ConfigError: the target does not exist here, or a mesh is larger than it.
    """
    where = target(name)
    layouts, division = _layouts(settings, where)
    lines = [f"Compiled for {where}, and not run (jax {jax.__version__}): {division}"]
    step, of_step = _step(settings, task, where, layouts[TRAINER])
    lines += of_step
    if settings.explorers:
        rate, of_engine = _engine(settings, task, where, layouts[explorer_name(1)])
        lines += of_engine
        if step and rate:
            lines += _timeline(settings, task, where, step, rate)
    return "\n".join(lines)


def _step(
    settings: RunSettings, task: Task, where: Target, layout: Layout
) -> tuple[float, list[str]]:
    """Compiles the trainer's step; returns its least seconds, or 0, and its description."""
    found = _compiled(train_step(settings, task, layout))
    lines = _describe(found, where, step_estimate(settings, task, where.chip.platform))
    if found.reading is None:
        return 0.0, lines
    secs, work = step_secs(settings, task, layout, where, found.reading)
    link = link_rate(where, layout)
    lines.append(
        f"    at least {format_secs(secs)} a step, limited by {work.limit(where.chip, link)}:"
        f" MFU at most {work.utilization(where.chip, link):.0%}"
    )
    return secs, lines


def _engine(
    settings: RunSettings, task: Task, where: Target, layout: Layout
) -> tuple[float, list[str]]:
    """Compiles an explorer's programs; returns its most tokens a second, or 0, and their
    description.
    """
    platform, rate = where.chip.platform, 0.0
    lines: list[str] = []
    for program in rollout_programs(settings, task, layout):
        found = _compiled(program)
        planned = ESTIMATES[program.name](settings, task, platform, program.sizes)
        lines += _describe(found, where, planned)
        if program.name == "decode" and found.reading is not None:
            secs, work = decode_secs(settings, task, layout, where, program, found.reading)
            link, slots = link_rate(where, layout), program.sizes[0]
            rate = slots / secs
            lines.append(
                f"    at least {format_secs(secs)} for a token of each of {slots:,} slots, limited"
                f" by {work.limit(where.chip, link)}: at most {rate:,.0f} tokens/s"
            )
    whole = explorer_estimate(settings, task, platform).peak
    lines.append(
        "  explorer   with weights that arrive, slots and its largest program, from shapes:"
        f" {format_bytes(whole)} a device, {_fits(whole, where)}"
    )
    return rate, lines


def _layouts(settings: RunSettings, where: Target) -> tuple[dict[str, Layout], str]:
    """Lays the mesh of each role on devices of a target, and says how they share it.

    Raises:
      ConfigError: a mesh is larger than the target.
    """
    needed = {role: settings.mesh_of(role) for role in (TRAINER, *settings.roles[:-1])}
    for role, shape in needed.items():
        if shape.devices > where.count:
            raise ConfigError(
                f"{split(role)[0]}.mesh ({shape}) has {shape.devices} devices, but {where} has"
                f" {where.count}: make the mesh smaller, or compile for a larger target."
            )
    given = allot(settings, where.devices())
    layouts = {role: settings.layout(needed[role].mesh(devices)) for role, devices in given.items()}
    counts = " + ".join(str(shape.devices) for shape in needed.values())
    together = sum(shape.devices for shape in needed.values())
    if together <= where.count:
        return layouts, f"the roles have {counts} of its {where.count} devices"
    return layouts, f"the roles need {counts} devices, so more than one such machine"


def _named(program: Program) -> str:
    return f"{program.name} [{' × '.join(f'{size:,}' for size in program.sizes)}]"


def _compiled(program: Program) -> _Compiled:
    """Compiles a program, which may take minutes, and says so first."""
    print(f"  compiling {program.role} {_named(program)} …", file=sys.stderr, flush=True)
    started = time.monotonic()
    try:
        reading = Reading.of(program.lower().compile())
    except jax.errors.JaxRuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return _Compiled(program, None, time.monotonic() - started, " ".join(lines[:2])[:300])
    return _Compiled(program, reading, time.monotonic() - started)


def _describe(found: _Compiled, where: Target, planned: Estimate) -> list[str]:
    """Describes the memory, the collectives and the copies of a program.

    Args:
      planned: its memory as shapes alone say.
    """
    program, reading = found.program, found.reading
    head = f"  {program.role:<10} {_named(program)}, compiled in {found.secs:.0f} s"
    if reading is None:
        return [
            head,
            f"    does not compile: {found.why}",
            f"    from shapes: {format_bytes(planned.peak)} a device, {_fits(planned.peak, where)}",
        ]
    use = reading.memory
    fresh = use.outputs - use.aliased
    temporaries = max(use.temporaries, use.peak - use.arguments - fresh)
    lines = [
        head,
        f"    {format_bytes(use.peak)} a device at most, {_fits(use.peak, where)}"
        f" ({format_bytes(planned.peak)} from shapes;"
        f" arguments {format_bytes(use.arguments)}, temporaries {format_bytes(temporaries)},"
        f" results that take no argument's place {format_bytes(fresh)})",
    ]
    lines += [f"    {line}" for line in _collectives(reading.collectives)]
    return lines


def _fits(peak: int, where: Target) -> str:
    room = where.chip.memory
    return f"of {format_bytes(room)}: {'fits' if peak <= room else 'does NOT fit'}"


def _collectives(found: Iterable[Collective]) -> list[str]:
    """Describes collectives by kind and by the loops that they are in."""
    groups: dict[tuple[str, tuple[int, ...]], list[Collective]] = collections.defaultdict(list)
    for one in found:
        groups[one.kind, one.loops].append(one)
    lines = []
    for (kind, loops), all_of in sorted(
        groups.items(), key=lambda item: -sum(one.bytes for one in item[1])
    ):
        size = sum(one.bytes for one in all_of)
        if size < 1e3:
            continue
        times = " × ".join(str(trips or "?") for trips in loops)
        hidden = sum(one.asynchronous for one in all_of)
        lines.append(
            f"{kind:<18} {len(all_of):>3} of {format_bytes(size):>8}"
            + (f", {times} times" if loops else "")
            + (f", {hidden} asynchronous" if hidden else "")
        )
    return lines


def link_rate(where: Target, layout: Layout) -> float:
    """Returns the bytes a second over which a role's devices are connected."""
    gpu = where.chip.platform == "gpu"
    return where.chip.network if gpu and layout.mesh.size > HOST_GPUS else where.chip.link


def step_shape(settings: RunSettings, task: Task) -> tuple[tuple[int, int], int, Passes]:
    """Returns the rows of the largest batch and their tokens, its microbatches, and its passes."""
    model = wiring.trainer_model(settings, task)
    rows, tokens = wiring.batching_of(settings, task).largest().rows.tokens.shape
    updates = settings.optimizer.updates_per_batch
    micro = settings.trainer.microbatch_rows or rows // updates
    algorithm = settings.algorithm
    ahead = objective.needs_proximal(algorithm, updates)
    passes = Passes(
        learned=1.0,
        forward=float(algorithm.needs_reference) + float(ahead),
        recomputed=1.0 if model.remat == "full" else 0.0,
    )
    return (rows, tokens), max(1, rows // micro), passes


def step_secs(
    settings: RunSettings, task: Task, layout: Layout, where: Target, reading: Reading
) -> tuple[float, Work]:
    """Returns the least time of a compiled trainer step, and its work."""
    model = wiring.trainer_model(settings, task)
    alone, hidden = link_bytes(reading)
    work = step_work(model, layout, *step_shape(settings, task))
    work = work._replace(links=alone, hidden_links=hidden)
    return work.secs(where.chip, link_rate(where, layout)), work


def decode_secs(
    settings: RunSettings,
    task: Task,
    layout: Layout,
    where: Target,
    program: Program,
    reading: Reading,
) -> tuple[float, Work]:
    """Returns the least time of a compiled decode step, and its work."""
    model = lora.merged_config(wiring.explorer_model(settings, task))
    rows, span = program.sizes
    chunk = settings.rollout.chunk_tokens
    alone, hidden = link_bytes(reading, unknown_trips=chunk)
    work = decode_work(model, layout, rows, span)
    work = work._replace(links=alone / chunk, hidden_links=hidden / chunk)
    return work.secs(where.chip, link_rate(where, layout)), work


def _timeline(
    settings: RunSettings, task: Task, where: Target, step: float, rate: float
) -> list[str]:
    """Forecasts the mode's pace, with completions of the greatest length."""
    completions = settings.groups_generated * settings.trainer.group_size
    alone = settings.schedule.pull == "latest"
    share = 1 if alone else settings.explorers
    rollout = completions / share * task.max_drawn_tokens / rate
    model = wiring.explorer_model(settings, task)
    layout = settings.explorer_layout
    weights = memory.device_bytes(like_cast(param_like(model, layout), model.dtype))
    # A collective transfer stays inside a slice or a host; other transfers cross the network.
    joint = settings.transfer == "collective" or settings.hands_over
    devices = sum(settings.mesh_of(role).devices for role in (TRAINER, *settings.roles[:-1]))
    within = joint and (where.chip.platform == "tpu" or devices <= HOST_GPUS)
    sync = weights / (where.chip.link if within else where.chip.network)
    durations = Durations(lambda e, explorer: rollout, lambda t: step, sync)
    steps = max(_FORECAST_STEPS, 4 * settings.schedule.interval)
    found = forecast(settings.schedule, settings.explorers, settings.meets, durations, steps)
    shares = ", ".join(
        f"{'explorer' if role else 'trainer'} {found.busy(role):.0%} busy" for role in (1, 0)
    )
    return [
        f"  {settings.sync.mode}: a rollout takes at least {format_secs(rollout)} if all"
        f" completions have {task.max_drawn_tokens:,} tokens, a sync {format_secs(sync)}; so a"
        f" trainer step every {format_secs(found.step_secs)} ({shares})",
    ]


def format_secs(secs: float) -> str:
    """Formats a time with three digits and a unit."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if secs >= factor:
            return f"{secs / factor:,.3g} {unit}"
    return f"{secs / 1e-6:.3g} µs"
