"""Rules of batches and updates."""

from __future__ import annotations

from rl_sync.algorithms.algorithm import ADVANTAGES, LOSSES
from rl_sync.learning.learning_settings import DECAYING, MIXED
from rl_sync.settings.records import require
from rl_sync.settings.rules.rule import Rule
from rl_sync.settings.run_settings import RunSettings


def _segments_credited(s: RunSettings) -> None:
    """Rejects returns of segments where there are none, or where nothing is made of them."""
    if not s.algorithm.segment_returns:
        return
    advantage = ADVANTAGES[s.algorithm.advantage]
    require(
        advantage.of_tokens and not advantage.needs_baselines,
        "algorithm.segment_returns=True gives each segment of an episode its own advantages, and"
        f" algorithm.advantage={s.algorithm.advantage} makes one of a whole episode: use gae,"
        " n_step or reinforce_pp.",
    )
    require(
        s.has_segments,
        "algorithm.segment_returns=True is for episodes of several segments, and those of"
        f" environment.name={s.environment.name} have one: leave it out.",
    )


def _microbatches(s: RunSettings) -> None:
    rows, mixed = s.trainer.microbatch_rows, s.trainer.batching in MIXED
    most = s.trainer.groups_per_step * s.trainer.group_size // s.optimizer.updates_per_batch
    require(
        rows <= most and (not rows or mixed or most % rows == 0),
        f"trainer.microbatch_rows={rows} must be {'at most' if mixed else 'a divisor of'} {most},"
        " the trajectories of an optimizer update (trainer.groups_per_step · trainer.group_size /"
        " optimizer.updates_per_batch); 0 for no microbatches.",
    )


def _pairs_together(s: RunSettings) -> None:
    rows, group_size, batching = s.trainer.microbatch_rows, s.trainer.group_size, s.trainer.batching
    require(
        not (LOSSES[s.algorithm.loss].of_pairs and rows)
        or (rows % group_size == 0 and batching not in MIXED),
        f"algorithm.loss={s.algorithm.loss} compares the completions of a group, but"
        f" trainer.microbatch_rows={rows} with trainer.batching={batching} takes groups apart: use"
        f" a multiple of trainer.group_size={group_size} and batching that is neither"
        f" {' nor '.join(MIXED)}, or trainer.microbatch_rows=0.",
    )


def _demonstrations_shared(s: RunSettings) -> None:
    updates, rows = s.optimizer.updates_per_batch, s.trainer.microbatch_rows
    multiple = updates * max(1, rows)
    require(
        s.algorithm.demonstration_rows % multiple == 0,
        f"algorithm.demonstration_rows={s.algorithm.demonstration_rows} demonstrations cannot be"
        f" shared evenly by optimizer.updates_per_batch={updates} updates in microbatches of"
        f" trainer.microbatch_rows={rows} (0 for whole updates): use a multiple of {multiple}.",
    )


BATCH_RULES: dict[str, Rule] = {
    "trainer.steps, optimizer.updates_per_batch": lambda s: require(
        s.trainer.steps * s.optimizer.updates_per_batch < 2**31,
        f"trainer.steps={s.trainer.steps} steps of optimizer.updates_per_batch="
        f"{s.optimizer.updates_per_batch} updates are more than the 2,147,483,647 that an optimizer"
        " counts: use fewer.",
    ),
    "trainer.groups_per_step, algorithm.over_sampling, trainer.group_size": lambda s: require(
        s.groups_generated * s.trainer.group_size < 2**31,
        "trainer.groups_per_step · algorithm.over_sampling · trainer.group_size ="
        f" {s.groups_generated * s.trainer.group_size:.3g} completions a step are more than arrays"
        " can hold (2,147,483,647): use fewer.",
    ),
    "trainer.groups_per_step, optimizer.updates_per_batch": lambda s: require(
        s.trainer.groups_per_step % s.optimizer.updates_per_batch == 0,
        f"trainer.groups_per_step={s.trainer.groups_per_step} groups cannot be shared evenly by"
        f" optimizer.updates_per_batch={s.optimizer.updates_per_batch} updates: use a divisor.",
    ),
    "trainer.group_size, algorithm.advantage": lambda s: require(
        s.trainer.group_size >= 2 or not ADVANTAGES[s.algorithm.advantage].compares_groups,
        f"trainer.group_size must be at least 2, not {s.trainer.group_size}:"
        f" algorithm.advantage={s.algorithm.advantage} compares a group's completions with each"
        " other. For one completion a prompt use algorithm.name=ppo or reinforce_pp.",
    ),
    "algorithm.advantage, environment.name": lambda s: require(
        s.plays or s.mixture is not None or not s.algorithm.needs_roles,
        f"algorithm.advantage={s.algorithm.advantage} compares the games of a seat, or the"
        " completions of a set of a mixture, and this run has neither: set environment.name to a"
        " game of several players, or use algorithm.advantage=reinforce_pp.",
    ),
    "algorithm.segment_returns, algorithm.advantage": _segments_credited,
    "optimizer.weight_decay, optimizer.name": lambda s: require(
        not s.optimizer.weight_decay or s.optimizer.name in DECAYING,
        f"optimizer.weight_decay={s.optimizer.weight_decay} means nothing to optimizer.name="
        f"{s.optimizer.name}: set it to 0, or use {' or '.join(DECAYING)}.",
    ),
    "critic.warmup_steps, trainer.steps": lambda s: require(
        not s.algorithm.needs_values or s.critic.warmup_steps < s.trainer.steps,
        f"critic.warmup_steps={s.critic.warmup_steps} leaves the policy none of"
        f" trainer.steps={s.trainer.steps} to learn in: use fewer.",
    ),
    "algorithm.loss, trainer.microbatch_rows, trainer.batching": _pairs_together,
    "algorithm.demonstration_rows, optimizer.updates_per_batch": _demonstrations_shared,
    "trainer.microbatch_rows, trainer.batching": _microbatches,
    "trainer.shared_row_tokens, trainer.batching": lambda s: require(
        s.trainer.shared_row_tokens is None or s.trainer.batching == "shared",
        f"trainer.shared_row_tokens={s.trainer.shared_row_tokens} is for rows with shared prompts,"
        f" which trainer.batching={s.trainer.batching} does not make: use trainer.batching=shared,"
        " or leave it out.",
    ),
}
