r"""A real small model learns to keep three rules of writing, which a function checks.

    python -m launcher --config=benchmarks/short_sentences.py --config.model.path=smollm2

The prompts ask for a short sentence with a given word. The reward is 1 for a sentence of 4 to 12
words that has the word and ends with a period. SmolLM2-135M-Instruct keeps all three rules in
about a tenth of its sentences, which tend to be too long.
"""

import itertools
import random

from ml_collections import ConfigDict

from rl_sync.configs import smollm2
from rl_sync.rewards.judgement import Completion

TOPICS = (
    *("rain", "a dog", "the sea", "a train", "bread", "a garden", "music", "winter", "a river"),
    *("a book", "the moon", "a market", "a bridge", "tea", "a horse", "the night", "a farm"),
    *("a letter", "a child", "a city"),
)
WORDS = (
    *("green", "slow", "often", "small", "early", "bright", "cold", "quiet", "old", "near"),
    *("sweet", "deep", "heavy", "soft", "empty", "warm", "long", "strange", "happy", "never"),
)
LEAST, MOST = 4, 12
"""Numbers of words of a sentence."""


def requests(seed: int) -> list[dict[str, str]]:
    """Makes a request for each topic and word, in an order of the seed's."""
    pairs = [*itertools.product(TOPICS, WORDS)]
    random.Random(seed).shuffle(pairs)
    text = "Write one short sentence about {}. Use the word {}."
    return [{"prompt": text.format(*pair), "answer": pair[1]} for pair in pairs]


def rules_kept(row: dict[str, str], completion: Completion) -> float:
    """Returns 1 if a sentence keeps all rules, else 0."""
    text = completion.text.strip()
    words = text.rstrip(".").lower().replace(",", " ").split()
    return float(text.endswith(".") and LEAST <= len(words) <= MOST and row["answer"] in words)


def get_config() -> ConfigDict:
    """Returns the settings of `configs/smollm2.py`, with this task."""
    config = smollm2.get_config()
    config.name = "short_sentences"
    config.task.name = f"{__file__}:requests"
    config.task.reward = f"{__file__}:rules_kept"
    config.task.shots = 0
    config.task.max_completion_tokens = 20
    config.rollout.stop_strings = ""
    config.trainer.microbatch_rows = 4  # The trainer holds 4 GB; with all rows at once 9 GB.
    return config
