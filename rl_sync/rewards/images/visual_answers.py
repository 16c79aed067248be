"""Rewards for short answers to questions about images: counts, words, texts, numbers, choices."""

from __future__ import annotations

import dataclasses
import re
import reprlib
import string
from collections.abc import Sequence

from rl_sync.images import check_images
from rl_sync.rewards.answers.extraction import extract, strategies_of
from rl_sync.rewards.images.vqa_text import normalized
from rl_sync.rewards.judgement import Completion, Judgement, Row

EXTRACT = "boxed,tags,hashes,answer_is,whole"
_ANSWERS = "answers"
_MOST_CHARACTERS = 1000
_COUNT = re.compile(r"(?<![\w.,-])-?(?:\d{1,3}(?:,\d{3})+|\d{1,9})(?![\w]|[.,]\d)")
_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen twenty"
)
_WORDS = {word: number for number, word in enumerate(_NUMBER_WORDS.split())} | {"none": 0, "no": 0}
_LETTER = re.compile(r"\(?([A-Za-z])(?:[).:]|\s*$|\s+[(–—-])")


@dataclasses.dataclass(frozen=True)
class ShortAnswer:
    """A reward for short answers, without its comparison.

    Right answers are the texts in `row["answers"]` or, without that field, `row["answer"]`.

    Attributes:
      extract: strategies that find the answer in the completion; see
        `rl_sync.rewards.answers.extraction`.

    Raises:
      ValueError: an unknown strategy.
    """

    extract: str = EXTRACT

    def __post_init__(self) -> None:
        strategies_of(self.extract)

    def check(self, row: Row) -> None:
        """Refuses a row without a right answer, or whose image cannot be read.

        Raises:
          ValueError: the row is refused; the message names the field, the value and the way out.
        """
        check_images(row)
        self._right(row)

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        try:
            right = self._right(row)
        except ValueError as error:
            return Judgement.unknown(str(error))
        found = extract(completion.text, strategies_of(self.extract), completion.truncated)
        if found is None or not found.text:
            cut = ", and it was truncated" if completion.truncated else ""
            return Judgement(0.0, f"no answer found by {self.extract}{cut}")
        if len(found.text) > _MOST_CHARACTERS:
            return Judgement(
                0.0,
                f"the answer has {len(found.text):,} characters, and at most"
                f" {_MOST_CHARACTERS:,} are read",
            )
        judged = self._compared(row, right, found.text)
        return dataclasses.replace(judged, why=f"{reprlib.repr(found.text)}: {judged.why}")

    def _right(self, row: Row) -> list[str]:
        """Returns the right answers.

        Raises:
          ValueError: there are none, or one is neither a text nor a number.
        """
        field = _ANSWERS if _ANSWERS in row else "answer"
        values = row.get(field)
        values = list(values) if isinstance(values, list | tuple) else [values]
        for value in values:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise ValueError(
                    f"row[{field!r}] holds {reprlib.repr(value)}: it must be a text, a number, or"
                    " a list of these."
                )
        texts = [str(value).strip() for value in values]
        if not all(texts) or not texts:
            raise ValueError(f"row[{field!r}] is empty: it must hold a right answer.")
        return texts

    def _compared(self, row: Row, right: Sequence[str], given: str) -> Judgement:
        """Judges an answer."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Count(ShortAnswer):
    """Compares a count, in digits or as a word up to twenty: 1 or 0.

    Attributes:
      partial: whether a wrong number gets `max(0, 1 − |given − right| / right)`.
    """

    partial: bool = False

    def _right(self, row: Row) -> list[str]:
        right = super()._right(row)
        for text in right:
            if count_of(text) is None:
                raise ValueError(f"row['answer']={text!r} is no number of things.")
        return right

    def _compared(self, row: Row, right: Sequence[str], given: str) -> Judgement:
        number = count_of(given)
        if number is None:
            return Judgement(0.0, "it has no number")
        wanted = [count for text in right if (count := count_of(text)) is not None]
        why, vote = f"{number} for {' or '.join(map(str, wanted))}", str(number)
        if number in wanted or not self.partial:
            return Judgement(float(number in wanted), why, answer=vote)
        share = max(1 - abs(number - one) / max(one, 1) for one in wanted)
        return Judgement(max(0.0, share), why, answer=vote)


@dataclasses.dataclass(frozen=True)
class VqaAccuracy(ShortAnswer):
    """Computes the accuracy of the VQA challenge: `min(1, n / 3)`, if n people gave that answer.

    `row["answers"]` has the answers of people, usually ten; with fewer than three people, n is
    divided by their number. Answers are compared in the challenge's normalization. Source: Antol et
    al. 2015, "VQA: Visual Question Answering", section 3.

    Attributes:
      leave_one_out: whether to average the accuracy over all subsets without one person, as the
        official evaluation does. Of ten people, one match gives 0.3, two give 0.6, three 0.9.
    """

    leave_one_out: bool = False

    def _compared(self, row: Row, right: Sequence[str], given: str) -> Judgement:
        people = [normalized(one) for one in right]
        same, count = people.count(normalized(given)), len(people)
        needed = min(3, count)
        score = min(1.0, same / needed)
        if self.leave_one_out and count > 3:
            without = min(1.0, max(0, same - 1) / 3)  # Leaves out one person who gave this answer.
            score = (same * without + (count - same) * min(1.0, same / 3)) / count
        vote = normalized(given)
        return Judgement(score, f"{same} of {count} people say {vote!r}", answer=vote)


@dataclasses.dataclass(frozen=True)
class Anls(ShortAnswer):
    """Computes the normalized Levenshtein similarity of texts in images, from 0 to 1.

    The score is `max(1 − d if d < threshold else 0)` over the right answers, without regard to
    case; `d` is the distance to a right answer, divided by the length of the longer text.
    Its mean over questions is ANLS. Source: Biten et al. 2019, "Scene Text Visual Question
    Answering", equation 1.

    Attributes:
      threshold: the least distance at which an answer scores 0.

    Raises:
      ValueError: a threshold outside 0 to 1.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold!r} must be above 0 and at most 1.")

    def _compared(self, row: Row, right: Sequence[str], given: str) -> Judgement:
        distances = {one: self._distance(one, given) for one in right}
        nearest = min(distances, key=lambda one: distances[one])
        distance = distances[nearest]
        score = 1 - distance if distance < self.threshold else 0.0
        vote = _lowered(given)
        return Judgement(score, f"distance {distance:.2f} from {nearest!r}", answer=vote)

    def _distance(self, right: str, given: str) -> float:
        a, b = _lowered(right), _lowered(given)
        longer = max(len(a), len(b))
        if not longer or abs(len(a) - len(b)) >= self.threshold * longer:
            return float(longer > 0)  # Too far apart, whatever the letters are.
        return levenshtein(a, b) / longer


@dataclasses.dataclass(frozen=True)
class RelaxedNumber(ShortAnswer):
    """Compares numbers read from charts with a tolerance, and other answers as texts: 1 or 0.

    A number is right if `|given − right| ≤ tolerance · |right|`. Texts must be equal, without
    regard to case. `5%` is read as 0.05. Source: Masry et al. 2022, "ChartQA", section 5.1, after
    Methani et al. 2020, "PlotQA".

    Attributes:
      tolerance: the greatest difference, relative to the right number.

    Raises:
      ValueError: a tolerance outside 0 to 1.
    """

    tolerance: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance={self.tolerance!r} must be at least 0 and below 1.")

    def _compared(self, row: Row, right: Sequence[str], given: str) -> Judgement:
        number = number_of(given)
        for one in right:
            wanted = number_of(one)
            if number is None or wanted is None:
                if _plain(one) == _plain(given):
                    return Judgement(1.0, f"the same text as {one!r}", answer=_plain(one))
            elif abs(number - wanted) <= self.tolerance * abs(wanted) * (1 + 1e-9):
                # Numbers that are near enough are one answer.
                why = f"within {self.tolerance:.0%} of {one!r}"
                return Judgement(1.0, why, answer=_plain(one))
        vote = _plain(given) if number is None else f"{number:.6g} (not near)"
        return Judgement(0.0, f"not {' or '.join(map(repr, right))}", answer=vote)


@dataclasses.dataclass(frozen=True)
class OptionMatch(ShortAnswer):
    """Compares the chosen option, by its letter or its text, with the right one: 1 or 0.

    `row["choices"]` lists the texts of the options A, B, and so on; without it only letters count.
    """

    def _right(self, row: Row) -> list[str]:
        right, letters = super()._right(row), []
        for text in right:
            letter = self._letter(row, text)
            if letter is None:
                raise ValueError(
                    f"row['answer']={text!r} is neither a letter nor one of the texts in"
                    " row['choices']."
                )
            letters.append(letter)
        return letters

    def _compared(self, row: Row, right: Sequence[str], given: str) -> Judgement:
        letter = self._letter(row, given)
        if letter is None:
            return Judgement(0.0, "it chooses none of the options")
        why = f"{letter} for {' or '.join(right)}"
        return Judgement(float(letter in right), why, answer=letter)

    def _letter(self, row: Row, text: str) -> str | None:
        options = [str(one) for one in row.get("choices") or ()]
        letters = string.ascii_uppercase[: len(options) or None]
        if text in options:
            return letters[options.index(text)]
        found = _LETTER.match(text)
        if found and found[1].upper() in letters:
            return found[1].upper()
        plain = [_plain(option) for option in options]
        return letters[plain.index(_plain(text))] if _plain(text) in plain else None


def count_of(text: str) -> int | None:
    """Returns the last whole number of a text, in digits or as a word; None if there is none."""
    if digits := _COUNT.findall(text):
        return int(digits[-1].replace(",", ""))
    words = [_WORDS[word] for word in re.findall(r"[a-z]+", text.lower()) if word in _WORDS]
    return words[-1] if words else None


def number_of(text: str) -> float | None:
    """Reads a number, such as `1,234.5`, `$5` or `12 %`; None if the text is not a number."""
    plain = text.strip().rstrip(".").replace(",", "").lstrip("$€£¥").strip()
    percent = plain.endswith("%")
    if not re.fullmatch(r"[-+−]?(\d{1,30}\.?\d{0,30}|\.\d{1,30})([eE][-+]?\d{1,2})?\s*%?", plain):
        return None
    value = float(plain.rstrip("% ").replace("−", "-"))
    return value / 100 if percent else value


def levenshtein(a: str, b: str) -> int:
    """Counts the fewest insertions, deletions and substitutions between two texts."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def _lowered(text: str) -> str:
    # Not `casefold`, which turns ß into two letters, and so into two edits.
    return " ".join(text.lower().split())


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")
