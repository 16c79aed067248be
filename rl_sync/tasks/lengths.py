"""Limits the lengths of a task: drops or cuts problems that are too long, and counts them."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Sequence

from rl_sync.images import ImageError, images_of
from rl_sync.setting import check, setting
from rl_sync.tasks.dialogues import Demonstrated, Rendering
from rl_sync.tasks.pictures.places import PLACE, placed
from rl_sync.tasks.pictures.prompt_encoder import PromptEncoder
from rl_sync.tasks.pictures.tile_processor import TileProcessor
from rl_sync.tasks.problems import Problems
from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizers.prompt_messages import (
    SYSTEM_ROLES,
    PromptMessages,
    messages_of,
)
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer
from rl_sync.types import Preference, Prompt

TOO_LONG_CHOICES = ("drop", "truncate")


@dataclasses.dataclass(frozen=True)
class LengthLimits:
    """Lengths of prompts and completions: settings of `config.task`.

    Raises:
      ValueError: a limit is below 1, or a choice is unknown.
    """

    max_prompt_tokens: int | None = setting(
        None,
        "Maximum tokens of a prompt, chat template included. Rows have room for the longest"
        " remaining prompt, and no more.",
        unit="tokens",
        least=1,
        implied="no limit",
    )
    max_completion_tokens: int | None = setting(
        None,
        "Maximum tokens of a completion, end of sequence included.",
        unit="tokens",
        least=1,
        implied="the length of the longest answer or demonstration",
    )
    too_long: str = setting(
        "drop",
        "Treatment of longer prompts: `drop` leaves the problem out, `truncate` cuts its text from"
        " the left, inside the chat template; a conversation loses its oldest turns. Dialogues in"
        " demonstrations are cut by `truncate` after the last reply that fits.",
        choices=TOO_LONG_CHOICES,
    )

    def __post_init__(self) -> None:
        check(self, "task")


def fit(
    problems: Problems,
    encoder: PromptEncoder,
    limits: LengthLimits,
    episode_tokens: int = 0,
    rendering: Rendering | None = None,
) -> Task:
    """Makes a task from the problems that fit the limits, and notes how many do not.

    Args:
      encoder: encoder of all texts, with the images that the policy sees.
      episode_tokens: see `Task`; if it is not 0, a demonstration is a whole episode.
      rendering: writes dialogues; required if there are any.

    Raises:
      ValueError: no problem is left to train on or to hold out, a chat template or the images of a
        prompt alone are too long, an image cannot be read, or the length of completions is not
        given.
    """
    _require_images_outside_dialogues(problems, encoder.processor)
    problems = _shortened(problems, encoder, limits, episode_tokens)
    asked = (*problems.train, *problems.held_out)
    longest = max(encoder.length(one.text, one.row) for one in asked)
    drawn = limits.max_completion_tokens
    room = episode_tokens or (longest + drawn if drawn is not None else 0)
    dialogues, notes = _dialogues(
        problems, encoder, rendering, room=room, cuts=limits.too_long == "truncate"
    )
    spoken = max((len(one.tokens) - longest for one in dialogues), default=0)
    return Task(
        train=problems.train,
        held_out=problems.held_out,
        demonstrations=[*problems.demonstrations, *dialogues],
        tokenizer=encoder.tokenizer,
        reward=problems.reward,
        max_prompt_tokens=longest,
        max_completion_tokens=limits.max_completion_tokens
        or _longest_completion(problems, encoder, spoken),
        preferences=problems.preferences,
        held_out_preferences=problems.held_out_preferences,
        notes=tuple(notes),
        episode_tokens=episode_tokens,
        processor=encoder.processor,
        placeholder=encoder.placeholder,
    )


def _shortened(
    problems: Problems, encoder: PromptEncoder, limits: LengthLimits, episode_tokens: int
) -> Problems:
    """Applies the limits to prompts, then to demonstrations and pairs of what is left."""
    if limits.max_prompt_tokens is not None:
        problems = _with_short_prompts(problems, encoder, limits.max_prompt_tokens, limits.too_long)
    if episode_tokens:
        longest = max(encoder.length(one.text, one.row) for one in problems.train)
        room = episode_tokens - longest
        problems = _with_short_demonstrations(problems, encoder, room, "environment.max_tokens")
    elif limits.max_completion_tokens is not None:
        problems = _with_short_demonstrations(problems, encoder, limits.max_completion_tokens)
    if limits.max_completion_tokens is not None:
        problems = _with_short_pairs(problems, encoder, limits.max_completion_tokens)
    return problems


def _longest_completion(problems: Problems, encoder: PromptEncoder, spoken: int) -> int:
    """Returns the length of the longest answer, demonstration or completion of a pair, in tokens.

    Args:
      spoken: length of the longest dialogue behind its prompt.

    Raises:
      ValueError: there is none of them.
    """
    asked = (*problems.train, *problems.held_out, *problems.demonstrations)
    pairs = (*problems.preferences, *problems.held_out_preferences)
    answers = [(one.answer, one.row) for one in asked]
    answers += [(text, one.prompt.row) for one in pairs for text in (one.chosen, one.rejected)]
    if not any(text for text, _ in answers) and spoken < 1:
        raise ValueError(
            "task.max_completion_tokens is not set, and the task has no answers or"
            " demonstrations that give their maximum length: set the maximum tokens of a"
            " completion (in an environment, of a reply)."
        )
    return max(spoken, *(encoder.completion_length(*answer) for answer in answers))


def _dialogues(
    problems: Problems, encoder: PromptEncoder, rendering: Rendering | None, room: int, cuts: bool
) -> tuple[list[Demonstrated], list[str]]:
    """Writes the dialogues as sequences that fit into a row.

    Args:
      room: maximum tokens of a row; 0 for no limit.
      cuts: whether longer sequences are cut after a reply, instead of left out.

    Returns:
      The sequences, and the problems' notes with new notes about dialogues.
    """
    kept: list[Demonstrated] = []
    refused: list[str] = []
    long = number = 0
    for spoken in problems.dialogues:
        assert rendering is not None, "there are dialogues to write"
        try:
            sequences = rendering(encoder.tokenizer, spoken.dialogue, encoder.processor)
        except ImageError:
            raise
        except ValueError as error:
            refused.append(str(error))
            continue
        number += len(sequences)
        for one in sequences:
            fits = not room or len(one.tokens) <= room
            long += not fits
            cut = one if fits else one.cut(room) if cuts else None
            kept += [cut] if cut is not None else []
    notes = list(problems.notes)
    if refused:
        notes.append(
            f"{len(refused)} of {len(problems.dialogues)} dialogues cannot be trained on. The"
            f" first one: {refused[0]}"
        )
    if long:
        way = "cut after the last reply that fits, or left out" if cuts else "left out"
        notes.append(
            f"{long} of {number} dialogues are {way}: they are longer than the {room} tokens of a"
            " row (task.max_completion_tokens behind the longest prompt, or"
            " environment.max_tokens)."
        )
    return kept, notes


def _require_images_outside_dialogues(problems: Problems, processor: TileProcessor | None) -> None:
    """Rejects dialogues without the images of their problem."""
    for spoken in problems.dialogues if processor is not None else ():
        prompt = problems.train[spoken.prompt_id]
        images = images_of(prompt.row or {})
        if images and not spoken.dialogue.images:
            place = images[0].place or f"The prompt {prompt.text!r:.200}"
            raise ValueError(
                f"{place}: the demonstration is a list of messages, which are written without the"
                " row's images: name a field with the text of the answer"
                " (task.dataset.demonstration), or leave out the images."
            )


def _with_short_prompts(
    problems: Problems, encoder: PromptEncoder, max_tokens: int, too_long: str
) -> Problems:
    """Drops or cuts problems with prompts of more than `max_tokens`, and their demonstrations."""
    notes = list(problems.notes)

    def shorten(name: str, prompts: Sequence[Prompt]) -> list[Prompt]:
        kept, long, whole = [], 0, 0
        for prompt in prompts:
            if encoder.length(prompt.text, prompt.row) <= max_tokens:
                kept.append(prompt)
                continue
            _require_room(prompt, encoder, max_tokens)
            long += 1
            if too_long == "truncate" and (asked := messages_of(prompt.row)) is not None:
                cut = _without_oldest(prompt, asked, encoder, max_tokens)
                kept += [] if cut is None else [cut]
                whole += cut is None
            elif too_long == "truncate":
                kept.append(prompt._replace(text=_cut(prompt, encoder, max_tokens)))
        if not kept:
            raise ValueError(
                f"task.max_prompt_tokens={max_tokens} leaves none of the {len(prompts)} {name}"
                " problems: all prompts are longer. Allow more tokens, or use"
                " task.too_long=truncate."
            )
        if long:
            dropped = f" {whole} of them are dropped: the last question is too long, or has images."
            notes.append(
                f"{long} of {len(prompts)} {name} problems are"
                f" {'dropped' if too_long == 'drop' else 'cut from the left'}: their prompts are"
                f" longer than task.max_prompt_tokens={max_tokens}.{dropped if whole else ''}"
            )
        return kept

    train = shorten("training", problems.train)
    held_out = shorten("held-out", problems.held_out)
    return dataclasses.replace(problems.asking(train, held_out), notes=notes)


def _require_room(prompt: Prompt, encoder: PromptEncoder, max_tokens: int) -> None:
    """Rejects a prompt whose images alone are longer than `max_tokens`."""
    taken = encoder.images_length(prompt.row)
    if taken > max_tokens:
        images = images_of(prompt.row or {})
        place = images[0].place or f"The prompt {prompt.text!r:.200}"
        raise ValueError(
            f"{place}: the row's images ({len(images)}) take {taken} tokens alone, and"
            f" task.max_prompt_tokens={max_tokens}: allow more, or give fewer or smaller images."
        )


def _with_short_demonstrations(
    problems: Problems,
    encoder: PromptEncoder,
    max_tokens: int,
    setting: str = "task.max_completion_tokens",
) -> Problems:
    """Leaves out demonstrations that are too long: cut ones would teach completions not to end."""
    everything = problems.demonstrations
    kept = [
        one for one in everything if encoder.completion_length(one.answer, one.row) <= max_tokens
    ]
    left_out = len(everything) - len(kept)
    note = (
        f"{left_out} of {len(everything)} demonstrations are left out of SFT: with their"
        f" end of sequence they are longer than the {max_tokens} tokens that {setting} allows."
    )
    notes = [*problems.notes, *([note] if left_out else [])]
    return dataclasses.replace(problems, demonstrations=kept, notes=notes)


def _with_short_pairs(problems: Problems, encoder: PromptEncoder, max_tokens: int) -> Problems:
    """Leaves out pairs with a completion that is too long: if cut, its score means nothing."""

    def fits(pair: Preference) -> bool:
        both, row = (pair.chosen, pair.rejected), pair.prompt.row
        return max(encoder.completion_length(text, row) for text in both) <= max_tokens

    every = [*problems.preferences, *problems.held_out_preferences]
    short = [[pair for pair in of if fits(pair)] for of in (problems.preferences,
             problems.held_out_preferences)]  # fmt: skip
    left_out = len(every) - sum(map(len, short))
    note = (
        f"{left_out} of {len(every)} preference pairs are left out: one of their completions,"
        f" with its end of sequence, is longer than task.max_completion_tokens={max_tokens}."
    )
    notes = [*problems.notes, *([note] if left_out else [])]
    return dataclasses.replace(
        problems, preferences=short[0], held_out_preferences=short[1], notes=notes
    )


def _without_oldest(
    prompt: Prompt, asked: PromptMessages, encoder: PromptEncoder, max_tokens: int
) -> Prompt | None:
    """Leaves out the oldest turns of a conversation, but not its system messages.

    Returns:
      The prompt with as many turns as fit; None if there are images, or the last question alone is
      too long.
    """
    if images_of(prompt.row or {}):
        return None
    head = list(itertools.takewhile(lambda one: one["role"] in SYSTEM_ROLES, asked.messages))
    questions = [at for at, one in enumerate(asked.messages) if one["role"] == "user"]
    for start in questions[1:]:
        rest = asked._replace(messages=[*head, *asked.messages[start:]])
        shorter = prompt._replace(text=rest.text, row={**(prompt.row or {}), **rest.fields})
        if encoder.length(shorter.text, shorter.row) <= max_tokens:
            return shorter
    return None


def _cut(prompt: Prompt, encoder: PromptEncoder, max_tokens: int) -> str:
    """Cuts the text of a prompt from the left, and keeps the places of its images."""
    if encoder.processor is None:
        return truncated(prompt.text, encoder.tokenizer, max_tokens)
    text = placed(prompt.text, len(images_of(prompt.row or {})), encoder.placeholder)

    def rest(start: int) -> str:
        places = text[:start].count(PLACE) if images_of(prompt.row or {}) else 0
        return PLACE * places + text[start:]

    return _shortest_cut(len(text), rest, lambda left: encoder.length(left, prompt.row), max_tokens)


def truncated(text: str, tokenizer: Tokenizer, max_tokens: int) -> str:
    """Cuts a text from the left, so that its prompt has at most `max_tokens` tokens.

    The text itself is cut, not the prompt's tokens, so that the chat template around it stays
    whole.

    Raises:
      ValueError: the chat template and special tokens leave no room for any of the text.
    """
    return _shortest_cut(
        len(text),
        lambda start: text[start:],
        lambda left: len(tokenizer.encode_prompt(left)),
        max_tokens,
    )


def _shortest_cut(
    length: int, rest: Callable[[int], str], count: Callable[[str], int], max_tokens: int
) -> str:
    """Returns the longest rest of a text that fits."""
    start = bisect.bisect_left(
        range(length), True, key=lambda start: count(rest(start)) <= max_tokens
    )
    if start == length:
        raise ValueError(
            f"task.max_prompt_tokens={max_tokens} has no room for a prompt: the chat template,"
            f" special tokens and images alone take {count(rest(length))}. Allow more tokens."
        )
    return rest(start)
