"""Lists the choices for a config, such as algorithms, in a terminal or as JSON.

Names and descriptions are read from the modules that define the choices. A new list needs a
function that yields its entries, and an entry in `CATALOGS`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.launcher.command import Arguments, program
from rl_sync.launcher.terminal import TerminalPage
from rl_sync.settings.records import ConfigError
from rl_sync.spelling import hint

_EXAMPLE = "plan --config=base"


class CatalogEntry(NamedTuple):
    """A choice.

    Attributes:
      name: the name that a config uses.
      meaning: its description, one sentence.
      facts: further facts by name; empty ones are not shown.
      settings: returns its settings with their meanings, which may take a while.
      choose: the flag that chooses it; empty if it cannot be chosen.
      of: the heading above it; empty for none.
    """

    name: str
    meaning: str
    facts: Mapping[str, str] = {}
    settings: Callable[[], Mapping[str, str]] = dict
    choose: str = ""
    of: str = ""


class Catalog(NamedTuple):
    """A list of choices.

    Attributes:
      noun: the name of one choice.
      summary: the line in the help.
      choose: a sentence on choosing one.
      page: the page of the documentation.
      example: an example of a pattern.
      read: yields the entries.
    """

    noun: str
    summary: str
    choose: str
    page: str
    example: str
    read: Callable[[], Iterable[CatalogEntry]]


def _algorithms() -> Iterator[CatalogEntry]:
    from rl_sync.algorithms.published import PUBLISHED

    for name, one in PUBLISHED.items():
        changes = ", ".join(f"algorithm.{field}={value}" for field, value in one.changes.items())
        facts = {"paper": one.paper, "other than GRPO's": changes or "nothing"}
        yield CatalogEntry(name, one.meaning, facts, choose=f"--config.algorithm.name={name}")


def _tasks() -> Iterator[CatalogEntry]:
    from rl_sync.setting import described
    from rl_sync.tasks.task_catalog import TaskSections

    for field in dataclasses.fields(TaskSections):
        rule, record = described(field), field.default_factory
        assert rule is not None
        assert isinstance(record, type)
        yield CatalogEntry(
            field.name,
            rule.meaning,
            settings=lambda record=record, name=field.name: _meanings(record, f"task.{name}"),
            choose=f"--config.task.name={field.name}",
        )


def _rewards() -> Iterator[CatalogEntry]:
    from rl_sync.rewards.reward_catalog import REWARDS

    for name, kind in REWARDS.items():
        facts = {"judged": "in place" if kind.is_quick else "by workers, within limits"}
        choose = f"--config.task.reward={name}"
        yield CatalogEntry(name, kind.meaning, facts, _options_of(kind.where), choose)


def _environments() -> Iterator[CatalogEntry]:
    from rl_sync.environments.environment_catalog import ENVIRONMENTS

    for name, kind in ENVIRONMENTS.items():
        facts = {"rewards": "its own" if kind.rewards else "those of task.reward"}
        choose = f"--config.environment.name={name}"
        yield CatalogEntry(name, kind.meaning, facts, _options_of(kind.where), choose)


def _models() -> Iterator[CatalogEntry]:
    from rl_sync.models.huggingface.families import FAMILIES, Family
    from rl_sync.models.huggingface.vision_families import VISION_FAMILIES, VisionFamily

    families: dict[str, Family | VisionFamily] = {**FAMILIES, **VISION_FAMILIES}
    for name, family in families.items():
        facts = {"class in transformers": family.architecture}
        yield CatalogEntry(name, family.meaning, facts, choose="--config.model.path=DIRECTORY")


_FIXED = ", always"


def _modes() -> Iterator[CatalogEntry]:
    from rl_sync.schedule import MODES, resolve

    for name, mode in MODES.items():
        least, most = mode.least_explorers, mode.most_explorers
        facts = {
            "explorers": f"{least}" if least == most else f"{least} to {most or 'any number'}",
            "sync.interval": f"{mode.interval}{_FIXED * mode.fixed_interval}",
            "sync.offset": f"{mode.offset}{_FIXED * mode.fixed_offset}",
            "sync.pull": " or ".join(mode.pulls),
            "sync.transfer": f"{mode.transfer} by default",
            "greatest staleness": f"{resolve(name).staleness_bound} trainer steps by default",
        }
        yield CatalogEntry(name, mode.summary, facts, choose=f"--config.sync.mode={name}")


def _metrics() -> Iterator[CatalogEntry]:
    from rl_sync.records.metric_catalog import METRICS

    for phase, sections in METRICS.items():
        for title, metrics in sections.items():
            for one in metrics:
                facts = {
                    "phase": phase,
                    "unit": one.unit,
                    "normal": one.normal,
                    "look when": str(one.alarm),
                    "in TRL": one.trl,
                    "in verl": one.verl,
                }
                yield CatalogEntry(one.name, one.meaning, facts, of=f"{title} ({phase})")


def _configs() -> Iterator[CatalogEntry]:
    from rl_sync.launcher import config_file

    for name in config_file.names():
        text = config_file.description(name)
        first = re.split(r"(?<=\.)\s", text, maxsplit=1)[0]
        facts = {"file": str(config_file.path_of(name)), "about": text}
        yield CatalogEntry(name, " ".join(first.split()), facts, choose=f"--config={name}")


def _meanings(record: type, name: str) -> Mapping[str, str]:
    """Returns the settings of a section with their meanings and defaults."""
    from rl_sync.setting import sections

    return {
        entry.name: f"{entry.setting.meaning} Default: {_default(entry)}."
        for section in sections(record, name)
        for entry in section.entries
    }


def _default(entry: Any) -> str:
    default = entry.setting.implied if entry.default is None else entry.default
    return '""' if default == "" else str(default)


def _options_of(where: str) -> Callable[[], Mapping[str, str]]:
    """Returns a function that reads the options of a class, which it imports."""

    def read() -> Mapping[str, str]:
        from rl_sync.references import resolve

        found = inspect.signature(resolve(where)).parameters.values()
        empty = inspect.Parameter.empty
        return {
            one.name: "Needed." if one.default is empty else f"Default: {one.default!r}."
            for one in found
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        }

    return read


CATALOGS = {
    "algorithms": Catalog(
        "algorithm",
        "Lists the named algorithms, from GRPO to supervised learning.",
        "--config.algorithm.name=NAME; `settings algorithm` lists what else can be changed.",
        "docs/algorithms.md",
        "ppo",
        _algorithms,
    ),
    "tasks": Catalog(
        "task",
        "Lists the tasks of the package, and the tasks that read your data.",
        "--config.task.name=NAME, or a function of your own, as path/to/file.py:function.",
        "docs/tasks.md",
        "arithmetic",
        _tasks,
    ),
    "rewards": Catalog(
        "reward",
        "Lists the rewards that judge completions.",
        "--config.task.reward=NAME, with options as in \"format(pattern='…')\", or a weighted sum"
        ' such as "math + 0.2 * repetition". thoughts=True is an option of every reward.',
        "docs/rewards.md",
        "length",
        _rewards,
    ),
    "environments": Catalog(
        "environment",
        "Lists the environments for episodes of several turns: tools and games.",
        "--config.environment.name=NAME, or a class of your own, as path/to/file.py:Class.",
        "docs/environments.md",
        "python",
        _environments,
    ),
    "models": Catalog(
        "model family",
        "Lists the model families whose checkpoints are read and written.",
        "--config.model.path=DIRECTORY, or a name in the local cache of the model hub; the family"
        " is the model_type of the checkpoint's config.json.",
        "docs/how-to/model.md",
        "qwen3",
        _models,
    ),
    "modes": Catalog(
        "mode",
        "Lists the modes of synchronization: who waits for whom.",
        "--config.sync.mode=NAME; `settings sync` lists what else can be changed.",
        "docs/concepts.md",
        "asynchronous",
        _modes,
    ),
    "metrics": Catalog(
        "metric",
        "Lists the metrics of a run with their units and normal values.",
        "Every run writes them, to metrics.jsonl and for TensorBoard.",
        "docs/metrics.md",
        "staleness",
        _metrics,
    ),
    "configs": Catalog(
        "config",
        "Lists the configs of the package.",
        "--config=NAME, or the path of a file of your own.",
        "docs/using.md",
        "arithmetic",
        _configs,
    ),
}
"""Catalogs by the name of the command that prints them."""


def execute(arguments: Arguments) -> int:
    """Prints the entries that match a pattern, with all their details if only one matches.

    Raises:
      ConfigError: no entry matches; the message names the nearest.
    """
    catalog = CATALOGS[arguments.command]
    found, only = find(arguments.command, catalog, arguments.text)
    if "json" in arguments.flags:
        print(json.dumps([_record(one, only is not None) for one in found], indent=1))
    elif only is not None:
        _page_of_one(catalog, only).show()
    else:
        _page_of_all(catalog, found).show()
    return 0


def find(
    command: str, catalog: Catalog, pattern: str
) -> tuple[list[CatalogEntry], CatalogEntry | None]:
    """Returns the entries that match a pattern, and the only match, or None if several match.

    An entry whose name equals the pattern counts as the only match.

    Raises:
      ConfigError: no entry matches; the message names the nearest.
    """
    entries = list(catalog.read())
    named = [one for one in entries if one.name == pattern]
    found = named or [one for one in entries if fits(f"{one.name} {one.meaning}", pattern)]
    if not found:
        names = [one.name for one in entries]
        raise ConfigError(
            f"No {catalog.noun} has {pattern!r} in its name or its text; without a pattern"
            f" `{program()} {command}` lists all{hint(pattern, names)}"
        )
    return found, found[0] if len(found) == 1 else None


def fits(text: str, pattern: str) -> bool:
    """Says whether each word of a pattern begins a word of a text; capitals do not matter."""
    words = f"{text} {text.replace('_', ' ')}".lower()
    return all(
        re.search(rf"(?<![a-z0-9]){re.escape(word)}", words) for word in pattern.lower().split()
    )


def _page_of_all(catalog: Catalog, entries: Sequence[CatalogEntry]) -> TerminalPage:
    page = TerminalPage()
    for heading, group in itertools.groupby(entries, lambda one: one.of):
        with page.section(heading) if heading else page.indentation():
            page.write_dl((one.name, one.meaning) for one in group)
    page.write_paragraph()
    page.write_text(f"To choose one: {catalog.choose}" if entries[0].choose else catalog.choose)
    page.write_text(f"More: {catalog.page}, or this command with one of the names.")
    return page


def _page_of_one(catalog: Catalog, entry: CatalogEntry) -> TerminalPage:
    page = TerminalPage()
    page.write_heading(entry.name)
    page.write_text(entry.meaning)
    page.write_paragraph()
    with page.indentation():
        facts = entry.facts.items()
        page.write_dl((name, fact) for name, fact in facts if fact and "\n" not in fact)
    for fact in entry.facts.values():
        if "\n" in fact:
            page.write(f"\n{fact}\n")
    settings = entry.settings()
    if settings:
        with page.section("Settings" if any("." in name for name in settings) else "Options"):
            page.write_dl(settings.items())
    if entry.choose:
        config = "" if entry.choose.startswith("--config=") else f"{_EXAMPLE} "
        with page.section("Example"):
            page.write_command(f"{program()} {config or 'plan '}{entry.choose}")
    page.write_text(f"To choose one: {catalog.choose}" if entry.choose else catalog.choose)
    page.write_text(f"More: {catalog.page}")
    return page


def _record(entry: CatalogEntry, is_only: bool) -> dict[str, object]:
    record: dict[str, object] = {"name": entry.name, "meaning": entry.meaning}
    record |= {"choose": entry.choose, **entry.facts}
    return record | {"settings": entry.settings()} if is_only else record
