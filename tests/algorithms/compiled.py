"""Functions as one program each: compiling their many operations one by one takes far longer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax


def compiled(function: Callable[..., Any], *static: str) -> Callable[..., Any]:
    """Returns the function, compiled as a whole, with results in numpy.

    Args:
      static: names of the arguments that are no arrays, such as the size of a group.
    """
    program = jax.jit(function, static_argnames=static)

    @functools.wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        return jax.device_get(program(*args, **named))

    return run
