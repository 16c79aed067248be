"""The code reward: kinds of tests, scores and reasons."""

import json
import shutil

import pytest

from rl_sync.rewards import code
from rl_sync.rewards.code import Code, same_output
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric
from rl_sync.sandbox.layer import SandboxError

SQUARE = {"tests": [{"input": "3\n", "output": "9\n"}, {"input": "-2", "output": "4"}]}
HUMAN_EVAL = {
    "prompt": "def one():\n    return 1\n\ndef add(a, b):\n    '''Adds.'''\n",
    "continues_prompt": True,
    "entry_point": "add",
    "tests": "def check(candidate):\n    assert candidate(1, 2) == 3 * one()\n",
}
MBPP = {"tests": ["assert add(1, 2) == 3", "assert add([1], [2]) == [1, 2]"]}
BYTES = r"import sys; sys.stdout.buffer.write(b'42\n')"
DECIMAL = {"tests": [{"input": "", "output": "0.333333333333"}]}
CALLS = {"tests": [{"call": "add", "args": [1, 2], "expected": 3}]}
STDIN = '{"inputs": ["3\\n", ["1", "2"]], "outputs": ["3\\n", ["1", "2"]]}'
ADD = {"fn_name": "add", "inputs": [[1, 2], [[1], [2]]], "outputs": [[3], [[1, 2]]]}
LEETCODE = {"fn_name": "add", "inputs": ["1\n2", "[1]\n[2]"], "outputs": ["3", "[1, 2]"]}
METHOD = "class Solution:\n    def add(self, a, b):\n        return a + b"


def judge(row, text, **options):
    return Code(**options)(row, Completion(text))


def block(program, language="python"):
    return f"Here it is:\n```{language}\n{program}\n```\nDone."


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (SQUARE, block("print(int(input()) ** 2)")),
        (SQUARE, block("import sys\nfor n in sys.stdin: print(int(n) ** 2)\nexit()")),
        (HUMAN_EVAL, "    return a + b\n"),
        (HUMAN_EVAL, block("def add(a, b):\n    return a + b")),
        (MBPP, block("def add(a, b):\n    return a + b")),
        (MBPP, "def add(a, b):\n    return a + b"),
        (CALLS, block("add = lambda a, b: a + b")),
        ({"tests": [{"input": "9" * 5000, "output": "9" * 5000}]}, block("print(int(input()))")),
        (
            {"tests": ["assert nines() == int('9' * 5000)"]},
            block("def nines(): return 10**5000 - 1"),
        ),
        (DECIMAL, block("print('0.333333')")),
        ({"tests": [{"input": "", "output": "42"}]}, block(BYTES)),
        ({"tests": [{"call": "f", "expected": [0.3]}]}, block("def f(): return [0.1 + 0.2]")),
        ({"tests": '[{"call": "add", "args": [1, 2], "expected": 3}]'}, block("add = int.__add__")),
        ({"input_output": STDIN}, block("import sys\nprint(sys.stdin.read())")),
        ({"input_output": json.dumps(ADD)}, block("def add(a, b): return a + b")),
        ({"input_output": ADD, "tests": None}, block(METHOD)),
        ({"input_output": json.dumps(LEETCODE)}, block(METHOD)),
        ({"input_output": {**ADD, "outputs": [3, [1, 2]]}}, block("add = lambda a, b: a + b")),
        ({"test_list": MBPP["tests"]}, block("def add(a, b):\n    return a + b")),
        (
            {"test_list": ["assert add(1, 2) == LIMIT"], "test_setup_code": "LIMIT = 3"},
            block("def add(a, b):\n    return a + b"),
        ),
    ],
)
def test_a_right_program_passes(row, text):
    judgement = judge(row, text)
    assert judgement.score == 1.0, judgement.why
    assert judgement.why.startswith("passed all")


@pytest.mark.parametrize(
    ("row", "text", "why"),
    [
        (SQUARE, block("print(9)"), "test 2 of 2 failed: input '-2', expected '4', got '9'"),
        (DECIMAL, block("print('0.33')"), "expected '0.333333333333', got '0.33'"),
        (SQUARE, block("print(9"), "exit code 1: SyntaxError: '(' was never closed"),
        (SQUARE, block("x = [0] * 10**9"), "exit code 1: MemoryError"),
        (SQUARE, block("import time; time.sleep(9)"), "time limit exceeded"),
        (SQUARE, block("while True: print('1' * 99999)"), "limit of output exceeded"),
        (SQUARE, block("print(9)", "java"), "no block of python code"),
        (HUMAN_EVAL, "    return a - b", "add(1, 2) returned -1"),
        # The helper of the prompt is the tests' too; this program changes its own only.
        (HUMAN_EVAL, "    return 6\ndef one(): return 2\n", "add(1, 2) returned 6"),
        ({"input_output": ADD}, block("def add(a, b): return 3"), "test 2 of 2 failed"),
        ({"input_output": STDIN}, block("print(3)"), "test 2 of 2 failed: input '1\\n2', exp"),
        (MBPP, block("def add(a, b): return 3"), "test 2 of 2 failed: add([1], [2]) returned 3"),
        (MBPP, block("def plus(a, b): return 3"), "NameError: name 'add' is not defined"),
        (CALLS, block("def add(a, b): return '3'"), "add(1, 2) returned '3'; expected 3"),
    ],
)
def test_a_wrong_program_fails_with_the_reason(row, text, why):
    judgement = judge(row, text, test_secs=3.0)
    assert judgement.score == 0.0
    assert why in judgement.why


def test_the_score_may_be_the_fraction_of_tests_that_passed():
    judgement = judge(SQUARE, block("print(9)"), fraction=True)
    assert judgement.score == 0.5
    assert judgement.why.startswith("passed 1 of 2 tests; test 2 of 2 failed")
    judgement = judge(MBPP, block("def add(a, b): return 3 if a == 1 else exit()"), fraction=True)
    assert judgement.score == 0.5


def test_tests_that_the_time_did_not_suffice_for_have_failed():
    row = {"tests": [{"input": "", "output": "1"}] * 50}
    program = block("import time; time.sleep(0.5); print(1)")
    judgement = judge(row, program, fraction=True, test_secs=2.0, total_secs=2.0)
    assert 0.0 <= judgement.score < 0.2


def test_a_long_result_is_cut():
    judgement = judge(SQUARE, block("print('x' * 100000)"))
    assert len(judgement.why) < 1000


# Compilers take long where other tests take the processors.
PATIENT = {"memory_mib": 1024, "test_secs": 20.0, "total_secs": 60.0}
PROGRAMS = {
    "bash": ("bash", "read n; echo $((n * n))"),
    "c": ("gcc", '#include <stdio.h>\nint main() { int n; scanf("%d", &n); printf("%d", n * n); }'),
    "cpp": ("g++", "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n * n; }"),
    "javascript": ("node", "console.log(require('fs').readFileSync(0) ** 2)"),
    "perl": ("perl", "$n = <STDIN>; print $n * $n"),
    "ruby": ("ruby", "n = gets.to_i; puts n * n"),
    "java": (
        "java",
        "import java.util.*;\npublic class Main { public static void main(String[] a) {\n"
        "int n = new Scanner(System.in).nextInt(); System.out.println(n * n); } }",
    ),
}


@pytest.mark.samples("perl")
@pytest.mark.parametrize("language", PROGRAMS)
def test_programs_in_other_languages_run_where_they_are_installed(language):
    command, program = PROGRAMS[language]
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed")
    row = {**SQUARE, "language": language}
    judgement = judge(row, block(program, language), layer="bubblewrap", **PATIENT)
    assert judgement.score == 1.0, judgement.why


def test_a_language_that_does_not_run_here_is_unknown_with_the_cause(monkeypatch):
    from rl_sync.sandbox import greeting, languages

    broken = languages.ProgramLanguage(
        "main.x", "echo no settings >&2; exit 3", run=("bash", "{folder}/main.x")
    )
    monkeypatch.setitem(languages.LANGUAGES, "x", broken)
    row = {**SQUARE, "language": "x"}
    right = block("read n; echo $((n * n))", "x")
    judgement = judge(row, right)
    assert not judgement.is_known
    assert "x does not work in the sandbox" in judgement.why
    assert "exit code 3, no settings" in judgement.why
    monkeypatch.setitem(
        languages.LANGUAGES,
        "x",
        languages.ProgramLanguage("main.x", "cat", run=("bash", broken.file)),
    )
    assert not judge(row, right).is_known  # The cause may be another one by now.
    mended = languages.ProgramLanguage("main.x", "cat", run=("bash", "{folder}/main.x"))
    monkeypatch.setitem(languages.LANGUAGES, "x", mended)
    assert judge(row, right).score == 1.0
    greeting._greeted.clear()


def test_languages_are_tried_before_the_run(monkeypatch):
    from rl_sync.rewards.rubric import Rubric
    from rl_sync.sandbox import languages

    absent = languages.ProgramLanguage("main.x", "", run=("no-such-command",))
    monkeypatch.setitem(languages.LANGUAGES, "x", absent)
    rows = [{**SQUARE, "language": "x"}, {**SQUARE, "language": "bash"}, SQUARE]
    (note,) = Rubric("code").try_out(rows)
    assert "x does not work in the sandbox" in note
    assert "no-such-command" in note
    assert "(1 problems)" in note
    assert Rubric("code").try_out(rows[1:]) == []
    with pytest.raises(ValueError, match=r"The reward code .* judge nothing .*no-such-command"):
        Rubric("code").try_out(rows[:1])
    with pytest.raises(ValueError, match="python does not work"):
        Rubric("code(memory_mib=2)").try_out([])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_a_program_that_does_not_compile_fails_with_the_compilers_reason():
    judgement = judge({**SQUARE, "language": "c"}, block("int main( {", "c"), layer="bubblewrap")
    assert judgement.score == 0.0
    assert "error" in judgement.why


def test_a_language_that_is_not_installed_is_no_fault_of_the_program(monkeypatch):
    from rl_sync.sandbox import languages

    for build in ((), ("no-such-compiler",)):
        made = languages.ProgramLanguage("main.x", "hello", run=("no-such-command",), build=build)
        monkeypatch.setitem(languages.LANGUAGES, "x", made)
        judgement = judge({**SQUARE, "language": "x"}, block("", "x"), layer="bubblewrap")
        assert not judgement.is_known
        assert "no-such" in judgement.why


def test_packages_of_this_environment_can_be_allowed():
    program = block("import numpy\nprint(numpy.square(int(input())))")
    options = {"layer": "bubblewrap", "memory_mib": 2048, "test_secs": 10.0}
    assert judge(SQUARE, program, packages=True, **options).score == 1.0
    assert "No module named 'numpy'" in judge(SQUARE, program, **options).why


def test_a_broken_sandbox_is_no_score(monkeypatch):
    def broken(*_):
        raise SandboxError("no namespaces")

    monkeypatch.setattr(code, "choose", broken)
    judgement = judge(SQUARE, block("print(9)"))
    assert not judgement.is_known
    assert "no namespaces" in judgement.why


def test_a_sandbox_that_dies_at_its_start_is_no_score(monkeypatch):
    from rl_sync.sandbox.layer import SandboxCommand
    from rl_sync.sandbox.unconfined import Unconfined

    monkeypatch.setattr(code, "choose", lambda *_: Unconfined())
    command = SandboxCommand(["sh", "-c", "echo cannot mount >&2; exit 1"])
    monkeypatch.setattr(Unconfined, "command", lambda self, job: command)
    for row in (SQUARE, CALLS):
        judgement = judge(row, block("print(9)"))
        assert not judgement.is_known
        assert "cannot mount" in judgement.why


def test_a_test_that_cannot_be_run_is_no_score():
    judgement = judge({"tests": ["assert add(lambda: 1) == 1"]}, block("def add(f): return 1"))
    assert not judgement.is_known
    assert "test 1 of 1 is broken" in judgement.why


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "needs `tests`"),
        ({"tests": []}, "needs `tests`"),
        ({"input_output": ""}, "needs `tests`"),
        ({"input_output": "{"}, "`input_output` is not JSON"),
        ({"input_output": "[1]"}, "as many `inputs` as `outputs`"),
        ({"input_output": {"inputs": [], "outputs": []}}, "as many `inputs` as `outputs`"),
        ({"input_output": {"inputs": ["1"], "outputs": []}}, "as many `inputs` as `outputs`"),
        ({"input_output": {**ADD, "inputs": [1, 2]}}, "are lists of arguments, not 1"),
        ({"tests": [{"input": "1"}]}, "A test is a text"),
        ({"tests": [{"input": 1, "output": "2"}]}, "`input` of a test is a text, not 1"),
        ({"tests": "def check(candidate): pass"}, "entry_point"),
        ({"tests": ["assert f()"], "functions": "f"}, "list of names"),
        ({"tests": ["assert f()"], "language": "c"}, "Only Python"),
        ({**SQUARE, "language": "pyhton"}, "python"),
    ],
)
def test_a_malformed_row_is_an_error_with_the_way_out(row, message):
    with pytest.raises(ValueError, match=message):
        judge(row, block("print(1)"))


def test_malformed_options_are_errors():
    with pytest.raises(ValueError, match="total_secs"):
        Code(test_secs=10.0, total_secs=5.0)
    with pytest.raises(ValueError, match="python"):
        Code(language="pyhton")


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1 2 \n3\n\n", "1 2\n3", True),
        ("1  2\n3", "1 2\n3", True),
        ("1\n2", "1 2", False),
        ("0.3333333", "0.33333333333", True),
        ("0.334", "0.333", False),
        ("3", "3.0", True),
        ("3.0", "3", False),
        ("nan", "1.0", False),
        ("x", "1.0", False),
        ("", "1", False),
    ],
)
def test_outputs_are_compared_by_words_and_numbers(got, expected, same):
    assert same_output(got, expected, 1e-6) is same


@pytest.mark.parametrize(
    ("option", "what"),
    [
        ("language='cobol'", "cobol"),
        ("layer='bubblewarp'", "did you mean"),
        ("layer=''", "layer"),
        ("fraction='yes'", "fraction='yes' must be True or False"),
        ("unsandboxed=1", "unsandboxed=1 must be True or False"),
        ("test_secs=0", "test_secs=0 must be a number"),
        ("test_secs='5'", "test_secs='5' must be a number"),
        ("test_secs=30", "at most total_secs"),
        ("total_secs=-1", "total_secs=-1 must be a number"),
        ("memory_mib=0", "memory_mib=0 must be a whole number"),
        ("memory_mib=256.5", "memory_mib=256.5 must be a whole number"),
        ("processes=-3", "processes=-3 must be a whole number"),
        ("output_kib=True", "output_kib=True must be a whole number"),
        ("tolerance=-1", "tolerance=-1 must be a number"),
        ("tolerance=1e300", "tolerance=1e"),
        ("memory=512", "has no option 'memory'"),
    ],
)
def test_options_of_code_are_checked_when_the_reward_is_made(option, what):
    with pytest.raises(ValueError, match="The reward code") as raised:
        Rubric(f"code({option})")
    assert what in str(raised.value)


def test_rows_whose_tests_cannot_be_run_are_refused_before_the_run():
    rubric = Rubric("code")
    rubric.check([{"tests": ["assert f() == 1"]}])
    for row in ({}, {"tests": []}, {"tests": ["assert f() == 1"], "language": "java"}):
        with pytest.raises(ValueError, match="The reward code cannot judge problem 1"):
            rubric.check([{"prompt": "?", **row}])
