"""Thoughts of replies: the spans that a model writes for itself, apart from its answer.

A span stands between two marks, such as `<think>` and `</think>`. The prompt may have begun it: the
templates of DeepSeek-R1 and of Qwen3's thinking models end with `<think>`, so their replies have
only the closing mark.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple


class ThoughtMarks(NamedTuple):
    """Two marks around thoughts.

    Attributes:
      opens, closes: the marks.
      closes_alone: whether the closing mark ends thoughts that no opening mark has begun.
      frame: a regular expression for marks around the answer, which are no part of it.
    """

    opens: str
    closes: str
    closes_alone: bool = True
    frame: str = ""


KNOWN = (
    ThoughtMarks("<think>", "</think>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
    ThoughtMarks("<seed:think>", "</seed:think>"),
    ThoughtMarks("<|START_THINKING|>", "<|END_THINKING|>", frame=r"<\|(?:START|END)_RESPONSE\|>"),
    ThoughtMarks("◁think▷", "◁/think▷"),
    ThoughtMarks("<|channel>thought", "<channel|>"),
    ThoughtMarks(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        closes_alone=False,
        frame=(
            r"<\|start\|>assistant(?!<\|channel\|>commentary)"
            r"|<\|channel\|>final(?:[^<]|<\|constrain\|>)*<\|message\|>"
        ),
    ),
)
"""Marks in the chat templates of model families: Qwen3, DeepSeek-R1, SmolLM3 and most others;
Magistral; Seed-OSS; Command A; Kimi; Gemma 4; and gpt-oss, whose answer is the channel `final`."""

_QUOTES = "\"'`"
_OPENING_QUOTES = _QUOTES + "“‘«„"
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)


class SplitReply(NamedTuple):
    """A reply, split.

    Attributes:
      thoughts: its thoughts without marks; several spans stand below each other.
      answer: the text outside of thoughts, without line breaks at its beginning. It is the reply
        itself if there are no thoughts.
      is_thinking: whether the reply ends inside thoughts.
      end: index in the reply after its last closing mark; 0 if there are no thoughts.
    """

    thoughts: str
    answer: str
    is_thinking: bool = False
    end: int = 0


def split(
    reply: str,
    begun: str = "",
    marks: tuple[ThoughtMarks, ...] = KNOWN,
    leading_only: bool = False,
    calls: str = "",
) -> SplitReply:
    """Splits a reply into its thoughts and its answer.

    A reply that ends inside thoughts at its beginning has no answer. A later opening mark begins
    thoughts if it is closed or stands at the beginning of a line. Marks between quotation marks or
    backquotes, and marks in fenced code of the answer, are text.

    Args:
      reply: the reply, without what the prompt has begun.
      begun: what the prompt has written of the reply; see `begun_by`.
      marks: pairs of marks.
      leading_only: whether to split off only thoughts at the beginning, up to their first closing
        mark; this part is certain while a reply is still being written.
      calls: mark that begins tool calls, in whose arguments no thoughts begin; empty for none.
    """
    known = _compiled(marks)
    inside = _open_at_end(begun, marks)
    if inside is None and not (known.any_mark and known.any_mark.search(reply)):
        return SplitReply("", reply)
    thoughts: list[str] = []
    pieces: list[str] = []
    at = end = 0
    if inside is not None:
        repeated = re.compile(rf"\s*{re.escape(inside.opens)}", re.IGNORECASE).match(reply)
        at = repeated.end() if repeated else 0
    elif lone := _lone_closing(reply, known):
        thoughts.append(reply[: lone.start()])
        at = end = lone.end()
    while True:
        if inside is None:
            opening = None if leading_only and end else _opening(reply, at, known, calls)
            if opening is None or (leading_only and reply[: opening.start()].strip()):
                break
            pieces.append(reply[at : opening.start()])
            inside, at = known.pairs[opening[0].lower()], opening.end()
        closing = _closing(reply, at, inside.closes)
        if closing is None:
            thoughts.append(reply[at:])
            answer = "" if leading_only else _joined([*pieces, ""])
            return SplitReply(_joined(thoughts), answer, True, len(reply))
        thoughts.append(reply[at : closing.start()])
        at = end = closing.end()
        inside = None
    pieces.append(reply[at:])
    if known.frame and not leading_only:
        pieces = [known.frame.sub("", piece) for piece in pieces]
    if pieces == [reply]:
        return SplitReply("", reply)
    return SplitReply(_joined(thoughts), _joined(pieces, strips_end=False), False, end)


def begun_by(prompt: str, marks: tuple[ThoughtMarks, ...] = KNOWN) -> str:
    """Returns the opening mark at the end of a prompt, with white space after it; else "".

    A template that begins the thoughts of replies ends with it.
    """
    known = _compiled(marks)
    found = known.at_end.search(prompt) if known.at_end else None
    return "" if found is None else found[0]


def marks_of(text: str | None) -> tuple[ThoughtMarks, ...]:
    """Reads the setting `tokenizer.thoughts`.

    Args:
      text: None for `KNOWN`; `none` for replies without thoughts; or two marks with a space
        between them, which are added to `KNOWN`.

    Raises:
      ValueError: the text is none of these.
    """
    if text is None:
        return KNOWN
    if text == "none":
        return ()
    given = text.split()
    if len(given) != 2 or given[0].lower() == given[1].lower():
        raise ValueError(
            f"tokenizer.thoughts={text!r} must be the two different marks around thoughts with a"
            " space between them, such as '<reasoning> </reasoning>', or none."
        )
    opens, closes = given
    return (ThoughtMarks(opens, closes), *(one for one in KNOWN if one.opens != opens))


class _MarkPatterns(NamedTuple):
    """Regular expressions for marks, and the pairs by their opening marks in lower case."""

    pairs: dict[str, ThoughtMarks]
    opening: re.Pattern[str] | None
    lone: re.Pattern[str] | None
    any_mark: re.Pattern[str] | None
    at_end: re.Pattern[str] | None
    frame: re.Pattern[str] | None


@functools.cache
def _compiled(marks: tuple[ThoughtMarks, ...]) -> _MarkPatterns:
    def one_of(texts: list[str], suffix: str = "") -> re.Pattern[str] | None:
        either = "|".join(text for text in texts if text)
        return re.compile(f"(?:{either}){suffix}", re.IGNORECASE) if either else None

    opens = [re.escape(pair.opens) for pair in marks]
    closes = [re.escape(pair.closes) for pair in marks if pair.closes_alone]
    frames = [pair.frame for pair in marks]
    return _MarkPatterns(
        pairs={pair.opens.lower(): pair for pair in marks},
        opening=one_of(opens),
        lone=one_of(opens + closes),
        any_mark=one_of(opens + closes + frames),
        at_end=one_of(opens, r"\s*\Z"),
        frame=one_of(frames),
    )


def _open_at_end(begun: str, marks: tuple[ThoughtMarks, ...]) -> ThoughtMarks | None:
    """Returns the pair of marks whose thoughts are open at the end of a text."""
    if not begun_by(begun, marks) and not (begun and split(begun, marks=marks).is_thinking):
        return None
    pairs = _compiled(marks).pairs
    return max(pairs.values(), key=lambda pair: begun.lower().rfind(pair.opens.lower()))


def _lone_closing(reply: str, known: _MarkPatterns) -> re.Match[str] | None:
    """Finds a closing mark before which no thoughts were opened in the reply."""
    for found in known.lone.finditer(reply) if known.lone else ():
        if not (_is_between_quotes(reply, found) or _is_in_code(reply, 0, found.start())):
            return None if found[0].lower() in known.pairs else found
    return None


def _opening(reply: str, at: int, known: _MarkPatterns, calls: str) -> re.Match[str] | None:
    """Finds the next mark that opens thoughts, before the first mark that begins calls."""
    until = reply.find(calls, at) if calls else -1
    until = len(reply) if until < 0 else until
    for found in known.opening.finditer(reply, at, until) if known.opening else ():
        before = reply[at : found.start()]
        if not before.strip() and not at:
            return found
        if (before[-1:] in _OPENING_QUOTES and before) or _is_in_code(reply, at, found.start()):
            continue
        closes = known.pairs[found[0].lower()].closes
        if before.rpartition("\n")[2].strip() and not _closing(reply, found.end(), closes):
            continue
        return found
    return None


def _closing(reply: str, at: int, closes: str) -> re.Match[str] | None:
    """Finds the next mark that closes thoughts."""
    for found in re.compile(re.escape(closes), re.IGNORECASE).finditer(reply, at):
        if not _is_between_quotes(reply, found):
            return found
    return None


def _is_between_quotes(reply: str, mark: re.Match[str]) -> bool:
    before = reply[max(0, mark.start() - 1) : mark.start()]
    return before != "" and before in _QUOTES and reply[mark.end() : mark.end() + 1] == before


def _is_in_code(reply: str, start: int, at: int) -> bool:
    """Says whether a place is in fenced code that begins after `start`, or between backquotes."""
    before = reply[start:at]
    if "`" not in before and "~~~" not in before:
        return False
    is_quoted = before.rpartition("\n")[2].count("`") % 2 == 1
    return is_quoted or len(_FENCE.findall(before)) % 2 == 1


def _joined(texts: list[str], strips_end: bool = True) -> str:
    """Joins texts that are not blank by line breaks, without line breaks at their ends."""
    kept = [text.strip("\n") for text in texts[:-1] if text.strip()]
    last = texts[-1].lstrip("\n") if texts else ""
    last = last.rstrip("\n") if strips_end else last
    return "\n".join([*kept, last] if last.strip() or not kept else kept)
