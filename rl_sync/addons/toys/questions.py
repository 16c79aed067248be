"""Makes school questions from the entries of reasoning-gym's generators.

A generator's entry is a question, an answer and metadata. Here it becomes a question whose answer
is a number, a quantity with a unit, true or false, or a choice, so that the reward `k12` can score
it. Reasoning-gym's own scorers are never called: they evaluate the text of an answer as code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from rl_sync.tasks.choices import Choices

Entry = Mapping[str, Any]

_NUMBER = re.compile(r"-?\d+(\.\d+)?(/\d+)?")
_TIMES = re.compile(r"\b\d\d:\d\d(?::\d\d)?\b")
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# Other relatives are left out, because the generator takes their gender from the wrong person.
_RELATIVES = (
    "mother", "father", "daughter", "son", "wife", "husband", "sister", "brother", "grandmother",
    "grandfather", "aunt", "uncle",
)  # fmt: skip
_TRUTHS = {"Yes": "true", "No": "false", "True": "true", "False": "false"}


class SchoolQuestion(NamedTuple):
    """A question in the form of the reward `k12`.

    Attributes:
      text: the question, with its options if it has any.
      answer: a number, with its unit if it has one, `true`, `false`, or the letter of an option.
      kind: number, true_false or choice.
      choices: texts of the options.
    """

    text: str
    answer: str
    kind: str
    choices: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """Returns the fields of the question's row, other than prompt and answer."""
        return {"kind": self.kind} | ({"choices": list(self.choices)} if self.choices else {})


class Generator(NamedTuple):
    """A generator of reasoning-gym.

    Attributes:
      ask: makes a question from an entry; None if the entry is not suitable.
      options: config values that differ from those of its level of difficulty.
      hardest: highest level of difficulty at which the generator terminates.
    """

    ask: Callable[[Entry], SchoolQuestion | None]
    options: Mapping[str, Any] = {}
    hardest: int = 10


def number(entry: Entry) -> SchoolQuestion | None:
    """Asks for a number, as the entry does."""
    answer = str(entry["answer"]).strip()
    if not _NUMBER.fullmatch(answer):
        return None
    return SchoolQuestion(entry["question"].strip(), answer, "number")


def truth(entry: Entry) -> SchoolQuestion | None:
    """Asks whether something is true, as the entry does."""
    if entry["answer"] not in _TRUTHS:
        return None
    return SchoolQuestion(entry["question"].strip(), _TRUTHS[entry["answer"]], "true_false")


def denominator(entry: Entry) -> SchoolQuestion | None:
    """Asks for a denominator, because as a number an unsimplified fraction would also be right."""
    about = entry["metadata"]
    return SchoolQuestion(
        f"Simplify the fraction {about['numerator']}/{about['denominator']} to its lowest terms."
        " What is its denominator then?",
        str(about["simplified_denominator"]),
        "number",
    )


def largest_factor(entry: Entry) -> SchoolQuestion | None:
    """Asks for the largest prime factor."""
    factors = [int(factor) for factor in entry["answer"].split("×")]
    product = 1
    for factor in factors:
        product *= factor
    text = f"What is the largest prime number that divides {product} without a remainder?"
    return SchoolQuestion(text, str(max(factors)), "number")


def duration(entry: Entry) -> SchoolQuestion | None:
    """Asks for a duration in minutes or seconds."""
    text, times = entry["question"], _TIMES.findall(entry["question"])
    sentence = re.search(r"[^.?]*HH:MM(?::SS)?\.?$", text)
    if len(times) != 2 or sentence is None:
        return None
    seconds = len(times[0]) > 5
    form = "%H:%M:%S" if seconds else "%H:%M"
    start, end = (datetime.strptime(time, form) for time in times)
    passed = int((end - start).total_seconds())
    if passed <= 0:  # It ends at midnight.
        return None
    unit, name = ("s", "seconds") if seconds else ("min", "minutes")
    answer = passed if seconds else passed // 60
    return SchoolQuestion(
        f"{text[: sentence.start()].strip()} Answer in {name}.", f"{answer} {unit}", "number"
    )


def calendar(entry: Entry) -> SchoolQuestion | None:
    """Asks for a day of the week, a number of days, or whether a year is a leap year."""
    if entry["answer"] in _WEEKDAYS:
        return _choice(entry["question"], entry["answer"], _WEEKDAYS)
    return truth(entry) or number(entry)


def relative(entry: Entry) -> SchoolQuestion | None:
    """Asks for a family relationship, with twelve options."""
    if entry["answer"] not in _RELATIVES:
        return None
    return _choice(entry["question"], entry["answer"], _RELATIVES)


def side(entry: Entry) -> SchoolQuestion | None:
    """Asks for the color of a side, with the colors of the cube as options."""
    colors = tuple(sorted(entry["metadata"]["initial_state"].values()))
    return _choice(entry["question"], entry["answer"], colors)


def _choice(text: str, answer: str, options: tuple[str, ...]) -> SchoolQuestion:
    choices = Choices(options, ())
    return SchoolQuestion(
        f"{text.strip()}\n{choices.lines()}", choices.letter(answer), "choice", options
    )


GENERATORS: dict[str, Generator] = {
    "chain_sum": Generator(number),
    "basic_arithmetic": Generator(number),
    "decimal_chain_sum": Generator(number),
    "products": Generator(number),
    "lcm": Generator(number),
    "gcd": Generator(number),
    "fraction_simplification": Generator(denominator),
    "prime_factorization": Generator(largest_factor),
    "simple_equations": Generator(number),
    "simple_geometry": Generator(number),
    "gsm_symbolic": Generator(number),
    "leg_counting": Generator(number),
    "letter_counting": Generator(number),
    "count_bits": Generator(number),
    "count_primes": Generator(number),
    "number_sequence": Generator(number, hardest=2),
    "aiw": Generator(number),
    "coin_flip": Generator(number),
    "dice": Generator(number),
    "largest_island": Generator(number),
    "time_intervals": Generator(duration, {"task_types": ["time", "time_seconds"]}),
    "calendar_arithmetic": Generator(calendar),
    "syllogism": Generator(truth),
    "course_schedule": Generator(truth),
    "family_relationships": Generator(relative),
    "color_cube_rotation": Generator(side),
}
"""The generators in use. Generators whose entries depend on more than the seed are left out, so
that every process of a run makes the same problems: isomorphic_strings and ransom_note, which
depend on Python's hashing of texts."""
