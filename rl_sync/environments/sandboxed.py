"""Functions of the user as tools that run in a sandbox."""

from __future__ import annotations

import ast
import builtins
import inspect
import symtable
import textwrap
from collections.abc import Callable
from typing import Any

from rl_sync.environments.tools import Tool
from rl_sync.sandbox.interpreter import Interpreter
from rl_sync.sandbox.program_process import START_SECS


def sandboxed(function: Callable[..., Any], interpreter: Interpreter | None = None) -> Tool:
    """Makes a tool of a function whose calls run in a sandbox, a new process each.

    The sandbox gets the text of the function alone. So the function must contain the imports that
    it needs, and use nothing of its module. Its arguments are JSON values, and its result is plain
    data.

    Args:
      function: a plain function with a schema; see `rl_sync.environments.schemas`.
      interpreter: the limits and the sandbox; the default ones if left out.

    Raises:
      SandboxError: no sandbox works here.
      ValueError: the function has no schema or no text, is not a plain function, or uses names of
        its module.
    """
    tool, made = Tool.of(function), interpreter or Interpreter()
    source = _text_alone(function)
    made.prepare()

    def call(**arguments: object) -> Any:
        returned = made.call(source, function.__name__, arguments)
        return f"Error: {returned.fault}" if returned.fault else returned.value

    return Tool(tool.name, call, tool.schema, call_secs=made.seconds + START_SECS + 1.0)


def _text_alone(function: Callable[..., Any]) -> str:
    """Returns the text of a function without decorators and annotations.

    Raises:
      ValueError: it cannot run on its own.
    """
    name = getattr(function, "__name__", repr(function))
    rule = f"The tool {name} cannot run in a sandbox"
    if (
        not inspect.isfunction(function)
        or function.__closure__
        or inspect.isgeneratorfunction(function)
    ):
        raise ValueError(f"{rule}: make it a plain function of a module, not a method or closure.")
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{rule}: its text is not found ({error}). Write it in a file.") from error
    if not isinstance(definition, ast.FunctionDef):
        raise ValueError(f"{rule}: write it with def.")
    definition.decorator_list = []
    text = ast.unparse(_without_annotations(definition))
    names = _names_of_module(symtable.symtable(text, name, "exec")) - {name, *vars(builtins)}
    if names:
        raise ValueError(
            f"{rule}: it uses {', '.join(sorted(names))} of its module, which are not there. Import"
            " and define them inside the function."
        )
    return text


def _without_annotations(definition: ast.FunctionDef) -> ast.FunctionDef:
    for node in ast.walk(definition):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return definition


def _names_of_module(table: symtable.SymbolTable) -> set[str]:
    """Returns the names that a text reads from its module or the builtins."""
    names = {one.get_name() for one in table.get_symbols() if one.is_global()}
    return names.union(*map(_names_of_module, table.get_children()))
