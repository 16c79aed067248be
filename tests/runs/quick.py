"""The tiny run with a tenth of its problems, which every process makes, and without SFT."""

from ml_collections import ConfigDict

from tests.runs import tiny


def get_config() -> ConfigDict:
    config = tiny.get_config()
    config.task.arithmetic.least_operand = 70  # As long as all the others.
    config.sft.steps = 0
    return config
