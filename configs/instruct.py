r"""A chat checkpoint of your own learns from your rows, whose prompts are texts or conversations.

    python -m launcher --config=configs/instruct.py --config.model.path=DIRECTORY \
        --config.task.dataset.path=train.jsonl [--config.task.dataset.held_out_path=test.jsonl]

DIRECTORY is a checkpoint with its tokenizer and chat template. Rows are

    {"prompt": [{"role": "system", "content": …}, {"role": "user", "content": …}], "answer": "72"}

A prompt that is a text becomes a user's message. The reward `math` compares the number that a reply
ends with, or that it has in a box, with the answer; another is one flag (docs/rewards.md):
--config.task.reward=my_rewards.py:score. `plan` in front of the flags shows what the run does, and
`eval` measures the checkpoint, which should solve some problems and not all.

Adapters of rank 16 are trained, or those of PEFT that --config.model.lora.path=DIRECTORY names, on
from where they are; --config.model.lora.rank=0 trains all parameters. The learning rate
follows: 2e-4 for adapters, 1e-6 without. There is no SFT and no penalty on the distance from the
checkpoint, so no reference model is in memory: --config.algorithm.kl_coefficient=0.001 adds both.

A reply has up to 1,024 tokens. A checkpoint that thinks before it answers needs more
(--config.task.max_completion_tokens=4096), or a template that leaves thoughts out
(--config.tokenizer.template_arguments='{"enable_thinking": false}'). If most replies end at the
limit, the metric `truncated_fraction` says so.
"""

from ml_collections import ConfigDict

from rl_sync.configs import base


def get_config() -> ConfigDict:
    """Returns the defaults with another task, and steps that suit an instruct checkpoint."""
    config = base.get_config()
    config.name = "instruct"
    config.task.name = "dataset"
    config.task.dataset.demonstration = ""  # If there is SFT, it imitates the answer.
    config.task.reward = "math"
    config.task.max_prompt_tokens = 1024
    config.task.max_completion_tokens = 1024
    config.algorithm.kl_coefficient = 0.0
    config.model.remat = "full"
    config.model.lora.rank = base.following(config, lambda one: 0 if one.model.lora.path else 16)
    config.trainer.groups_per_step = 32
    config.trainer.batching = "shared"
    config.trainer.microbatch_rows = base.group_rows(config)
    config.evaluation.every_steps = 25
    return config
