"""A reward that runs the program in a completion against its row's tests, in a sandbox."""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Sequence

from rl_sync.rewards.code_tests import CodeTests, InputOutput, code_tests
from rl_sync.rewards.judgement import Completion, Judgement, Row
from rl_sync.rewards.program_text import program_text
from rl_sync.sandbox.examination import START, ProgramTestOutcome, examine
from rl_sync.sandbox.executable import BuildError, executable
from rl_sync.sandbox.greeting import greet
from rl_sync.sandbox.languages import ProgramLanguage, language
from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.program_limits import MIB, ProgramLimits
from rl_sync.sandbox.sandbox import ProgramRun, Sandbox
from rl_sync.sandbox.sandbox_choice import LAYERS, choose
from rl_sync.spelling import require_one_of

_SHOWN = 200


@dataclasses.dataclass(frozen=True)
class Code:
    """Runs the program in a completion and scores it by its row's tests.

    The program never sees the expected results: it gets inputs, and its outputs are compared
    outside. A test that was not run has failed. `docs/code.md` has the fields of a row.

    Attributes:
      language: the language of programs, for rows without a field `language`.
      fraction: whether the score is the fraction of tests that passed; if not, all must pass.
      whole_text: whether a completion without code blocks counts as a program.
      test_secs: the time limit of each test.
      total_secs: the time limit of all tests of a completion.
      memory_mib: the memory limit, in MiB.
      output_kib: the limit of a test's output, in KiB.
      processes: the limit of processes and threads.
      tolerance: the relative and absolute tolerance for comparing floats.
      packages: whether Python programs can import the packages of this environment.
      layer: the sandbox: `auto`, or a name of `rl_sync.sandbox.sandbox_choice.LAYERS`.
      unsandboxed: whether to run programs without a sandbox if none works. Dangerous.
    """

    language: str = "python"
    fraction: bool = False
    whole_text: bool = True
    test_secs: float = 5.0
    total_secs: float = 20.0
    memory_mib: int = 512
    output_kib: int = 4096
    processes: int = 32
    tolerance: float = 1e-6
    packages: bool = False
    layer: str = "auto"
    unsandboxed: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_option(field.name, getattr(self, field.name), field.default)
        language(self.language)
        require_one_of("layer", self.layer, ["auto", *LAYERS])
        if not 0 < self.test_secs <= self.total_secs:
            raise ValueError(
                f"test_secs ({self.test_secs:g}) must be positive and at most total_secs "
                f"({self.total_secs:g})."
            )

    def check(self, row: Row) -> None:
        """Refuses a row whose tests cannot be run.

        Raises:
          ValueError: the tests are missing or malformed, or the language is unknown.
        """
        tests = code_tests(row, self.tolerance)
        _require_language(str(row.get("language") or self.language), tests)

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a program.

        Raises:
          ValueError: the row's tests are missing or malformed.
        """
        tests = code_tests(row, self.tolerance)
        name = str(row.get("language") or self.language)
        written_in = _require_language(name, tests)
        program = program_text(completion.text, (name, *written_in.fences), self.whole_text)
        if program is None:
            return Judgement(0.0, f"no block of {name} code")
        if row.get("continues_prompt"):
            program = f"{row['prompt']}{program}"
        try:
            return self._judge(program, written_in, name, tests)
        except SandboxError as error:
            return Judgement.unknown(f"the sandbox failed: {error}")

    def try_out(self, rows: Iterable[Row]) -> list[str]:
        """Runs a hello-world program on this machine in each programming language of the rows.

        Returns:
          A sentence on each language that does not run here.

        Raises:
          ValueError: no language runs here, so no completion could be judged.
        """
        counts = collections.Counter(str(row.get("language") or self.language) for row in rows)
        faults = []
        for name in counts or [self.language]:
            try:
                self._sandbox(name)
            except SandboxError as error:
                faults.append(f"{error} ({counts[name]} problems)" if counts else str(error))
        if len(faults) == len(counts or [self.language]):
            raise ValueError(f"it can judge nothing on this machine: {'; '.join(faults)}")
        return [f"{fault}: their completions cannot be judged." for fault in faults]

    def _judge(
        self, program: str, language: ProgramLanguage, name: str, tests: CodeTests
    ) -> Judgement:
        sandbox = self._sandbox(name)
        deadline = time.monotonic() + self.total_secs
        verdicts = (
            examine(sandbox, program, tests.examination, deadline)
            if tests.examination
            else self._cases(sandbox, language, program, tests.cases, deadline)
        )
        passed, seen, first = 0, 0, ""
        for verdict in verdicts:
            if verdict.outcome == "broken":
                return Judgement.unknown(f"{_place(verdict, tests)} is broken: {verdict.why}")
            seen += verdict.test != START
            if verdict.outcome == "passed":
                passed += 1
            else:
                first = first or f"{_place(verdict, tests)} failed: {verdict.why}"
                if not self.fraction:
                    break
        if passed == len(tests):
            return Judgement(1.0, f"passed all {passed} tests")
        first = (
            first or f"test {seen + 1} of {len(tests)} was not run: {self.total_secs:g} s passed"
        )
        if not self.fraction:
            return Judgement(0.0, first)
        return Judgement(passed / len(tests), f"passed {passed} of {len(tests)} tests; {first}")

    def _sandbox(self, name: str) -> Sandbox:
        layer = choose(self.layer, self.unsandboxed)
        if layer.languages is not None and name not in layer.languages:
            raise SandboxError(
                f"the sandbox {layer.name} runs {', '.join(sorted(layer.languages))} only, and "
                f"programs are in {name}"
            )
        limits = ProgramLimits(
            wall_secs=self.test_secs,
            cpu_secs=self.total_secs,
            memory_bytes=self.memory_mib * MIB,
            output_bytes=self.output_kib * 1024,
            processes=self.processes,
        )
        sandbox = Sandbox(layer, limits, packages=self.packages)
        greet(sandbox, name)
        return sandbox

    def _cases(
        self,
        sandbox: Sandbox,
        language: ProgramLanguage,
        program: str,
        cases: Sequence[InputOutput],
        deadline: float,
    ) -> Iterator[ProgramTestOutcome]:
        """Yields a verdict on each test on standard input, until the deadline."""
        try:
            with executable(sandbox, language, program, self.total_secs / 2) as made:
                for number, case in enumerate(cases):
                    if (left := deadline - time.monotonic()) <= 0:
                        return
                    limits = made.sandbox.limits
                    limits = dataclasses.replace(limits, wall_secs=min(limits.wall_secs, left))
                    made = dataclasses.replace(made, sandbox=made.sandbox.within(limits))
                    yield _verdict(number, case, made.run(case.input.encode()), self.tolerance)
        except BuildError as error:
            yield ProgramTestOutcome(START, "failed", _cut(str(error)))


def _check_option(name: str, value: object, default: object) -> None:
    """Checks that an option has the type of its default, and that numbers are positive and finite.

    Raises:
      ValueError: the option has another type, or is out of range.
    """
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value!r} must be True or False.")
    elif isinstance(default, str):
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name}={value!r} must be a text that is not empty.")
    else:
        is_whole = isinstance(default, int)
        right = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
        least = 0 if name == "tolerance" else 1 if is_whole else 1e-3
        if not right or not least <= value < 1e12:  # type: ignore[operator]
            kind = "a whole number" if is_whole else "a number"
            raise ValueError(f"{name}={value!r} must be {kind} of at least {least:g}.")


def _require_language(name: str, tests: CodeTests) -> ProgramLanguage:
    """Returns the language of a row's programs.

    Raises:
      ValueError: the language is unknown, or the tests call functions and it is not Python.
    """
    written_in = language(name)
    if tests.examination and name != "python":
        raise ValueError(
            f"Only Python programs can be tested by calls and asserts, and this row's language "
            f"is {name}. Use tests with `input` and `output`."
        )
    return written_in


def same_output(got: str, expected: str, tolerance: float) -> bool:
    """Compares outputs, regardless of white space at the ends of lines and blank lines at the end.

    A number that has a decimal point in the expected output may differ by the tolerance.
    """
    lines, wanted = _lines(got), _lines(expected)
    return len(lines) == len(wanted) and all(
        line == want or _same_words(line.split(), want.split(), tolerance)
        for line, want in zip(lines, wanted, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_words(words: list[str], wanted: list[str], tolerance: float) -> bool:
    return len(words) == len(wanted) and all(
        map(_same_word, words, wanted, [tolerance] * len(words))
    )


def _same_word(word: str, wanted: str, tolerance: float) -> bool:
    if word == wanted or "." not in wanted or len(word) > 100:
        return word == wanted
    try:
        return math.isclose(float(word), float(wanted), rel_tol=tolerance, abs_tol=tolerance)
    except ValueError:
        return False


def _verdict(
    number: int, case: InputOutput, run: ProgramRun, tolerance: float
) -> ProgramTestOutcome:
    """Judges the output of one run."""
    got = run.stdout.decode(errors="replace")
    shown = f"input {_cut(case.input)!r}"
    if run.stopped == "time":
        return ProgramTestOutcome(number, "failed", f"{shown}, time limit exceeded")
    if run.stopped:
        return ProgramTestOutcome(number, "failed", f"{shown}, limit of {run.stopped} exceeded")
    if run.returncode != 0:
        reason = _last_line(run.stderr) or "no message"
        return ProgramTestOutcome(
            number, "failed", f"{shown}, exit code {run.returncode}: {reason}"
        )
    if not same_output(got, case.output, tolerance):
        why = f"{shown}, expected {_cut(case.output)!r}, got {_cut(got)!r}"
        return ProgramTestOutcome(number, "failed", why)
    return ProgramTestOutcome(number, "passed", "")


def _place(verdict: ProgramTestOutcome, tests: CodeTests) -> str:
    return "the start" if verdict.test == START else f"test {verdict.test + 1} of {len(tests)}"


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return _cut(lines[-1]) if lines else ""


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} … {text[-_SHOWN // 4 :]}"
