"""Rules between settings: each with the values that break it, and the way out."""

from __future__ import annotations

import re

from rl_sync.environments.environment_catalog import environments_of_sets, gives_rewards
from rl_sync.expression import parse_sum
from rl_sync.learning.batching import MIXED
from rl_sync.learning.pairs import PAIR
from rl_sync.records.accuracy import MAJORITY, metric_names
from rl_sync.rewards.reward_catalog import may_vote
from rl_sync.role_names import process_name
from rl_sync.schedule import MODES
from rl_sync.settings.algorithm_settings import (
    require_bearing,
    require_no_explorers,
    require_shares,
)
from rl_sync.settings.evaluation_settings import EXPLORERS
from rl_sync.settings.records import require
from rl_sync.settings.run_settings import RunSettings
from rl_sync.settings.value_limits import require_address
from rl_sync.spelling import require_one_of
from rl_sync.tasks.mixture import sets_of
from rl_sync.transfer import TRANSFERS


def check(settings: RunSettings) -> None:
    """Checks a run's settings against each other.

    Raises:
      ValueError: names the rule, the value, and the way out.
    """
    _check_synchronization(settings)  # First: the rest relies on a mode that there is.
    _check_run(settings)
    _check_shots(settings)
    _check_environment(settings)
    _check_curriculum(settings)
    _check_mixture(settings)
    _check_explorers(settings)
    _check_algorithm(settings)
    _check_microbatches(settings)
    _check_processes(settings)
    _check_hosts(settings)
    _check_reward_servers(settings)
    _check_evaluation(settings)
    _check_meshes(settings)
    settings.model.config(vocab_size=1, max_length=1)  # Refuses what makes no model.


def _check_run(settings: RunSettings) -> None:
    require(
        re.fullmatch(r"[^/\0]*[^/\0.][^/\0]*", settings.name) is not None,
        f"name={settings.name!r} is part of a directory's name: give letters and digits, and no"
        " slash (where the directory lies is said by workdir).",
    )
    require("\0" not in settings.workdir, f"workdir={settings.workdir!r} must not hold a null.")
    updates = settings.optimizer.updates_per_batch
    require(
        settings.trainer.steps * updates < 2**31,
        f"trainer.steps={settings.trainer.steps} steps of optimizer.updates_per_batch={updates}"
        " updates are more than the 2,147,483,647 that an optimizer counts: use fewer.",
    )
    completions = settings.groups_generated * settings.trainer.group_size
    require(
        completions < 2**31,
        "trainer.groups_per_step · algorithm.over_sampling · trainer.group_size ="
        f" {completions:.3g} completions a step are more than arrays can hold (2,147,483,647): use"
        " fewer.",
    )
    port = settings.master.port
    require(
        not port or port != settings.replay.port or settings.replay.address is not None,
        f"master.port and replay.port are both {port}: each server needs one of its own. Change"
        " one, or set it to 0 for any free one.",
    )


def _check_shots(settings: RunSettings) -> None:
    shots, tokenizer = settings.task.shots, settings.tokenizer
    asked = "system" if tokenizer.system is not None else "chat=yes" * (tokenizer.chat == "yes")
    require(
        not (shots and asked),
        f"task.shots={shots} makes prompts that a completion continues, and tokenizer.{asked}"
        " makes them a user's message: use one of the two.",
    )


def _check_curriculum(settings: RunSettings) -> None:
    curriculum, algorithm = settings.curriculum, settings.algorithm
    require(
        algorithm.generates or not curriculum.follows_history,
        f"curriculum.selection={curriculum.selection} goes by what became of prompts before, and"
        f" algorithm.name={algorithm.name} generates nothing: leave it out.",
    )
    require(
        algorithm.generates or settings.experience.pipeline is None,
        f"experience.pipeline={settings.experience.pipeline} gets what was generated, and"
        f" algorithm.name={algorithm.name} generates nothing: leave it out.",
    )


def _check_mixture(settings: RunSettings) -> None:
    played = environments_of_sets(settings.environment.name)
    mixture = settings.mixture
    require(
        mixture is not None or not played,
        f"environment.name={settings.environment.name} is for the sets of a mixture, and"
        f" task.name={settings.task.name} has none: use task.name=mixture.",
    )
    if mixture is not None and mixture.sets is not None:
        names = [one.name for one in sets_of(mixture.sets)]
        for name in played:
            require_one_of("environment.name=by_set(…): a set", name, names)
    require(
        mixture is None or mixture.weights == "fixed" or settings.algorithm.generates,
        f"task.mixture.weights=progress goes by success, and algorithm.name="
        f"{settings.algorithm.name} generates nothing: use fixed.",
    )


def _check_hosts(settings: RunSettings) -> None:
    launch = settings.launch
    require(
        not (launch.elsewhere and launch.colocate),
        f"launch.hosts={launch.hosts} does not fit launch.colocate, with which all are in one"
        " process: leave out one of them.",
    )
    names = [
        process_name(program, process)
        for program in settings.roles
        for process in range(settings.processes_of(program))
    ]
    for name in launch.elsewhere:
        require_one_of(f"launch.hosts={launch.hosts}: the process", name, tuple(names))


def _check_reward_servers(settings: RunSettings) -> None:
    reward = settings.reward
    require(
        reward.addresses is None or bool(reward.server_addresses),
        f"reward.addresses={reward.addresses!r} names no server: give HOST:PORT,…, or leave it out"
        " to have completions judged by workers of the run.",
    )
    for address in reward.server_addresses:
        require_address("reward.addresses", address)
        require(
            reward.server_addresses.count(address) == 1,
            f"reward.addresses names {address} twice: name each server once.",
        )
    require(
        reward.addresses is None or reward.secret_path is not None,
        f"reward.addresses={reward.addresses} needs reward.secret_path=FILE with the secret of"
        " these servers, which `rl-sync reward` makes.",
    )


def _check_evaluation(settings: RunSettings) -> None:
    evaluation, best = settings.evaluation, settings.checkpoint.best
    by = f"evaluation.by={evaluation.by}"
    require(
        evaluation.by != EXPLORERS
        or (settings.schedule.pull == "latest" and settings.explorers > 0),
        f"{by} needs explorers that run at their own pace, and sync.mode={settings.sync.mode} has"
        " none: use sync.mode=asynchronous or multi_explorer, or evaluation.by=trainer.",
    )
    if best is None:
        return
    require_one_of(
        f"checkpoint.best with evaluation.samples={evaluation.samples}: the metric",
        best,
        tuple(metric_names(evaluation.samples)),
    )
    require(
        not best.startswith(MAJORITY)
        or settings.task.reward is None
        or may_vote(settings.task.reward),
        f"checkpoint.best={best} needs a reward that reads an answer to vote on, and"
        f" task.reward={settings.task.reward} reads none: use mean@{evaluation.samples} or pass@k.",
    )
    require(
        evaluation.every_steps > 0,
        f"checkpoint.best={best} compares evaluations between steps, and there are none: set"
        " evaluation.every_steps.",
    )
    require(
        evaluation.by != EXPLORERS,
        f"checkpoint.best={best} does not fit {by}: explorers may evaluate a version of which there"
        " is no snapshot. Use evaluation.by=trainer.",
    )


def _check_environment(settings: RunSettings) -> None:
    reward = settings.task.reward
    asked = [term.name for term in parse_sum(reward)] if reward else []
    require(
        settings.plays or "environment" not in asked,
        f"task.reward={reward} takes what an environment gave, and there is none: set"
        " environment.name, or another reward.",
    )
    name = settings.environment.name
    if name is None:
        return
    require(
        "environment" not in asked or gives_rewards(name),
        f"task.reward={reward} takes what an environment gave, and environment.name={name} gives no"
        " rewards: use a reward that judges the last reply.",
    )
    require(
        settings.algorithm.generates,
        f"environment.name={name} plays with a policy, and"
        f" algorithm.name={settings.algorithm.name} generates nothing: leave out one.",
    )
    most = max(settings.trainer.group_size, settings.evaluation.samples)
    require(
        settings.environment.workers >= most,
        f"environment.workers={settings.environment.workers} is less than the {most} episodes of a"
        " problem (trainer.group_size, evaluation.samples), which begin together: use at least as"
        " many.",
    )
    require(
        settings.trainer.batching != "shared" or not settings.has_segments,
        "trainer.batching=shared has no place for episodes of several segments, as those of agents,"
        " and those whose chat template rewrites what was said before: use trainer.batching=packed,"
        " or, without an agent, environment.rewrites=refuse.",
    )


def _check_explorers(settings: RunSettings) -> None:
    mode = MODES[settings.sync.mode]
    count, least, most = settings.explorers, mode.least_explorers, mode.most_explorers
    if not settings.algorithm.generates:
        require_no_explorers(settings.algorithm, settings.explorer)
        least = 0
    require(
        count >= least and (most is None or count <= most),
        f"explorer.count={count} does not fit sync.mode={settings.sync.mode}, which takes "
        + (f"{least}" if least == most else f"{least} or more")
        + (": for several explorers use sync.mode=multi_explorer." if most == 1 else "."),
    )
    require(
        count <= settings.trainer.groups_per_step,
        f"explorer.count={count} explorers cannot share trainer.groups_per_step="
        f"{settings.trainer.groups_per_step}: some would have nothing to generate.",
    )


def _check_synchronization(settings: RunSettings) -> None:
    schedule = settings.schedule
    _check_replay(settings)
    require(
        schedule.pull == "latest" or schedule.offset <= settings.trainer.steps,
        f"sync.offset={schedule.offset} is beyond trainer.steps={settings.trainer.steps}: explorers"
        " would generate all of the run with its first weights. Use a smaller offset, or more"
        " steps.",
    )
    require(
        settings.sync.directory is None or TRANSFERS[settings.transfer].has_directory,
        f"sync.directory={settings.sync.directory} is for weights that go by checkpoint, not by"
        f" sync.transfer={settings.transfer}: use sync.transfer=checkpoint, or leave it out.",
    )
    offered = schedule.pull == "latest" and not settings.is_joint
    require(
        settings.rollout.swap == "between" or offered,
        f"rollout.swap={settings.rollout.swap} needs weights that an explorer takes when it likes,"
        f" but sync.pull={schedule.pull} over sync.transfer={settings.transfer} has none: use"
        " sync.mode=asynchronous or multi_explorer, or rollout.swap=between.",
    )
    require(
        not settings.rollout.budget_tokens or schedule.pull == "latest",
        f"rollout.budget_tokens={settings.rollout.budget_tokens} leaves groups to be finished with"
        f" later weights, but sync.pull={schedule.pull} fixes the groups and the version of"
        " every batch: use sync.mode=asynchronous or multi_explorer, or rollout.budget_tokens=0"
        " (no budget).",
    )
    if settings.rollout.streaming:
        _check_streaming(settings)


def _check_streaming(settings: RunSettings) -> None:
    schedule, replay, budget = settings.schedule, settings.replay, settings.rollout.budget_tokens
    rule, way_out = "rollout.streaming=true", "or rollout.streaming=false"
    require(
        schedule.pull == "latest",
        f"{rule} begins groups whenever slots are free, but sync.pull={schedule.pull} fixes the"
        " groups and the version of every batch: use sync.mode=asynchronous or multi_explorer,"
        f" {way_out}.",
    )
    require(
        replay.times_sampled == 1,
        f"{rule} does not fit replay.times_sampled={replay.times_sampled}: steps that train on"
        " groups again would overtake those in flight. Use replay.times_sampled=1,"
        f" {way_out}.",
    )
    require(
        not budget,
        f"{rule} has no rollouts that rollout.budget_tokens={budget} could end: use"
        f" rollout.budget_tokens=0, {way_out}.",
    )


def _check_replay(settings: RunSettings) -> None:
    schedule, replay, mode = settings.schedule, settings.replay, settings.sync.mode
    for name, only, why in (
        ("sampler", "fifo", "consume batches in their order"),
        ("times_sampled", 1, "train on each batch once, with weights of the version that is due"),
        ("max_size", None, "say themselves how far explorers are ahead, and a full buffer would"
         " keep an explorer from the sync that the trainer waits at"),
    ):  # fmt: skip
        value = getattr(replay, name)
        require(
            schedule.pull == "latest" or value == only,
            f"replay.{name}={value} does not fit sync.mode={mode}: exact pulls {why}. "
            + (f"Use replay.{name}={only}." if only is not None else f"Leave out replay.{name}."),
        )
    most = schedule.staleness_bound + 1
    require(
        replay.times_sampled <= most,
        f"replay.times_sampled={replay.times_sampled} steps cannot all train on a group: after"
        f" {most} it is older than sync.max_staleness={schedule.staleness_bound}. Use at most"
        f" {most}, or a greater sync.max_staleness.",
    )
    require(
        replay.times_sampled == 1 or not settings.rollout.budget_tokens,
        f"replay.times_sampled={replay.times_sampled} does not fit rollout.budget_tokens="
        f"{settings.rollout.budget_tokens}: steps that train on groups again would overtake those"
        " that explorers carry over. Use replay.times_sampled=1, or rollout.budget_tokens=0 (no"
        " budget).",
    )


def _check_algorithm(settings: RunSettings) -> None:
    updates = settings.optimizer.updates_per_batch
    require(
        settings.trainer.groups_per_step % updates == 0,
        f"trainer.groups_per_step={settings.trainer.groups_per_step} groups cannot be shared evenly"
        f" by optimizer.updates_per_batch={updates} updates: use a divisor.",
    )
    require_bearing(settings.algorithm, settings.schedule.staleness_bound, settings.sync.mode)
    require_shares(settings.algorithm, settings.trainer, updates)
    if settings.algorithm.scores:
        _require_pairs(settings)
    require(
        settings.trainer.group_size >= 2 or not settings.algorithm.compares_groups,
        f"trainer.group_size must be at least 2, not {settings.trainer.group_size}:"
        f" algorithm.advantage={settings.algorithm.advantage} compares a group's completions with"
        " each other. For one completion a prompt use algorithm.name=ppo or reinforce_pp.",
    )
    require(
        not settings.algorithm.needs_values
        or settings.critic.warmup_steps < settings.trainer.steps,
        f"critic.warmup_steps={settings.critic.warmup_steps} leaves the policy none of"
        f" trainer.steps={settings.trainer.steps} to learn in: use fewer.",
    )


def _require_pairs(settings: RunSettings) -> None:
    """Refuses settings that a reward model cannot be trained with."""
    require(
        settings.trainer.group_size == PAIR,
        f"trainer.group_size={settings.trainer.group_size} does not fit algorithm.name="
        f"{settings.algorithm.name}, whose groups are pairs: use trainer.group_size={PAIR}.",
    )
    require(
        not settings.sft.steps,
        f"sft.steps={settings.sft.steps} would imitate demonstrations, which a reward model"
        " cannot: it has a scalar head in place of an output for tokens. Use sft.steps=0, and"
        " begin with a checkpoint (model.path) if there is one.",
    )
    require(
        settings.evaluation.samples == 1,
        f"evaluation.samples={settings.evaluation.samples} does not fit algorithm.name="
        f"{settings.algorithm.name}, whose evaluations compare the held-out pairs once each: use"
        " evaluation.samples=1.",
    )


def _check_microbatches(settings: RunSettings) -> None:
    trainer, rows = settings.trainer, settings.trainer.microbatch_rows
    most = trainer.groups_per_step * trainer.group_size // settings.optimizer.updates_per_batch
    mixed = trainer.batching in MIXED
    require(
        rows <= most and (not rows or mixed or most % rows == 0),
        f"trainer.microbatch_rows={rows} must be {'at most' if mixed else 'a divisor of'} {most},"
        " the trajectories of an optimizer update (trainer.groups_per_step · trainer.group_size /"
        " optimizer.updates_per_batch); 0 for no microbatches.",
    )
    require(
        trainer.shared_row_tokens is None or trainer.batching == "shared",
        f"trainer.shared_row_tokens={trainer.shared_row_tokens} is for rows with shared prompts,"
        f" which trainer.batching={trainer.batching} does not make: use trainer.batching=shared,"
        " or leave it out.",
    )


def _check_processes(settings: RunSettings) -> None:
    require(
        not settings.launch.colocate
        or settings.trainer.processes == settings.explorer.processes == 1,
        "launch.colocate=true runs all roles in one process: use it with"
        f" trainer.processes=1 and explorer.processes=1, not {settings.trainer.processes} and"
        f" {settings.explorer.processes}.",
    )
    require(
        settings.launch.colocate or not settings.launch.share_devices,
        "launch.share_devices is for roles in one process: use it with launch.colocate=true.",
    )
    require(
        not (settings.launch.colocate and TRANSFERS[settings.transfer].needs_processes),
        f"sync.transfer={settings.transfer} is for roles in processes of their own: with"
        " launch.colocate=true"
        " use sync.transfer=collective, which hands the weights over.",
    )


def _check_meshes(settings: RunSettings) -> None:
    trainer, explorer = settings.trainer_layout, settings.explorer_layout
    sizes = f"trainer.mesh of {settings.trainer.mesh.shape}"
    rows = settings.trainer.groups_per_step * settings.trainer.group_size
    rows //= settings.optimizer.updates_per_batch
    of_rows = {
        "trainer.groups_per_step · trainer.group_size / optimizer.updates_per_batch": rows,
        "trainer.microbatch_rows": settings.trainer.microbatch_rows,
        "algorithm.demonstration_rows / optimizer.updates_per_batch": (
            settings.algorithm.demonstration_rows // settings.optimizer.updates_per_batch
        ),
        "sft.batch_size": settings.sft.batch_size if settings.sft.steps else 0,
    }
    for name, value in of_rows.items():
        require(
            value % trainer.batch_shards == 0,
            f"{name} = {value} rows cannot be cut evenly into {trainer.batch_shards} parts, as"
            f" {sizes} wants it: use a multiple.",
        )
    require(
        settings.slots % explorer.batch_shards == 0,
        f"An explorer's {settings.slots} slots (rollout.slots) cannot be cut evenly into"
        f" {explorer.batch_shards} parts, as explorer.mesh of {settings.explorer.mesh.shape} wants"
        " it: use a multiple.",
    )
