"""Texts that the launcher prints before and after a run."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Sequence

import jax

from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.cluster import compilation_cache
from rl_sync.cluster.gpu_cards import GpuCard, cards_of
from rl_sync.launcher.command import program
from rl_sync.launcher.processes import run_directory as work
from rl_sync.messages.run_result import Balance, RunResult, Summary
from rl_sync.plan.schedule_text import describe
from rl_sync.plan.weights_text import describe_traffic
from rl_sync.records import accuracy, alarms
from rl_sync.records import summary as span_summary
from rl_sync.records.backends.backend_catalog import TENSORBOARD
from rl_sync.records.metric_catalog import RL, MetricValues
from rl_sync.records.run_records import RunRecords
from rl_sync.role_names import EXPLORER, TOGETHER, TRAINER, role_of, split
from rl_sync.roles.assembly import wiring
from rl_sync.roles.master import unsolved
from rl_sync.roles.trainer.skipped_updates import PHASES, UNJUDGED, why_unjudged
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.workdir import Workdir


def opening(settings: RunSettings, resumed: work.Resumption | None) -> str:
    """Returns the plan, the work directory, and the directory of compiled programs."""
    goes_on = f"{resumed}\n" if resumed is not None else ""
    cache = compilation_cache.directory(settings.launch.compilation_cache, os.environ)
    return (
        f"{describe(settings)}\n\n{goes_on}Work directory: {settings.workdir}\n"
        f"Compiled programs: {cache or 'are not kept'}\n"
    )


def memory_advice(settings: RunSettings, names: Sequence[str]) -> str:
    """Returns settings with which processes need less memory of the devices that were full."""
    from rl_sync.plan.memory.memory_advice import (
        describe_advice,  # Late: no other end of a run needs it.
    )

    jax.config.update("jax_platforms", "cpu")  # Shapes need no accelerator.
    roles = {split(role_of(name))[0] for name in names}
    roles = {TRAINER, EXPLORER} if TOGETHER in roles else roles
    # TPUs differ little from GPUs here, and processes on CPUs are killed before JAX fails.
    return describe_advice(settings, wiring.load_task(settings), sorted(roles), "gpu")


def cards_of_run(ids: Sequence[str]) -> list[GpuCard]:
    """Returns the GPUs with these ids, as far as the driver knows them."""
    return cards_of(ids, os.environ) if ids else []


def fill_gpus(settings: RunSettings, task: Task, cards: Sequence[GpuCard]) -> RunSettings:
    """Returns the settings with a size for `rollout.cache_bytes=0`, and says which it is.

    Args:
      settings: settings of the run.
      task: its task.
      cards: the GPUs that its processes here have.

    Raises:
      ConfigError: see `rl_sync.plan.memory.gpu_fit.fill_gpus`.
    """
    if settings.rollout.cache_bytes != 0 or not settings.explorers:
        return settings
    from rl_sync.plan.memory import gpu_fit  # Late, as below.

    jax.config.update("jax_platforms", "cpu")
    filled = gpu_fit.fill_gpus(settings, task, cards, os.environ)
    size = filled.rollout.cache_bytes
    print(f"rollout.cache_bytes=0 becomes {size:,}, by estimates from shapes.", file=sys.stderr)
    return filled


def print_gpu_warnings(settings: RunSettings, task: Task, cards: Sequence[GpuCard]) -> None:
    """Says on standard error which of this machine's GPUs a run does not fit, by estimates.

    Args:
      settings: settings of the run.
      task: its task.
      cards: the GPUs that its processes here have.
    """
    if not cards:
        return
    # Late: estimates import what a CPU's launcher does not need.
    from rl_sync.plan.memory import gpu_fit

    jax.config.update("jax_platforms", "cpu")  # Shapes need no accelerator, so leave it free.
    for warning in (
        gpu_fit.dtype_warning(settings, cards),
        gpu_fit.experts_warning(settings, task, cards),
    ):
        if warning:
            print(warning, file=sys.stderr)
    if settings.launch.elsewhere:
        return  # Other machines have GPUs of their own.
    for line in gpu_fit.memory_warnings(settings, task, cards, os.environ):
        print(line, file=sys.stderr)


def final_report(settings: RunSettings, summary: Summary) -> str:
    """Returns the results of a run, its speed, and where to find more."""
    result, balance = summary
    lines = ["", *_accuracy(result, settings.algorithm)]
    if warning := unsolved.alarm(settings, result.evaluations):
        lines.append(warning)
    run = RunRecords(settings.workdir, whole_spans=False)
    run.read(rollouts=False)
    lines += _alarms(run, settings, result)
    lines += _throughput(run)
    lines += describe_traffic(settings, run.metrics.of_phase(RL))
    if settings.explorers:
        lines.append(_account(balance))
        tokens = run.tokens
        prompts = f"{tokens.prompt_computed:,} computed, {tokens.prompt_reused:,} reused"
        lines.append(f"Tokens: {tokens.describe()}. Tokens of prompts: {prompts}")
        lines.append(run.device_time.describe(tokens.trained))
        lines += _failures(balance)
    workdir = Workdir(settings.workdir)
    quoted = shlex.quote(settings.workdir)  # The user can copy the commands.
    sft_step, step = work.saved(workdir)
    none = "none was saved" if sft_step is None else "of SFT alone"
    entries: dict[str, object] = {"snapshots": none if step is None else str(workdir.snapshots)}
    if step is not None:
        entries["export"] = f"{program()} export --workdir={quoted} --to=DIRECTORY"
    if workdir.rollouts.is_dir():
        entries["rollouts"] = f"{program()} rollouts --workdir={quoted}"
    entries |= {
        "metrics": _metrics(settings),
        "timeline": f"{program()} timeline --workdir={quoted}",
        "page": f"{program()} page --workdir={quoted}",
        "report": f"{program()} report --workdir={quoted}",
        "digest": result.digest or "none",
        "spans": workdir.spans,
        "logs": workdir.logs,
    }
    lines += [f"{name + ':':<12} {entry}" for name, entry in entries.items()]
    return "\n".join(lines)


def _metrics(settings: RunSettings) -> str:
    """Names the places of the metrics."""
    workdir, others = Workdir(settings.workdir), settings.observe.chosen_backends
    places = [str(workdir.metrics)]
    if TENSORBOARD in others:
        places.append(f"TensorBoard: {workdir.tensorboard}")
    places += [f"also in {name}" for name in others if name != TENSORBOARD]
    return ", ".join(places)


def _accuracy(result: RunResult, algorithm: Algorithm) -> list[str]:
    lines, pairs = [], algorithm.scores
    if result.resumed is not None:
        lines.append(f"Went on from the snapshot of trainer step {result.resumed}.")
    if (values := result.sft) is not None:
        lines.append(f"SFT: {values['step']} steps, loss {values['loss']:.3f}")
    for moment, values in result.evaluations.items():
        if not values["problems"]:
            lines.append(f"Held-out accuracy {moment}: unknown, as no completion could be judged")
            continue
        lines.append(
            f"Held-out accuracy {moment}: {accuracy.describe_share(values['accuracy'])} of"
            f" {values['problems']}"
            f" {'pairs' if pairs else 'problems'}"
            f"{accuracy.describe_interval(values)}{accuracy.describe_parts(values)}"
        )
    lines += [f"No evaluation {moment}: {why}." for moment, why in result.left_out.items()]
    if (best := result.best) is not None:
        lines.append(f"Best snapshot: of step {best.step}, {best.metric} {best.value:.1%}")
    if (values := result.rl) is not None:
        lines.append(_last_step(values, algorithm))
    for phase, what in PHASES.items():
        if found := result.skipped.get(phase):
            lines.append(
                f"ALARM: {found.updates} updates, from {what} {found.first_step} to"
                f" {found.last_step}, were skipped, as they were NaN or infinite."
            )
    if found := result.skipped.get(UNJUDGED):
        why = why_unjudged(has_pipeline="pipeline/left_out" in (result.rl or {}))
        lines.append(
            f"ALARM: {found.updates} updates, from {PHASES['rl']} {found.first_step} to"
            f" {found.last_step}, were not taken, as {why}."
        )
    if result.transfer is not None:
        lines.append(result.transfer)
    if (gap := result.logprob_gap) is not None:
        lines.append(
            f"ALARM: in {gap.steps} steps, the first of them {gap.first_step}, the"
            f" logprobs of trainer and explorers were over {gap.limit:g} nats apart, at most"
            f" {gap.greatest:.3f}: data too stale, or two engines that compute differently."
        )
    return lines


def _alarms(run: RunRecords, settings: RunSettings, result: RunResult) -> list[str]:
    """Returns the alarms of the run's metrics; the logprob gap has a line already."""
    told = (alarms.LOGPROB_GAP,) if result.logprob_gap is not None else ()
    periods = alarms.history(run.metrics.lines, settings.alarm_limits)
    periods = [one for one in periods if one.alarm.name not in told]
    lines = alarms.describe(periods, run.last_step)
    restarts = alarms.Evidence(alarms.AlarmLimits(), restarts=run.restart_lines.counts)
    return lines + [f"ALARM: {alarm.text}" for alarm in alarms.raised(restarts)]


def _last_step(values: MetricValues, algorithm: Algorithm) -> str:
    """Describes the last trainer step."""
    steps, loss = f"{values['step']} steps; in the last one", f"loss {values['loss']:.3f}"
    if algorithm.scores:
        return (
            f"Reward model: {steps} {loss}, pair accuracy {values['pair_accuracy']:.3f}, score"
            f" {values['reward_mean']:.3f} ± {values['reward_std']:.3f}"
        )
    if algorithm.demonstrations_only:
        return f"SFT: {steps} {loss}, entropy {values['entropy']:.3f}"
    if values["reward_mean"] is None or math.isnan(values["reward_mean"]):
        return f"RL: {steps} no completion could be judged"
    reward, selected = f"{values['reward_mean']:.3f}", ""
    if "selected_reward_mean" in values:
        selected = f" ({values['selected_reward_mean']:.3f} in the groups that were trained on)"
    return (
        f"RL: {steps} reward {reward}{selected}, entropy"
        f" {values['entropy']:.3f}, clip fraction {values['clip_fraction']:.3f}"
    )


def _throughput(run: RunRecords) -> list[str]:
    summary = run.summary  # None if the run ended before the first rollout.
    return [] if summary is None else span_summary.describe(summary)


def _account(balance: Balance) -> str:
    dropped = "".join(f", {n} dropped ({why})" for why, n in balance.dropped.items())
    kept = balance.out_of_attempts
    return (
        f"Groups: {balance.leased} leased = {balance.trained} trained,"
        f" {balance.buffered} still buffered{dropped}"
        + (
            f"; {kept} admitted that teach nothing, after algorithm.max_attempts prompts"
            * bool(kept)
        )
    )


def _failures(balance: Balance) -> list[str]:
    """Says how many episodes failed, if any did."""
    if not balance.failed:
        return []
    reasons = ", ".join(f"{n} ({why})" for why, n in balance.failed.items())
    return [f"Failed attempts at episodes: {reasons}; ledger.jsonl says why"]
