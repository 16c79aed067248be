r"""A language model learns to solve the word problems of GSM8K.

    python -m launcher --config=configs/gsm8k.py --config.model.path=DIRECTORY \
        --config.task.dataset.path=train.jsonl [--config.task.dataset.held_out_path=test.jsonl]

DIRECTORY is a checkpoint with its tokenizer. The path of the data may also be the name of a data
set, such as openai/gsm8k, with --config.task.dataset.subset=main and .held_out_split=test.

Rows are {"question": …, "answer": "… #### 72"}. The question goes through the checkpoint's chat
template, if it has one. The reward is 1 for a completion that is the number after the hashes, so
the policy is asked for the number alone. There is no SFT, since the checkpoint can write already. A
small model may solve nothing this way: docs/tasks.md says what to change (Small models).

Another data set takes another `format` (docs/tasks.md, Forms of rows), or the names of its fields:

    --config.task.dataset.format=math

or

    --config.task.dataset.prompt=problem --config.task.dataset.answer=solution.final \
        --config.task.dataset.answer_pattern=

An empty `answer_pattern` takes the whole field, without hashes. If answers are no numbers, change
`task.dataset.template`, in which {} is the question; `task.max_completion_tokens` limits replies.
"""

from ml_collections import ConfigDict

from rl_sync.configs import base


def get_config() -> ConfigDict:
    """Returns the defaults with another task, and steps that suit a pretrained model."""
    config = base.get_config()
    config.name = "gsm8k"
    config.task.name = "dataset"
    config.task.dataset.format = "gsm8k"
    config.task.dataset.template = "{}\n\nAnswer with the number alone."
    config.task.dataset.demonstration = ""  # If there is SFT, it imitates the answer.
    config.task.max_prompt_tokens = 256
    config.task.max_completion_tokens = 16
    config.evaluation.every_steps = 25
    return config
