"""A reward by a reward model: a transformer with a scalar head, in JAX."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from jaxtyping import Array, Float

from rl_sync.models.config import ModelConfig
from rl_sync.models.heads import last_scalars, token_scalars
from rl_sync.models.huggingface.notes import NOTES_FILE, ScoreNotes, read_notes
from rl_sync.models.huggingface.reading import locate
from rl_sync.reward_models.model_on_devices import (
    ModelSite,
    Served,
    model_of,
    require_fit,
    tokenizer_of,
)
from rl_sync.rewards.judgement import Completion, Judgement, Row
from rl_sync.roles.saved_policy import is_run
from rl_sync.tasks.tokenizers.prompt_messages import encode_asked, is_begun
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer
from rl_sync.types import Params


@dataclasses.dataclass(frozen=True)
class RewardModel(ModelSite):
    """Scores completions by a model, such as one that algorithm.name=reward_model has trained.

    The score is the head's output at the last token of prompt, completion and end of sequence; a
    truncated completion has no end of sequence.

    Attributes:
      path: directory of a checkpoint, as `rl-sync export` writes it, or another
        `AutoModelForSequenceClassification` with one label.
      normalize: whether the score is (score − mean) / std.
      mean, std: None for the values in the checkpoint's notes, which were measured on held-out
        pairs.
      chat, system: see `config.tokenizer`; None for the values in the notes. If there are no notes,
        `chat` is `auto`, and there is no system prompt.
      platform, data, fsdp, tensor, rows, dtype: see `ModelSite`.

    Raises:
      ValueError: there is no reward model, or an option is invalid.
    """

    path: str
    normalize: bool = True
    mean: float | None = None
    std: float | None = None
    chat: str | None = None
    system: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_run(self.path):
            raise ValueError(
                f"{self.path} is the work directory of a run: write its model with `rl-sync"
                " export --workdir=… --to=DIRECTORY`, and give that directory."
            )
        if not self._model.scalar_head:
            raise ValueError(
                f"{self.path} is not a reward model: its config.json names no"
                " …ForSequenceClassification with one label."
            )
        mean, std = self._scale
        if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
            raise ValueError(f"mean={mean} and std={std} must be finite, and std above 0.")

    def check(self, row: Row) -> None:
        """Checks that the model can read a row's prompt.

        Raises:
          ValueError: the tokenizer lacks one of the prompt's characters, or the prompt is too long.
        """
        require_fit(self._tokenizer, str(row["prompt"]), self._model, row)

    def warm_up(self) -> None:
        """Loads the model.

        Raises:
          ValueError: the model cannot be loaded.
        """
        _ = self._served

    def __call__(self, rows: Sequence[Row], completions: Sequence[Completion]) -> list[Judgement]:
        """Scores completions.

        Raises:
          ValueError: the model cannot be loaded.
        """
        served, tokenizer = self._served, self._served.tokenizer
        found: dict[int, Judgement] = {}
        ids: dict[int, list[int]] = {}
        for i, (row, completion) in enumerate(zip(rows, completions, strict=True)):
            try:
                asked = encode_asked(tokenizer, str(row["prompt"]), row)
                ids[i] = [*asked, *_replied(tokenizer, row, completion)]
            except Exception as error:  # Tokenizers raise errors of many kinds.
                found[i] = Judgement.unknown(f"the completion cannot be encoded: {error}")
                continue
            if not 0 < len(ids[i]) <= served.model.max_length:
                found[i] = Judgement.unknown(
                    f"{len(ids.pop(i))} tokens, where the reward model takes 1 to"
                    f" {served.model.max_length}"
                )
        mean, std = self._scale
        scores = served.values(_scores, [*ids.values()], [0] * len(ids))
        for i, score in zip(ids, scores.tolist(), strict=True):
            found[i] = _judgement(score, (score - mean) / std)
        return [found[i] for i in range(len(found))]

    @functools.cached_property
    def _served(self) -> Served:
        return Served(self.path, None, self, *self._prompting)

    @functools.cached_property
    def _model(self) -> ModelConfig:
        return model_of(self.path)

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return tokenizer_of(self.path, *self._prompting)

    @property
    def _prompting(self) -> tuple[str, str | None]:
        """Tokenizer settings `chat` and `system`."""
        notes = self._notes or ScoreNotes()
        return self.chat or notes.chat, self.system or notes.system

    @functools.cached_property
    def _notes(self) -> ScoreNotes | None:
        return read_notes(locate(self.path))

    @functools.cached_property
    def _scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the scores."""
        if not self.normalize:
            return 0.0, 1.0
        notes = self._notes or ScoreNotes()
        mean = notes.mean if self.mean is None else self.mean
        std = notes.std if self.std is None else self.std
        if mean is None or std is None:
            raise ValueError(
                f"{self.path} has no mean and std of its scores in {NOTES_FILE}: give mean=… and"
                " std=…, or normalize=False."
            )
        return mean, std


def _replied(tokenizer: Tokenizer, row: Row, completion: Completion) -> list[int]:
    """Encodes a completion as pairs are encoded; a truncated one has no end."""
    if completion.truncated:
        return tokenizer.encode(completion.text)
    return [
        *tokenizer.encode_reply(completion.text, continues=is_begun(row)),
        tokenizer.eos_id,
    ]


def _judgement(score: float, normalized: float) -> Judgement:
    if not math.isfinite(normalized):
        return Judgement.unknown(f"the reward model's score is {score}")
    return Judgement(normalized, f"score {score:.4g}", {"raw": score})


def _scores(
    model: ModelConfig, params: Params, tokens: Array, starts: Array, lengths: Array
) -> Float[Array, " B"]:
    del starts
    return last_scalars(token_scalars(model, params, tokens), lengths)
