"""The quick run in one process, with a buffer of its own: most of its time is compilation."""

from ml_collections import ConfigDict

from tests.runs import quick


def get_config() -> ConfigDict:
    config = quick.get_config()
    config.trainer.steps = 3
    config.launch.colocate = True
    config.replay.backend = "embedded"
    return config
