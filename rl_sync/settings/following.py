"""Makes defaults of a config that depend on its other settings."""

from collections.abc import Callable
from typing import NamedTuple

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference


class _Lookup(NamedTuple):
    """An operation of a `FieldReference`: a function that is applied to its value at each read."""

    fn: Callable[[object], object]
    args: tuple[()] = ()


class Following(FieldReference):
    """A default that depends on other settings; see `following`."""


def following(config: ConfigDict, value: Callable[[ConfigDict], object]) -> Following:
    """Makes a default that depends on other settings of a config.

    The default is computed when the config is read, so it follows changes of those settings, also
    from the command line. A value that replaces the default stays.

    Args:
      config: the config. In a copy of it, the default still follows the original's settings.
      value: computes the default.
    """
    return Following(value(config), op=_Lookup(lambda _: value(config)))


def from_scratch(config: ConfigDict, value: float, otherwise: float | None = 0) -> Following:
    """Makes a default: `value` for a policy that starts at random, `otherwise` if `model.path` is
    given. None is a default that the settings fill in, such as a learning rate."""
    return following(config, lambda config: otherwise if config.model.path else value)


def group_rows(config: ConfigDict) -> Following:
    """Makes a default of `trainer.microbatch_rows`: the rows of a group on each device, at most
    those of an update."""

    def rows(config: ConfigDict) -> int:
        trainer = config.trainer
        most = trainer.groups_per_step * trainer.group_size // config.optimizer.updates_per_batch
        return min(most, trainer.group_size * trainer.mesh.data * trainer.mesh.fsdp)

    return following(config, rows)
