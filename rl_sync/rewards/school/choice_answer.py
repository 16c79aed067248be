"""Multiple choice, with one right choice or several."""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Mapping

from rl_sync.rewards.answers.notation import unified, without_text_commands
from rl_sync.rewards.judgement import Row
from rl_sync.rewards.school.question import Marks, refuse
from rl_sync.rewards.school.wording import same_text

_LEAD = re.compile(
    r"^(?:the\s+)?(?:correct\s+)?(?:options?|choices?|answers?)\s*(?:is|are|:)?\s*", re.I
)
_TAIL = re.compile(
    r"\s+(?:is|are)\s+(?:the\s+)?(?:correct|right|best)\b.*$|,?\s+not\s+\(?\w\)?\W*$", re.I | re.S
)
_LETTERED = re.compile(r"\w\s*[(.:)]")
_LABEL = r"(?:\(\s*{0}\s*\)|\[\s*{0}\s*\]|{0}(?=[.):]\s|[.):]?$|\s*[(–—]|\s-\s)[.):]?)"
_JOINTS = re.compile(r"\s*(?:[,;&+/]|\band\b)\s*(?:and\s+)?")


@dataclasses.dataclass(frozen=True)
class ChoiceQuestion:
    """Choices by label, and the labels of the right ones.

    Part marks are (right choices − wrong choices) / all right choices, at least 0.
    """

    choices: Mapping[str, str]
    right: frozenset[str]

    @classmethod
    def of(cls, row: Row) -> ChoiceQuestion:
        """Reads `choices` (a list, or texts by label) and `answer` (labels, a text, or an index).

        Raises:
          ValueError: a field is missing or malformed.
        """
        given = row.get("choices")
        if isinstance(given, Mapping):
            choices = {str(label).strip().upper(): str(text) for label, text in given.items()}
        elif isinstance(given, list | tuple) and len(given) <= 26:
            choices = dict(zip(string.ascii_uppercase, map(str, given), strict=False))
        else:
            choices = {}
        if len(choices) < 2 or len(choices) != len(given or ()):
            raise refuse(row, "choices", "must be a list of 2 to 26 texts, or texts by label.")
        answer = row.get("answer")
        listed = answer if isinstance(answer, list | tuple) else [answer]
        right: set[str] = set()
        for one in listed:
            if isinstance(one, int) and not isinstance(one, bool) and str(one) not in choices:
                labels = frozenset(list(choices)[one : one + 1]) if one >= 0 else frozenset()
            else:
                labels = _labels(str(one), choices) if one is not None else frozenset()
            if not labels:
                raise refuse(
                    row,
                    "answer",
                    f"must name choices by label ({', '.join(choices)}), by text, or by index"
                    " from 0.",
                )
            right |= labels
        if not right:
            raise refuse(row, "answer", "must name at least one choice.")
        return cls(choices, frozenset(right))

    def mark(self, answer: str) -> Marks:
        """Marks the choices that an answer names."""
        given = _labels(answer, self.choices)
        right = ", ".join(sorted(self.right))
        if not given:
            return Marks(0.0, f"names no choice; right: {right}")
        share = (len(given & self.right) - len(given - self.right)) / len(self.right)
        chosen = ", ".join(sorted(given))
        return Marks(max(share, 0.0), f"chose {chosen}; right: {right}", chosen)


def _labels(answer: str, choices: Mapping[str, str]) -> frozenset[str]:
    """Returns the labels that an answer names; none if it names none or contradicts itself."""
    text = without_text_commands(unified(answer)).strip()
    if not _LETTERED.match(text) and (whole := _by_text(text, choices)):
        return whole  # `A (Paris)` is not the text Paris with an article.
    text = _TAIL.sub("", _LEAD.sub("", text)).strip()
    if whole := _one(text, choices):
        return whole
    if len(text) > 1 and text.isupper() and text.isalpha() and set(text) <= set(choices):
        return frozenset(text)
    found: set[str] = set()
    for piece in _JOINTS.split(text):
        labels = _one(piece, choices)
        if not labels:
            return frozenset()
        found |= labels
    return frozenset(found)


def _one(text: str, choices: Mapping[str, str]) -> frozenset[str]:
    if not text:
        return frozenset()
    for label in choices:
        match = re.match(_LABEL.format(re.escape(label)), text, re.IGNORECASE)
        if match is None:
            continue
        rest = text[match.end() :].strip(" .:()-")
        named = _by_text(rest, choices) if rest else frozenset()
        if named and label not in named:
            return frozenset()  # `B) Paris`, where Paris is A.
        if rest and not named and _JOINTS.search(rest):
            return frozenset()  # `A, B`: more than one.
        return frozenset([label])
    return _by_text(text, choices)


def _by_text(text: str, choices: Mapping[str, str]) -> frozenset[str]:
    if text.upper() in choices:
        return frozenset([text.upper()])
    return frozenset(label for label, choice in choices.items() if same_text(text, choice))
