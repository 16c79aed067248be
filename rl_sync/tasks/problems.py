"""Problems of a task as text, which a loader returns before they are tokenized."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.images import FIELD, images_of
from rl_sync.tasks.dialogues import Dialogue, Spoken
from rl_sync.tasks.tokenizers.prompt_messages import messages_of
from rl_sync.types import Preference, Prompt


@dataclasses.dataclass(frozen=True)
class Problems:
    """The problems of a task, as text.

    Attributes:
      train: problems to train on; `train[i].prompt_id == i`.
      held_out: other problems, for evaluation.
      demonstrations: training problems whose answer is the demonstration's text; `prompt_id` is the
        id of the training problem.
      dialogues: conversations of training problems, as demonstrations.
      reward: expression of the task's own reward; see `rl_sync.expression`.
      preferences: pairs of completions of training problems.
      held_out_preferences: pairs of completions of held-out problems.
      charset: characters of a character tokenizer, in order; None for the characters of the texts.
      notes: sentences about data that was left out.
      unanswered: complaint, for rewards that read answers, about the first row without the answer
        that its format names; empty if every row has its answer.
    """

    train: Sequence[Prompt]
    held_out: Sequence[Prompt]
    demonstrations: Sequence[Prompt]
    reward: str = "exact"
    preferences: Sequence[Preference] = ()
    held_out_preferences: Sequence[Preference] = ()
    charset: str | None = None
    notes: Sequence[str] = ()
    unanswered: str = ""
    dialogues: Sequence[Spoken] = ()

    def asking(self, train: Sequence[Prompt], held_out: Sequence[Prompt]) -> Problems:
        """Returns only the problems with these prompts, which get new numbers.

        Demonstrations and pairs of other prompts are left out; the remaining ones get the texts and
        the messages of these prompts.

        Args:
          train, held_out: some of the prompts, with their old numbers; their texts and messages may
            differ.
        """
        train_anew, held_out_anew = (
            [prompt._replace(prompt_id=i) for i, prompt in enumerate(of)]
            for of in (train, held_out)
        )
        asked = {old.prompt_id: new for old, new in zip(train, train_anew, strict=True)}
        kept_out = {old.prompt_id: new for old, new in zip(held_out, held_out_anew, strict=True)}
        return dataclasses.replace(
            self,
            train=train_anew,
            held_out=held_out_anew,
            demonstrations=[
                _asking(shown, asked[shown.prompt_id])
                for shown in self.demonstrations
                if shown.prompt_id in asked
            ],
            dialogues=[
                shown._replace(prompt_id=asked[shown.prompt_id].prompt_id)
                for shown in self.dialogues
                if shown.prompt_id in asked
            ],
            preferences=_of_asked(self.preferences, asked),
            held_out_preferences=_of_asked(self.held_out_preferences, kept_out),
        )


class TaskKind(NamedTuple):
    """A named task.

    Attributes:
      record: its section of the config, a dataclass of settings.
      load: loads its problems from the section and the run's seed.
      meaning: one sentence.
    """

    record: type
    load: Callable[[Any, int], Problems]
    meaning: str


def with_images(problems: Problems, most_pixels: int) -> Problems:
    """Reads the references to the images of all rows, and sets the bound of their pixels.

    Raises:
      ValueError: a value is not an image; the message names the problem.
    """

    def read(prompts: Sequence[Prompt]) -> list[Prompt]:
        return [_with_images(one, most_pixels) for one in prompts]

    def of_pairs(pairs: Sequence[Preference]) -> list[Preference]:
        return [one._replace(prompt=_with_images(one.prompt, most_pixels)) for one in pairs]

    return dataclasses.replace(
        problems,
        train=read(problems.train),
        held_out=read(problems.held_out),
        demonstrations=read(problems.demonstrations),
        dialogues=[
            one._replace(dialogue=_bounded(one.dialogue, most_pixels)) for one in problems.dialogues
        ],
        preferences=of_pairs(problems.preferences),
        held_out_preferences=of_pairs(problems.held_out_preferences),
    )


def _bounded(dialogue: Dialogue, most_pixels: int) -> Dialogue:
    """Sets the bound on the pixels of a dialogue's images."""
    if not dialogue.images:
        return dialogue
    lines = [
        line._replace(
            images=tuple(dataclasses.replace(one, most_pixels=most_pixels) for one in line.images)
        )
        for line in dialogue.lines
    ]
    return dialogue._replace(lines=tuple(lines))


def _with_images(prompt: Prompt, most_pixels: int) -> Prompt:
    try:
        images = images_of(prompt.row or {})
    except ValueError as error:
        raise ValueError(f"The prompt {prompt.text!r:.200}: {error}") from error
    if not images:
        return prompt
    bounded = [
        one if one.most_pixels == most_pixels else dataclasses.replace(one, most_pixels=most_pixels)
        for one in images
    ]
    return prompt._replace(row={**(prompt.row or {}), FIELD: bounded})


def _asking(shown: Prompt, asked: Prompt) -> Prompt:
    """Returns a prompt with the number, the text and the messages of another one."""
    messages = messages_of(asked.row)
    row = shown.row if messages is None else {**(shown.row or {}), **messages.fields}
    return Prompt(asked.prompt_id, asked.text, shown.answer, row)


def _of_asked(pairs: Sequence[Preference], asked: Mapping[int, Prompt]) -> list[Preference]:
    """Returns the pairs of the given prompts, with their new numbers and texts."""
    return [
        pair._replace(prompt=_asking(pair.prompt, asked[pair.prompt.prompt_id]))
        for pair in pairs
        if pair.prompt.prompt_id in asked
    ]
