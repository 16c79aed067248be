"""Training on small data sets: twelve tasks with `configs/jsonl.py`, over seeds.

    python benchmarks/own_data.py [--config=configs/jsonl.py] [--tasks=roman,...]
        [--seeds=100,101,102] [--results=runs/own_data.jsonl] [--set=SETTING=VALUE ...]
    python benchmarks/own_data.py --report [...]

Generates each task from the seed: rows to train on in one JSONL file, and others to hold out in a
second. Runs the launcher on them, one run at a time, in one process (`launch.colocate`), and adds a
line to the results. A run that has a line is not repeated, so the command can be stopped at any
time, and goes on where it was. At the end, or with `--report`, it prints a table of held-out
accuracy before and after RL: the least, the median and the greatest over seeds.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.records import alarms
from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.records.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[1]
HELD_OUT = 400
LETTERS = string.ascii_lowercase

Row = tuple[str, str]

_NUMERALS = list(
    zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"),
        strict=True,
    )
)
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CAPITALS = (
    "France:Paris Spain:Madrid Italy:Rome Greece:Athens Norway:Oslo Sweden:Stockholm"
    " Finland:Helsinki Denmark:Copenhagen Poland:Warsaw Austria:Vienna Hungary:Budapest"
    " Ireland:Dublin Portugal:Lisbon Turkey:Ankara Egypt:Cairo Kenya:Nairobi Ghana:Accra"
    " Peru:Lima Chile:Santiago Cuba:Havana Canada:Ottawa Japan:Tokyo China:Beijing India:Delhi"
    " Iran:Tehran Iraq:Baghdad Nepal:Kathmandu Vietnam:Hanoi Thailand:Bangkok Australia:Canberra"
)
_FORMS = (
    "capital of {}", "{} capital", "{}", "what is the capital of {}?", "{}: which capital?",
    "name the capital of {}", "the government of {} sits in", "{} is ruled from", "capital, {}",
    "the main city of {} by law", "tell me {}'s capital", "{} has its capital in",
    "where is the parliament of {}?", "seat of {}", "capital city: {}", "{} / capital",
    "embassies to {} are in", "go to the capital of {}", "{}, capital?", "which city leads {}?",
)  # fmt: skip
_UNITS = {
    "km m": 1000, "kg g": 1000, "h min": 60, "min s": 60, "m cm": 100, "days h": 24,
    "dozen pieces": 12, "weeks days": 7,
}  # fmt: skip


def _roman(draw: random.Random) -> Row:
    number, rest, text = draw.randrange(1, 2500), 0, ""
    rest = number
    for value, numeral in _NUMERALS:
        text += numeral * (rest // value)
        rest %= value
    return f"{number}", text


def _word(draw: random.Random, least: int, most: int, letters: str = LETTERS) -> str:
    return "".join(draw.choices(letters, k=draw.randint(least, most)))


def _reverse(draw: random.Random) -> Row:
    word = _word(draw, 3, 5, "abcdefgh")
    return word, word[::-1]


def _reverse_long(draw: random.Random) -> Row:
    word = _word(draw, 3, 6)
    return word, word[::-1]


def _sort(draw: random.Random) -> Row:
    word = _word(draw, 3, 5, "abcdefgh")
    return word, "".join(sorted(word))


def _clock(draw: random.Random) -> Row:
    hour, minute = draw.randrange(24), draw.randrange(60)
    half = "am" if hour < 12 else "pm"
    return f"{hour:02}:{minute:02}", f"{(hour - 1) % 12 + 1}:{minute:02} {half}"


def _next_day(draw: random.Random) -> Row:
    day = datetime.date(1990, 1, 1) + datetime.timedelta(draw.randrange(12_000))
    return f"{day}", f"{day + datetime.timedelta(1)}"


def _weekday(draw: random.Random) -> Row:
    first, days = draw.randrange(7), draw.randrange(1, 100)
    return f"{_DAYS[first]}+{days}", _DAYS[(first + days) % 7]


def _number_words(draw: random.Random) -> Row:
    number = draw.randrange(100, 3000)
    thousands, hundreds, rest = number // 1000, number // 100 % 10, number % 100
    small = _SMALL.split()
    words = [f"{small[thousands]} thousand"] * bool(thousands)
    words += [f"{small[hundreds]} hundred"] * bool(hundreds)
    if rest >= 20:
        words.append(" ".join([_TENS[rest // 10 - 2], *[small[rest % 10]] * bool(rest % 10)]))
    elif rest:
        words.append(small[rest])
    return " ".join(words), f"{number}"


def _vowels(draw: random.Random) -> Row:
    word = _word(draw, 3, 9)
    return word, f"{sum(letter in 'aeiou' for letter in word)}"


def _capital(draw: random.Random) -> Row:
    country, _, capital = draw.choice(_CAPITALS.split()).partition(":")
    return draw.choice(_FORMS).format(country), capital


def _convert(draw: random.Random) -> Row:
    (units, factor), number = draw.choice([*_UNITS.items()]), draw.randrange(1, 200)
    big, small = units.split()
    return f"{number} {big} in {small}", f"{number * factor}"


def _binary(draw: random.Random) -> Row:
    number = draw.randrange(1 << 15)
    return f"{number:015b}", f"{number:05o}"


class Task(NamedTuple):
    """A task: a function that draws a row, the rows to train on, and the groups of a step."""

    draw: Callable[[random.Random], Row]
    rows: int
    groups: int


TASKS = {
    "roman": Task(_roman, 1500, 32),
    "reverse": Task(_reverse, 3000, 64),
    "sort": Task(_sort, 2000, 64),
    "next_day": Task(_next_day, 1500, 16),
    "clock": Task(_clock, 700, 16),
    "number_words": Task(_number_words, 1000, 32),
    "vowels": Task(_vowels, 2000, 192),
    "capitals": Task(_capital, 300, 16),
    "units": Task(_convert, 800, 64),
    "binary": Task(_binary, 5000, 192),
    "reverse_long": Task(_reverse_long, 3000, 64),
    "weekday": Task(_weekday, 400, 16),
}
"""Tasks by name: strings, numbers, dates and lookups. SFT learns nothing of the last two."""


class Case(NamedTuple):
    """One run; `settings` are SETTING=VALUE."""

    task: str
    seed: int
    settings: tuple[str, ...]
    config: str = "configs/jsonl.py"


def rows_of(name: str, seed: int) -> tuple[list[Row], list[Row]]:
    """Draws different rows: those to train on, and at most 400 held-out ones."""
    task, draw, found = TASKS[name], random.Random(f"{name}/{seed}"), dict[str, str]()
    for _ in range(100 * task.rows):
        found.setdefault(*task.draw(draw))
        if len(found) == task.rows + HELD_OUT:
            break
    rows = [*found.items()]
    return rows[: task.rows], rows[task.rows :]


def run(case: Case) -> dict[str, Any]:
    """Makes one run; returns its line of the results.

    Raises:
      SystemExit: the run failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        paths = []
        for rows, part in zip(rows_of(case.task, case.seed), ("train", "held_out"), strict=True):
            paths.append(folder / f"{part}.jsonl")
            texts = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in rows]
            paths[-1].write_text("\n".join(texts))
        settings = {
            "task.jsonl.path": paths[0],
            "task.jsonl.held_out_path": paths[1],
            "trainer.groups_per_step": TASKS[case.task].groups,
            "seed": case.seed,
            "workdir": folder / "run",
            "launch.colocate": True,
            "replay.backend": "embedded",
            "checkpoint.every_steps": 0,
        }
        flags = [f"--config.{name}={value}" for name, value in settings.items()]
        flags += [f"--config.{one}" for one in case.settings]
        command = [sys.executable, "-m", "launcher", f"--config={case.config}", *flags]
        started = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        secs = time.monotonic() - started
        if done.returncode:
            sys.exit(f"{case} failed:\n{done.stdout}\n{done.stderr}")
        lines = read_metrics(folder / "run")
        config = json.loads((folder / "run" / "config.json").read_text())
    trainer, algorithm = config["trainer"], config["algorithm"]
    evaluations = [line for line in lines if line["phase"] == "evaluation"]
    gap = algorithm["logprob_gap_alarm"] or 0.0
    limits = alarms.AlarmLimits(config["observe"]["alarm_steps"], trainer["group_size"], gap)
    return {
        **case._asdict(),
        "rows": TASKS[case.task].rows,
        "groups": trainer["groups_per_step"],
        "held_out": evaluations[0]["problems"],
        "supervised_steps": config["sft"]["steps"],
        "learning_rate": config["optimizer"]["learning_rate"],
        "steps": [line["step"] for line in evaluations],
        "accuracy": [line["accuracy"] for line in evaluations],
        "alarms": [
            [one.alarm.name, one.first_step, one.last_step] for one in alarms.history(lines, limits)
        ],
        "secs": secs,
    }


def table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines of a Markdown table."""
    yield "| task | rows | groups a step | seeds | before RL, % | after RL, % | change |"
    yield "|---|---|---|---|---|---|---|"
    for task in TASKS:
        if of_task := [line for line in lines if line["task"] == task]:
            first, last = ([100 * line["accuracy"][i] for line in of_task] for i in (0, -1))
            change = [after - before for before, after in zip(first, last, strict=True)]
            cells = [task, of_task[0]["rows"], of_task[0]["groups"], len(of_task)]
            cells += [_spread(first), _spread(last), _spread(change, "+")]
            yield f"| {' | '.join(map(str, cells))} |"


def _spread(numbers: Sequence[float], sign: str = "") -> str:
    spread = min(numbers), statistics.median(numbers), max(numbers)
    return " / ".join(f"{number:{sign}.1f}" for number in spread)


def main() -> None:
    """Makes the runs that have no result yet, then reports."""
    arguments = _arguments()
    writer = JsonLinesWriter(arguments.results)  # Creates the file if it is missing.
    settings = tuple(arguments.set)
    cases = [
        Case(task, seed, settings, arguments.config)
        for seed, task in itertools.product(arguments.seeds, arguments.tasks)
    ]
    for case in cases:
        if not arguments.report and case not in map(_case, read_json_lines(arguments.results)):
            line = run(case)
            writer.write(line)
            curve = " ".join(f"{100 * one:.1f}" for one in line["accuracy"])
            print(f"# {case.task}, seed {case.seed}: {curve}; {line['secs']:.0f} s", flush=True)
    writer.close()
    lines = [line for line in read_json_lines(arguments.results) if _case(line) in cases]
    print("\n".join(table(lines)))
    raised = sorted({(line["task"], one[0]) for line in lines for one in line["alarms"]})
    print(f"\nAlarms: {', '.join(f'{task}: {name}' for task, name in raised) or 'none'}")


def _case(line: dict[str, Any]) -> Case:
    return Case(line["task"], line["seed"], tuple(line["settings"]), line["config"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/jsonl.py")
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=[*TASKS])
    parser.add_argument(
        "--seeds", type=lambda text: [*map(int, text.split(","))], default=[100, 101, 102]
    )
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "own_data.jsonl")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--report", action="store_true", help="only report the results so far")
    return parser.parse_args()


if __name__ == "__main__":
    main()
