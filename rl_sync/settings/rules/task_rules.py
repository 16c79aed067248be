"""Rules of problems, environments and rewards."""

from __future__ import annotations

from rl_sync.environments.environment_catalog import environments_of_sets, gives_rewards
from rl_sync.expression import parse_sum
from rl_sync.settings.records import require
from rl_sync.settings.rules.rule import Rule
from rl_sync.settings.run_settings import RunSettings
from rl_sync.spelling import require_one_of
from rl_sync.tasks.curriculum import EASY_TO_HARD
from rl_sync.tasks.mixture import sets_of


def _sets_played(s: RunSettings) -> None:
    mixture = s.mixture
    if mixture is None or mixture.sets is None:
        return
    names = [one.name for one in sets_of(mixture.sets)]
    for name in environments_of_sets(s.environment.name):
        require_one_of("environment.name=by_set(…): a set", name, names)


def _chat(s: RunSettings) -> str:
    """Returns the setting that asks for a chat template; empty if none does."""
    if s.tokenizer.system is not None:
        return f"system={s.tokenizer.system!r}"
    if s.tokenizer.template_arguments is not None:
        return f"template_arguments={s.tokenizer.template_arguments!r}"
    return "chat=yes" if s.tokenizer.chat == "yes" else ""


def _terms(s: RunSettings) -> list[str]:
    """Returns the names of the terms in the user's reward."""
    return [term.name for term in parse_sum(s.task.reward, "task.reward")] if s.task.reward else []


TASK_RULES: dict[str, Rule] = {
    "task.shots, tokenizer.system, tokenizer.chat": lambda s: require(
        not (s.task.shots and _chat(s)),
        f"task.shots={s.task.shots} makes prompts that a completion continues, and"
        f" tokenizer.{_chat(s)} makes them a user's message: use one of the two.",
    ),
    "tokenizer.system, tokenizer.chat": lambda s: require(
        s.tokenizer.system is None or s.tokenizer.chat != "no",
        f"tokenizer.system={s.tokenizer.system!r} has no place in a prompt without a chat template:"
        " leave it out, or use tokenizer.chat=auto.",
    ),
    "tokenizer.system, tokenizer.chat, tokenizer.path": lambda s: require(
        not _chat(s) or s.tokenizer.path is not None or s.model.path is not None,
        f"tokenizer.{_chat(s)} needs a tokenizer with a chat template, and this run's tokens are"
        " characters: give --config.tokenizer.path=DIRECTORY.",
    ),
    "task.name, task.mixture.sets": lambda s: require(
        s.mixture is None or s.mixture.sets is not None,
        "task.name=mixture needs task.mixture.sets: two or more tasks with weights, such as"
        " 2 * arithmetic + jsonl(path='mine.jsonl').",
    ),
    "curriculum.low, curriculum.high": lambda s: require(
        s.curriculum.low <= s.curriculum.high,
        f"curriculum.low={s.curriculum.low:g} is above curriculum.high={s.curriculum.high:g}: no"
        " success rate is in that band. Exchange them.",
    ),
    "curriculum.difficulty, curriculum.selection": lambda s: require(
        s.curriculum.difficulty is None or s.curriculum.selection == EASY_TO_HARD,
        f"curriculum.difficulty={s.curriculum.difficulty!r} is read with"
        f" curriculum.selection={EASY_TO_HARD} alone, not with {s.curriculum.selection}: leave it"
        " out.",
    ),
    "environment.name, task.name": lambda s: require(
        s.mixture is not None or not environments_of_sets(s.environment.name),
        f"environment.name={s.environment.name} is for the sets of a mixture, and"
        f" task.name={s.task.name} has none: use task.name=mixture.",
    ),
    "environment.name, task.mixture.sets": _sets_played,
    "task.reward, environment.name": lambda s: require(
        s.plays or "environment" not in _terms(s),
        f"task.reward={s.task.reward} takes what an environment gave, and there is none: set"
        " environment.name, or another reward.",
    ),
    "task.reward, environment.name: no rewards": lambda s: require(
        s.environment.name is None
        or "environment" not in _terms(s)
        or gives_rewards(s.environment.name),
        f"task.reward={s.task.reward} takes what an environment gave, and environment.name="
        f"{s.environment.name} gives no rewards: use a reward that judges the last reply.",
    ),
    "environment.workers, trainer.group_size, evaluation.samples": lambda s: require(
        not s.plays or s.environment.workers >= max(s.trainer.group_size, s.evaluation.samples),
        f"environment.workers={s.environment.workers} is less than the"
        f" {max(s.trainer.group_size, s.evaluation.samples)} episodes of a problem"
        " (trainer.group_size, evaluation.samples), which begin together: use at least as many.",
    ),
    "trainer.batching, environment.rewrites": lambda s: require(
        s.trainer.batching != "shared" or not s.has_segments,
        "trainer.batching=shared has no place for episodes of several segments, as those of agents,"
        " and those whose chat template rewrites what was said before: use trainer.batching=packed,"
        " or, without an agent, environment.rewrites=refuse.",
    ),
    "reward.addresses, reward.secret_path": lambda s: require(
        s.reward.addresses is None or s.reward.secret_path is not None,
        f"reward.addresses={s.reward.addresses} needs reward.secret_path=FILE with the secret of"
        " these servers, which `rl-sync reward` makes.",
    ),
}
