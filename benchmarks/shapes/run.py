"""A run with the sizes of a real model, to plan and to compile it without the checkpoint.

    python -m launcher plan --config=benchmarks/shapes/run.py \\
        --config.model.path=benchmarks/shapes/qwen2.5-7b --find=v5e:4x4

The directories beside this file have the config.json of a checkpoint and nothing else, which is all
that `plan` reads. The tokens are those of the tests' tokenizer, and prompts are cut at
`task.max_prompt_tokens`, so a row has exactly that many tokens and `task.max_completion_tokens`.
GRPO with a reference model, in bfloat16. A run of your own has another config and the same flags.
"""

from pathlib import Path

from ml_collections import ConfigDict

from rl_sync.configs import base

_TOKENIZER = Path(__file__).resolve().parents[2] / "tests" / "data" / "tokenizer"


def problems(words: int = 1 << 12) -> list[dict[str, str]]:
    """Makes problems that are longer than any row."""
    return [{"prompt": f"{number} " * words, "answer": "0"} for number in range(16)]


def get_config() -> ConfigDict:
    """Returns the defaults with rows of 256 and 768 tokens, and without SFT."""
    config = base.get_config()
    config.name = "shapes"
    config.task.update({"name": "benchmarks/shapes/run.py:problems", "too_long": "truncate"})
    config.task.update({"max_prompt_tokens": 256, "max_completion_tokens": 768})
    config.tokenizer.update({"path": str(_TOKENIZER), "chat": "no"})
    config.model.update({"dtype": "bfloat16", "remat": "full"})
    config.algorithm.update({"name": "grpo", "kl_coefficient": 0.001})
    config.optimizer.update({"learning_rate": 1e-6, "updates_per_batch": 1})
    config.sft.steps = 0
    return config
