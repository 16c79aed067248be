r"""A vision-language model learns to answer questions about images.

    python -m launcher --config=configs/vqa.py --config.model.path=DIRECTORY \
        --config.task.dataset.path=train.jsonl [--config.task.dataset.held_out_path=test.jsonl]

DIRECTORY is a checkpoint that sees, with its tokenizer and its image processor: Gemma 3 from 4B on
(google/gemma-3-4b-it), SmolVLM or Idefics 3. The path of the data is a JSONL or Parquet file, a
directory, or the name of a data set. Rows are

    {"prompt": "How many cats?", "answer": "2", "kind": "count", "images": ["cats.jpg"]}

where an image is a path beside the file, bytes or a data URL (docs/tasks.md, Images in rows), and
`kind` says how answers are compared (docs/rewards-vision.md): count, number, text, words, choice,
box or point. If all rows are of one kind, the reward says it in place of the rows, as in
--config.task.reward="vision(kind='text')". Other names of fields: --config.task.dataset.prompt=
question and so on.

Adapters of rank 16 are trained in the language model. The vision tower is frozen, so an explorer
encodes each image once, and groups carry its features where they are smaller than the pixels. With
Gemma 3 an image is 256 tokens; SmolVLM cuts large images into up to 17 tiles of 64 tokens or more,
for which prompts need more room (--config.task.max_prompt_tokens=1536). Gemma 3 4B fits one GPU of
80 GB (docs/accelerators.md, Questions about images); `plan` says what other models and devices
need. There is no SFT. To train the tower too: --config.model.lora.rank=0
--config.model.vision.trains_tower=true.
"""

from ml_collections import ConfigDict

from rl_sync.configs import base


def get_config() -> ConfigDict:
    """Returns the defaults with another task, and adapters that suit a pretrained model."""
    config = base.get_config()
    config.name = "vqa"
    config.task.name = "dataset"
    config.task.dataset.demonstration = ""  # If there is SFT, it imitates the answer.
    config.task.reward = "vision"
    config.task.max_prompt_tokens = 512
    config.task.max_completion_tokens = 64
    config.model.update({"dtype": "bfloat16", "remat": "full"})
    config.model.lora.rank = base.following(config, lambda one: 0 if one.model.lora.path else 16)
    config.trainer.update({"groups_per_step": 16, "group_size": 8})
    config.trainer.microbatch_rows = base.group_rows(config)
    config.evaluation.every_steps = 25
    return config
