"""Suggestions for a wrong setting on the command line: the settings that it probably means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rl_sync.spelling import LIKELY, likeness, question

# Names that other programs have for our settings.
_ALIASES = {
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    "grad_clip": "optimizer.max_gradient_norm",
    "max_grad_norm": "optimizer.max_gradient_norm",
    "warmup_steps": "optimizer.ramp_updates",
    "batch_size": "trainer.groups_per_step",
    "train_batch_size": "trainer.groups_per_step",
    "micro_batch_size": "trainer.microbatch_rows",
    "num_generations": "trainer.group_size",
    "steps": "trainer.steps",
    "num_steps": "trainer.steps",
    "max_steps": "trainer.steps",
    "iterations": "trainer.steps",
    "clip": "algorithm.clip_high",
    "clip_eps": "algorithm.clip_high",
    "gamma": "algorithm.discount",
    "lambda": "algorithm.gae_lambda",
    "beta": "algorithm.kl_coefficient",
    "kl_coef": "algorithm.kl_coefficient",
    "entropy_coef": "algorithm.entropy_coefficient",
    "temp": "rollout.temperature",
    "max_new_tokens": "task.max_completion_tokens",
    "max_tokens": "task.max_completion_tokens",
    "staleness": "sync.max_staleness",
    "explorers": "explorer.count",
    "num_explorers": "explorer.count",
    "workers": "explorer.count",
    "hidden_size": "model.embed_dim",
    "hidden_dim": "model.embed_dim",
    "model": "model.path",
    "dataset": "task.dataset.path",
    "data": "task.dataset.path",
    "output_dir": "workdir",
    "out": "workdir",
    "logdir": "workdir",
    "random_seed": "seed",
}
_ALIAS = 1.05  # Above the same name elsewhere, and above a similar name in the given section.
_SURE = 0.9  # A name of this likeness is meant even if another section was given.
_SAME_SECTION = 0.7
_OF_SECTION = 0.35  # The weight of the section, beside that of the field.
_MOST = 3


def setting_names(config: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yields the dotted names of all settings of a nested config."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from setting_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def settings_meant(wrong: str, known: Sequence[str]) -> list[str]:
    """Returns the settings that a wrong dotted name fits best: none, one, or a few."""
    fits = {name: _fit(wrong, name) for name in known}
    best = max(fits.values(), default=0.0)
    if best < LIKELY:
        return []
    return [name for name in known if fits[name] > best - 1e-6][:_MOST]


def did_you_mean(wrong: str, known: Sequence[str], value: str = "") -> str | None:
    """Asks for the flags that were probably meant, with the given value; None without any.

    Args:
      value: the given value, with its equals sign.
    """
    meant = settings_meant(wrong, known)
    return question(*(f"--config.{name}{value}" for name in meant)) if meant else None


def _fit(wrong: str, name: str) -> float:
    """Rates how well a setting's field and section fit; 0 if it cannot be meant."""
    (section, _, word), (of, _, field) = wrong.rpartition("."), name.rpartition(".")
    near = likeness(word, field)
    if _ALIASES.get(word.lower().replace("-", "_")) == name:
        near = max(near, _ALIAS)
    likely = 1.0 if section == of else likeness(section, of) if section else 0.0
    if section and (of.startswith(f"{section}.") or of.endswith(f".{section}")):
        likely = max(likely, 0.8)
    if likely < _SAME_SECTION:
        return near if near >= _SURE or (not section and near >= LIKELY) else 0.0
    return near + _OF_SECTION * likely if near >= LIKELY else 0.0
