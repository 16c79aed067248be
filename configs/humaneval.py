r"""A language model learns to write Python functions that pass their tests: HumanEval.

    pip install "rl_sync[tasks,sandbox]"
    python -m launcher --config=configs/humaneval.py --config.model.path=DIRECTORY

DIRECTORY is a checkpoint with its tokenizer. The run trains on half of the 164 problems and
measures accuracy on the others. A prompt is the head of a function with its docstring, and the
completion continues it, so there is no chat template. The reward runs the problem's tests in a
sandbox (docs/code.md). A problem has one score for all of its tests.

Models may have seen HumanEval before: use it to try the reward, not to compare models.
"""

from ml_collections import ConfigDict

from rl_sync.configs import base


def get_config() -> ConfigDict:
    """Returns the defaults with another task, and steps that suit a pretrained model."""
    config = base.get_config()
    config.name = "humaneval"
    config.task.name = "humaneval"
    config.task.max_prompt_tokens = 512
    config.task.max_completion_tokens = 384
    config.tokenizer.chat = "no"
    # A function ends at one of these. They are whole lines, as the stop text is part of the
    # program.
    config.rollout.stop_strings = "\n\n\n|\n#"
    config.trainer.groups_per_step = 16
    config.evaluation.every_steps = 25
    return config
