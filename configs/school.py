r"""A language model practises school questions: 26 kinds, generated, marked by `k12`.

    pip install "rl_sync[tasks]"
    python -m launcher --config=configs/school.py --config.model.path=DIRECTORY

DIRECTORY is a checkpoint with its tokenizer. The questions are sums, word problems, dates, logic
and geometry; docs/tasks.md names them. The policy may reason first: its answer is what follows "the
answer is", or the last line. --config.task.school.difficulty=2 makes the questions harder, and
--config.task.school.generators=lcm,gcd takes only some kinds.

There is no SFT. A model that starts at random does not learn these questions (docs/tasks.md): train
it with configs/arithmetic.py. A small checkpoint needs solved examples in its prompt, which this
task does not give: write its rows as a data set with a template of your own.
"""

from ml_collections import ConfigDict

from rl_sync.configs import base


def get_config() -> ConfigDict:
    """Returns the defaults with another task, and steps that suit a pretrained model."""
    config = base.get_config()
    config.name = "school"
    config.task.name = "school"
    config.task.max_prompt_tokens = 256
    config.task.max_completion_tokens = 256
    config.evaluation.every_steps = 25
    return config
