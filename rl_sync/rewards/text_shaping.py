"""Rewards for the form of a completion: its format, length, repetition and language.

Each gives a score in its stated range, to be added to a reward for the content. None reads the row,
and all judge the whole reply, thoughts included.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import re
import unicodedata

from rl_sync.rewards.judgement import Completion, Judgement, Row
from rl_sync.spelling import require_one_of


@dataclasses.dataclass(frozen=True)
class FormatMatch:
    """Gives 1 to a completion of the required form, else 0.

    What the prompt has already written of the reply, such as `<think>`, belongs to its form.

    Attributes:
      pattern: a regular expression that must match the whole completion without surrounding white
        space; `.` matches line breaks too. Avoid nested repetition such as `(a+)+`, which can take
        exponential time.
      tags: names of tags, separated by commas. Each must open and close exactly once, one after the
        other in this order, with text inside.
      only_tags: whether only white space may stand outside of the tags.

    Raises:
      ValueError: neither a pattern nor tags, or one of them is malformed.
    """

    pattern: str = ""
    tags: str = ""
    only_tags: bool = False

    def __post_init__(self) -> None:
        if not self.pattern and not self.tags:
            raise ValueError("format needs a pattern or tags, such as format(tags='think,answer').")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(
                f"pattern={self.pattern!r} must be a regular expression: {error}."
            ) from error
        bad = [name for name in self._names if not re.fullmatch(r"[A-Za-z_][\w-]*", name)]
        if bad or len(set(self._names)) < len(self._names):
            raise ValueError(
                f"tags={self.tags!r} must be different names without < and >, separated by commas."
            )
        if self.only_tags and not self.tags:
            raise ValueError("only_tags=True needs tags.")

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        text = (completion.begun + completion.whole).strip()
        if self.pattern and re.fullmatch(self.pattern, text, re.DOTALL) is None:
            return Judgement(0.0, "does not match the pattern")
        if fault := self._fault(text):
            return Judgement(0.0, fault)
        return Judgement(1.0, "has the format")

    @property
    def _names(self) -> list[str]:
        return [name.strip() for name in self.tags.split(",")] if self.tags else []

    def _fault(self, text: str) -> str:
        """Returns the first fault in the tags, or ""."""
        end = 0
        for name in self._names:
            opening, closing = f"<{name}>", f"</{name}>"
            if text.count(opening) != 1 or text.count(closing) != 1:
                return (
                    f"{opening} opens {text.count(opening)} times"
                    f" and closes {text.count(closing)} times"
                )
            start, stop = text.index(opening), text.index(closing)
            if start < end or stop < start:
                return f"{opening} is not in its place"
            if self.only_tags and text[end:start].strip():
                return f"there is text before {opening}"
            if not text[start + len(opening) : stop].strip():
                return f"{opening} is empty"
            end = stop + len(closing)
        return "there is text after the tags" if self.only_tags and text[end:].strip() else ""


@dataclasses.dataclass(frozen=True)
class LengthBand:
    """Gives 1 to lengths within a band; outside of it, the score falls linearly to 0.

    Attributes:
      least: the least length of the band.
      greatest: the greatest length of the band.
      margin: the distance outside of the band at which the score is 0.
      unit: `tokens` (end of sequence included), `words` or `characters`.

    Raises:
      ValueError: an empty band, or a number outside its range.
    """

    least: int = 0
    greatest: int = 1024
    margin: int = 256
    unit: str = "tokens"

    def __post_init__(self) -> None:
        require_one_of("unit", self.unit, _LENGTHS)
        if not 0 <= self.least <= self.greatest:
            raise ValueError(
                f"least={self.least} and greatest={self.greatest} must be a band: 0 ≤ least ≤"
                " greatest."
            )
        if self.margin < 1:
            raise ValueError(f"margin={self.margin} must be at least 1.")

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        length = _LENGTHS[self.unit](completion)
        if length is None:
            return Judgement.unknown("the completion came without tokens: use unit='words'")
        outside = max(self.least - length, length - self.greatest, 0)
        return Judgement(
            max(0.0, 1 - outside / self.margin),
            f"{length} {self.unit}, of a band from {self.least} to {self.greatest}",
        )


def _count_tokens(completion: Completion) -> int | None:
    return len(completion.tokens) or (None if completion.whole else 0)


_LENGTHS = {
    "tokens": _count_tokens,
    "words": lambda completion: len(completion.whole.split()),
    "characters": lambda completion: len(completion.whole),
}


@dataclasses.dataclass(frozen=True)
class SoftOverlong:
    """Punishes long completions softly, from 0 down to −1.

    With L = `max_tokens` and C = `cache_tokens`, a completion of y tokens gets 0 for |y| ≤ L − C,
    ((L − C) − |y|) / C for L − C < |y| ≤ L, and −1 beyond.

    Source: DAPO (Yu et al. 2025, arXiv:2503.14476), equation 13.

    Attributes:
      max_tokens: the length at which the punishment is complete.
      cache_tokens: the length of the interval before it in which the punishment grows.

    Raises:
      ValueError: a number outside its range.
    """

    max_tokens: int = 20480
    cache_tokens: int = 4096

    def __post_init__(self) -> None:
        if not 0 < self.cache_tokens <= self.max_tokens:
            raise ValueError(
                f"cache_tokens={self.cache_tokens} must be above 0 and at most max_tokens="
                f"{self.max_tokens}."
            )

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        length = _count_tokens(completion)
        if length is None:
            return Judgement.unknown("the completion came without tokens")
        free = self.max_tokens - self.cache_tokens
        score = min(0.0, max(-1.0, (free - length) / self.cache_tokens))
        return Judgement(score, f"{length} tokens, and the first {free} are free")


@dataclasses.dataclass(frozen=True)
class Repetition:
    """Gives 1 − the share of repeated n-grams of words, from 0 to 1.

    The share is 1 − different n-grams / all n-grams. A text with fewer words than n gets 1.
    In scripts without spaces (Chinese, Japanese, Thai and others) each character is a word; so it
    is in words of more than 32 characters, and in runs of 64 or more equal characters.

    Attributes:
      n: words of an n-gram.
      free: the share that is not punished. The score falls linearly from there.

    Raises:
      ValueError: a number outside its range.
    """

    n: int = 4
    free: float = 0.0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n={self.n} must be at least 1.")
        if not 0 <= self.free < 1:
            raise ValueError(f"free={self.free} must be at least 0 and below 1.")

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        words = _pieces(completion.whole)
        grams = collections.Counter(
            zip(*(itertools.islice(words, i, None) for i in range(self.n)), strict=False)
        )
        if not grams:
            return Judgement(1.0, f"fewer than {self.n} words")
        share = 1 - len(grams) / grams.total()
        gram, count = grams.most_common(1)[0]
        why = f"{share:.0%} of {self.n}-grams are repeated"
        if count > 1:
            why += f", {' '.join(gram)[:60]!r} {count} times"
        return Judgement(1 - max(0.0, share - self.free) / (1 - self.free), why)


_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_PIECE = re.compile(
    rf"(?P<run>(\S)\2{{63,}})|[{_UNSPACED}]|[^\W{_UNSPACED}]+(?:'[^\W{_UNSPACED}]+)*"
)
_LONGEST_WORD = 32


def _pieces(text: str) -> list[str]:
    """Returns the words of a text, or their characters where words are not separated."""
    pieces: list[str] = []
    for match in _PIECE.finditer(text.lower()):
        is_word = match["run"] is None and len(match[0]) <= _LONGEST_WORD
        pieces.extend([match[0]] if is_word else match[0])
    return pieces


_SCRIPTS = {
    "latin": "LATIN",
    "cyrillic": "CYRILLIC",
    "greek": "GREEK",
    "arabic": "ARABIC",
    "hebrew": "HEBREW",
    "devanagari": "DEVANAGARI",
    "bengali": "BENGALI",
    "tamil": "TAMIL",
    "thai": "THAI",
    "georgian": "GEORGIAN",
    "armenian": "ARMENIAN",
    "hangul": "HANGUL",
    "han": "CJK",
    "kana": "HIRAGANA KATAKANA",
    "japanese": "CJK HIRAGANA KATAKANA KATAKANA-HIRAGANA",
}
"""First words of the Unicode names of each script's letters."""

_STOP_WORDS = {
    "english": "the of and to in is that it for was with as on be this are by from we have which",
    "german": "der die das und ist nicht ein eine zu den mit von auf für sich dem im wir auch es",
    "french": "le la les de des et est un une que pour dans qui ne pas sur avec du nous on ce",
    "spanish": "el la los las de y es en un una que por con para no se del lo como al su",
    "italian": "il lo la gli di che è un una per non con si del della sono come nel le e i",
    "portuguese": "o a os as de e é em um uma que por com para não se do da como no na",
    "dutch": "de het een en van is dat in niet op te zijn met voor er aan ook we dit die",
}
_LEAST_WORDS = 10
_LEAST_STOP_WORDS = 0.15


@dataclasses.dataclass(frozen=True)
class LanguageShare:
    """Gives the share of a completion that is in a language or a script, from 0 to 1.

    For a script: the share of letters that are in the script. For a language: the share of letters
    in its script, times min(1, s / 0.15), where s is the share of words that are stop words of the
    language. The factor is 0 if another language's stop words are more frequent, and 1 for texts of
    fewer than ten words. LaTeX, text between dollar signs or in backquotes, tags and web addresses
    do not count.

    Attributes:
      name: a script (latin, cyrillic, han, …) or a language (english, german, …).

    Raises:
      ValueError: an unknown name.
    """

    name: str = "english"

    def __post_init__(self) -> None:
        require_one_of("name", self.name, [*_SCRIPTS, *_STOP_WORDS])

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        text = _PROSELESS.sub(" ", completion.whole)
        letters = [letter for letter in text if letter.isalpha()]
        if not letters:
            return Judgement(1.0, "no letters outside of formulas and code")
        script = self.name if self.name in _SCRIPTS else "latin"
        counts = collections.Counter(letters)
        inside = sum(count for letter, count in counts.items() if _is_of(letter, script))
        share = inside / len(letters)
        why = f"{share:.0%} of letters are {script}"
        if self.name in _SCRIPTS:
            return Judgement(share, why)
        factor, reason = self._stop_words(text)
        return Judgement(share * factor, f"{why}; {reason}")

    def _stop_words(self, text: str) -> tuple[float, str]:
        words = re.findall(r"\w+(?:'\w+)*", text.lower())
        if len(words) < _LEAST_WORDS:
            return 1.0, f"fewer than {_LEAST_WORDS} words"
        counts = collections.Counter(words)
        shares = {
            name: sum(counts[word] for word in set(listed.split())) / len(words)
            for name, listed in _STOP_WORDS.items()
        }
        best, own = max(shares, key=lambda name: shares[name]), shares[self.name]
        if shares[best] > own:
            return 0.0, f"stop words are rather {best}"
        return min(1.0, own / _LEAST_STOP_WORDS), f"{own:.0%} of words are {self.name} stop words"


_PROSELESS = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|\\\[.*?\\\]|\\\(.*?\\\)|\\[A-Za-z]+"
    r"|</?\w+>|https?://\S+",
    re.DOTALL,
)


@functools.lru_cache(maxsize=4096)
def _is_of(letter: str, script: str) -> bool:
    first = unicodedata.name(letter, "").split(" ")[0]
    return first in _SCRIPTS[script].split()
