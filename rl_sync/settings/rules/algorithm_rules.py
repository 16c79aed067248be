"""Rules of algorithms: values that make none, or one that does not tolerate the schedule."""

from __future__ import annotations

from rl_sync.algorithms.algorithm import ADVANTAGES, CORRECTIONS, EXACT, LOSSES, SAMPLED
from rl_sync.algorithms.screening import UNBOUNDED
from rl_sync.learning.learning_settings import PAIR
from rl_sync.settings.records import require
from rl_sync.settings.rules.rule import Rule, require_address
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.mixture import sets_of

LOOSEST_BOUND = 10.0
"""Maximum `algorithm.clip_high` that still limits the effect of a stale token."""


def _centered_loss(s: RunSettings) -> None:
    algorithm, loss = s.algorithm, LOSSES[s.algorithm.loss]
    mode = f"algorithm.score_centering={algorithm.score_centering}"
    if algorithm.score_centering == "off":
        return
    require(
        algorithm.generates,
        f"{mode} is about tokens that explorers draw, and algorithm.name={algorithm.name} has none:"
        " leave it out.",
    )
    known = [name for name, one in LOSSES.items() if not one.of_sequences]
    require(
        not loss.of_sequences,
        f"{mode} needs a loss whose tokens do not depend on each other, and"
        f" algorithm.loss={algorithm.loss} is one of sequences: use one of {', '.join(known)}.",
    )
    require(
        not (loss.of_probabilities and algorithm.score_centering == "topk"),
        f"{mode} knows only ratios of the tokens that are not recorded, and"
        f" algorithm.loss={algorithm.loss} compares probabilities: use"
        " algorithm.score_centering=exact, or another loss.",
    )


def _centered_corrections(s: RunSettings) -> None:
    if not s.algorithm.centers:
        return
    known = [name for name, one in CORRECTIONS.items() if not one.of_sequences]
    for name in s.algorithm.corrections:
        require(
            name in known,
            f"algorithm.score_centering={s.algorithm.score_centering} does not know"
            f" algorithm.correction={name}, whose weights depend on whole sequences: use"
            f" {', '.join(known)}, or none.",
        )


def _excludes(s: RunSettings) -> bool:
    """Says whether tokens are excluded from sampling."""
    rollout = s.rollout
    return rollout.top_k > 0 or rollout.top_p < 1 or rollout.min_p > 0 or rollout.min_new_tokens > 0


def _truncations(s: RunSettings) -> list[str]:
    """Returns the corrections whose weights are ratios, not 0 or 1."""
    return [name for name in s.algorithm.corrections if CORRECTIONS[name].is_ratio]


def _given_data(s: RunSettings) -> None:
    """Rejects settings that need sampled tokens or rewards if nothing is generated."""
    algorithm = s.algorithm
    if algorithm.generates:
        return
    loss, drawn = (
        ("bradley_terry", "drawn") if algorithm.scores else ("reinforce", "drawn or judged")
    )
    expected = {
        "loss": loss,
        "correction": "",
        "demonstration_rows": 0,
        "filter_zero_variance": False,
        "filter": "",
        "group_mean_low": -UNBOUNDED,
        "group_mean_high": UNBOUNDED,
        "extremes": 0,
    }
    for field, value in expected.items():
        require(
            getattr(algorithm, field) == value,
            f"algorithm.{field}={getattr(algorithm, field)!r} does not fit algorithm.advantage="
            f"{algorithm.advantage}, whose completions nobody has {drawn}: it takes"
            f" algorithm.{field}={value!r}.",
        )


def _parts_alone(s: RunSettings) -> None:
    """Rejects changes of the reward that advantages by its parts do not see."""
    algorithm = s.algorithm
    changes = {
        f"algorithm.overlong_tokens={algorithm.overlong_tokens}": algorithm.overlong_tokens > 0,
        f"algorithm.turn_discount={algorithm.turn_discount:g}": algorithm.turn_discount < 1,
        "algorithm.kl_place=reward": algorithm.needs_reference and algorithm.kl_place == "reward",
        f"experience.pipeline={s.experience.pipeline}": s.experience.pipeline is not None,
    }
    for change, is_made in changes.items():
        require(
            not is_made or not ADVANTAGES[algorithm.advantage].needs_parts,
            f"{change} changes the sum of the reward, and algorithm.advantage="
            f"{algorithm.advantage} compares the terms of task.reward as they were judged: leave it"
            " out (task.reward has soft_overlong, algorithm.kl_place=loss), or use"
            " algorithm.advantage=grpo.",
        )


def danger(settings: RunSettings) -> str | None:
    """Returns the reason why the algorithm does not tolerate stale data; None if it does.

    Something must limit the effect of a token whose probability has changed since it was sampled.
    """
    algorithm = settings.algorithm
    loss = LOSSES[algorithm.loss]
    if loss.clips and algorithm.clip_high > LOOSEST_BOUND:
        return (
            f"algorithm.clip_high={algorithm.clip_high:g} leaves the ratio as good as unclipped: a"
            " token that became much likelier since it was drawn counts as often. Use at most"
            f" {LOOSEST_BOUND:g}"
        )
    if algorithm.corrections or ADVANTAGES[algorithm.advantage].is_positive or algorithm.scores:
        return None
    if algorithm.proximal != "behavior":
        return (
            f"algorithm.proximal={algorithm.proximal} without a correction takes no notice of the"
            " policy that drew the tokens. Use algorithm.correction=token_truncation"
        )
    if not loss.has_ratio:
        return (
            f"algorithm.loss={algorithm.loss} without a correction pushes bad tokens down without"
            " end, however unlikely they have become since they were drawn. Use"
            " algorithm.correction=token_truncation"
        )
    return None


def _bears_staleness(s: RunSettings) -> None:
    bound = s.schedule.staleness_bound
    require(
        bound == 0 or s.algorithm.allow_unsafe or danger(s) is None,
        f"algorithm.name={s.algorithm.name} does not fit data that are up to {bound} trainer steps"
        f" old, which sync.mode={s.sync.mode} allows: {danger(s)}, leave out algorithm.name for one"
        " that bears them, or insist with algorithm.allow_unsafe=True.",
    )


def _bears_quantization(s: RunSettings) -> None:
    require(
        s.quantization is None
        or s.schedule.staleness_bound > 0
        or not s.algorithm.generates
        or s.algorithm.allow_unsafe
        or danger(s) is None,
        f"algorithm.name={s.algorithm.name} does not fit explorer.quantization={s.quantization},"
        f" with which explorers draw from another policy than the trainer's: {danger(s)}, leave out"
        " algorithm.name for one that bears it, or insist with algorithm.allow_unsafe=True.",
    )


def _sets_taught(s: RunSettings) -> None:
    if s.teacher.sets is None:
        return
    mixture = s.mixture
    names = [one.name for one in sets_of(mixture.sets)] if mixture and mixture.sets else []
    require(
        sorted(s.teacher.paths) == sorted(names),
        f"teacher.sets={s.teacher.sets} must name a teacher for each set of task.mixture.sets,"
        f" which are {', '.join(names) or 'none'}: use teacher.path for one teacher of all.",
    )


ALGORITHM_RULES: dict[str, Rule] = {
    "algorithm.demonstration_rows, algorithm.demonstration_coefficient": lambda s: require(
        (s.algorithm.demonstration_rows > 0) == (s.algorithm.demonstration_coefficient > 0),
        f"algorithm.demonstration_coefficient={s.algorithm.demonstration_coefficient:g} is the"
        f" weight of algorithm.demonstration_rows={s.algorithm.demonstration_rows} demonstrations a"
        " step: set both, or both to 0.",
    ),
    "algorithm.dual_clip": lambda s: require(
        not 0 < s.algorithm.dual_clip <= 1,
        f"algorithm.dual_clip={s.algorithm.dual_clip} must be above 1, or 0 for none.",
    ),
    "algorithm.extremes": lambda s: require(
        s.algorithm.extremes % 2 == 0,
        f"algorithm.extremes={s.algorithm.extremes} must be even, or 0 for all.",
    ),
    "algorithm.group_mean_low, algorithm.group_mean_high": lambda s: require(
        s.algorithm.group_mean_low <= s.algorithm.group_mean_high,
        f"algorithm.group_mean_low={s.algorithm.group_mean_low} is above algorithm.group_mean_high"
        f"={s.algorithm.group_mean_high}: no group would be left.",
    ),
    "algorithm.max_attempts, algorithm.filter_zero_variance": lambda s: require(
        s.algorithm.screening.refuses or not s.algorithm.screening.replaces,
        f"algorithm.max_attempts={s.algorithm.max_attempts} has groups replaced that teach nothing,"
        " but no setting says which: use algorithm.filter_zero_variance=True, algorithm.filter, or"
        " algorithm.group_mean_low and algorithm.group_mean_high; or algorithm.max_attempts=1 to"
        " replace none.",
    ),
    "algorithm.advantage, algorithm.overlong_tokens": _parts_alone,
    "algorithm.filter, trainer.group_size": lambda s: require(
        s.trainer.group_size >= 2 or not s.algorithm.needs_spread,
        (
            f"algorithm.filter={s.algorithm.filter}"
            if s.algorithm.filtered_parts
            else "algorithm.filter_zero_variance=True"
        )
        + " leaves out groups whose completions are alike, and"
        f" trainer.group_size={s.trainer.group_size} makes all of them so: use at least 2, or turn"
        " the filter off.",
    ),
    "algorithm.correction, algorithm.loss": lambda s: require(
        not _truncations(s)
        or s.algorithm.proximal != "behavior"
        or not LOSSES[s.algorithm.loss].has_ratio,
        f"algorithm.correction={' and '.join(_truncations(s))} weighs by the ratio that"
        f" algorithm.loss={s.algorithm.loss} has in it already: with it use"
        " algorithm.proximal=start, or algorithm.loss=reinforce.",
    ),
    "algorithm.correction: twice": lambda s: require(
        len(_truncations(s)) <= 1,
        f"algorithm.correction={s.algorithm.correction} weighs by the ratio twice: use one of"
        f" {' and '.join(_truncations(s))}.",
    ),
    "algorithm.correction, algorithm.proximal": lambda s: require(
        not s.algorithm.looks_ahead or s.algorithm.proximal == "start",
        "algorithm.correction=second_moment is taken over all tokens of an update before it, which"
        f" needs algorithm.proximal=start, not {s.algorithm.proximal}.",
    ),
    "algorithm.score_centering, algorithm.loss": _centered_loss,
    "algorithm.score_centering, algorithm.correction": _centered_corrections,
    "algorithm.score_centering, rollout.keep_sampling_mask": lambda s: require(
        not s.algorithm.centers or s.rollout.keep_sampling_mask or not _excludes(s),
        f"algorithm.score_centering={s.algorithm.score_centering} compares the policy with the"
        " distribution that tokens were drawn from, which rollout.keep_sampling_mask=False takes"
        " to be another one where top_k, top_p, min_p or min_new_tokens exclude tokens: leave"
        " rollout.keep_sampling_mask out, or use algorithm.score_centering=off.",
    ),
    "algorithm.loss, algorithm.advantage: preferences": lambda s: require(
        ADVANTAGES[s.algorithm.advantage].of_preferences == s.algorithm.scores,
        f"algorithm.loss={s.algorithm.loss} with algorithm.advantage={s.algorithm.advantage}: a"
        " reward model learns from preferences, and nothing else does. Use both"
        " algorithm.loss=bradley_terry and algorithm.advantage=preference, or neither.",
    ),
    "algorithm.advantage, algorithm.filter_zero_variance": _given_data,
    "algorithm.loss, algorithm.kl_coefficient, algorithm.entropy_coefficient": lambda s: require(
        not (
            s.algorithm.scores and (s.algorithm.kl_coefficient or s.algorithm.entropy_coefficient)
        ),
        "algorithm.kl_coefficient and algorithm.entropy_coefficient must be 0 with"
        " algorithm.loss=bradley_terry: a reward model has no probabilities.",
    ),
    "algorithm.loss, algorithm.advantage: pairs": lambda s: require(
        LOSSES[s.algorithm.loss].of_pairs == ADVANTAGES[s.algorithm.advantage].of_pairs,
        f"algorithm.loss={s.algorithm.loss} with algorithm.advantage={s.algorithm.advantage}: dpo"
        " compares the trajectories of a pair, which nothing else does. Use both"
        " algorithm.loss=dpo and algorithm.advantage=pair, or neither.",
    ),
    "algorithm.kl_target, algorithm.kl_coefficient": lambda s: require(
        not s.algorithm.kl_target or s.algorithm.kl_coefficient > 0,
        f"algorithm.kl_target={s.algorithm.kl_target} has no weight to adapt: set"
        " algorithm.kl_coefficient to what it starts with, above 0.",
    ),
    "algorithm.loss, algorithm.advantage: tokens": lambda s: require(
        not (
            ADVANTAGES[s.algorithm.advantage].of_tokens and LOSSES[s.algorithm.loss].of_trajectories
        ),
        f"algorithm.loss={s.algorithm.loss} takes one advantage a trajectory, but"
        f" algorithm.advantage={s.algorithm.advantage} makes one a token: use"
        " algorithm.advantage=reinforce_pp_baseline, or dr_grpo.",
    ),
    "teacher.path, algorithm.distillation": lambda s: require(
        s.teacher.is_there == s.algorithm.has_teacher,
        f"algorithm.distillation={s.algorithm.distillation} with teacher.path={s.teacher.path!r}"
        + f" and teacher.sets={s.teacher.sets!r}" * (s.teacher.sets is not None)
        + f" and teacher.address={s.teacher.address!r}" * (s.teacher.address is not None)
        + ": a teacher is for distillation, which needs one. Set both, such as"
        " algorithm.distillation=exact and teacher.path=DIRECTORY, or leave out both.",
    ),
    "teacher.sets, teacher.path": lambda s: require(
        s.teacher.sets is None or s.teacher.path is None,
        f"teacher.sets={s.teacher.sets} names the teacher of each set, and"
        f" teacher.path={s.teacher.path} one for all: leave out one of them.",
    ),
    "teacher.sets, task.mixture.sets": _sets_taught,
    "teacher.address": lambda s: require_address(
        "teacher.address", s.teacher.address, "use teacher.path for a teacher beside the trainer"
    ),
    "teacher.address, teacher.path": lambda s: require(
        s.teacher.address is None or not (s.teacher.paths or s.teacher.step or s.teacher.offload),
        f"teacher.address={s.teacher.address} names a server, which has one teacher for all tasks"
        " and takes teacher.path and teacher.step itself: leave out teacher.path, teacher.sets,"
        " teacher.step and teacher.offload here.",
    ),
    "teacher.address, algorithm.distillation": lambda s: require(
        s.teacher.address is None or s.algorithm.distillation != EXACT,
        "algorithm.distillation=exact compares all tokens of the vocabulary, and the server of"
        f" teacher.address={s.teacher.address} would have to send a number for each of them at each"
        " token: use algorithm.distillation=topk or sampled, or teacher.path in place of"
        " teacher.address.",
    ),
    "teacher.address, teacher.secret_path": lambda s: require(
        s.teacher.address is None or s.teacher.secret_path is not None,
        f"teacher.address={s.teacher.address} needs teacher.secret_path=FILE with the secret of the"
        " server, which `rl-sync teacher` makes.",
    ),
    "teacher.step, teacher.path": lambda s: require(
        s.teacher.step is None or bool(s.teacher.paths),
        f"teacher.step={s.teacher.step} names a snapshot of the run in teacher.path: set it.",
    ),
    "algorithm.distillation, algorithm.name": lambda s: require(
        s.algorithm.generates or not s.algorithm.has_teacher,
        f"algorithm.distillation={s.algorithm.distillation} is on the policy's own completions, and"
        f" algorithm.name={s.algorithm.name} generates none: use"
        " algorithm.name=on_policy_distillation.",
    ),
    "algorithm.advantage, algorithm.distillation": lambda s: require(
        s.algorithm.advantage != "none" or s.algorithm.has_teacher,
        "algorithm.advantage=none leaves rewards out, so that only a teacher teaches: set"
        " algorithm.distillation, or use another advantage.",
    ),
    "algorithm.distillation, algorithm.loss": lambda s: require(
        s.algorithm.distillation != SAMPLED
        or not (LOSSES[s.algorithm.loss].of_trajectories or LOSSES[s.algorithm.loss].of_pairs),
        f"algorithm.distillation=sampled gives each token an advantage of its own, but"
        f" algorithm.loss={s.algorithm.loss} takes one a trajectory: use"
        " algorithm.distillation=exact or topk, or another loss.",
    ),
    "algorithm.name, sync.mode, algorithm.allow_unsafe": _bears_staleness,
    "algorithm.name, explorer.quantization, algorithm.allow_unsafe": _bears_quantization,
    # Settings that need completions from the policy.
    "curriculum.selection, algorithm.name": lambda s: require(
        s.algorithm.generates or not s.curriculum.follows_history,
        f"curriculum.selection={s.curriculum.selection} goes by what became of prompts before, and"
        f" algorithm.name={s.algorithm.name} generates nothing: leave it out.",
    ),
    "experience.pipeline, algorithm.name": lambda s: require(
        s.algorithm.generates or s.experience.pipeline is None,
        f"experience.pipeline={s.experience.pipeline} gets what was generated, and"
        f" algorithm.name={s.algorithm.name} generates nothing: leave it out.",
    ),
    "task.mixture.weights, algorithm.name": lambda s: require(
        s.mixture is None or s.mixture.weights == "fixed" or s.algorithm.generates,
        "task.mixture.weights=progress goes by success, and algorithm.name="
        f"{s.algorithm.name} generates nothing: use fixed.",
    ),
    "environment.name, algorithm.name": lambda s: require(
        not s.plays or s.algorithm.generates,
        f"environment.name={s.environment.name} plays with a policy, and"
        f" algorithm.name={s.algorithm.name} generates nothing: leave out one.",
    ),
    "explorer.count, algorithm.name": lambda s: require(
        s.algorithm.generates or not s.explorer.count,
        f"explorer.count={s.explorer.count} explorers would have nothing to generate:"
        f" algorithm.name={s.algorithm.name} trains on the task's own data alone.",
    ),
    "trainer.group_size, algorithm.name": lambda s: require(
        not s.algorithm.scores or s.trainer.group_size == PAIR,
        f"trainer.group_size={s.trainer.group_size} does not fit algorithm.name="
        f"{s.algorithm.name}, whose groups are pairs: use trainer.group_size={PAIR}.",
    ),
    "sft.steps, algorithm.name": lambda s: require(
        not (s.algorithm.scores and s.sft.steps),
        f"sft.steps={s.sft.steps} would imitate demonstrations, which a reward model cannot: it has"
        " a scalar head in place of an output for tokens. Use sft.steps=0, and begin with a"
        " checkpoint (model.path) if there is one.",
    ),
    "evaluation.samples, algorithm.name": lambda s: require(
        not s.algorithm.scores or s.evaluation.samples == 1,
        f"evaluation.samples={s.evaluation.samples} does not fit algorithm.name="
        f"{s.algorithm.name}, whose evaluations compare the held-out pairs once each: use"
        " evaluation.samples=1.",
    ),
}
