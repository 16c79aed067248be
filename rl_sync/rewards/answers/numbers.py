"""Numbers in the many notations of answers, read exactly."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from rl_sync.rewards.answers.notation import without_text_commands
from rl_sync.rewards.answers.units import UnitError, agree, scale, unit

_GREATEST_EXPONENT = 1000  # Exact integers beyond it are slow, and no answer needs them.


class Number(NamedTuple):
    """A rational number, exactly.

    Attributes:
      value: the number; 0.05 for 5 %.
      unit: the canonical unit, or "".
    """

    value: Fraction
    unit: str = ""


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_SIGNED = rf"[-+]? ?{_DECIMAL}"
_MONEY = r"[$€£¥₹]"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?) ?(?P<money>{_MONEY})? ?(?P<sign_after>[-+]?) ?(?:"
    rf"(?P<whole>{_DIGITS}) ?\\frac ?\{{ ?(?P<mixed_top>\d+) ?\}} ?\{{ ?(?P<mixed_bottom>\d+) ?\}}"
    rf"|(?P<plain_whole>\d+) (?P<plain_top>\d+) ?/ ?(?P<plain_bottom>\d+)"
    rf"|\\frac ?\{{ ?(?P<top>{_SIGNED}) ?\}} ?\{{ ?(?P<bottom>{_SIGNED}) ?\}}"
    rf"|(?P<slash_top>{_DECIMAL}) ?/ ?(?P<slash_bottom>{_DECIMAL})"
    rf"|(?P<repeat_head>\d*\.\d*)(?:\\overline ?\{{ ?|\()(?P<repeat>\d+)[)}}]"
    rf"|(?:(?P<mantissa>{_DECIMAL}) ?(?:\\times|\\cdot|\*|x) ?)?10 ?(?:\^|\*\*) ?"
    rf"(?:\{{ ?(?P<power_braced>[-+]?\d+) ?\}}|\( ?(?P<power_round>[-+]?\d+) ?\)|(?P<power>-?\d+))"
    rf"|(?P<short_mantissa>{_DECIMAL})[eE](?P<short_power>[-+]?\d+)"
    rf"|(?P<decimal>{_DECIMAL})"
    r")(?P<rest>(?: ?%)?.*)$"
)
PERCENT = frozenset({
    "%", "percent", "per cent", "percents", "pct", "pct.", "prozent", "pour cent", "por ciento",
    "por cento", "per cento", "パーセント",
})  # fmt: skip
"""Signs and words that divide a number by 100."""
_LIKELY_VARIABLES = {"n", "j", "w", "v"}  # `5 n` is 5 times n, but `5 m` is five metres.
CURRENCY_RATIO = dict.fromkeys(
    (("$", "¢"), ("$", "pence"), ("€", "¢"), ("£", "pence")),
    100,  # Cents are called pennies, too.
)
"""Number of the small units in a large one, by (large, small)."""


def number(text: str) -> Number | None:
    """Reads a number with its unit from a text in unified notation; None if it is not one."""
    match = _NUMBER.match(text.strip())
    if match is None:
        return None
    value = _value({name: part for name, part in match.groupdict().items() if part is not None})
    if value is None:
        return None
    if match["sign"] and match["sign_after"]:
        return None
    if "-" in (match["sign"], match["sign_after"]):
        value = -value
    return _with_unit(value, match["money"] or "", match["rest"])


def _value(parts: dict[str, str]) -> Fraction | None:
    """Computes the number in the notation that matched; None if it has no value, such as 1/0."""
    for whole, top, bottom in [
        ("whole", "mixed_top", "mixed_bottom"),
        ("plain_whole", "plain_top", "plain_bottom"),
    ]:
        if whole in parts:
            part = _ratio(parts[top], parts[bottom])
            return None if part is None or part >= 1 else _decimal(parts[whole]) + part
    for top, bottom in [("top", "bottom"), ("slash_top", "slash_bottom")]:
        if top in parts:
            return _ratio(parts[top], parts[bottom])
    if "repeat" in parts:
        head, period = _decimal(parts["repeat_head"] + "0"), parts["repeat"]
        places = len(parts["repeat_head"].partition(".")[2])
        return head + Fraction(int(period), (10 ** len(period) - 1) * 10**places)
    power = next((parts[name] for name in parts if "power" in name), None)
    if power is None:
        return _decimal(parts["decimal"])
    if len(power) > 6 or abs(int(power)) > _GREATEST_EXPONENT:
        return None
    mantissa = parts.get("mantissa") or parts.get("short_mantissa") or "1"
    return _decimal(mantissa) * Fraction(10) ** int(power)


def _decimal(text: str) -> Fraction:
    digits = re.sub("[ ,]", "", text)
    return Fraction(digits.rstrip(".") if digits.endswith(".") else digits)


def _ratio(top: str, bottom: str) -> Fraction | None:
    below = _decimal(bottom)
    return _decimal(top) / below if below else None


def _with_unit(value: Fraction, money: str, rest: str) -> Number | None:
    """Reads the text after a number; None if it is not a percent sign, a scale word or a unit."""
    plain = without_text_commands(rest).strip()
    lowered = plain.lower()
    if lowered in PERCENT:
        return None if money else Number(value / 100)
    first, _, others = plain.partition(" ")
    if (factor := scale(first)) is not None:
        return _with_unit(value * factor, money, others)
    if not plain:
        return Number(value, money)
    if plain[0] == "°":
        return None if money or plain not in {"°", "°C", "°F"} else Number(value, plain)
    is_marked = rest.lstrip().startswith("\\text")
    if not is_marked and not rest.startswith(" ") and re.fullmatch("[!-#%-~]", first):
        return None  # `5x` is a product.
    try:
        found = unit(plain, is_marked=is_marked)
    except UnitError:
        return None
    if found in _LIKELY_VARIABLES and not is_marked:
        return None
    return Number(value, money or found) if not money or agree(money, found) else None


def same_number(one: Number, other: Number, tolerance: float) -> bool:
    """Compares numbers, with a tolerance relative to the larger one."""
    a, b = one.value, other.value
    if not agree(one.unit, other.unit):
        if ratio := CURRENCY_RATIO.get((one.unit, other.unit)):
            a = a * ratio
        elif ratio := CURRENCY_RATIO.get((other.unit, one.unit)):
            b = b * ratio
        else:
            return False
    return a == b or abs(a - b) <= Fraction(tolerance) * max(abs(a), abs(b))
