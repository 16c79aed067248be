"""Reads the work of a run from the records in its work directory."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.algorithms.screening import FAULTS
from rl_sync.records.flow import Flow
from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import SYNC_KINDS, Span, SpanKind
from rl_sync.records.summary import WORK_KINDS, clipped, of_kind, rl_phase, union, union_secs
from rl_sync.role_names import MASTER, TRAINER, explorer_name, is_explorer
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings
from rl_sync.simulation.speed.work_fits import (
    CoresUsed,
    DoneWork,
    MeasuredRollout,
    Occupation,
    fit_decoding,
    fit_shared_cores,
)
from rl_sync.simulation.speed.workload import (
    NOTHING,
    Samples,
    SharedCores,
    TransferTimes,
    Workload,
)
from rl_sync.transfer import TRANSFERS
from rl_sync.workdir import Workdir

_LEAST_STEPS, _LEAST_ROLLOUTS = 4, 3
_MOST_GROUPS, _MOST_FITTED = 4096, 500
_BUSY_SHARE, _BUSY_CORES = 0.2, 0.85
_LEAST_BUSY = 0.05


class MeasuredWork(NamedTuple):
    """The work of a run.

    Attributes:
      work: its distributions.
      in_parts: whether its explorers delivered groups one by one.
      steps: number of trainer steps whose times count.
      assumed: transfers that the run did not use; their times are those of its own.
      overlapped: share of the trainer's time beside which explorers worked on the same cores; 0 if
        roles had cores of their own. What a role takes alone is a guess if it is large.
    """

    work: Workload
    in_parts: bool
    steps: int
    assumed: tuple[str, ...]
    overlapped: float = 0.0


def read_work(workdir: str, settings: RunSettings, cores: float | None) -> MeasuredWork:
    """Reads the work of a run.

    Left out is what overlaps with compilation, and the first work of each role.

    Args:
      settings: the run's settings.
      cores: processor cores that all roles shared; None if each had devices of its own.

    Raises:
      ConfigError: the run has too few steps.
    """
    try:
        spans = read_spans(workdir)
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from error
    found = _Phase.of(workdir, spans)
    shared = None
    if cores is not None:
        least = None if settings.launch.colocate else _demands(found, cores)
        least = least or _used_cores(workdir, found, cores, settings.explorers)
        shared = fit_shared_cores(least, _done(found, settings.slots), found.spans)
    occupation = Occupation(found.spans)

    def alone(some: Iterable[Span]) -> list[float]:
        return [occupation.alone_secs(span, shared) for span in some]

    groups = sum(len(span.leases) for span in found.rollouts) or 1
    engine = [span.attributes.get("engine", {}) for span in found.rollouts]
    prefills = [float(one.get("prefill_secs", 0.0)) for one in engine]
    waits = [float(one.get("waiting_secs", 0.0)) for one in engine]
    rollout_secs = [occupation.alone_secs(span, None) for span in found.rollouts]
    work_of_rollouts = [
        MeasuredRollout(
            # Prefills are slowed down as the rest of the rollout.
            secs=secs * max(0.0, 1 - (prefill + waiting) / own_secs),
            steps=_steps(span, settings.slots),
            tokens=span.attributes.get("tokens", 0),
        )
        for span, secs, own_secs, prefill, waiting in zip(
            found.rollouts,
            alone(found.rollouts),
            rollout_secs,
            prefills,
            waits,
            strict=True,
        )
    ]
    prefill = sum(prefills) * sum(alone(found.rollouts)) / sum(rollout_secs) / groups
    busy_share = max(_LEAST_BUSY, 1 - sum(waits) / sum(rollout_secs))
    evaluations = found.of_kinds(SpanKind.EVALUATION)
    snapshots = [span.duration_secs for span in found.of_kinds(SpanKind.SNAPSHOT)]
    inserts = found.of_kinds(SpanKind.INSERT)
    in_parts = _is_in_parts(found.rollouts, inserts)
    judge_completion = [
        secs
        for span in of_kind(found.clean, SpanKind.SCORE, role=MASTER)
        if (secs := span.attributes.get("worker_secs"))
    ]
    times = _transfer_times(found, settings.transfer)
    work = Workload(
        lengths=_lengths(workdir, found.rollouts, settings),
        decoding=fit_decoding(work_of_rollouts, prefill),
        waiting=_samples(waits),
        train=Samples(tuple(alone(found.trained))),
        groups_per_step=settings.groups_generated,
        layout=_samples(_layouts(found)),
        judge=_samples(
            span.duration_secs for span in found.of_kinds(SpanKind.SCORE) if is_explorer(span.role)
        ),
        judges=settings.reward.workers if judge_completion else 0,
        judge_completion=_samples(judge_completion),
        insert=_samples(span.duration_secs / max(1, len(span.leases)) for span in inserts),
        transfers=dict.fromkeys(TRANSFERS, times),
        evaluate=_samples(
            secs * span.attributes.get("busy_secs", span.duration_secs) / span.duration_secs
            for span, secs in zip(evaluations, alone(evaluations), strict=True)
        ),
        snapshot=_samples(snapshots),
        replaced=_replaced(workdir),
        shared=None if shared is None else _while_busy(shared, busy_share),
    )
    assumed = tuple(name for name in TRANSFERS if name != settings.transfer)
    overlapped = 0.0 if shared is None else _overlapped(found)
    return MeasuredWork(work, in_parts, len(found.trained), assumed, overlapped)


@dataclasses.dataclass(frozen=True)
class _Phase:
    """The part of a run's records that counts.

    Attributes:
      spans: all spans of the RL phase.
      clean: those of them that no compilation overlaps.
      trained, rollouts: clean steps and rollouts, without the first of each role.
    """

    spans: list[Span]
    clean: list[Span]
    trained: list[Span]
    rollouts: list[Span]

    @classmethod
    def of(cls, workdir: str, spans: list[Span]) -> _Phase:
        try:
            begin, end = rl_phase(spans)
        except ValueError as error:
            raise ConfigError(f"{workdir}: {error}") from error
        compiled = union(of_kind(spans, SpanKind.COMPILE))
        phase = [span for span in spans if begin <= span.start_secs and span.end_secs <= end]
        clean = [
            span
            for span in phase
            if not any(start < span.end_secs and at > span.start_secs for start, at in compiled)
            and not span.attributes.get("engine", {}).get("compile_secs")
        ]
        roles = {span.role for span in phase}
        first = {
            id(min(own, key=lambda span: span.start_secs))
            for role in roles
            for kind in (SpanKind.TRAIN, SpanKind.ROLLOUT, *SYNC_KINDS)
            if (own := of_kind(phase, kind, role=role))
        }
        clean = [span for span in clean if id(span) not in first]
        trained = of_kind(clean, SpanKind.TRAIN, role=TRAINER)
        rollouts = [
            span for span in of_kind(clean, SpanKind.ROLLOUT) if span.attributes.get("tokens")
        ]
        if len(trained) < _LEAST_STEPS or len(rollouts) < _LEAST_ROLLOUTS:
            raise ConfigError(
                f"{workdir} has {len(trained)} trainer steps and {len(rollouts)} rollouts on record"
                f" that no compilation disturbed; at least {_LEAST_STEPS} and {_LEAST_ROLLOUTS} are"
                " needed. Let the run go on, or use one with more trainer.steps."
            )
        return cls(phase, clean, trained, rollouts)

    def of_kinds(self, *kinds: SpanKind) -> list[Span]:
        """Returns the clean spans of some kinds."""
        return of_kind(self.clean, *kinds)


def _while_busy(shared: SharedCores, share: float) -> SharedCores:
    """Returns what explorers use while they do not wait for environments.

    Args:
      shared: what they use on average, waits included.
      share: share of the rollouts' time without waits.
    """
    return dataclasses.replace(shared, explorer=min(shared.cores, shared.explorer / share))


def _overlapped(found: _Phase) -> float:
    """Returns the share of the trainer's time beside which explorers worked."""
    rollouts = of_kind(found.spans, SpanKind.ROLLOUT)
    beside = sum(
        union_secs(clipped(rollouts, span.start_secs, span.end_secs)) for span in found.trained
    )
    return beside / sum(span.duration_secs for span in found.trained)


def _done(found: _Phase, slots: int) -> list[list[DoneWork]]:
    """Returns the work of the trainer's steps, and of rollouts."""
    trained = [
        DoneWork(span, (1.0, float(span.attributes.get("tokens", 0))))
        for span in found.trained[-_MOST_FITTED:]
    ]
    rollouts = [
        DoneWork(span, (_steps(span, slots), float(span.attributes.get("tokens", 0))))
        for span in found.rollouts[-_MOST_FITTED:]
    ]
    return [trained, rollouts]


def _samples(values: Iterable[float]) -> Samples:
    found = tuple(values)
    return Samples(found) if found else NOTHING


def _lines(path: Path) -> list[dict[str, Any]]:
    return read_json_lines(path, strict=False) if path.exists() else []


def _steps(span: Span, slots: int) -> float:
    """Returns the decode steps of a rollout; older records have only the use of the slots."""
    engine, tokens = span.attributes.get("engine", {}), span.attributes.get("tokens", 0)
    if "steps" in engine:
        return float(engine["steps"])
    return tokens / (engine.get("occupancy") or 1.0) / slots


def _is_in_parts(rollouts: Sequence[Span], inserts: Sequence[Span]) -> bool:
    """Says whether each group was inserted alone, though rollouts have several."""
    of_rollouts = [len(span.leases) for span in rollouts if span.leases]
    of_inserts = [len(span.leases) for span in inserts if span.leases]
    if not of_rollouts or not of_inserts:
        return False
    return statistics.median(of_inserts) == 1 and statistics.median(of_rollouts) > 1


def _lengths(
    workdir: str, rollouts: Sequence[Span], settings: RunSettings
) -> tuple[tuple[int, ...], ...]:
    """Returns the tokens of completions by group, with the mean of all that were generated.

    The records have the groups that were trained on, which may be longer or shorter than others.
    """
    groups = [
        [sum(tokens for version, tokens in row if version >= 0) for row in group["versions"]]
        for line in _lines(Workdir(workdir).consumed)
        for group in line.get("groups", ())
    ]
    groups = [[max(1, tokens) for tokens in group] for group in groups if group]
    groups = groups[:: -(-len(groups) // _MOST_GROUPS)] if groups else []
    if settings.algorithm.needs_baselines:
        groups = [[*group, group[0]] for group in groups]
    count = sum(len(span.leases) for span in rollouts) or len(rollouts)
    size = settings.trainer.group_size + settings.algorithm.needs_baselines
    mean = sum(span.attributes["tokens"] for span in rollouts) / count / size
    if not groups:
        return ((max(1, round(mean)),) * size,)
    factor = mean / statistics.fmean(tokens for group in groups for tokens in group)
    longest = max(max(group) for group in groups)
    return tuple(
        tuple(min(longest, max(1, round(factor * tokens))) for tokens in group) for group in groups
    )


def _layouts(found: _Phase) -> list[float]:
    """Returns the times from a whole batch to its step, of steps that waited for their batch."""
    waits = {
        span.step: span.end_secs
        for span in of_kind(found.clean, SpanKind.WAIT, role=TRAINER)
        if span.attributes.get("reason") == "experiences"
    }
    ends = {span.step: span.end_secs for span in of_kind(found.spans, SpanKind.TRAIN)}
    compiled = of_kind(found.spans, SpanKind.COMPILE)
    times = []
    for span in found.trained:
        whole, before = waits.get(span.step), ends.get((span.step or 0) - 1)
        if whole is None or before is None or before > whole:
            continue
        if not clipped(compiled, whole, span.start_secs):
            times.append(max(0.0, span.start_secs - whole))
    return times


def _transfer_times(found: _Phase, transfer: str) -> TransferTimes:
    syncs = found.of_kinds(*SYNC_KINDS)
    pulls = _travels([span for span in syncs if is_explorer(span.role)])
    published = _travels([span for span in syncs if span.role == TRAINER])
    return TransferTimes(pulls if TRANSFERS[transfer].is_joint else published, pulls)


def _travels(syncs: Sequence[Span]) -> Samples:
    """Returns the times of transfers, only of those in the background if there are any.

    The others then hand over what is there already.
    """
    background = [span for span in syncs if span.attributes.get("background")]
    return _samples(span.duration_secs for span in background or syncs)


def _replaced(workdir: str) -> float:
    """Returns the share of groups that were dropped because they teach nothing."""
    flow = Flow(workdir)
    while flow.refresh():
        pass
    useless = sum(count for reason, count in flow.dropped.items() if reason in FAULTS)
    return useless / flow.leased if flow.leased else 0.0


def _demands(found: _Phase, cores: float) -> SharedCores | None:
    """Returns the cores that roles use while they are alone, by the CPU time of their spans.

    A role that is hardly ever alone is taken to lose as much beside others as they lose beside it.
    If none is ever alone and no core is free, the one that uses most would use all.

    Returns:
      None for records without CPU times.
    """
    trainer, explorer = (
        CoresUsed.by(
            [span for span in spans if "cpu_secs" in span.attributes],
            [span for span in found.spans if span.kind in WORK_KINDS],
        )
        for spans in (found.trained, found.rollouts)
    )
    if trainer is None or explorer is None:
        return None
    alone = [trainer.alone, explorer.alone]
    beside = [trainer.beside, explorer.beside]
    factors = [one / other for one, other in zip(alone, beside, strict=True) if one and other]
    if factors:
        factor = max(1.0, *factors)
    elif None in alone and sum(one or 0.0 for one in beside) > _BUSY_CORES * cores:
        factor = cores / max(one or 0.0 for one in beside)
    else:
        factor = 1.0
    wanted = [
        max(0.1, other or 0.0, min(cores, factor * (other or 1.0)) if one is None else one)
        for one, other in zip(alone, beside, strict=True)
    ]
    return SharedCores(cores, *wanted)


def _used_cores(workdir: str, found: _Phase, cores: float, explorers: int) -> SharedCores:
    """Returns the CPU seconds a second that roles used while they worked.

    If it is unknown, a trainer uses all cores, and an explorer one.
    """
    names = [explorer_name(number) for number in range(1, explorers + 1)]
    of_explorers = [used for name in names if (used := _used(workdir, found, name)) is not None]
    trainer = _used(workdir, found, TRAINER)
    return SharedCores(
        cores=cores,
        trainer=cores if trainer is None else trainer,  # A step uses all that are free.
        explorer=statistics.fmean(of_explorers) if of_explorers else 1.0,
    )


def _used(workdir: str, found: _Phase, role: str) -> float | None:
    """Returns the CPU seconds of a role for each second of its work; None if unknown."""
    lines = _lines(Workdir(workdir).usage / f"{role}.jsonl")
    own = [span for span in found.spans if span.role == role and span.kind in WORK_KINDS]
    compiled = of_kind(found.spans, SpanKind.COMPILE, role=role)
    begin, end = rl_phase(found.spans)
    cpu_secs = busy_secs = 0.0
    for before, after in itertools.pairwise(lines):
        start, stop = float(before["time"]), float(after["time"])
        if start < begin or stop > end or clipped(compiled, start, stop):
            continue
        busy = union_secs(clipped(own, start, stop))
        if busy >= _BUSY_SHARE * (stop - start):
            cpu_secs += max(0.0, float(after["cpu_secs"]) - float(before["cpu_secs"]))
            busy_secs += busy
    return max(0.1, cpu_secs / busy_secs) if busy_secs else None
