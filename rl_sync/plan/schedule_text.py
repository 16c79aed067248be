"""Writes the plan of a run: its schedule in words, and a drawing of the first steps."""

from __future__ import annotations

from collections.abc import Sequence

from rl_sync.learning.learning_settings import RL_RATES
from rl_sync.plan.forecast import Durations, ForecastSpan, forecast
from rl_sync.plan.weights_text import describe_travel
from rl_sync.schedule import MODES, SyncSchedule
from rl_sync.settings.run_settings import RunSettings

_BLOCK = 9  # Width in characters of a rollout and of a train step in the drawing.
_SYNC = 4
_DRAWN_STEPS = 6
_COLUMNS = 220
_HIGH_RATE = 1e-4  # Above it, SFT steps on all weights of a checkpoint get a warning.
_HIGH_ADAPTER_RATE = 1e-3
_LOW_SHARE = 0.02  # Of the usual rate of adapters; below it, they get a warning.


def describe(settings: RunSettings) -> str:
    """Describes the resolved schedule in words and as a drawing, as the launcher prints it."""
    if not settings.explorers:
        return _supervised(settings)
    schedule = settings.schedule
    updates = settings.optimizer.updates_per_batch
    bound = schedule.staleness_bound
    lines = [
        f"Mode {settings.sync.mode}: {MODES[settings.sync.mode].summary}",
        _headline(settings),
        _algorithm(settings),
        *_shaping(settings),
        *_demonstrated(settings),
        "",
        *_who_waits(settings),
        *describe_travel(settings),
        "",
        f"Staleness is at most {_count(bound, 'trainer step')}, which is"
        f" {_count(bound * updates, 'optimizer update')} ({updates} a step)."
        + (
            " Groups that are staler are dropped, and their prompts generated again."
            * (settings.schedule.pull == "latest")
        ),
        f"A run of {settings.trainer.steps} trainer steps consumes"
        f" {settings.trainer.steps * settings.trainer.groups_per_step} groups of"
        f" {settings.trainer.group_size} completions, at a learning rate of"
        f" {_rate(settings.optimizer.learning_rate, settings.optimizer.schedule)}.",
        *_warnings(settings),
        "",
        "The first steps, as if rollouts and train steps took equally long:",
        draw(schedule, settings.explorers, settings.meets),
    ]
    return "\n".join(lines)


def _supervised(settings: RunSettings) -> str:
    """Describes a run without generation."""
    trainer, updates = settings.trainer, settings.optimizer.updates_per_batch
    rows = trainer.groups_per_step * trainer.group_size
    data = rows_are = "demonstrations"
    if settings.algorithm.scores:
        data, rows_are = "pairs of completions", "completions"
    return "\n".join(
        [
            f"Algorithm {settings.algorithm.name}: the trainer learns from the task's {data};"
            " nothing is generated, so there are neither explorers nor a replay server.",
            f"  {trainer.steps} trainer steps of {rows} {rows_are}"
            f" (trainer.groups_per_step · trainer.group_size) in {_count(updates, 'update')}",
            *_demonstrated(settings),
            *_high_rate(settings),
        ]
    )


def _demonstrated(settings: RunSettings) -> list[str]:
    """Describes the SFT steps before RL, if there are any."""
    sft = settings.sft
    rate = _rate(sft.learning_rate, sft.schedule)
    rows = _count(sft.batch_size, "demonstration")
    steps = _count(sft.steps, "SFT step")
    return [f"  {steps} before it, each on {rows}, at a learning rate of {rate}"] * (sft.steps > 0)


def _rate(rate: float, schedule: str) -> str:
    return f"{rate:g}" if schedule == "constant" else f"{rate:g} ({schedule})"


def _warnings(settings: RunSettings) -> list[str]:
    if settings.model.path is None and not settings.sft.steps:
        return [
            "The policy starts at random, without demonstrations (model.path is not set,"
            " sft.steps=0): hardly any completion will earn a reward. Give a checkpoint, or"
            " SFT steps on the task's demonstrations, such as --config.sft.steps=400."
        ]
    return [*_high_rate(settings), *_low_rate(settings)]


def _high_rate(settings: RunSettings) -> list[str]:
    """Warns of SFT steps that overwrite a checkpoint's knowledge."""
    steps, rate = settings.sft.steps, settings.sft.learning_rate
    limit = _HIGH_ADAPTER_RATE if settings.model.lora.rank else _HIGH_RATE
    if settings.model.path is None or not steps or rate <= limit:
        return []
    return [
        f"WARNING: the checkpoint of model.path is trained on the task's demonstrations for"
        f" {_count(steps, 'step')} at sft.learning_rate={rate:g}, which overwrites"
        f" what it has learned: a rate of at most {limit:g} is usual, or sft.steps=0."
    ]


def _low_rate(settings: RunSettings) -> list[str]:
    """Warns of adapters that are trained at the rate of a whole model."""
    rate, usual = settings.optimizer.learning_rate, RL_RATES.adapters
    if not settings.model.lora.rank or not 0 < rate < _LOW_SHARE * usual:
        return []
    return [
        f"WARNING: adapters are trained at optimizer.learning_rate={rate:g}, at which they learn"
        f" next to nothing: {usual:g} is usual."
    ]


def _headline(settings: RunSettings) -> str:
    schedule = settings.schedule
    offset = f" offset {schedule.offset}," if schedule.pull == "exact" else ""
    transfer = f"{settings.transfer} transfer"
    if settings.launch.colocate:
        transfer = f"one process, {'weights handed over' if settings.hands_over else transfer}"
    return (
        f"  interval {schedule.interval},{offset} {schedule.pull} pulls, {transfer},"
        f" {_count(settings.explorers, 'explorer')},"
        f" {settings.trainer.groups_per_step} groups a step, {_buffer(settings)} buffer"
    )


def _buffer(settings: RunSettings) -> str:
    backend = settings.replay.backend
    return "reverb (or embedded)" if backend == "auto" else backend


def _algorithm(settings: RunSettings) -> str:
    one = settings.algorithm
    correction = f" weighted by {' and '.join(one.corrections)}," if one.corrections else ""
    kl = f", KL {one.kl_coefficient:g} in the {one.kl_place}" if one.kl_coefficient else ""
    critic = ""
    if one.needs_values:
        own = settings.critic.model == "own"
        critic = f", critic {'with a model of its own' if own else 'on the policy'}"
    teacher = ""
    if one.has_teacher:
        of = [*settings.teacher.paths.values()] or [f"the teacher at {settings.teacher.address}"]
        teacher = f", {one.distillation} distillation of {' and '.join(of)}"
    return (
        f"  algorithm {one.name}: {one.advantage} advantages, {one.loss} to the {one.proximal}"
        f" policy,{correction} {one.aggregation}{kl}{critic}{teacher}"
    )


def _shaping(settings: RunSettings) -> list[str]:
    """Describes the rules that choose the groups of a batch, if there are any."""
    one, lines = settings.algorithm, []
    if one.filtered_parts:
        lines.append(f"  a group must differ in {', '.join(one.filtered_parts)} to be trained on")
    if one.screening.replaces:
        lines.append(
            "  a group without a gradient is replaced by one of another prompt, until"
            f" {one.max_attempts} were tried"
        )
    if settings.groups_generated > settings.trainer.groups_per_step:
        lines.append(
            f"  {settings.groups_generated} groups are generated for each step, which trains on"
            f" the {one.keep} {settings.trainer.groups_per_step}"
        )
    return lines


def _who_waits(settings: RunSettings) -> list[str]:
    schedule = settings.schedule
    every = "every trainer step" if schedule.interval == 1 else (
        f"every {schedule.interval} trainer steps"
    )  # fmt: skip
    lines = [f"- The trainer publishes its weights after {every}."]
    if schedule.pull == "exact":
        versions = ", ".join(f"e{e}: v{schedule.exact_version(e)}" for e in range(1, 9))
        lines += [
            f"- Explorer step e waits for exactly one version: {versions}, …",
            "- Trainer step t waits for the whole batch of explorer step t.",
        ]
        if settings.meets:
            lines.append("- At each sync trainer and explorers meet: whoever is first waits.")
    else:
        lines += [
            "- An explorer takes the newest version before each lease of prompts, and waits only if"
            f" that is more than {_count(schedule.max_staleness, 'step')} behind the step that will"
            " train on its groups.",
            f"- Trainer step t waits for any {settings.groups_generated} groups that are"
            " fresh enough; it never waits until explorers have fetched its weights.",
        ]
    if settings.rollout.budget_tokens:
        lines.append(
            f"- A rollout ends when {settings.rollout.budget_tokens} tokens were sampled."
            " Unfinished groups continue in the next rollout, with its weights."
        )
    if settings.rollout.streaming:
        lines.append(
            f"- Explorers stream: each keeps its {_count(settings.slots, 'slot')} full, takes"
            " prompts and newer weights between two chunks of tokens, and has each group scored"
            " when it is complete."
        )
    if settings.carries_over:
        lines.append(
            "- Each group has a deadline: the last step that may train on its version. Groups begin"
            " only if all can meet theirs, and a step waits for groups that are due."
        )
    ahead = schedule.batches_ahead
    lines.append(
        f"- At most {_count(ahead, 'batch', 'batches')} are generated and not yet trained."
    )
    return lines


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def draw(schedule: SyncSchedule, explorers: int, meets: bool) -> str:
    """Draws the first steps, with a legend, as if rollouts and train steps took equally long.

    Explorers at their own pace are drawn with different paces.
    """
    alone = schedule.pull == "latest"
    paces = Durations(
        rollout=lambda e, explorer: _BLOCK + 2 * (explorer - 1) * alone,
        train=lambda t: _BLOCK,
        sync=_SYNC,
    )
    spans = forecast(schedule, explorers, meets, paces, steps=_DRAWN_STEPS).spans
    names = [f"explorer{i + 1}" if explorers > 1 else "explorer" for i in range(explorers)]
    width = max(map(len, [*names, "trainer"]))
    rows = [
        f"  {name:<{width}} {_lane([span for span in spans if span.role == role])}"
        for role, name in [*enumerate(names, start=1), (0, "trainer")]
    ]
    legend = "  [e3 v1] rollout of step 3 with version 1   [t2] train step 2   <v1> sync   · wait"
    return "\n".join([*rows, legend])


def _lane(spans: Sequence[ForecastSpan]) -> str:
    """Draws a role's row; columns are times."""
    text = ""
    for span in spans:
        text += "·" * (round(span.begin) - len(text))
        label = {
            "rollout": f"e{span.step} v{span.version}",
            "train": f"t{span.step}",
            "sync": f"v{span.version}",
        }[span.kind]
        first, last = "<>" if span.kind == "sync" else "[]"
        room = round(span.end) - round(span.begin) - 2
        text += first + label.center(room)[:room] + last
    return text if len(text) <= _COLUMNS else f"{text[:_COLUMNS]} …"
