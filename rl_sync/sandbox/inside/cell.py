"""Runs Python text like a cell of a notebook, which shows the value of its last expression.

The value goes to standard output, an exception with its traceback to standard error.
"""

from __future__ import annotations

import os
import sys
from _ast import Expr, Interactive

from launch import main_module  # type: ignore[attr-defined]  # Beside this file, not the folder.

_NAME = "<code>"
_ONLY_PARSE = 0x400  # `ast.PyCF_ONLY_AST`; `ast` takes as long to import as the interpreter.


def serve(path: str) -> None:
    """Runs the text of a file; the exit code is 1 after an exception."""
    with open(path, encoding="utf-8") as file:
        source = file.read()
    # A limit may kill this process before it flushes.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        _run(source, main_module(path))
    except SystemExit:
        raise
    except BaseException as error:
        _report(error, source)
        raise SystemExit(1) from None


def _run(source: str, namespace: dict) -> None:
    tree = compile(source, _NAME, "exec", _ONLY_PARSE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], Expr) else None
    exec(compile(tree, _NAME, "exec"), namespace)
    if last is not None:
        exec(compile(Interactive([last]), _NAME, "single"), namespace)


def _report(error: BaseException, source: str) -> None:
    """Writes an error's traceback, without the frames before those of the text."""
    try:
        import linecache
        import traceback

        linecache.cache[_NAME] = (len(source), None, source.splitlines(True), _NAME)
        first = error.__traceback__
        while first is not None and first.tb_frame.f_code.co_filename != _NAME:
            first = first.tb_next
        traceback.print_exception(type(error), error, first)
    except BaseException:  # There may be no memory left, or the text changed these modules.
        sys.stdout.flush()
        os.write(2, f"{type(error).__name__}\n".encode())
