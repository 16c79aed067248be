"""Loads a task from a data set: a file, a directory, or a name of the `datasets` library."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from rl_sync.images import FIELD, images_of
from rl_sync.rewards.judgement import Row
from rl_sync.setting import check, setting
from rl_sync.tasks.data_rows import DataRow, RowSource, read_rows
from rl_sync.tasks.dialogues import Spoken
from rl_sync.tasks.mapping import Example, example
from rl_sync.tasks.pictures.places import PLACEHOLDER
from rl_sync.tasks.problems import Problems
from rl_sync.tasks.row_formats import FORMATS, RowFormat
from rl_sync.tasks.tokenizers.prompt_messages import identity, messages_of
from rl_sync.types import Preference, Prompt

_WAY_OUT = (
    "Give --config.task.dataset.path=PATH: a .jsonl, .json, .csv, .tsv or .parquet file, a"
    " directory, or the name of a data set."
)


@dataclasses.dataclass(frozen=True)
class DatasetConfig:
    """`config.task.dataset`.

    Raises:
      ValueError: an unknown format, or an invalid field of it.
    """

    path: str | None = setting(
        None,
        "Source of the training problems: a .jsonl, .json, .csv, .tsv or .parquet file, a"
        " directory, such as one of `save_to_disk`, or the name of a data set.",
        implied="none, and task.name=dataset needs one",
        is_path=True,
    )
    subset: str | None = setting(
        None,
        "Configuration of a data set that has several.",
        implied="its only one",
    )
    split: str = setting("train", "Split of the training problems; a file has none.")
    held_out_path: str | None = setting(
        None,
        "Source of the held-out problems, as for `path`.",
        implied="path",
        is_path=True,
    )
    held_out_split: str | None = setting(
        None,
        "Split of the held-out problems. Without it and `held_out_path`, some of the training"
        " problems are held out.",
        implied="split",
    )
    held_out_fraction: float = setting(
        0.1,
        "Fraction of the different prompts that is then held out, each with all its rows, chosen"
        " by the seed.",
        least=0,
        greatest=1,
    )
    limit: int = setting(0, "Number of training rows to read, from the first; 0 for all.", least=0)
    format: str = setting(
        "plain",
        "Named format of the rows; it says which fields are the prompt, the answer and the"
        " demonstration.",
        choices=tuple(FORMATS),
    )
    prompt: str | None = setting(
        None,
        "Field of the question, such as `meta.question`, or `question|problem` for the first of"
        " these that a row has: a text, or a list of messages, which is asked as a whole. A"
        " template has it at `{}`.",
        implied="the format's",
    )
    template: str | None = setting(
        None,
        "Template of the question, with fields in braces: `Solve: {question}`; `{}` is the field of"
        " `prompt`. A field may be empty, and `{context|}` may also be missing. An empty text for"
        " no template.",
        implied="the format's",
    )
    answer: str | None = setting(
        None,
        "Field that rewards compare completions with. Rewards get a list, an object, true or false"
        " as it is in the row; where a text is needed, a list of texts becomes lines. Empty for"
        " none.",
        implied="the format's",
    )
    answer_pattern: str | None = setting(
        None,
        "Regular expression: the answer is the last group of its last match in the field, such as"
        r" `####\s*(.+)`; empty for the whole field.",
        implied="the format's",
    )
    choices: str | None = setting(
        None,
        "Field of a question's options, which are shown as lettered lines; the answer becomes the"
        " letter of the right option; empty for none.",
        implied="the format's",
    )
    demonstration: str | None = setting(
        None,
        "Field of the demonstration, for SFT, demonstration rows and algorithm.name=sft: a text,"
        " or a list of messages; empty for the answer.",
        implied="the format's",
    )
    tools: str | None = setting(
        None,
        "Field of the tools' JSON schemas, for prompts and demonstrations that are lists of"
        " messages: a list, or its JSON; empty for none.",
        implied="the format's",
    )
    chosen: str | None = setting(
        None,
        "Field of a pair's preferred completion, for algorithm.name=reward_model: a text, or a"
        " list of messages, the last of which counts; empty for no pairs.",
        implied="the format's",
    )
    rejected: str | None = setting(
        None, "Field of the other completion of a pair; empty for no pairs.", implied="the format's"
    )
    margin: str | None = setting(
        None,
        "Field of the minimum difference between the scores of a pair, a number from 0; empty for"
        " none.",
        implied="the format's",
    )
    images: str | None = setting(
        None,
        "Field of the question's images: an image or a list of them, each a path (relative to the"
        " file, or to the working directory), bytes, a data URL, `{path}` or `{bytes}`; empty for"
        " none.",
        implied="images",
    )

    def __post_init__(self) -> None:
        check(self, "task.dataset")
        try:
            row_format = self.row_format
        except ValueError as error:
            raise ValueError(f"task.dataset.{error}") from error
        if (row_format.prompt or row_format.template) is None:
            raise ValueError("task.dataset needs a field for the prompt, or a template.")
        asked = row_format.template_fields
        if self.prompt and asked and "" not in asked and self.prompt not in asked:
            raise ValueError(
                f"task.dataset.prompt={self.prompt!r} would not be asked, as"
                f" task.dataset.template={row_format.template!r} has no {{}} for it: put {{}} into"
                " the template, or leave the template empty."
            )

    @property
    def row_format(self) -> RowFormat:
        """Returns the named format, with the fields that are set here."""
        fields = dataclasses.fields(RowFormat)
        return FORMATS[self.format].override(**{f.name: getattr(self, f.name) for f in fields})


def load(
    config: DatasetConfig,
    seed: int,
    section: str = "task.dataset",
    placeholder: str = PLACEHOLDER,
) -> Problems:
    """Reads and maps the problems.

    Args:
      section: name of the config's section in messages.
      placeholder: text in conversations that stands for an image; empty for none.

      Raises:
        ValueError: there is no path; a row is malformed or does not fit the format (the message
          names file and line); or the fraction leaves no problems on one side.
        OSError: a file cannot be read.
    """
    if not config.path:
        raise ValueError(f"{section}.path is not set. {_WAY_OUT}")
    settings = f"{section}.path", f"{section}.split"
    train = read_rows(RowSource(config.path, config.subset, config.split, *settings), config.limit)
    source = _held_out_source(config, config.path, section)
    held_out = None if source is None else read_rows(source)
    return problems_of(config, train, held_out, seed, section, placeholder)


def problems_of(
    config: DatasetConfig,
    train_rows: Sequence[DataRow],
    held_out_rows: Sequence[DataRow] | None,
    seed: int,
    section: str = "task.dataset",
    placeholder: str = PLACEHOLDER,
) -> Problems:
    """Maps rows to problems.

    Args:
      held_out_rows: rows of the held-out problems; None to hold out some of the training rows.
      placeholder: see `load`.

    Raises:
      ValueError: a row does not fit the format, or the fraction leaves no problems on one side.
    """
    row_format, notes = config.row_format, []
    train = [example(row, row_format, placeholder, section) for row in train_rows]
    if held_out_rows is not None:
        held_out = [example(row, row_format, placeholder, section) for row in held_out_rows]
    else:
        rows, prompts = len(train), len(_distinct(train))
        if prompts < rows:
            notes.append(
                f"The {rows} rows have {prompts} different prompts. All rows of a prompt are"
                " either trained on or held out."
            )
        train, held_out = _split(section, config, train, seed)
    demonstrations = _demonstrations(train)
    dialogues = [Spoken(i, one.dialogue) for i, one in enumerate(train) if one.dialogue is not None]
    imitated = len(demonstrations) + len(dialogues)
    if row_format.demonstration is not None and imitated < len(train):
        notes.append(
            f"{len(train) - imitated} of {len(train)} training problems have nothing to"
            f" imitate: there is no {row_format.demonstration!r} in their rows."
        )
    return Problems(
        train=_numbered(train),
        held_out=_numbered(held_out),
        demonstrations=demonstrations,
        dialogues=dialogues,
        preferences=_preferences(train),
        held_out_preferences=_preferences(held_out),
        notes=notes,
        unanswered=next((one.unanswered for one in (*train, *held_out) if one.unanswered), ""),
    )


def _demonstrations(examples: Sequence[Example]) -> list[Prompt]:
    """Returns the demonstrations that are texts."""
    return [
        Prompt(i, one.prompt, one.demonstration, _asked_alone(one))
        for i, one in enumerate(examples)
        if one.demonstration is not None and one.dialogue is None
    ]


def _preferences(examples: Sequence[Example]) -> list[Preference]:
    return [
        Preference(Prompt(i, one.prompt, one.answer, _asked_alone(one)), *one.pair)
        for i, one in enumerate(examples)
        if one.pair is not None
    ]


def _asked_alone(example: Example) -> Row | None:
    """Returns a row with the messages and the images of a prompt; None if it has neither."""
    asked = messages_of(example.fields)
    fields = {} if asked is None else asked.fields
    fields |= {FIELD: example.fields[FIELD]} if images_of(example.fields) else {}
    return fields or None


def _held_out_source(config: DatasetConfig, path: str, section: str) -> RowSource | None:
    if config.held_out_path is None and config.held_out_split is None:
        return None
    source = RowSource(
        config.held_out_path or path,
        config.subset,
        config.held_out_split or config.split,
        f"{section}.held_out_path" if config.held_out_path else f"{section}.path",
        f"{section}.held_out_split" if config.held_out_split else f"{section}.split",
    )
    if config.held_out_split is not None and Path(source.path).is_file():
        raise ValueError(
            f"task.dataset.held_out_split={config.held_out_split!r} names a split, but the file"
            f" {source.path} has none: use task.dataset.held_out_path or held_out_fraction."
        )
    return source


def _split(
    section: str, config: DatasetConfig, examples: Sequence[Example], seed: int
) -> tuple[list[Example], list[Example]]:
    """Holds out some prompts with all their rows, so that no prompt is on both sides."""
    fraction, prompts = config.held_out_fraction, _distinct(examples)
    held_out = round(len(prompts) * fraction)
    if not 0 < held_out < len(prompts):
        raise ValueError(
            f"{section}.held_out_fraction={fraction} of the {len(prompts)} different prompts in"
            f" {config.path} holds out {held_out}: at least one must be held out and one left to"
            f" train on. Change it, or name a file with {section}.held_out_path."
        )
    order = np.random.default_rng(seed).permutation(len(prompts))
    chosen = {prompts[i] for i in order[:held_out]}
    train = [one for one in examples if _asked(one) not in chosen]
    return train, [one for one in examples if _asked(one) in chosen]


def _distinct(examples: Sequence[Example]) -> list[Hashable]:
    """Returns the prompts in order, each once."""
    return list(dict.fromkeys(map(_asked, examples)))


def _asked(example: Example) -> Hashable:
    """Returns a key that is equal for examples with the same prompt and the same images."""
    return identity(example.prompt, example.fields)


def _numbered(examples: Sequence[Example]) -> list[Prompt]:
    return [Prompt(i, one.prompt, one.answer, one.fields) for i, one in enumerate(examples)]
