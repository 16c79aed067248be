"""Loads tasks by name, from `config.task` and `config.tokenizer`.

A task is a module with a section of settings and a function that loads its problems, and a line in
`TOYS` or `TaskSections`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from rl_sync.images import MOST_PIXELS, images_of
from rl_sync.rewards.reward_catalog import reads_answer
from rl_sync.setting import section, setting
from rl_sync.spelling import require_one_of
from rl_sync.tasks import dataset, jsonl, mixture, own
from rl_sync.tasks.dataset import DatasetConfig
from rl_sync.tasks.dialogues import Rendering
from rl_sync.tasks.exchanged_images import with_exchanged_images
from rl_sync.tasks.jsonl import JsonlConfig
from rl_sync.tasks.lengths import LengthLimits, fit
from rl_sync.tasks.mixture import MixtureConfig
from rl_sync.tasks.pictures.places import PLACE, PLACEHOLDER
from rl_sync.tasks.pictures.prompt_encoder import PromptEncoder
from rl_sync.tasks.pictures.tile_processor import TileProcessor
from rl_sync.tasks.problems import Problems, TaskKind, with_images
from rl_sync.tasks.shots import TEMPLATE, require_template, with_shots
from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import PretrainedTokenizer, TokenizerConfig
from rl_sync.tasks.tokenizers.prompt_messages import messages_of
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer, Tokenizer
from rl_sync.thoughts import marks_of
from rl_sync.types import Prompt

TOYS = {
    "arithmetic": "rl_sync.addons.toys.arithmetic:TASK",
    "worked": "rl_sync.addons.toys.worked:TASK",
    "school": "rl_sync.addons.toys.school:TASK",
    "mmlu": "rl_sync.addons.toys.mmlu:TASK",
    "humaneval": "rl_sync.addons.toys.humaneval:TASK",
    "shapes": "rl_sync.addons.toys.shapes:TASK",
    "digits": "rl_sync.addons.toys.digits:TASK",
    "chart": "rl_sync.addons.toys.chart:TASK",
    "board": "rl_sync.addons.toys.board:TASK",
}
"""References to the `TaskKind` of each add-on, which are imported with this table: a config has the
sections of all tasks."""

_loading = threading.Lock()


def task(record: type, load: Callable[[Any, int], Problems], meaning: str) -> Any:
    """Makes the field of a task: its section of the config, with its loader."""
    field = section(record, meaning)
    return dataclasses.field(default_factory=record, metadata={**field.metadata, "load": load})


def _imported(reference: str) -> TaskKind:
    module, _, name = reference.partition(":")
    kind: TaskKind = getattr(importlib.import_module(module), name)
    return kind


def _only_as_a_whole(config: MixtureConfig, seed: int) -> Problems:
    """Rejects a mixture within a mixture: its section has no place for the inner sets' sections."""
    del config, seed
    raise ValueError("a mixture cannot be a set of a mixture: name its sets in the outer one.")


_kinds = {name: _imported(reference) for name, reference in TOYS.items()}
_ToySections: Any = dataclasses.make_dataclass(
    "_ToySections",
    [(name, kind.record, task(*kind)) for name, kind in _kinds.items()],
    frozen=True,
)


@dataclasses.dataclass(frozen=True)
class TaskSections(_ToySections):
    """Sections of the tasks by name."""

    jsonl: JsonlConfig = task(JsonlConfig, jsonl.load, "Problems of a file of your own.")
    mixture: MixtureConfig = task(
        MixtureConfig,
        _only_as_a_whole,
        "Several task sets with weights, each with its own reward and environment.",
    )
    dataset: DatasetConfig = task(
        DatasetConfig,
        dataset.load,
        "Problems of a data set; also the meaning of the fields in rows of a task of your own.",
    )


TASKS: dict[str, Callable[[Any, int], Problems]] = {
    field.name: field.metadata["load"] for field in dataclasses.fields(TaskSections)
}


@dataclasses.dataclass(frozen=True)
class TaskConfig(TaskSections, LengthLimits):
    """`config.task`: the task, the limits of its texts, and the settings of each task.

    Raises:
      ValueError: an unknown name, or an invalid limit.
    """

    name: str = setting(
        "arithmetic",
        f"Task that the run trains on: {', '.join(TASKS)}, or one of your own, `module:function` or"
        " `path/to/file.py:function`, with options as in `file.py:function(level=3)`.",
    )
    reward: str | None = setting(
        None,
        "Reward of completions: a name, `module:function` or `path/to/file.py:function`, or a"
        " weighted sum such as `math + 0.2 * format(pattern='<answer>.*</answer>')`.",
        implied="the task's own",
    )
    shots: int = setting(
        0,
        "Number of solved training problems in front of every question (few-shot), from its"
        " category if rows have one. The prompt is then a text to be continued: no chat template.",
        least=0,
        greatest=64,
    )
    shot_template: str = setting(
        TEMPLATE,
        "Text of a solved problem, with `{question}` and then `{answer}`. The prompt ends where the"
        " answer would begin.",
    )

    exchange_images: bool = setting(
        False,
        "Gives each problem the images of another one, as a control: a policy that learns anything"
        " then learned it without seeing.",
    )
    image_placeholder: str = setting(
        PLACEHOLDER,
        "Text in prompts that stands for an image of the row. Prompts without it have their images"
        " before the text; so do all prompts if it is empty.",
    )
    max_image_pixels: int = setting(
        MOST_PIXELS,
        "Maximum number of pixels of an image. Its file's header tells the number, so larger images"
        " are refused without decoding them.",
        unit="pixels",
        least=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_template(self.shot_template)
        if not own.is_own(self.name):
            require_one_of("task.name", self.name, TASKS)


class EpisodeNeeds(NamedTuple):
    """Needs of the episodes that a task's problems are played in.

    Attributes:
      characters: characters that a character tokenizer needs in addition to those of the problems.
      tokens: maximum number of tokens of an episode; 0 without an environment.
      reward: reward of completions if `task.reward` names none; None for the problems' own.
      played: sets of a mixture whose environment gives the reward.
      rendering: writes dialogues of demonstrations.
    """

    characters: str = ""
    tokens: int = 0
    reward: str | None = None
    played: frozenset[str] = frozenset()
    rendering: Rendering | None = None


def load_task(
    config: TaskConfig,
    tokenizer: TokenizerConfig,
    seed: int,
    needs: EpisodeNeeds = EpisodeNeeds(),  # noqa: B008
    processor: TileProcessor | None = None,
) -> Task:
    """Loads the problems of the named task, and their tokenizer.

    Threads that load the same task at the same time share one load, because a load may import
    `transformers` or `datasets`, which a second thread would find half imported.

    Args:
      processor: processing of images; None for a policy that reads text alone. The images of rows
        then serve rewards only.

    Raises:
      ValueError, OSError: the problems cannot be loaded, or lack answers that the reward reads; the
      message says where.
    """
    with _loading:
        return _load(config, tokenizer, seed, needs, processor)


@functools.lru_cache(maxsize=1)  # A role loads more than once.
def _load(
    config: TaskConfig,
    tokenizer: TokenizerConfig,
    seed: int,
    needs: EpisodeNeeds,
    processor: TileProcessor | None,
) -> Task:
    problems = with_images(_problems(config, seed, needs.played), config.max_image_pixels)
    if config.exchange_images:
        problems = with_exchanged_images(problems, seed)
    if (named := config.reward or needs.reward) is not None:
        problems = dataclasses.replace(problems, reward=named)
    if problems.unanswered and reads_answer(problems.reward):
        raise ValueError(problems.unanswered)
    shown = sum(bool(images_of(one.row or {})) for one in (*problems.train, *problems.held_out))
    if shown and config.shots and processor is not None:
        raise ValueError(
            f"task.shots={config.shots} writes solved problems without their images, and {shown}"
            " problems have some: use task.shots=0."
        )
    if shown and processor is None:
        note = f"{shown} problems have images, which only rewards get: the policy reads text alone."
        problems = dataclasses.replace(problems, notes=[*problems.notes, note])
    problems = with_shots(problems, config.shots, seed, config.shot_template)
    if config.shots and tokenizer.chat == "auto":
        tokenizer = dataclasses.replace(tokenizer, chat="no")
    placeholder = config.image_placeholder
    shows = placeholder if processor is not None else None
    made = _tokenizer(tokenizer, problems, needs.characters, shows)
    _require_template(problems, made, config.shots)
    if processor is not None:
        made.image_id(processor.marks)  # Raises if there is none.
    return fit(
        problems,
        PromptEncoder(made, processor, placeholder),
        config,
        needs.tokens,
        needs.rendering,
    )


def _problems(config: TaskConfig, seed: int, played: frozenset[str]) -> Problems:
    if config.name == mixture.NAME:
        assert config.mixture.sets is not None, "a rule of the settings"
        sets = mixture.sets_of(config.mixture.sets)
        return mixture.mixed(sets, lambda one: _of_set(config, one, seed), played)
    if own.is_own(config.name):
        return own.load(config.name, config.dataset, seed, config.image_placeholder)
    return _loaded(config, config.name, getattr(config, config.name), seed)


def _of_set(config: TaskConfig, one: mixture.TaskSet, seed: int) -> Problems:
    """Loads the problems of a set of a mixture."""
    if own.is_own(one.task):
        options = ", ".join(f"{name}={value!r}" for name, value in one.options.items())
        name = f"{one.task}({options})"
        return own.load(name, config.dataset, seed, config.image_placeholder)
    require_one_of("task.mixture.sets: a task", one.task, TASKS)
    section = getattr(config, one.task)
    names = [field.name for field in dataclasses.fields(section)]
    for option in one.options:
        require_one_of(f"task.mixture.sets: an option of {one.task}", option, names)
    return _loaded(config, one.task, dataclasses.replace(section, **one.options), seed)


def _loaded(config: TaskConfig, name: str, section: object, seed: int) -> Problems:
    """Loads the problems of a named task from its section."""
    if isinstance(section, DatasetConfig):  # Only its rows may be conversations to imitate.
        return dataset.load(section, seed, placeholder=config.image_placeholder)
    return TASKS[name](section, seed)


def _tokenizer(
    config: TokenizerConfig, problems: Problems, more: str, placeholder: str | None
) -> Tokenizer:
    """Makes the tokenizer; `placeholder` stands for images, and is None for text alone."""
    shows = placeholder is not None
    if config.path is not None:
        return pretrained.load(config)
    if problems.charset is not None:
        new = "".join(dict.fromkeys(c for c in more if c not in problems.charset))
        return CharacterTokenizer(problems.charset + new, shows, marks_of(config.thoughts))
    prompts = [*problems.train, *problems.held_out, *problems.demonstrations]
    pairs = [*problems.preferences, *problems.held_out_preferences]
    completions = [text for pair in pairs for text in (pair.chosen, pair.rejected)]
    asked = [one.answer for one in prompts]
    asked += [one.text if not shows else _around_images(one, placeholder) for one in prompts]
    asked += [text for spoken in problems.dialogues for text in spoken.dialogue.texts]
    characters = CharacterTokenizer.of_texts([*asked, *completions, more])
    return dataclasses.replace(characters, shows_images=shows, thoughts=marks_of(config.thoughts))


def _require_template(problems: Problems, tokenizer: Tokenizer, shots: int) -> None:
    """Rejects prompts that are conversations, if no chat template writes them.

    Where conversations are also imitated, their contents follow each other without a template.
    """
    has_template = isinstance(tokenizer, PretrainedTokenizer) and tokenizer.chat
    if not shots and (has_template or problems.dialogues):
        return
    asked = [one for one in (*problems.train, *problems.held_out) if messages_of(one.row)]
    if asked:
        raise ValueError(
            f"{len(asked)} prompts are conversations (the first one: {asked[0].text!r:.100}), and"
            " no chat template writes them: use a tokenizer with a template (model.path or"
            " tokenizer.path), without tokenizer.chat=no and task.shots, or a field of text alone"
            " (task.dataset.prompt or .template)."
        )


def _around_images(prompt: Prompt, placeholder: str | None) -> str:
    """Returns the text of a prompt without the places of its images."""
    if not images_of(prompt.row or {}):
        return prompt.text
    text = prompt.text
    return text.replace(PLACE, "") if PLACE in text else text.replace(placeholder or PLACE, "")
