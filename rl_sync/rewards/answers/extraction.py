"""Extraction of the final answer from a completion, by strategies that are tried in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rl_sync.rewards.answers.notation import without_bullets, without_delimiters
from rl_sync.spelling import require_one_of


class Extracted(NamedTuple):
    """An answer found in a text.

    Attributes:
      text: the answer, without white space around.
      strategy: the name of the strategy that found it.
    """

    text: str
    strategy: str


class _Strategy(NamedTuple):
    """A way to find the answer.

    Attributes:
      find: returns the last answer of a text, or None.
      is_closed: whether the notation marks the end of the answer, so that a truncated completion
        cannot have cut it.
    """

    find: Callable[[str], str | None]
    is_closed: bool


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_TAGS = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_EMPHASIS = re.compile(
    r"(?<![\w)\]}\\^$*`])(\*{1,3}|__?|`(?!`))(?=[^\s*_])((?:(?!\1)[^\n]){1,300})(?<=[^\s*_\\])\1(?![\w*_`(])"
    r"|</?(?:b|i|u|em|strong|mark)>",
    re.IGNORECASE,
)
"""Markdown's and HTML's marks of emphasis around a text."""
_HASHES = re.compile(r"#{4,}[ \t]*([^\n]*)")
_HEADING = re.compile(r"(?:(?:\d+|[ivxIVX]+)[.):][ \t]+)?[^\W\d_]{2,}")
_LABELLED = re.compile(r"(?:final )?(?:result|total|sum|solution|value)[ \t]*[:=][ \t]*", re.I)
_ANSWER_IS = re.compile(
    r"(?:\b(?:answers?|(?:correct|right|best)[ \t]+(?:option|choice))\b[ \t]*\*{0,2}[ \t]*"
    r"(?:(?:is|are|was|were|equals|comes[ \t]+to|(?:would|must|should|will|has[ \t]+to)[ \t]+be)\b"
    r"(?!')(?! +to\b)|[:=：]|(?=(?:is|was)n['’]t\b))"
    r"|(?:respuesta|r[ée]ponse|antwort|risposta|resposta|antwoord|ответ|答案|答え|正解|정답|답)"
    r"(?:[ \t]+(?:correcta|correcte|corretta|correta|final|finale))?[ \t]*"
    r"(?:(?:es|est|ist|lautet|is|è|é)\b|[是为為は은는:=：])"
    r"|(?:答案|故|应)选|\b(?:I|we)[ \t]+(?:choose|pick|select)(?=[ \t]+(?:option )?\(?[A-J]\b)"
    r"|(?:^|(?<!nor )(?<!or )(?<!and )\b(?=option |choice ))(?=(?:option |choice )?\(?[A-J]\)? is"
    r" (?:the )?(?:correct|right|best)\b)"
    r"|^[#> \t]*(?:(?:the|my|final|correct)[ \t]+)*answer[ \t]*(?=\n\s*\S))"
    r"[ \t]*[:：]?[ \t]*\*{0,2}\s*",
    re.IGNORECASE | re.MULTILINE,
)
"""The words of a statement about the answer, and headings such as `## Final answer`."""
_DOUBT = re.compile(
    r"\b(?:(?:if|whether|unless|suppose|assuming)(?:\s+\w+){0,3}|of\s+\w+)\s+$", re.IGNORECASE
)
_REMARK = re.compile(
    r"(?:(?:also|indeed|clearly|probably|now|as|an?|the)\s+)*(?:(?:correct|right|wrong|incorrect"
    r"|clear|obvious|valid|invalid|reasonable|plausible|sensible|consistent|verified|confirmed"
    r"|checked|shown|stated|complete|unique|final|exact|expected|positive|negative|even|odd|prime|integer|whole|above|below"
    r"|follows|same|derived|obtained|based|supported|rounded|expressed|in)\b(?!\s*[-+$\\]?\d)"
    r"|(?:given|found)\b(?!\s+(?:by|to be)\s+[-+$(]*(?:\d|\\|\w\b))|not\b|(?:is|was)n['’]t\b)",
    re.IGNORECASE,
)
"""A statement that does not give the answer, such as `correct`, `in centimetres` or `not 7`."""
_FILLER = re.compile(
    r"(?:,?\s*(?:of course|therefore|thus|hence|then|now|indeed|clearly|obviously|simply|just"
    r"|actually|probably|given by|found to be)\b,?\s+"
    r"|\s*(?:that\s+)?(?:there (?:is|are)|the [\w ]{1,40}? (?:is|are|was))\s+(?=[-+$\\(]*\d))+",
    re.IGNORECASE,
)
_NUMBERING = re.compile(r"[ \t]*\d{1,2}[.)][ \t]+(?=\S)")
_NEXT_STATEMENT = re.compile(
    r"[\s(,;–—-]*(?:\b(?:and|but|so|as|since)\b)?\s*(?:\b(?:the|this|my|that|final)\b\s*)*$",
    re.IGNORECASE,
)
"""The words between an answer and the next statement about it in the same sentence."""
_DISPLAYED = re.compile(r"(?:\$\$|\\\[|```\w*\n)(.*?)(?:\$\$|\\\]|```)", re.DOTALL)
_SENTENCE_END = re.compile(
    r"[.!?](?=\s|\*|$)(?!\s*=|\s[A-Z]\.\s[A-Z])|[。！？]|(?:です|である|입니다|이다)(?!\w)|\s(?:because|since|which)\s"
    r"|[,;]\s(?:so|hence|thus|therefore)\s|;\s(?:that|this|it|we)\s"
    r"|(?<=\b(?-i:[A-J])|\))\sis\s(?:the\s)?(?:correct|right|best)\b"
    r"|,\sas\s(?:we|shown|above|required|expected|desired)\b"
    r"|\s\((?:see|as|since|because|which|not|rounded)\b|(?<=\d)\s\((?!mod|or)[a-z -]+\)",
    re.IGNORECASE,
)
_SHORTENED = re.compile(
    r"(?:^|[\s(\"])(?:(?i:mt|dr|mr|mrs|ms|st|ft|prof|sgt|gen|col|capt|approx|ca|vs|fig|eq|no(?=\.\s\d))"
    r"|[A-Z][\w'-]+\s(?:[A-Z]\.\s?)*[A-Z]|(?:[A-Za-z]\.\s?)+[A-Za-z])$"
)
"""The end of a text whose full stop does not end a sentence: `Mt`, `George W`, `p.m`."""
_NEW_SENTENCE = re.compile(
    r"\.(?:\s*$|\s+(?:The|This|That|These|It|He|She|They|We|You|I|So|Because|Since|Therefore|Thus|In"
    r"|An?|As|If|For|To|Let|Note|There|But|And|Hence|My|Explanation)\b|\s+(?![A-Z\d]))"
)
_BLANK_LINE = re.compile(r"\n[ \t]*\n\s*")
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Thai, kana, Chinese characters and hangul, whose words stand beside numbers without spaces."""
_PLAIN = r"\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+(?!\d)(?:\.\d+)?|\d+(?:,\d+)*(?:\.\d+)*|\.\d+"
_BRACED = r"\{(?:[^{}\n]|\{[^{}\n]*\})*\}"
_FRACTION = rf"(?:\\[dtc]?frac(?:{_BRACED}{_BRACED}|\d\d)|[½⅓⅔¼¾⅕⅛])"
_ROOT = rf"(?:\\sqrt(?:\[\d+\])?{_BRACED}|√(?:\d+|\([^()\n]*\)))"
_NUMBER = re.compile(
    rf"(?<![^\W{_UNSPACED}])(?<![.^_])(?<!\^\{{)(?<!_\{{)(?:(?<![)\]}}])(?<![^\W{_UNSPACED}])[-−–+])?"
    r"(?:\\?[$€£¥₹]\s?)?(?:"
    rf"\d+ \d+/\d+|\d+[ ]?{_FRACTION}|\d+(?::\d+)+|{_FRACTION}"
    rf"|(?:(?:{_PLAIN})[ ]?)?(?:{_ROOT}|(?:\\pi(?![A-Za-z])|π))(?:/\d+)?"
    rf"|(?:{_PLAIN})(?:[eE][-+]?\d+(?!\w)|[ ]?(?:×|x|\*|\\times|\\cdot)[ ]?10"
    rf"(?:\^|\*\*|(?=[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]))|/\d+)?"
    rf"(?:(?<=[*^]){_BRACED}|(?<=[*^])-?\d+|\^(?:{_BRACED}|-?\w+)|[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)?"
    r"(?:!(?=\s+[-=+*/a-z]))?"
    r")(?:\s?\\?[%％]|[ ](?:per[ ]?cent(?!age)|pct|prozent|pour[ ]cent|por[ ]cien?to|per[ ]cento)\b"
    r"|[ ](?:dozen|hundred|thousand|million|billion|trillion)s?\b|[万萬億亿])?",
    re.IGNORECASE,
)
_SIGN_WORD = re.compile(
    r"\bnegative\s+$|(?:^|[:=(,\n]|\b(?:is|was|be|of|to|at|by|equals|about|gives?|get)\s)\s*minus\s+$",
    re.IGNORECASE,
)


def _boxed(text: str) -> str | None:
    boxes = list(_BOX.finditer(text))
    closing = _closing_braces(text) if boxes else {}
    for match in reversed(boxes):
        start = match.end()
        if start in closing:
            return text[start + 1 : closing[start]]
        if word := re.compile(r"\\?[^\s$\\{}]+").match(text, start):
            return word[0].rstrip(".,;")
    return None


def _closing_braces(text: str) -> dict[int, int]:
    """Maps the index of each opening brace that is closed to the index of its closing brace."""
    closing, opened, escaped = {}, [], False
    for index, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "{":
            opened.append(index)
        elif character == "}" and opened:
            closing[opened.pop()] = index
    return closing


def _tagged(text: str) -> str | None:
    found = _TAGS.findall(text)
    return found[-1] if found else None


def _hashed(text: str) -> str | None:
    """Returns the last line after ####, which marks answers in GSM8K, that is no heading."""
    for match in reversed(list(_HASHES.finditer(text))):
        line, is_followed = match[1], bool(text[match.end() :].strip())
        if _ANSWER_IS.search(f"{line}\n." if is_followed else line):
            continue
        if not (is_followed and _HEADING.match(line)):
            return _LABELLED.sub("", line)
    return None


def _answer_is(text: str) -> str | None:
    rest = _after_answer_is(text)
    if rest is None:
        return None
    if rest.startswith("\n"):
        rest = _joined_items(rest.removeprefix("\n"))
    if displayed := _DISPLAYED.match(rest):
        return displayed[1]
    return _first_sentence(rest.partition("\n")[0])


def _first_sentence(text: str) -> str:
    """Returns a text up to the end of its first sentence, or to a reason."""
    for match in _SENTENCE_END.finditer(text):
        before, after = text[: match.start()], text[match.start() :]
        if not (match[0] == "." and _SHORTENED.search(before) and not _NEW_SENTENCE.match(after)):
            return before
    return text


def _answer_block(text: str) -> str | None:
    rest = _after_answer_is(text)
    return None if rest is None else _BLANK_LINE.split(rest.lstrip(), maxsplit=1)[0].rstrip(" .")


def _after_answer_is(text: str) -> str | None:
    """Returns what follows the last statement that gives the answer, or a line break and that.

    Statements that only remark on the answer, such as "the answer is correct", count if no other
    statement gives it.
    """
    remark, end = None, len(text)
    for match in reversed(list(_ANSWER_IS.finditer(text))):
        rest = text[match.end() : end]
        if end < len(text) and "\n" not in rest:
            rest = _NEXT_STATEMENT.sub("", rest)
        else:
            rest = text[match.end() :]
        end = match.start()
        if _DOUBT.search(text[max(0, end - 80) : end]):
            continue
        if _REMARK.match(rest):
            remark = rest if remark is None else remark
            continue
        if "\n" in match[0]:
            return f"\n{rest}"
        filler = _FILLER.match(rest)
        return rest[filler.end() :] if filler else rest
    return remark


def _joined_items(text: str) -> str:
    """Joins the items of a list at the beginning of a text by commas."""
    lines = text.split("\n")
    items = [_NUMBERING.sub("", without_bullets(line), count=1) for line in lines]
    count = next((i for i, line in enumerate(lines) if items[i] == line), len(lines))
    return "\n".join([", ".join(items[:count]), *lines[count:]]) if count else text


_REJECTED = re.compile(
    r"(?:,\s*(?:and\s+)?not|\brather than|\binstead of)\s+[$(]*\Z", re.IGNORECASE
)
"""What stands before a number that is named only to be ruled out."""


def _last_number(text: str) -> str | None:
    """Returns the last number, with all its parts: `1 1/4`, `1.5e3`, `2\\sqrt{3}`, `28 percent`.

    A number that is ruled out does not count where another stands before it: `42, not 24`.
    """
    found, text = None, without_delimiters(text)
    for match in _NUMBER.finditer(text):
        if found is None or not _REJECTED.search(text[max(0, match.start() - 20) : match.start()]):
            found = match
    if found is None:
        return None
    is_negative = _SIGN_WORD.search(text[max(0, found.start() - 20) : found.start()])
    return f"-{found[0]}" if is_negative else found[0]


def _last_line(text: str) -> str | None:
    before, _, line = text.strip().rpartition("\n")
    # A single line `- 5` may be a negative number.
    return (without_bullets(line) if before or re.match(r"\W+[^\W\d]", line) else line) or None


def _last_block(text: str) -> str | None:
    return _BLANK_LINE.split(text.strip())[-1] or None


STRATEGIES: dict[str, _Strategy] = {
    "boxed": _Strategy(_boxed, is_closed=True),
    "tags": _Strategy(_tagged, is_closed=True),
    "hashes": _Strategy(_hashed, is_closed=False),
    "answer_is": _Strategy(_answer_is, is_closed=False),
    "last_number": _Strategy(_last_number, is_closed=False),
    "last_line": _Strategy(_last_line, is_closed=False),
    "answer_block": _Strategy(_answer_block, is_closed=False),
    "last_block": _Strategy(_last_block, is_closed=False),
    "whole": _Strategy(lambda text: text, is_closed=False),
}
"""`boxed`: the last \\boxed{…}. `tags`: the last <answer>…</answer>. `hashes`: the line after the
last ####, unless it is a heading. `answer_is`: the sentence after the last "answer is" or
"Answer:". `last_number`: the last number. `last_line`: the last line that is not empty.
`answer_block` and `last_block`: as `answer_is` and `last_line`, but up to a blank line. `whole`:
everything."""

DEFAULT_STRATEGIES = "boxed,tags,hashes,answer_is,last_number"


def strategies_of(names: str) -> tuple[str, ...]:
    """Reads names of strategies, separated by commas.

    Raises:
      ValueError: there is no name, or a name is unknown.
    """
    listed = tuple(name.strip() for name in names.split(",") if name.strip())
    if not listed:
        raise ValueError(f"extract={names!r} must name a strategy: {', '.join(STRATEGIES)}.")
    for name in listed:
        require_one_of("extract", name, STRATEGIES)
    return listed


def extract(text: str, strategies: Sequence[str], truncated: bool = False) -> Extracted | None:
    """Returns the answer that the first successful strategy finds; None if none finds one.

    Args:
      truncated: whether the completion was cut. Then only strategies with `is_closed` are tried.
    """
    text = _without_emphasis(text)
    for name in strategies:
        strategy = STRATEGIES[name]
        if truncated and not strategy.is_closed:
            continue
        found = strategy.find(text)
        if found is not None:
            return Extracted(found.strip(), name)
    return None


def _without_emphasis(text: str) -> str:
    for _ in range(2):  # Twice for a mark inside another.
        text = _EMPHASIS.sub(lambda match: match[2] or "", text)
    return text


def gold_answer(text: str) -> str:
    """Returns the answer of a gold text, which may be a worked solution with a marked answer."""
    found = extract(text, ("boxed", "tags", "hashes"))
    return _without_emphasis(text).strip() if found is None else found.text
