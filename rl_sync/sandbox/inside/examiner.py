"""The tests' side of an examination: runs trusted tests against a program in another sandbox.

The tests call proxies of the program's functions. A proxy sends the arguments through a pipe and
gets a plain value back, so that no object of the program takes part in a comparison, and the
program sees arguments only. Verdicts leave through a third pipe, which the program has no end of.

The file to serve holds `setup` (text to run first), `entry_point` (an expression that names the
function `candidate`), `functions` (more names of the program's functions), `classes` (names of the
program's classes whose objects tests may use) and `tests`: each a `text`, or a `call` with `args`,
`kwargs` and `expected`.
"""

from __future__ import annotations

import _ast as ast
import builtins
import math
import sys

from plain import (
    MessageError,
    NotPlainError,
    TooLargeError,
    decode,
    encode,
    from_json,
    read_message,
    take_streams,
    to_json,
    write_message,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_MOST_BYTES = 1 << 23
_SHOWN = 200


class ProgramError(Exception):
    """An exception of the program that is none of Python's own, or the end of the program."""


class RefusedError(ProgramError):
    """A result of the program that is no plain value."""


class TestError(Exception):
    """A test that asks for something that no proxy can do."""


class Pipe:
    """The connection to the program.

    Attributes:
      last: a sentence on the last call, for the reason of a failure.
      lost: whether the program ended, or sent what cannot be understood.
    """

    def __init__(self, answers: Any, requests: Any):
        self._answers, self._requests = answers, requests
        self.last, self.lost = "", False

    def ask(self, shown: str, request: list, arguments: tuple = ()) -> Any:
        """Sends a request and returns the value of the answer, or raises what the program raised.

        Args:
          shown: the call as a text, for the reason of a failure.
          request: the request; None to wait for the first answer.
          arguments: arguments that the program may have changed in place, which are changed alike.
        """
        if shown:
            self.last = f"{shown} did not return"
        if self.lost:
            raise ProgramError("the program ended before its tests did")
        self.lost = True
        try:
            if request:
                write_message(self._requests, request)
            answer = read_message(self._answers, _MOST_BYTES)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise ProgramError("the program ended before its tests did")
        self.last = ""
        result = self._understand(shown, answer, arguments)
        self.lost = False
        self.last = f"{shown} returned {_short(result)}" if shown else ""
        return result

    def _understand(self, shown: str, answer: Any, arguments: tuple) -> Any:
        """Returns the value in an answer, or raises what the program raised."""
        match answer:
            case ["value", value, dict(changed)]:
                result = decode(value)
                for position, after in changed.items():
                    _change(arguments, position, decode(after))
                return result
            case ["raised", str(name), str(text)]:
                self.lost = False
                self.last = f"{shown} raised {name}: {text}" if shown else ""
                raise _exception(name, text)
            case ["refused", str(why)]:
                self.lost = False
                raise RefusedError(f"{shown} returned {why}, which tests cannot receive")
        raise MessageError("an answer of an unknown kind")


class Function:
    """A proxy of a function of the program, named by an expression."""

    def __init__(self, pipe: Pipe, expression: str):
        self._pipe, self._expression = pipe, expression
        self.__name__ = expression

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Calls the function in the program."""
        shown = _call_text(self._expression, arguments, keywords)
        sent = _send(arguments, keywords)
        return self._pipe.ask(shown, ["call", self._expression, *sent], arguments)


class Class(Function):
    """A proxy of a class of the program: its objects stay there."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Makes an object in the program, and returns its proxy."""
        shown = _call_text(self._expression, arguments, keywords)
        sent = _send(arguments, keywords)
        number = self._pipe.ask(shown, ["new", self._expression, *sent])
        return Object(self._pipe, number, self._expression)


class Object:
    """A proxy of an object of the program: methods and attributes give plain values."""

    def __init__(self, pipe: Pipe, number: int, kind: str):
        self.__dict__.update(_pipe=pipe, _number=number, _kind=kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        request = ["attribute", self._number, name]
        try:
            return self._pipe.ask(f"{self._kind}().{name}", request)
        except RefusedError:
            return Method(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise TestError(f"tests cannot set {name} of an object of the program")


class Method:
    """A method of an object of the program: a call of it runs it there."""

    def __init__(self, owner: Object, name: str):
        self._owner, self._name = owner, name

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Calls the method in the program."""
        shown = _call_text(f"{self._owner._kind}().{self._name}", arguments, keywords)
        sent = _send(arguments, keywords)
        request = ["method", self._owner._number, self._name, *sent]
        return self._owner._pipe.ask(shown, request, arguments)


def serve(path: str) -> None:
    """Runs the tests of a file and reports a verdict on each."""
    with open(path, "rb") as file:
        examination = from_json(file.read().decode())
    answers, requests, verdicts = take_streams()

    def report(test: int, outcome: str, why: str = "") -> None:
        # A reader takes a line as a verdict: one line each, of a bounded length.
        verdicts.write(to_json([test, outcome, why[: 5 * _SHOWN]]).encode() + b"\n")
        verdicts.flush()

    pipe = Pipe(answers, requests)
    try:
        codes, namespace = _prepare(examination, pipe)
    except Exception as error:
        report(-1, "broken", f"the tests do not run: {_describe(error)}")
        return
    outcome = _outcome(lambda: pipe.ask("", []), pipe)
    report(-1, *outcome)
    if outcome[0] == "passed":
        for number, (test, code) in enumerate(zip(examination["tests"], codes, strict=True)):
            pipe.last = ""
            # After a test that lost the program, others get the program anew.
            if pipe.lost:
                break
            report(number, *_outcome(lambda t=test, c=code: _run(t, c, namespace, pipe), pipe))


def _prepare(examination: dict, pipe: Pipe) -> tuple[list, dict]:
    """Compiles the tests, and makes the names that they use."""
    namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    module = type(sys)("solution")
    module.__getattr__ = lambda name: Function(pipe, name)  # type: ignore[method-assign]
    sys.modules["solution"] = module
    texts = [examination["setup"], *(test.get("text", "") for test in examination["tests"])]
    trees: list[Any] = [compile(text, "<tests>", "exec", ast.PyCF_ONLY_AST) for text in texts]
    setup = trees.pop(0)
    exec(compile(setup, "<setup>", "exec"), namespace)
    entry_point = examination["entry_point"]
    proxies = {name: Function(pipe, name) for name in examination["functions"]}
    proxies |= {name: Class(pipe, name) for name in examination["classes"]}
    if entry_point:
        proxies["candidate"] = proxies.get(entry_point) or Function(pipe, entry_point)
        proxies[entry_point] = proxies["candidate"]
    # A setup such as a prompt may define the function under test, without its body.
    namespace.update(proxies)
    undefined = _undefined(trees, namespace)
    for name in [n for n in undefined if n in sys.stdlib_module_names and not _called(n, trees)]:
        namespace[name] = __import__(name)
        undefined.remove(name)
    if undefined and (proxies or len(undefined) > 1):
        raise TestError(
            f"they use {', '.join(sorted(undefined))}, which nothing defines; list functions of "
            "the program in `functions`"
        )
    namespace.update({name: Function(pipe, name) for name in undefined})
    return [compile(tree, "<tests>", "exec") for tree in trees], namespace


def _undefined(trees: list[Any], namespace: dict) -> set[str]:
    """Returns the names that tests read and that neither they nor Python define."""
    nodes = [node for tree in trees for node in _walk(tree)]
    bound = set(namespace) | set(dir(builtins))
    read = set()
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound.add(name)
            case ast.ClassDef(name=name) | ast.MatchAs(name=str(name)):
                bound.add(name)
            case ast.alias(name=name, asname=alias):
                bound.add((alias or name).partition(".")[0])
    return read - bound


def _walk(tree: Any) -> Iterator[Any]:
    """Yields a syntax tree's nodes, as `ast.walk` does."""
    waiting = [tree]
    for node in waiting:
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            parts = value if isinstance(value, list) else [value]
            waiting += [part for part in parts if isinstance(part, ast.AST)]


def _called(name: str, trees: list[Any]) -> bool:
    calls = [node.func for tree in trees for node in _walk(tree) if isinstance(node, ast.Call)]
    return any(isinstance(function, ast.Name) and function.id == name for function in calls)


def _run(test: dict, code: Any, namespace: dict, pipe: Pipe) -> None:
    """Runs a test; raises if it fails."""
    if "call" in test:
        function = Function(pipe, test["call"])
        got = function(*test.get("args", []), **test.get("kwargs", {}))
        got = list(got) if isinstance(got, type(iter([]))) else got
        expected = test["expected"]
        if not equal(got, expected, test.get("tolerance", 0.0)):
            raise AssertionError(f"expected {_short(expected)}")
        return
    before = set(namespace)
    exec(code, namespace)
    defined = [name for name in namespace if name not in before]
    if "check" in defined:
        namespace.pop("check")(namespace["candidate"])
    for name in defined:
        if name.startswith("test_") and callable(namespace[name]):
            namespace.pop(name)()


def equal(got: Any, expected: Any, tolerance: float) -> bool:
    """Compares a value with one from JSON, where a tuple is a list and floats are nearly equal."""
    if isinstance(expected, list):
        if not isinstance(got, list | tuple) or len(got) != len(expected):
            return False
        return all(equal(g, e, tolerance) for g, e in zip(got, expected, strict=True))
    if isinstance(expected, dict):
        if not isinstance(got, dict) or set(got) != set(expected):
            return False
        return all(equal(got[key], value, tolerance) for key, value in expected.items())
    if isinstance(expected, float) and isinstance(got, float | int) and tolerance:
        return math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
    return bool(got == expected)


def _outcome(action: Any, pipe: Pipe) -> tuple[str, str]:
    """Runs an action and returns `passed`, `failed` or `broken` with the reason."""
    try:
        action()
    except TestError as error:
        return "broken", str(error)
    except BaseException as error:
        reason = _describe(error)
        if reason in pipe.last:
            return "failed", pipe.last
        return "failed", f"{pipe.last}; {reason}" if pipe.last and reason else pipe.last or reason
    return "passed", ""


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, AssertionError | ProgramError | MessageError):
        return text or "an assertion does not hold"
    return f"{type(error).__name__}: {text}"


def _exception(name: str, text: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:
            pass
    return ProgramError(f"{name}: {text}")


def _send(arguments: tuple, keywords: dict) -> list:
    try:
        return [[encode(a) for a in arguments], {name: encode(v) for name, v in keywords.items()}]
    except TooLargeError as error:
        raise ProgramError(f"the tests' argument has become {error}") from None
    except NotPlainError as error:
        raise TestError(f"a test hands the program {error}, which no pipe can carry") from None


def _change(arguments: tuple, position: str, after: Any) -> None:
    """Changes an argument in place as the program did."""
    if not position.isdecimal() or int(position) >= len(arguments):
        raise MessageError("an argument that was not given")
    argument = arguments[int(position)]
    if type(argument) is not type(after):
        raise MessageError("an argument of another type")
    if isinstance(argument, list | bytearray):
        argument[:] = after
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(after)


def _call_text(function: str, arguments: tuple, keywords: dict) -> str:
    parts = [*map(_short, arguments), *(f"{name}={_short(v)}" for name, v in keywords.items())]
    return f"{function}({', '.join(parts)})"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a long {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} … {text[-_SHOWN // 4 :]}"
