"""Defaults of a config that follow from its other settings."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference


class _Lookup(NamedTuple):
    """Operation of a `FieldReference`: what it makes of its value when that is read."""

    fn: Callable[[Any], Any]
    args: tuple[()] = ()


class Following(FieldReference):
    """A default that follows from other settings; see `following`."""


def following(config: ConfigDict, value: Callable[[ConfigDict], Any]) -> Following:
    """Makes a default that follows from other settings of a config.

    It is computed when the config is read, so it follows changes of those settings, also those of
    the command line. A value that is given in its place stays.

    Args:
      config: the config. A copy of it goes on to follow the settings of the original.
      value: computes the default.
    """
    return Following(value(config), op=_Lookup(lambda _: value(config)))


def from_scratch(config: ConfigDict, value: int) -> Following:
    """Makes a default for a policy that starts at random: 0 where `model.path` is given."""
    return following(config, lambda config: 0 if config.model.path else value)
