"""Conversion of answers in Unicode, LaTeX or plain text into one notation."""

from __future__ import annotations

import re

_CHARACTERS = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "＋": "+", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ",
        "÷": "/", "⁄": "/", "∕": "/", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ", "±": r"\pm ",
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap ",
        "∅": r"\emptyset ", "∈": r"\in ", "ℝ": r"\mathbb{R}", "θ": r"\theta ", "∠": r"\angle ",
        "√": r"\sqrt",
        "℃": "°C", "℉": "°F", "：": ":", "。": ".",
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}", "⅕": r"\frac{1}{5}", "⅛": r"\frac{1}{8}",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "", "，": ",", "（": "(", "）": ")",
        "’": "'", "‘": "'", "“": '"', "”": '"', "％": "%",
    }
)  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_DELIMITERS = re.compile(r"^\s*(?:\$\$?(.*?)\$?\$|\\\((.*)\\\)|\\\[(.*)\\\])\s*\.?\s*$", re.DOTALL)
_BOX = re.compile(r"^\\(?:boxed|fbox)\s*\{(.*)\}$", re.DOTALL)
_INLINE = re.compile(
    r"(?<![\\$])(\$\$?)(?=[^\s$])((?:[^$\\]|\\.)*?)(?<=[^\s\\])\1(?![\d$])|(?<!\\)\\\(((?:(?!\\[()]).)*)\\\)"
)
"""A formula in delimiters inside a text. As in Pandoc, `$5 and $6` are amounts of money."""
_DEGREES = r"(?<=\d) ?(?:°|(?:\\text\{ ?)?(?i:degrees?|deg\.?)) ?(?:\\text\{ ?)?"
_FREE = r"(?:real|complex|arbitrary|constants?|numbers?|scalars?|parameters?|values? of)"
_ANY = rf"(?:(?:all|any|every|each|some|arbitrary)(?: {_FREE})*|an?(?: {_FREE})+)"
_DOMAIN = r" ?\\in ?\\mathbb ?\{? ?[RC] ?\}?"
_WITH = r",? *(?:\\text\{[ ,]*(?:where|with) ?\}|(?<![A-Za-z])(?:where|with)(?![A-Za-z])) ?"
_SOME = r"(?:an? |any )?(?:arbitrary |real |complex )*"
_WHOLE = r"(?:all|any|every|each) (?:(?:positive|non-?negative|natural) )?(?:integers?|numbers?)"
_Rules = list[tuple[re.Pattern[str], str]]
_LEAD = (
    r"(?i:approximately|approx\.?|about|around|roughly|nearly|almost|exactly|precisely|simply|just|only"
    r"|equal to|equals|a total of|(?:the|a) (?:number|value)(?: of)?|the)"
)
_REWRITES: _Rules = [
    (re.compile(pattern), to)
    for pattern, to in [
        (r"\\\$", "$"),  # The symbol of money; delimiters are gone by now.
        (r"\\%", "%"),
        (r"^([-+]?) ?(?:USD|US\$) ?(?=[\d.])", r"\1$"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\*\*(?=\S)(.*?)(?<=\S)\*\*(?![\w(])", r"\1"),  # Bold in Markdown.
        (r"\\(?:displaystyle|textstyle|limits|nolimits)(?![A-Za-z])", ""),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?", ""),
        (r"\\[lr]?vert(?![A-Za-z])", "|"),
        (r"\\[!]", ""),
        (r"(?<!\\)\\(?:[,;:> ]|quad(?![A-Za-z])|qquad(?![A-Za-z]))|~", " "),
        (r"\{,\}", ","),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:dbinom|tbinom)", r"\\binom"),
        (r"\\(?:textbf|textit|textrm|textsf|textnormal|mathrm|mathbf|mathit|mbox|operatorname)"
         r"(?![A-Za-z])\s*\*?\s*", r"\\text"),
        (r"\\text\s+\{", r"\\text{"),
        (r"\\leq(?:slant)?(?![A-Za-z])", r"\\le"),
        (r"\\geq(?:slant)?(?![A-Za-z])", r"\\ge"),
        (r"\\neq(?![A-Za-z])", r"\\ne"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", "°"),
        (rf"{_DEGREES}(?:C|(?i:celsius|centigrade))\b ?\}}?", "°C"),
        (rf"{_DEGREES}(?:F|(?i:fahrenheit))\b ?\}}?", "°F"),
        (r"^\\text\{ ?([-+$]?\d[^{}]*)\}$", r"\1"),
        (r"(?<=\d) ?\^? ?\{? ?(?:\\text\{ ?)?(?:st|nd|rd|th)\b ?\}{0,2}(?![A-Za-z])", ""),
        (rf"^(?:\\text\{{ ?(?:{_LEAD}) ?\}} ?|(?:(?:{_LEAD}) )+(?:\\approx )?)"
         r"(?=[-+]?[$€£¥₹]?[\d.\\])", ""),
        (r"(?<=[\d}%]) (?:in (?:all|total)|altogether)$", ""),
        (r"^(?:\\text\{ ?)?(?i:negative|minus)(?: ?\}|(?<=\w)) ?(?=[$€£¥₹]?[\d.\\])", "-"),
        (r"百分之(\d+(?:\.\d+)?)", r"\1%"),
        # Arguments without braces: a digit, a letter, or a command.
        (r"\\(frac|binom)(?:\s*(\d|\\(?!frac|sqrt)[A-Za-z]+)|\s+([A-Za-z]))(?=\s*[\\{\w])",
         r"\\\1{\2\3}"),
        (r"(\\(?:frac|binom)\s*\{(?:[^{}]|\{[^{}]*\})*\})\s*"
         r"(\d|[A-Za-z]|\\(?!frac|sqrt)[A-Za-z]+)", r"\1{\2}"),
        (r"(\\sqrt)\s*(\d|[A-Za-z](?![A-Za-z]))", r"\1{\2}"),
        (r"\^\s*(\\(?:frac|binom)\{[^{}]*\}\{[^{}]*\}|\\sqrt\{[^{}]*\})", r"^{\1}"),
        # Remarks that a variable is arbitrary, which are no part of the value.
        (r"(?<=\S) *\(((?:\\text\{ ?)?(?:where|with|for)(?![A-Za-z])[^()]*|[A-Za-z] ?\\in[^()]*)\)"
         r"\.?$", r", \1"),
        (rf"(?<=\S),? *(?:\\text\{{[ ,]*for {_ANY} ?\}}|\\forall|for {_ANY})(?![A-Za-z])"
         rf" ?[A-Za-z]?(?:{_DOMAIN})?\.?$", ""),
        (rf"(?<=\S){_WITH}[A-Za-z] ?(?:\\text\{{ ?)?(?:is|being) ?{_SOME}"
         r"(?:constant(?: of integration)?|number)? ?\}?\.?$", ""),
        (rf"(?<=\S){_WITH}{_SOME}(?:constant|number) [A-Za-z]\.?$", ""),
        (rf"(?<=\S)(?:, *|{_WITH})[A-Za-z](?:{_DOMAIN}|,? (?:is )?{_SOME}constant)\.?$", ""),
        (rf"^(\\?[A-Za-z](?:\(([A-Za-z])\)|_\{{?([A-Za-z])\}}?) ?=.*?\S),? *(?:\\text\{{[ ,]*)?"
         rf"for {_WHOLE} ?\}}? ?(?:\2|\3) ?\}}?\.?$", r"\1"),  # The argument, or the index.
        (r"\\text\{\s*\}", ""),
        (r"\s+", " "),
    ]
]  # fmt: skip
_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def unified(text: str) -> str:
    """Rewrites an answer in one notation, without delimiters, spacing commands or font commands."""
    text = _SUPERSCRIPT_RUN.sub(lambda m: "^{" + m[0].translate(_SUPERSCRIPTS) + "}", text)
    text = text.translate(_CHARACTERS).strip().strip('`"').strip()
    for _ in range(3):
        inner = _inside_delimiters(text)
        if inner == text:
            break
        text = inner
    text = without_delimiters(text)
    for pattern, to in _REWRITES:
        text = pattern.sub(to, text)
    text = text.strip()
    if not text.endswith(".)") and text[-1:] in {".", ";", ":", ","}:
        text = text[:-1].rstrip()
    return text


def _inside_delimiters(text: str) -> str:
    """Removes one pair of math delimiters, or one box, around the whole text."""
    for pattern in (_DELIMITERS, _BOX):
        if match := pattern.match(text):
            inner = next(group for group in match.groups() if group is not None).strip()
            # Two formulas in a text are not one formula in delimiters.
            if "$" not in inner.replace(r"\$", "") and inner:
                return inner
    return text


_BULLET = re.compile(r"^[ \t]*[-*+•·▪‣–>→][ \t]+(?=\S)", re.MULTILINE)


def without_bullets(text: str) -> str:
    """Removes the bullets of a list, which are not signs of numbers."""
    return _BULLET.sub("", text)


def without_delimiters(text: str) -> str:
    """Removes the delimiters of formulas inside a text: `$42$ cm` becomes `42 cm`."""
    return _INLINE.sub(lambda match: match[2] or match[3] or "", text)


def without_text_commands(text: str) -> str:
    """Replaces `\\text{…}` by its content, set apart by spaces."""
    return re.sub(r"\s+", " ", _TEXT.sub(r" \1 ", text)).strip()


_COMPACT: _Rules = [
    (re.compile(pattern), to)
    for pattern, to in [
        (r"\\text\{([^{}]*)\}", r"\1"),
        (r"\s*\\(?:cdot|times)(?![A-Za-z])\s*", "*"),
        (r"\*\*", "^"),
        (r"(?<![\\A-Za-z])sqrt\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])(pi|sin|cos|tan|log|ln)(?![A-Za-z])", r"\\\1"),
        (r"([\^_])\{(\w)\}", r"\1\2"),
        (r"(?<=[0-9)}])\*(?=[A-Za-z\\(])", ""),
        (r"(?<!\d)\s+|\s+(?!\d)", ""),
    ]
]


def compact(text: str) -> str:
    """Removes differences of spacing and spelling between formulas of the same symbols."""
    for pattern, to in _COMPACT:
        text = pattern.sub(to, text)
    return text


_WORDS = "sqrt|pi|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|exp|infty"
_TO_LATEX: _Rules = [
    (re.compile(pattern), to)
    for pattern, to in [
        (r"\*\*", "^"),
        (r"(\\?(?:sin|cos|tan|cot|sec|csc) ?)"
         r"(?:(\d+(?:\.\d+)?) ?°|([({]) ?(\d+(?:\.\d+)?) ?° ?([)}]))",
         r"\1(\2\4 \\cdot \\frac{\\pi}{180})"),
        (r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (rf"(?<![\\A-Za-z])({_WORDS})(?![A-Za-z])", r"\\\1 "),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\^\(([^()]*)\)", r"^{\1}"),
        (r"(?<=\^)(-?\d{2,})", r"{\1}"),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"!=", r"\\ne "),
        (r"\*", r"\\cdot "),
        (r"(?<=\d),(?=\d{3}(?!\d))", ""),
    ]
]  # fmt: skip


_DECIMAL = re.compile(r"(?<![\w.])(\d*)\.(\d+)(?!\.?\d)")


def latex(text: str) -> str:
    """Writes a formula of unified notation as LaTeX, with decimals as exact fractions."""
    for pattern, to in _TO_LATEX:
        text = pattern.sub(to, text)
    # Algebra with decimals would compare rounded numbers.
    return _DECIMAL.sub(
        lambda match: rf"\frac{{{int(match[1] + match[2])}}}{{1{'0' * len(match[2])}}}", text
    )
