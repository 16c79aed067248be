"""The tests' side of an examination: runs trusted tests against a program in another sandbox.

The tests call proxies of the program's functions. A proxy sends the arguments through a pipe and
gets a plain value back, so that no object of the program takes part in a comparison, and the
program sees arguments only. Verdicts leave through a third pipe, which the program has no end of.

Tests are Python, whose own control flow swallows some exceptions: `map` ends at StopIteration. If
the program raises such an exception, the tests get a stand-in of the same name, which only handlers
in the tests catch. If the program gives no answer (it ended, or its result is not a plain value),
the test fails, whatever it catches.

The file to serve holds `setup` (text to run first), `entry_point` (an expression that names the
function `candidate`), `functions` (names of more functions of the program), `classes` (names of the
program's classes whose objects tests may use), `in_place` (names of functions that return a value
and whose changes of their arguments the tests see, too), `asked` (whether earlier tests asked
the program for something) and `tests`: each a `text`, or a `call` with `args`, `kwargs` and
`expected`.
"""

from __future__ import annotations

import _ast as ast
import _thread
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
_CHANGEABLE = (list, dict, set, bytearray)


class ProgramError(Exception):
    """Raised for exceptions of the program that Python does not define, and for its end."""


class RefusedResultError(ProgramError):
    """Raised for a result of the program that is not a plain value."""


class LostError(ProgramError):
    """Raised when the program ends before its tests do."""


class TestError(Exception):
    """Raised for a test that asks for something that no proxy can do."""


_SWALLOWED = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit")
_STAND_INS: dict[str, Any] = {
    name: type(name, (ProgramError,), {"__doc__": f"{name} of the program, for handlers alone."})
    for name in (*_SWALLOWED, "KeyboardInterrupt")
}
_CATCHES = "_program_{}"


class Pipe:
    """The connection to the program.

    Attributes:
      last: a sentence on the last call, for the reason of a failure.
      lost: whether the program ended, or sent an invalid message.
      fault: the reason why the current test fails, even if the test catches the error; "" for none.
      asked: whether the program has received a request yet.
      raised: the exceptions that came from the program in the current test.
    """

    def __init__(self, answers: Any, requests: Any, in_place: Any = (), knows_nan: bool = True):
        self._answers, self._requests = answers, requests
        self._in_place, self._knows_nan = frozenset(in_place), knows_nan
        self._changed: list[tuple[Any, Any]] = []
        self.last, self.lost, self.fault, self.asked = "", False, "", False
        self.raised: list[BaseException] = []
        self._turn = _thread.allocate_lock()

    def begin(self) -> None:
        """Forgets the last test."""
        self.last, self.fault, self._changed, self.raised = "", "", [], []

    def undo(self) -> None:
        """Undoes the program's changes to the arguments of the current test."""
        for argument, before in reversed(self._changed):
            _replace(argument, before)

    def refuse(self, why: str) -> RefusedResultError:
        """Makes the error of a result that tests cannot receive; the current test has failed."""
        self.fault = self.fault or why
        return RefusedResultError(why)

    def send(self, arguments: tuple, keywords: dict) -> list:
        """Encodes the arguments of a call.

        Raises:
          ProgramError: they cannot be encoded because of the program.
          TestError: they cannot be encoded because of the test.
        """
        try:
            return [
                [encode(value) for value in arguments],
                {name: encode(value) for name, value in keywords.items()},
            ]
        except TooLargeError as error:
            raise self.refuse(f"the tests' argument has become {error}") from None
        except NotPlainError as error:
            if isinstance(error.value, Method):
                raise error.value.misused() from None
            raise TestError(f"a test hands the program {error}, which no pipe can carry") from None

    def ask(
        self,
        shown: str,
        request: list,
        arguments: dict | None = None,
        name: str = "",
        may_refuse: bool = False,
    ) -> Any:
        """Sends a request and returns the value of the answer, or raises what the program raised.

        Args:
          shown: text of the call, for the reason of a failure.
          request: the request.
          arguments: arguments by position or name, which the program may have changed in place.
            The same changes are made here if the result is None, or the function is one of
            `in_place`. In other cases a program could change what its result is compared with.
          name: the function's name.
          may_refuse: whether the test may go on after a result that is not a plain value.
        """
        if shown:
            self.last, self.asked = f"{shown} did not return", True
        try:
            kind, value, changed = self._exchange(request)
        except BaseException as error:
            self.fault = self.fault or "; ".join(filter(None, (self.last, _describe(error))))
            raise
        self.last = ""
        if kind == "raised":
            self.raised.append(value)
            self.last = f"{shown} raised {type(value).__name__}: {value}" if shown else ""
            if type(value) is ProgramError:
                self.last = f"{shown} raised {value}" if shown else ""
            raise value
        if kind == "refused":
            why = f"{shown} returned {value}, which tests cannot receive"
            raise RefusedResultError(why) if may_refuse else self.refuse(why)
        if not self._knows_nan and _has_nan(value):
            raise self.refuse(f"{shown} returned {_short(value)}, and the tests know no NaN")
        if value is None or name in self._in_place:
            self._change(arguments or {}, changed)
        self.last = f"{shown} returned {_short(value)}" if shown else ""
        return value

    def _exchange(self, request: list) -> tuple[str, Any, dict]:
        """Sends a request, and returns the kind of the answer, its value and changed arguments."""
        with self._turn:  # Tests may have threads, each of which needs its own answer.
            if self.lost:
                raise LostError("the program ended before its tests did")
            self.lost = True
            try:
                write_message(self._requests, request)
                answer = read_message(self._answers, _MOST_BYTES)
            except BrokenPipeError:
                answer = None
            if answer is None:
                raise LostError("the program ended before its tests did")
            match answer:
                case ["value", value, dict(changed)]:
                    found = ("value", decode(value), {k: decode(v) for k, v in changed.items()})
                case ["raised", str(name), str(text)]:
                    found = ("raised", _exception(name, text), {})
                case ["refused", str(why)]:
                    found = ("refused", why, {})
                case _:
                    raise MessageError("an answer of an unknown kind")
            self.lost = False
            return found

    def _change(self, arguments: dict, changed: dict) -> None:
        """Changes arguments in place as the program did."""
        for position, after in changed.items():
            argument = arguments.get(position)
            if type(argument) is not type(after) or not isinstance(argument, _CHANGEABLE):
                self.lost = True
                self.fault = "the program changed an argument that was not given, or its type"
                raise MessageError(self.fault)
            self._changed.append((argument, argument.copy()))
            _replace(argument, after)


class Function:
    """A proxy of a function of the program, named by an expression."""

    def __init__(self, pipe: Pipe, expression: str):
        self._pipe, self._expression = pipe, expression
        self.__name__ = expression

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        """Calls the function in the program."""
        shown = _call_text(self._expression, arguments, keywords)
        sent = self._pipe.send(arguments, keywords)
        request = ["call", self._expression, *sent]
        return self._pipe.ask(shown, request, _by_name(arguments, keywords), self._expression)


class Class(Function):
    """A proxy of a class of the program, whose objects stay in the program."""

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        """Makes an object in the program, and returns its proxy."""
        shown = _call_text(self._expression, arguments, keywords)
        sent = self._pipe.send(arguments, keywords)
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
            return self._pipe.ask(f"{self._kind}().{name}", request, may_refuse=True)
        except RefusedResultError:
            return Method(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise TestError(f"tests cannot set {name} of an object of the program")


class Method:
    """A proxy of a method of an object of the program; a call runs the method there.

    It also stands for any attribute that is not a plain value. A test can only call it; any other
    use fails the test, since the program could put something there that passes every comparison.
    """

    def __init__(self, owner: Object, name: str):
        self._owner, self._name = owner, name

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        """Calls the method in the program."""
        pipe, kind = self._owner._pipe, self._owner._kind
        shown = _call_text(f"{kind}().{self._name}", arguments, keywords)
        sent = pipe.send(arguments, keywords)
        request = ["method", self._owner._number, self._name, *sent]
        known = f"{kind}.{self._name}"
        name = known if known in pipe._in_place else self._name
        return pipe.ask(shown, request, _by_name(arguments, keywords), name)

    def misused(self, *_: object) -> Any:
        """Fails a test that does anything but call the method."""
        kind, pipe = self._owner._kind, self._owner._pipe
        raise pipe.refuse(f"{kind}().{self._name} is no plain value, which tests cannot receive")

    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = misused
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = misused
    __hash__ = __str__ = __repr__ = __format__ = misused


def serve(path: str) -> None:
    """Runs the tests of a file and reports a verdict on each."""
    with open(path, "rb") as file:
        examination = from_json(file.read().decode())
    answers, requests, verdicts = take_streams()

    def report(test: int, outcome: str, why: str = "") -> None:
        # The reader takes each line as a verdict, so a verdict is one line of bounded length.
        verdicts.write(to_json([test, outcome, why[: 5 * _SHOWN]]).encode() + b"\n")
        verdicts.flush()

    texts = [examination["setup"], *(test.get("text", "") for test in examination["tests"])]
    knows_nan = any("nan" in text.lower() for text in texts)
    pipe = Pipe(answers, requests, examination["in_place"], knows_nan)
    pipe.asked = examination["asked"]
    try:
        codes, namespace, imports = _prepare(examination, texts, pipe)
    except Exception as error:
        report(-1, "broken", f"the tests do not run: {_describe(error)}")
        return
    if any("thread" in text.lower() for text in texts):
        _heed_threads(pipe)
    outcome = _outcome(lambda: pipe.ask("", ["start"]), pipe)
    report(-1, *outcome)
    if outcome[0] != "passed":
        return
    last = len(codes) - 1
    for number, (test, code) in enumerate(zip(examination["tests"], codes, strict=True)):
        # After a test that lost the program, the later tests get a new one.
        if pipe.lost:
            break
        pipe.begin()
        outcome = _outcome(lambda t=test, c=code: _run(t, c, namespace, pipe), pipe, imports)
        if outcome[0] != "passed":
            pipe.undo()
        elif number == last and not pipe.asked:
            outcome = ("broken", "no test calls anything of the program")
        report(number, *outcome)


def _heed_threads(pipe: Pipe) -> None:
    """Lets a failed check in a thread fail the current test; Python would only print it."""
    import threading

    def note(ended: Any) -> None:
        error = ended.exc_value
        if isinstance(error, AssertionError | ProgramError) or _is_among(error, pipe.raised):
            pipe.refuse(f"a thread of the test ended with {_describe(error)}")

    threading.excepthook = note


def _prepare(examination: dict, texts: list[str], pipe: Pipe) -> tuple[list, dict, set]:
    """Compiles the tests, makes the names that they use, and finds the places of their imports."""
    namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    module = type(sys)("solution")
    module.__getattr__ = lambda name: Function(pipe, name)  # type: ignore[method-assign]
    sys.modules["solution"] = module
    namespace |= {_CATCHES.format(name): kind for name, kind in _STAND_INS.items()}
    trees: list[Any] = [compile(text, "<tests>", "exec", ast.PyCF_ONLY_AST) for text in texts]
    for tree in trees:
        _catch_stand_ins(tree)
    files = [f"<test {number}>" for number in range(len(trees))]
    imports = {
        (file, node.lineno)
        for file, tree in zip(files, trees, strict=True)
        for node in _walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) or _imports_constant(node)
    }
    setup = trees.pop(0)
    exec(compile(setup, files.pop(0), "exec"), namespace)
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
    codes = [compile(tree, file, "exec") for tree, file in zip(trees, files, strict=True)]
    return codes, namespace, imports


def _imports_constant(node: Any) -> bool:
    """Says whether a node calls a function that imports, with constant arguments."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    is_constant = all(isinstance(argument, ast.Constant) for argument in node.args)
    return name in ("__import__", "import_module") and is_constant


def _catch_stand_ins(tree: Any) -> None:
    """Adds stand-ins beside the exceptions named in handlers and in arguments, as of `suppress`."""

    def both(node: Any) -> Any:
        if not isinstance(node, ast.Name) or node.id not in _STAND_INS:
            return node
        place = {name: getattr(node, name) for name in node._attributes}
        beside = ast.Name(_CATCHES.format(node.id), ast.Load(), **place)
        return ast.Tuple([node, beside], ast.Load(), **place)

    for node in list(_walk(tree)):
        if isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Tuple):
            node.type.elts = [both(kind) for kind in node.type.elts]
            # A handler's tuple must hold classes, no tuples.
            node.type.elts = [
                name
                for kind in node.type.elts
                for name in (kind.elts if isinstance(kind, ast.Tuple) else [kind])
            ]
        elif isinstance(node, ast.ExceptHandler):
            node.type = both(node.type)
        elif isinstance(node, ast.Call):
            node.args = [both(argument) for argument in node.args]


def _undefined(trees: list[Any], namespace: dict) -> set[str]:
    """Returns the names that tests read, but that neither the tests nor Python define."""
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
        expected, tolerance = test["expected"], test.get("tolerance", 0.0)
        if not any(equal(got, one, tolerance) for one in (expected, *test.get("also", []))):
            raise AssertionError(f"expected {_short(expected)}")
        return
    before = set(namespace)
    exec(code, namespace)
    defined = [name for name in namespace if name not in before]
    if "check" in defined:
        _finish(namespace.pop("check")(namespace["candidate"]))
    for name in defined:
        if name.startswith("test_") and callable(namespace[name]):
            _finish(namespace.pop(name)())
    if "unittest" in sys.modules:
        import unittest

        for name in defined:
            value = namespace.get(name)
            if isinstance(value, type) and issubclass(value, unittest.TestCase):
                unittest.defaultTestLoader.loadTestsFromTestCase(namespace.pop(name)).debug()


def _finish(result: Any) -> None:
    """Runs the coroutine that a function of the tests returned."""
    if type(result).__name__ == "coroutine":
        import asyncio

        asyncio.run(result)


def equal(got: object, expected: object, tolerance: float) -> bool:
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


def _outcome(action: Any, pipe: Pipe, imports: Any = ()) -> tuple[str, str]:
    """Runs an action and returns `passed`, `failed` or `broken` with the reason.

    Args:
      imports: the places of imports in the tests' texts. A module missing there is the test's
        fault. A module missing elsewhere is the test's fault only if it has not called the program,
        which may have named the module.
    """
    try:
        action()
    except BaseException as error:
        if pipe.fault:
            return "failed", pipe.fault
        if isinstance(error, TestError):
            return "broken", str(error)
        is_of_test = isinstance(error, ImportError) and not _is_among(error, pipe.raised)
        if is_of_test and (not pipe.last or _place_of(error) in imports):
            return "broken", f"the test lacks a module: {error}"
        reason = _describe(error)
        if reason in pipe.last:
            return "failed", pipe.last
        return "failed", f"{pipe.last}; {reason}" if pipe.last and reason else pipe.last or reason
    return ("failed", pipe.fault) if pipe.fault else ("passed", "")


def _is_among(error: BaseException, errors: list[BaseException]) -> bool:
    return any(error is one for one in errors)


def _place_of(error: BaseException) -> tuple[str, int] | None:
    """Returns the file and the line of the tests' texts that an error comes from."""
    found, trace = None, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith("<test "):
            found = file, trace.tb_lineno
        trace = trace.tb_next
    return found


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, AssertionError | ProgramError | MessageError):
        return text or "an assertion does not hold"
    return f"{type(error).__name__}: {text}"


def _exception(name: str, text: str) -> Exception:
    """Makes an exception of the program: of Python's class, or with the class's name as text."""
    if name in _STAND_INS:
        return _STAND_INS[name](text)
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:
            pass
    return ProgramError(f"{name}: {text}")


def _by_name(arguments: tuple, keywords: dict) -> dict:
    """Returns the arguments of a call by name; the name of a positional one is its number."""
    return {str(number): value for number, value in enumerate(arguments)} | keywords


def _replace(argument: Any, after: Any) -> None:
    """Replaces the content of an argument."""
    if isinstance(argument, list | bytearray):
        argument[:] = after
    else:
        argument.clear()
        argument.update(after)


def _has_nan(value: Any) -> bool:
    """Says whether a value is NaN or contains it."""
    waiting = [value]
    for one in waiting:
        if isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, complex):
            waiting += [one.real, one.imag]
        elif isinstance(one, float):
            if one != one:
                return True
        elif type(one).__name__ == "Decimal" and one.is_nan():
            return True
    return False


def _call_text(function: str, arguments: tuple, keywords: dict) -> str:
    parts = [*map(_short, arguments), *(f"{name}={_short(v)}" for name, v in keywords.items())]
    return f"{function}({', '.join(parts)})"


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a long {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} … {text[-_SHOWN // 4 :]}"
