"""The documents, and their examples: command lines, code, and names between backquotes."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"settings.md", "metrics.md"}
PAGES = [
    *(ROOT / name for name in ("README.md", "BUILD.md", "CONTRIBUTING.md", "EVIDENCE.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in GENERATED),
]

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)((?:(?: {4}[^\n]*)?\n)* {4}[^\n]*)\n", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PROGRAM = re.compile(r"(?:python -m (?:launcher|rl_sync)|(?<![\w.])rl-sync)\b(?![\w.-])(.*)$")
_OPTIONAL = re.compile(r" \[((?:--|RUN)[^\]|]*?)(?: \|[^\]]*)?\]")
_PLACEHOLDERS = {
    "CONFIG": "configs/arithmetic.py",
    "my_config.py": "configs/arithmetic.py",
    "PATTERN": "loss",
    "WORD": "loss",
    "COMMAND": "plan",
    "$SLURM_ARRAY_TASK_ID": "0",
}
_CHECKPOINT, _ADAPTERS = "tests/data/models/qwen2", "tests/data/adapters/plain"


class Example(NamedTuple):
    """An example.

    Attributes:
      page: the document's path in the repository.
      text: the example.
      language: the language of a fenced block; empty if it names none, or the block is indented.
    """

    page: str
    text: str
    language: str = ""

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.text.split())[:60]}"


@functools.cache
def blocks() -> list[Example]:
    """Returns the blocks of code of all documents."""
    return [*_blocks()]


def _blocks() -> Iterator[Example]:
    for page in PAGES:
        name, text = str(page.relative_to(ROOT)), page.read_text()
        for language, block in _FENCED.findall(text):
            yield Example(name, block, language)
        for block in _INDENTED.findall(_FENCED.sub("", text)):
            yield Example(name, "\n".join(line[4:] for line in block.strip("\n").split("\n")))


@functools.cache
def inline() -> list[Example]:
    """Returns the texts between backquotes of all documents."""
    return [*_inline()]


def _inline() -> Iterator[Example]:
    for page in PAGES:
        text = _FENCED.sub("", page.read_text())
        lines = [line for line in text.split("\n") if not line.startswith("    ")]
        for found in dict.fromkeys(_INLINE.findall("\n".join(lines))):
            yield Example(str(page.relative_to(ROOT)), found)


def _joined(text: str) -> Iterator[str]:
    yield from re.sub(r"\\\n\s*", "", text).split("\n")


@functools.cache
def commands() -> list[Example]:
    """Returns the command lines of the program, without its name, with values for placeholders."""
    found = []
    for block in blocks():
        for line in _joined(block.text):
            if match := _PROGRAM.search(line):
                found.append(Example(block.page, _filled(match[1])))
    for one in inline():
        match = _PROGRAM.match(one.text)
        if match and "--" in match[1]:
            found.append(Example(one.page, _filled(match[1])))
    return list(dict.fromkeys(found))


@functools.cache
def named_commands() -> list[Example]:
    """Returns the commands that texts name without their flags."""
    found = [(one, _PROGRAM.fullmatch(one.text)) for one in inline()]
    return [
        Example(one.page, match[1].split()[0])
        for one, match in found
        if match and match[1].strip() and "--" not in match[1]
    ]


@functools.cache
def flags() -> list[Example]:
    """Returns settings on command lines that stand by themselves, one line each."""
    found = []
    for block in blocks():
        for line in _joined(block.text):
            if line.strip().startswith("--config."):
                found.append(Example(block.page, _filled(_OPTIONAL.sub(r" \1", f" {line}"))))
    for one in inline():
        if re.match(r"(?:\w+=\S+` )?--config\.[\w.]+=", one.text):
            found.append(Example(one.page, _filled(one.text)))
    return [one for one in dict.fromkeys(found) if "NAME=VALUE" not in one.text]


def _filled(text: str) -> str:
    """Returns the words of one command, with values for placeholders."""
    text = _OPTIONAL.sub(r" \1", text)
    words: list[str] = []
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;>)")
    lexer.whitespace_split, lexer.commenters = True, ""
    for word in lexer:
        if word.startswith("#") or set(word) <= set("|&;>)"):
            break
        words.append(_with_value(word))
    return shlex.join(words)


def _with_value(word: str) -> str:
    name, equals, value = word.partition("=")
    name, value = (_PLACEHOLDERS.get(part, part) for part in (name, value))
    if name == "--config" and value in ("…", "FILE"):
        value = _PLACEHOLDERS["CONFIG"]
    if name == "--config.model.path":
        value = _CHECKPOINT if value in ("DIRECTORY", "smollm2") or "Qwen/" in value else value
    if name == "--config.model.lora.path" and value == "DIRECTORY":
        value = _ADAPTERS
    return f"{name}{equals}{value}"
