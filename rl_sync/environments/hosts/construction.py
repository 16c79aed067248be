"""Constructors of environments, from references with options."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rl_sync.environments.interface import Environment
from rl_sync.environments.tool_class import ToolClass, is_tool_class
from rl_sync.environments.tools import ToolEnvironment
from rl_sync.expression import parse_call
from rl_sync.references import resolve
from rl_sync.spelling import hint

_METHODS = ("reset", "step", "close")


@dataclasses.dataclass(frozen=True)
class Construction:
    """A class or function that makes environments, and its options.

    Attributes:
      reference: such as `module:Class(level=3)` or `path/to/file.py:Class`.
      name: the reference without its options.
      maker: the class or function.
      options: its arguments.
      inline: whether its environments may run in the caller's process: their class says
        `inline = True`.
      asks_endpoint: whether they are programs that ask an endpoint for replies: their class says
        `asks_endpoint = True`, and its `check` takes the options.
      shows_images: whether their observations are images: their class says `shows_images = True`.
    """

    reference: str
    name: str
    maker: Callable[..., Any]
    options: Mapping[str, Any]
    inline: bool
    asks_endpoint: bool = False
    shows_images: bool = False

    @classmethod
    def of(cls, reference: str) -> Construction:
        """Imports the class of a reference, and checks its options.

        Raises:
          ValueError: it cannot be imported, has no such option, or lacks one that it needs.
        """
        call = parse_call(reference)
        maker: Any = resolve(call.name)
        _check_options(call.name, maker, call.options)
        asks_endpoint = getattr(maker, "asks_endpoint", False) is True
        if asks_endpoint:
            maker.check(**call.options)
        return cls(
            reference=reference,
            name=call.name,
            maker=maker,
            options=call.options,
            inline=getattr(maker, "inline", False) is True,
            asks_endpoint=asks_endpoint,
            shows_images=getattr(maker, "shows_images", False) is True,
        )

    @property
    def parts(self) -> Collection[Construction]:
        """The constructors of the environments that it delegates to; none for most."""
        of = getattr(self.maker, "parts_of", None)
        return of(**self.options) if callable(of) else ()

    @property
    def has_tools(self) -> bool:
        """True if environments are known to have tools before one is made."""
        is_known = isinstance(self.maker, type) and issubclass(self.maker, ToolEnvironment)
        return is_known or any(part.has_tools for part in self.parts)

    @property
    def needs_sight(self) -> bool:
        """True if a policy that reads text alone cannot play."""
        return self.shows_images or any(part.needs_sight for part in self.parts)

    @property
    def may_show_images(self) -> bool:
        """True if observations may have images; agents may send some."""
        return (
            self.shows_images
            or self.asks_endpoint
            or any(part.may_show_images for part in self.parts)
        )

    @property
    def charset(self) -> str:
        """The characters that environments write, if their class declares them."""
        own: str = getattr(self.maker, "charset", "")
        return own + "".join(part.charset for part in self.parts)

    def check(self) -> None:
        """Calls the class method `check`, if there is one, with the options.

        It also checks that this machine can run the episodes.

        Raises:
          ValueError: an option's value is invalid, or the machine lacks something.
        """
        maker: Any = self.maker
        if isinstance(inspect.getattr_static(maker, "check", None), classmethod):
            maker.check(**self.options)

    def warm_up(self) -> None:
        """Calls the class's `warm_up()`, if it has one, to import what its constructor needs."""
        if callable(warm_up := getattr(self.maker, "warm_up", None)):
            warm_up()
        for part in self.parts:
            part.warm_up()

    def make(self) -> Environment:
        """Makes an environment; an object with the interface of TRL's environments is adapted.

        Raises:
          ValueError: the object made is no environment. Exceptions of its class are not caught.
        """
        made = self.maker(**self.options)
        if is_tool_class(made):
            return ToolClass(made, self.name)
        lacking = [name for name in _METHODS if not callable(getattr(made, name, None))]
        if lacking:
            raise ValueError(
                f"{self.name} made a {type(made).__name__}, which lacks {', '.join(lacking)}: an"
                " environment has reset(task, seed), step(reply) and close(); a class of tools has"
                " reset(**row), tools, and reward."
            )
        return made


def _check_options(name: str, maker: Callable[..., Any], options: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(maker)
    except ValueError:  # Some classes of C extensions have no signature.
        return
    try:
        signature.bind(**options)
    except TypeError as error:
        known = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        unknown = [option for option in options if option not in known]
        has = f"it has {', '.join(known)}" if known else "it has none"
        if unknown:
            raise ValueError(
                f"The environment {name} has no option {unknown[0]!r}: {has}"
                f"{hint(unknown[0], known)}"
            ) from error
        raise ValueError(
            f"The environment {name} cannot be made: {error}. Options are written as"
            f" {name}(option=value); {has}."
        ) from error
