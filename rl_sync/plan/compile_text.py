"""Reports on a run's programs: how many a run compiles, and their memory and time on accelerators.

The accelerators are those of a target, which this machine need not have.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax

from rl_sync.cluster.gpus import reserved_share
from rl_sync.models.platform import Platform, compiling_for
from rl_sync.models.sharding import Layout
from rl_sync.plan.compile_progress import CompileProgress
from rl_sync.plan.compiled_text import Collective, CompiledProgramText
from rl_sync.plan.forecast import Durations, forecast
from rl_sync.plan.kernel_counts import kernels_of_step, kernels_of_token
from rl_sync.plan.lowered_programs import LowerableProgram, rollout_programs, train_step
from rl_sync.plan.memory import model_memory
from rl_sync.plan.memory.device_sharing import shared_peak, with_cache
from rl_sync.plan.memory.explorer_memory import ESTIMATES, explorer_estimate
from rl_sync.plan.memory.gpu_fit import slow_dtypes
from rl_sync.plan.memory.memory_estimate import MemoryEstimate
from rl_sync.plan.memory.memory_text import format_bytes
from rl_sync.plan.memory.trainer_memory import step_estimate
from rl_sync.plan.roofline import decode_work, step_work
from rl_sync.plan.targets import Target, target
from rl_sync.role_names import TRAINER, explorer_name, split
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.build import trainer_of
from rl_sync.roles.assembly.colocation import allot
from rl_sync.roles.assembly.engines import rollout_engine
from rl_sync.roles.assembly.parameters import parameters_of
from rl_sync.roles.assembly.program_list import TRAINING, explorer_programs, trainer_programs
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task

_FORECAST_STEPS = 64
_FULL = 0.995  # An MFU that is rounded to 100 %.
_PLATFORMS: dict[Platform, str] = {"cpu": "CPUs", "tpu": "accelerators"}
_Counts = dict[str, int]
"""Numbers of programs, by their purpose."""


class _Compiled(NamedTuple):
    """A compiled program, or the reason why it does not compile."""

    program: LowerableProgram
    reading: CompiledProgramText | None
    secs: float
    why: str = ""


def describe_compiled(settings: RunSettings, task: Task, name: str) -> Iterator[str]:
    """Compiles a run's programs for a target; yields each line as soon as it is known.

    Raises:
      ConfigError: the target does not exist here, or a mesh is larger than it.
      CompilingInterruptedError: the user has interrupted it.
    """
    where = target(name)
    if where.chip.platform == "gpu" and where.count == 1:
        settings = settings.on_only_gpu()
    layouts, division = _layouts(settings, where)
    settings, filled = _filled(settings, task, where)
    yield f"Compiled for {where}, and not run (jax {jax.__version__}): {division}"
    yield from _slow_dtypes(settings, where)
    yield from filled
    programs = []
    if settings.explorers and not settings.explorer.engines:
        programs = rollout_programs(settings, task, layouts[explorer_name(1)])
    progress = CompileProgress(1 + len(programs))
    step, step_peak, of_step = _step(settings, task, where, layouts[TRAINER], progress)
    yield from of_step
    rate = 0.0
    for program in programs:
        found, of_program = _of_engine(settings, task, where, program, progress)
        yield from of_program
        rate = rate or found
    if settings.explorers:
        explorer = explorer_estimate(settings, task, where.chip.platform)
        whole = explorer.peak
        yield (
            "  explorer   with weights that arrive, slots and its largest program, from shapes:"
            f" {format_bytes(whole)} a device, {_fits(whole, where)}"
        )
        if settings.launch.colocate and _shared(layouts):
            trainer = step_estimate(settings, task, where.chip.platform)
            both = shared_peak(settings, trainer, explorer, step_peak=step_peak)
            turns = "in turn, without a cache beside a step" if settings.takes_turns else "all"
            yield (
                f"  together   on the devices that they share, {turns} at their maximum:"
                f" {format_bytes(both)} a device, {_fits(both, where)}"
            )
    if step and rate:
        yield from _timeline(settings, task, where, step, rate)


def _step(
    settings: RunSettings, task: Task, where: Target, layout: Layout, progress: CompileProgress
) -> tuple[float, int, list[str]]:
    """Compiles the trainer's step; returns its minimum seconds, its peak bytes and a description.

    If it does not compile, the seconds are 0, and the bytes those from shapes.
    """
    found = _compiled(train_step(settings, task, layout), progress)
    planned = step_estimate(settings, task, where.chip.platform)
    lines = _describe(found, where, planned)
    if found.reading is None:
        return 0.0, planned.peak, lines
    work, rates = step_work(settings, task, found.reading), where.rates(layout.mesh.size)
    secs, mfu = work.secs(rates), work.mfu(rates)
    # If nothing else is computed or waited for, the minimum time says nothing about MFU.
    bound = f": MFU at most {mfu:.0%}" if mfu < _FULL else " of the model's FLOPs alone"
    limit = work.limit(rates)
    lines.append(f"    at least {format_secs(secs)} a step, limited by {limit}{bound}")
    if where.chip.platform == "gpu":
        lines.append(f"    {kernels_of_step(found.reading):,} kernels a step")
    return secs, found.reading.memory.peak, lines


def _of_engine(
    settings: RunSettings,
    task: Task,
    where: Target,
    program: LowerableProgram,
    progress: CompileProgress,
) -> tuple[float, list[str]]:
    """Compiles a program of an explorer; returns its maximum tokens a second and a description.

    The maximum is 0 unless it is decoding, and compiles.
    """
    found = _compiled(program, progress)
    planned = ESTIMATES[program.name](settings, task, where.chip.platform, program.sizes)
    lines = _describe(found, where, planned)
    if program.name != "decode" or found.reading is None:
        return 0.0, lines
    slots, span = program.sizes
    work = decode_work(settings, task, slots, span, found.reading)
    rates = where.rates(settings.explorer.mesh.shape.devices)
    secs = work.secs(rates)
    rate = slots / secs
    lines.append(
        f"    at least {format_secs(secs)} for a token of each of {slots:,} slots, limited"
        f" by {work.limit(rates)}: at most {rate:,.0f} tokens/s"
    )
    if where.chip.platform == "gpu":
        layers = wiring.explorer_model(settings, task).num_layers
        lines.append(f"    {kernels_of_token(found.reading, layers)}")
    return rate, lines


def _layouts(settings: RunSettings, where: Target) -> tuple[dict[str, Layout], str]:
    """Lays the mesh of each role on devices of a target, and describes how they share it.

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
    try:
        layouts = {role: settings.layout(role, needed[role].mesh(on)) for role, on in given.items()}
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    counts = " + ".join(str(shape.devices) for shape in needed.values())
    together = sum(shape.devices for shape in needed.values())
    most = max(shape.devices for shape in needed.values())
    if settings.launch.colocate and _shared(layouts):
        return layouts, f"the roles need {counts} devices, and take turns on {most}"
    if together <= where.count:
        return layouts, f"the roles have {counts} of its {where.count} devices"
    return layouts, f"the roles need {counts} devices, so more than one such machine"


def _filled(settings: RunSettings, task: Task, where: Target) -> tuple[RunSettings, list[str]]:
    """Returns settings with a size for `rollout.cache_bytes=0`, and lines about it."""
    if settings.rollout.cache_bytes != 0 or not settings.explorers:
        return settings, []
    platform = where.chip.platform
    share = reserved_share({}, where.count) if platform == "gpu" else 1.0
    room = round(share * where.chip.memory)
    settings = with_cache(settings, task, platform, room, shared=settings.launch.share_devices)
    size = settings.rollout.cache_bytes or 0
    return settings, [f"  rollout.cache_bytes=0 becomes {size:,}: {format_bytes(size)} a device"]


def _shared(layouts: dict[str, Layout]) -> bool:
    """Says whether two roles have a device in common."""
    used = [device for layout in layouts.values() for device in layout.mesh.devices.flat]
    return len(set(used)) < len(used)


def _slow_dtypes(settings: RunSettings, where: Target) -> Iterator[str]:
    """Warns of 16-bit dtypes that the target's matrix units do not compute in."""
    half = where.chip.half
    if slow := slow_dtypes(settings, half):
        yield (
            f"  WARNING: {where.name} has no units for {slow}, which XLA computes in"
            f" float32, several times slower than the times below say: use model.dtype={half}."
        )


def _named(program: LowerableProgram) -> str:
    return f"{program.name} [{' × '.join(f'{size:,}' for size in program.sizes)}]"


def _compiled(program: LowerableProgram, progress: CompileProgress) -> _Compiled:
    """Compiles a program, which may take minutes."""
    started = time.monotonic()
    try:
        reading = progress.compiling(
            f"{program.role} {_named(program)}",
            lambda: CompiledProgramText.of(program.compile()),
        )
    except jax.errors.JaxRuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return _Compiled(program, None, time.monotonic() - started, " ".join(lines[:2])[:300])
    return _Compiled(program, reading, time.monotonic() - started)


def _describe(found: _Compiled, where: Target, planned: MemoryEstimate) -> list[str]:
    """Describes the memory, the collectives and the copies of a program.

    Args:
      planned: its memory estimate from shapes.
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
    """Describes collectives by kind and by their surrounding loops."""
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


def _timeline(
    settings: RunSettings, task: Task, where: Target, step: float, rate: float
) -> list[str]:
    """Forecasts the mode's pace, with completions of maximum length."""
    completions = settings.groups_generated * settings.trainer.group_size
    alone = settings.schedule.pull == "latest"
    share = 1 if alone else settings.explorers
    rollout = completions / share * task.max_drawn_tokens / rate
    version = parameters_of(settings, task, settings.explorer_layout).abstract_published()
    # A collective transfer stays inside a slice or a host; other transfers cross the network.
    joint = settings.transfer == "collective" or settings.hands_over
    devices = sum(settings.mesh_of(role).devices for role in (TRAINER, *settings.roles[:-1]))
    sync = model_memory.device_bytes(version) / (
        where.rates(devices).link if joint else where.chip.network
    )
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


def describe_programs(settings: RunSettings, task: Task) -> str:
    """Describes the maximum number of programs of each role, with one line for each."""
    roles = {"trainer": _trainer_counts} | (
        {"explorer": _explorer_counts} if settings.explorers else {}
    )
    lines = [
        f"  {role:<10} "
        + ", ".join(_counted_on(settings, task, count, platform) for platform in _PLATFORMS)
        for role, count in roles.items()
    ]
    return "\n".join(["Programs that compute with the model, at most:", *lines])


def _counted_on(
    settings: RunSettings,
    task: Task,
    count: Callable[[RunSettings, Task], _Counts],
    platform: Platform,
) -> str:
    with compiling_for(platform):
        found = count(settings, task)
    if not found:
        return f"none on {_PLATFORMS[platform]}"
    parts = ", ".join(f"{purpose} {number}" for purpose, number in found.items())
    return f"{sum(found.values())} on {_PLATFORMS[platform]} ({parts})"


def _trainer_counts(settings: RunSettings, task: Task) -> _Counts:
    trainer = trainer_of(settings, task, settings.trainer_layout)
    programs = trainer_programs(settings, task, trainer)
    found = collections.Counter(program.purpose for program in programs)
    # Steps on rows with shared prompts have too many shapes to list.
    return {**found, TRAINING: wiring.batching_of(settings, task).shape_count}


def _explorer_counts(settings: RunSettings, task: Task) -> _Counts:
    layout = settings.explorer_layout
    engine = None if settings.explorer.engines else rollout_engine(settings, task, layout)
    parameters = parameters_of(settings, task, layout)
    programs = explorer_programs(settings, task, layout, engine, parameters)
    return dict(collections.Counter(program.name for program in programs))
