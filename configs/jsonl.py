"""The arithmetic run, on a JSONL file of your own.

    python -m launcher --config=configs/jsonl.py --config.task.jsonl.path=FILE

Each line of FILE is an object {"prompt": …, "answer": …}. A tenth of the different prompts is held
out, each with all its lines, unless --config.task.jsonl.held_out_path names a file. Characters are
tokens, the rows' own answers are the demonstrations of the warm start, and a completion is rewarded
when it is the answer.
"""

from ml_collections import ConfigDict

from configs import arithmetic


def get_config() -> ConfigDict:
    """Returns the arithmetic run's config with another task."""
    config = arithmetic.get_config()
    config.name = "jsonl"
    config.task.name = "jsonl"
    return config
