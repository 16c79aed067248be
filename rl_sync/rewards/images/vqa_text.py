"""The VQA challenge's normalization of short answers.

As in the official evaluation of VQA v2 (github.com/GT-Vision-Lab/VQA, vqaEval.py), it handles
punctuation, number words, articles, and contractions that lack an apostrophe.
"""

from __future__ import annotations

import functools
import re

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_DIGIT_COMMA = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")
_ARTICLES = frozenset({"a", "an", "the"})
_WORDS = "zero one two three four five six seven eight nine ten"
_NUMBERS = {"none": "0"} | {word: str(number) for number, word in enumerate(_WORDS.split())}
_CONTRACTIONS = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
    haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't
    mightn't've must've mustn't needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
    shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
    someone's something'd something'd've something'll that's there'd there'd've there're there's
    they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're
    what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're
    why's won't would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll
    you're you've
"""


@functools.cache
def contractions() -> dict[str, str]:
    """Maps each form of a contraction that lacks one apostrophe to the contraction."""
    return {
        word[:at] + word[at + 1 :]: word
        for word in _CONTRACTIONS.split()
        for at, character in enumerate(word)
        if character == "'"
    }


def normalized(answer: str) -> str:
    """Normalizes a short answer, such as `The two dogs.` to `2 dogs`."""
    text = _without_punctuation(" ".join(answer.split()))
    words = [_NUMBERS.get(word, word) for word in text.lower().split()]
    table = contractions()
    return " ".join(table.get(word, word) for word in words if word not in _ARTICLES)


def _without_punctuation(text: str) -> str:
    """Removes each mark that is next to a space anywhere in the text; others become spaces.

    If a comma stands between digits, all marks are removed.
    """
    removes_all = _DIGIT_COMMA.search(text) is not None
    found = text
    for mark in _PUNCTUATION:
        beside_space = f"{mark} " in text or f" {mark}" in text
        found = found.replace(mark, "" if beside_space or removes_all else " ")
    return _PERIOD.sub("", found)
