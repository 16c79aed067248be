"""Holds a loaded task: problems to train on, held-out problems, a tokenizer, a reward."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from rl_sync.images import images_of
from rl_sync.rewards.judgement import Row
from rl_sync.sequence_images import SequenceImages
from rl_sync.tasks.dialogues import Demonstrated
from rl_sync.tasks.pictures.places import PLACEHOLDER
from rl_sync.tasks.pictures.prompt_encoder import TEXT, PicturedPrompt, PromptEncoder
from rl_sync.tasks.pictures.tile_processor import TileProcessor
from rl_sync.tasks.tokenizers.prompt_messages import identity, messages_of
from rl_sync.tasks.tokenizers.tokenizer import BEFORE_TOKENS, Tokenizer, begun_reply
from rl_sync.types import Preference, Prompt


class AskedPrompt(NamedTuple):
    """A prompt as an engine gets it.

    Attributes:
      ids: token ids.
      images: its images; None for text alone.
    """

    ids: Int[np.ndarray, " P"]
    images: SequenceImages | None


@dataclasses.dataclass(frozen=True)
class Task:
    """A loaded task.

    Attributes:
      train: problems to train on; `train[i].prompt_id == i`.
      held_out: problems for evaluation; `is_seen` says which of them are also trained on.
      demonstrations: training problems with demonstrated answers, and dialogues as tokens; may be
        empty.
      tokenizer: tokenizer of all texts.
      reward: expression of the reward; see `rl_sync.rewards.rubric.Rubric`.
      max_prompt_tokens: number of tokens of the longest prompt, P, chat template included.
      max_completion_tokens: maximum number of tokens of a completion, C, end of sequence included.
      preferences, held_out_preferences: pairs of completions of training problems and of held-out
        problems; may be empty.
      episode_tokens: maximum number of tokens of an episode in an environment; 0 without one.
      notes: sentences for the user about data that was left out or changed.
      processor: processing of images; None for a policy that reads text alone. Images then serve
        rewards only.
      placeholder: text that stands for an image in prompts; empty for none.

    Raises:
      ValueError: there are no problems, or a prompt or demonstration does not fit the lengths.
    """

    train: Sequence[Prompt]
    held_out: Sequence[Prompt]
    demonstrations: Sequence[Prompt | Demonstrated]
    tokenizer: Tokenizer
    reward: str
    max_prompt_tokens: int
    max_completion_tokens: int
    preferences: Sequence[Preference] = ()
    held_out_preferences: Sequence[Preference] = ()
    notes: Sequence[str] = ()
    episode_tokens: int = 0
    processor: TileProcessor | None = None
    placeholder: str = PLACEHOLDER

    def __post_init__(self) -> None:
        for name, prompts in {"training": self.train, "held-out": self.held_out}.items():
            if not prompts:
                raise ValueError(f"The task has no {name} problems.")
            for prompt in prompts:
                self._check_prompt(prompt)
        for demonstration in self.demonstrations:
            self._check_demonstration(demonstration)

    def _check_prompt(self, prompt: Prompt) -> None:
        asked = self.encoder.length(prompt.text, prompt.row)
        if not 1 <= asked <= self.max_prompt_tokens:
            raise ValueError(
                f"The prompt {prompt.text!r} has {asked} tokens, but the task allows 1 to"
                f" {self.max_prompt_tokens}."
            )

    def _check_demonstration(self, prompt: Prompt | Demonstrated) -> None:
        if isinstance(prompt, Demonstrated):
            assert len(prompt.tokens) <= self.row_tokens, "longer dialogues are left out or cut"
            return
        prompt = prompt._replace(row=self._row_of(prompt))
        self._check_prompt(prompt)
        answered = self.encoder.completion_length(prompt.answer, prompt.row)
        most = self.row_tokens - self.max_prompt_tokens
        if answered > most:
            raise ValueError(
                f"The demonstration {prompt.text!r} → {prompt.answer!r} has {answered} tokens to"
                " learn, its end of sequence included, but the task allows"
                f" {most} for the completion."
            )

    def describe(self) -> str:
        """Describes problems, their lengths, data that was left out, and ends of replies."""
        sizes = (
            f"{len(self.train):,} problems to train on, {len(self.held_out):,} held out; at most"
            f" {self.max_prompt_tokens} tokens a prompt and {self.max_completion_tokens} a"
            " completion."
        )
        seen, notes = sum(map(self.is_seen, self.held_out)), list(self.notes)
        if seen:
            notes.append(
                f"{seen:,} of {len(self.held_out):,} held-out problems have a prompt that is"
                " trained on too: accuracy is also reported for these and for the others."
            )
        if ends := self.tokenizer.describe_ends():
            notes.append(ends)
        return "\n".join([sizes, *(f"- {note}" for note in notes)])

    def describe_prompt(self) -> str:
        """Shows the first training prompt as the policy reads it, with its special tokens."""
        first = self.train[0]
        ids, at = self.encoder.expanded(first.text, first.row)
        shown = "".join(
            self.tokenizer.decode_all(ids[list(run)].tolist()) if is_text else "[image]"
            for is_text, run in itertools.groupby(range(len(ids)), lambda i: bool(at[i] == TEXT))
        )
        lines = "\n".join(f"  | {line}" for line in shown.split("\n"))
        way = self.tokenizer.describe_prompt(messages_of(first.row))
        begins = begun_reply(self.tokenizer, ids[-BEFORE_TOKENS:].tolist()).strip()
        if begins:
            way += f", which begins the thoughts of replies with {begins}"
        return f"The first prompt ({len(ids)} tokens), {way}:\n{lines}"

    def is_seen(self, prompt: Prompt) -> bool:
        """Says whether a training problem has the same messages and images."""
        return identity(prompt.text, prompt.row) in self._trained_on

    @functools.cached_property
    def _trained_on(self) -> frozenset[Hashable]:
        return frozenset(identity(one.text, one.row) for one in self.train)

    @functools.cached_property
    def shows_images(self) -> bool:
        """True if a prompt or a demonstration is about an image."""
        asked = any(images_of(one.row or {}) for one in (*self.train, *self.held_out))
        imitated = (one for one in self.demonstrations if isinstance(one, Demonstrated))
        return asked or any(one.images is not None for one in imitated)

    @functools.cached_property
    def encoder(self) -> PromptEncoder:
        """The encoder of prompts, with their images where the policy sees."""
        return PromptEncoder(self.tokenizer, self.processor, self.placeholder)

    def pictured(self, prompt: Prompt) -> PicturedPrompt:
        """Encodes a prompt of a policy that sees, and decodes its images.

        Raises:
          ValueError: an image cannot be read or is damaged; the message names it.
        """
        return self.encoder.pictured(prompt.text, self._row_of(prompt))

    def asked(self, prompts: Iterable[Prompt]) -> list[AskedPrompt]:
        """Encodes prompts as an engine gets them, and decodes their images.

        Raises:
          ValueError: an image cannot be read or is damaged; the message names it.
        """
        return [self._asked(prompt) for prompt in prompts]

    def _asked(self, prompt: Prompt) -> AskedPrompt:
        if self.processor is None:
            return AskedPrompt(self.encoder.expanded(prompt.text, self._row_of(prompt)).ids, None)
        shown = self.pictured(prompt)
        if not shown.digests:
            return AskedPrompt(shown.ids, None)
        return AskedPrompt(shown.ids, SequenceImages(shown.at, shown.tiles, shown.digests))

    def _row_of(self, prompt: Prompt) -> Row | None:
        """Returns the row of a prompt; those of leases and demonstrations are in `train`."""
        if prompt.row is None and 0 <= prompt.prompt_id < len(self.train):
            problem = self.train[prompt.prompt_id]
            return problem.row if problem.text == prompt.text else None
        return prompt.row

    @property
    def row_tokens(self) -> int:
        """Number of tokens of a row, T: prompt and completion, or a whole episode."""
        return self.episode_tokens or self.max_prompt_tokens + self.max_completion_tokens

    @property
    def max_drawn_tokens(self) -> int:
        """Maximum number of tokens that the policy samples for a row."""
        return self.episode_tokens or self.max_completion_tokens

    def prompt_lengths(self, prompts: Iterable[Prompt]) -> frozenset[int]:
        """Returns the different numbers of tokens of prompts, those of images included."""
        return frozenset(self.encoder.length(one.text, self._row_of(one)) for one in prompts)

    @functools.cached_property
    def trained_tiles(self) -> int:
        """Maximum number of tiles of a training problem's images."""
        return self.most_tiles(self.train)

    def most_tiles(self, prompts: Iterable[Prompt]) -> int:
        """Returns the maximum number of tiles that the images of a prompt are cut into."""
        if self.processor is None:
            return 0
        of_images = (self.encoder.images_length(self._row_of(prompt)) for prompt in prompts)
        return max(of_images, default=0) // self.processor.tile_tokens

    @functools.cached_property
    def demonstrated_tiles(self) -> int:
        """Maximum number of tiles of a demonstration's images."""
        if self.processor is None:
            return 0
        dialogues = [one for one in self.demonstrations if isinstance(one, Demonstrated)]
        placed = [one.images for one in dialogues if one.images is not None]
        asked = (one for one in self.demonstrations if isinstance(one, Prompt))
        return max(self.most_tiles(asked), *(one.tiles(self.processor) for one in placed), 0)

    def shown(self, demonstrations: Sequence[Prompt | Demonstrated]) -> list[SequenceImages | None]:
        """Decodes the images of demonstrations; those of text alone have None.

        Raises:
          ValueError: an image cannot be read or is damaged; the message names it.
        """
        return [self._shown(one) for one in demonstrations]

    def _shown(self, one: Prompt | Demonstrated) -> SequenceImages | None:
        if self.processor is None:
            return None
        if isinstance(one, Prompt):
            return self._asked(one).images
        found = None if one.images is None else one.images.decoded(self.processor)
        return found if found is not None and found.digests else None

    def encode_prompts(
        self, prompts: Sequence[str | Prompt]
    ) -> tuple[Int[np.ndarray, "B P"], Int[np.ndarray, " B"]]:
        """Encodes prompts; returns their token ids, padded on the right, and their lengths.

        Images of prompts have their tokens, and are not decoded; a text alone has no images.
        """
        tokens = np.full((len(prompts), self.max_prompt_tokens), self.tokenizer.pad_id, np.int32)
        lengths = np.zeros(len(prompts), np.int32)
        for row, one in enumerate(prompts):
            text, of = (one, None) if isinstance(one, str) else (one.text, self._row_of(one))
            ids = self.encoder.expanded(text, of).ids
            tokens[row, : len(ids)], lengths[row] = ids, len(ids)
        return tokens, lengths

    def encode_demonstrations(
        self, prompts: Sequence[Prompt | Demonstrated]
    ) -> tuple[Int[np.ndarray, "B T"], np.ndarray]:
        """Encodes rows of prompt, answer and end of sequence, with a mask of answer and end.

        Dialogues already have tokens and masks. Images have their tokens, and are not decoded.
        """
        tokens = np.full((len(prompts), self.row_tokens), self.tokenizer.pad_id, np.int32)
        mask = np.zeros(tokens.shape, bool)
        for row, prompt in enumerate(prompts):
            if isinstance(prompt, Demonstrated):
                length = len(prompt.tokens)
                tokens[row, :length], mask[row, :length] = prompt.tokens, prompt.mask
                continue
            of = self._row_of(prompt)
            asked = self.encoder.expanded(prompt.text, of).ids
            ids = [*asked, *self.encoder.completion(prompt.answer, of), self.tokenizer.eos_id]
            tokens[row, : len(ids)], mask[row, len(asked) : len(ids)] = ids, True
        return tokens, mask

    def encode_preferences(
        self, preferences: Sequence[Preference]
    ) -> tuple[Int[np.ndarray, "B T"], np.ndarray]:
        """Encodes two rows for each pair, like demonstrations: the chosen, then the rejected."""
        return self.encode_demonstrations(
            [
                pair.prompt._replace(answer=text)
                for pair in preferences
                for text in (pair.chosen, pair.rejected)
            ]
        )
