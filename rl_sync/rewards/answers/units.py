"""Reads the names of units in answers, and says whether two units agree."""

from __future__ import annotations

import re

_ALIASES = {
    "°": "degree degrees deg 度", "$": "dollar dollars usd bucks", "¢": "cent cents",
    "€": "euro euros eur", "£": "pound_sterling gbp quid", "pence": "penny pennies",
    "¥": "yen yuan rmb cny jpy 元 円",
    "₹": "rupee rupees rs inr",
    "m": "meter meters metre metres 米",
    "cm": "centimeter centimeters centimetre centimetres 厘米",
    "mm": "millimeter millimeters millimetre millimetres",
    "km": "kilometer kilometers kilometre kilometres 千米 公里",
    "in": "inch inches", "ft": "foot feet",
    "yd": "yard yards", "mi": "mile miles",
    "s": "second seconds sec secs 秒",
    "ms": "millisecond milliseconds",
    "min": "minute minutes mins 分钟",
    "h": "hour hours hr hrs 小时", "day": "days", "week": "weeks",
    "month": "months", "year": "years yr yrs",
    "g": "gram grams 克", "kg": "kilogram kilograms 千克 公斤", "mg": "milligram milligrams",
    "lb": "lbs pounds", "oz": "ounce ounces", "ton": "tons tonne tonnes",
    "l": "liter liters litre litres", "ml": "milliliter milliliters millilitre millilitres",
    "gal": "gallon gallons", "qt": "quart quarts", "pt": "pint pints", "cup": "cups",
    "mph": "", "kmh": "kph", "hz": "hertz", "n": "newton newtons", "j": "joule joules",
    "w": "watt watts", "v": "volt volts", "pa": "pascal pascals", "rad": "radian radians",
    "unit": "units", "point": "points pts",
}  # fmt: skip
_NAMES = {
    alias: name for name, aliases in _ALIASES.items() for alias in [name, *aliases.split()]
} | {"pound": "lb"}
_BARE = {"unit"}  # `5 square units` is 5.
_SCALES = {
    "dozen": 12,
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "万": 10**4,
    "萬": 10**4,
    "億": 10**8,
    "亿": 10**8,
}
_NOT_UNITS = {
    "and", "or", "less", "more", "than", "times", "plus", "minus", "divided", "over", "by",
    "remainder", "root", "roots", "squared", "cubed", "to", "sqrt", "sin", "cos", "tan", "cot",
    "sec", "csc", "log", "ln", "exp", "pi", "infinity", "inf", "mod", "modulo", "base",
    "not", "is", "are", "alpha", "beta", "gamma", "theta", "lambda", "if", "when", "where", "for",
    *_SCALES,
}  # fmt: skip
_WORD = re.compile(r"(?:[A-Za-z]+|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]{1,4})$")
_CASED = re.compile("M[smgl]|[mkMGTµ](?:W|Wh|Pa|Hz|V|J|N|A|L)")
"""Units whose meaning depends on upper and lower case."""
_POWER = re.compile(r"\^\{?([23])\}?$")


KNOWN = frozenset(_NAMES) - {"in"} | {"square", "sq", "cubic"}
"""Words that are units after a formula, even without a mark such as `\\text`."""


class UnitError(ValueError):
    """Raised for a text that is not a unit."""


def scale(word: str) -> int | None:
    """Returns the number that a word such as `million` multiplies by; None for another word."""
    return _SCALES.get(word.lower().removesuffix("s"))


def unit(text: str, is_marked: bool) -> str:
    """Returns the canonical name of a unit; "" for a word that counts things, such as `apples`.

    Args:
      is_marked: whether the notation marks the text as words, as `\\text{…}` does.

    Raises:
      UnitError: the text is not a unit.
    """
    text = text.strip().rstrip(".").strip()
    if not text:
        return ""
    parts = re.split(r"\s*/\s*|\s+per\s+", text)
    names = [_product(part, is_marked=is_marked or len(parts) > 1) for part in parts]
    return "/".join(names) if any(names) else ""


def _product(text: str, is_marked: bool) -> str:
    power = 1
    if match := _POWER.search(text):
        power, text = int(match[1]), text[: match.start()].strip()
    words = text.lower().split()
    for prefix, exponent in {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3}.items():
        if len(words) > 1 and words[0] == prefix:
            power, words = exponent, words[1:]
    if not words or not all(_WORD.match(word) or word in _NAMES for word in words):
        raise UnitError(f"{text!r} is not a unit")
    first = text.split()[-1] if len(words) == 1 else ""
    if is_marked and power == 1 and _CASED.fullmatch(first):
        return first  # MW is not mW, and neither is a word for counted things.
    name = _NAMES.get(words[0]) if len(words) == 1 else None
    if name is None:
        plain = len(words) <= 3 and all(len(word) >= 4 for word in words[:1])
        if power > 1 or _NOT_UNITS & set(words) or not (is_marked or plain):
            raise UnitError(f"{text!r} is not a unit")
        return ""
    if name in _BARE:
        return ""
    return name if power == 1 else f"{name}^{power}"


def agree(one: str, other: str) -> bool:
    """Says whether numbers with these units can be compared: a missing unit fits any."""
    return not one or not other or one == other
