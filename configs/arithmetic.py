"""A small transformer learns two-operand arithmetic."""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Returns the defaults, changed for this experiment."""
    config = base.get_config()
    config.name = "arithmetic"
    return config
