"""Environments of the package verifiers, whose harnesses ask the agents' endpoint for replies.

verifiers runs a task of a taskset in a harness, a program that asks a model, and judges it by the
task's rewards. Here the model is the policy.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.metadata
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_sync.addons.agents.agent import Agent, ClientSettings, check_limits
from rl_sync.environments.interface import Outcome

_MODULE = "verifiers.v1"
_VERSION = "0.4."
_WAY_OUT = 'pip install "rl_sync[verifiers]"'
_SHELL = "bash"
"""The harness of tasksets without one of their own: it runs the policy's commands."""

_CHAT = "null"
"""A harness that only talks, and calls the tools of the taskset."""


class VerifiersEnvironment(Agent):
    """Plays a taskset of verifiers with one agent.

    `rl_sync.addons.agents.verifiers_environment:VerifiersEnvironment(taskset="gsm8k-v1")`

    The row's `idx` is the place of a task in the taskset; see `rows`. The rewards are those of the
    taskset with their weights. An episode with an error or a time-out has no score, and begins
    again.

    Args:
      taskset: name of an installed taskset.
      options: settings of the taskset by name.
      harness: the program that asks the policy; if empty the taskset's own, or else `null`, which
        talks and calls the taskset's tools. `bash` also runs commands of the policy.
      runtime: where the harness runs: `subprocess`, this machine without a sandbox; `docker`,
        `podman` and others are those of verifiers.
      deadline_secs: maximum time of an episode, including the policy's replies.
      separate_reasoning: whether the reasoning of replies is a separate field, and not part of
        their content.
    """

    def __init__(
        self,
        taskset: str,
        options: Mapping[str, Any] | None = None,
        harness: str = "",
        runtime: str = "subprocess",
        deadline_secs: float = 600.0,
        separate_reasoning: bool = False,
    ) -> None:
        super().__init__(deadline_secs=deadline_secs, separate_reasoning=separate_reasoning)
        self._written = _written(taskset, options, harness, runtime)

    @classmethod
    def check(cls, taskset: str = "", **options: Any) -> None:  # type: ignore[override]
        """Checks options before a run.

        Raises:
          ValueError: the package or the taskset is not installed, or cannot be played so.
        """
        made = cls(taskset, **options)
        check_limits("verifiers", made.deadline_secs, made.separate_reasoning)
        _config(made._written)

    @staticmethod
    def warm_up() -> None:
        """Imports the package, once for all workers."""
        _verifiers()

    def _played(self, row: Path, settings: ClientSettings, variables: Mapping[str, str]) -> Outcome:
        os.environ.update(variables)
        task = _task(self._written, json.loads(row.read_text()).get("idx"))
        return _outcome(asyncio.run(_episode(self._written, task, settings)))


def rows(
    taskset: str, options: Mapping[str, Any] | None = None, limit: int = 0
) -> Iterator[dict[str, Any]]:
    """Lists a taskset as rows for `task.name`.

    Args:
      taskset, options: see `VerifiersEnvironment`.
      limit: number of rows; 0 for all of them.

    Raises:
      ValueError: the taskset is not installed, or never ends and has no limit.
    """
    loaded = _environment(_written(taskset, options, "", "subprocess")).taskset
    if loaded.INFINITE and not limit:
        raise ValueError(f"the taskset {taskset!r} never ends: say how many tasks, limit=1000.")
    for task in itertools.islice(loaded, limit or None):
        data = task.data
        answer = getattr(data, "answer", None)
        # A task without a prompt begins with words of its environment.
        prompt = data.prompt_text or data.system_prompt or data.name or f"{taskset} {data.idx}"
        yield {"prompt": prompt, "idx": data.idx} | ({} if answer is None else {"answer": answer})


def _written(taskset: str, options: Mapping[str, Any] | None, harness: str, runtime: str) -> str:
    """Writes the settings of an environment, as a name under which it is loaded once."""
    return json.dumps([taskset, dict(options or {}), harness, runtime], sort_keys=True)


def _verifiers() -> Any:
    """Imports the package.

    Raises:
      ValueError: it is not installed, or has another interface.
    """
    try:
        version = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError as error:
        raise ValueError(
            f"environment.name=verifiers needs the package verifiers. Install it: {_WAY_OUT}"
        ) from error
    if not version.startswith(_VERSION):
        raise ValueError(
            f"environment.name=verifiers plays with verifiers {_VERSION}x, and {version} is"
            f" installed: {_WAY_OUT}"
        )
    return importlib.import_module(_MODULE)


def _config(written: str) -> Any:
    """Makes the package's settings of an environment.

    Raises:
      ValueError: there is no such taskset, option, harness or runtime, or the environment has
        several agents.
    """
    vf = _verifiers()
    loaders = importlib.import_module(f"{_MODULE}.utils.loaders")
    taskset, options, harness, runtime = json.loads(written)
    try:
        kind = loaders.env_config_type(taskset)
        loaders.taskset_class(taskset)
        own = loaders.default_harness_id(taskset)
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(
            f"verifiers(taskset={taskset!r}) names no taskset that is installed: install its"
            f" package, or correct the name ({str(error).rstrip('.')})."
        ) from error
    roles = [
        name for name, one in kind.model_fields.items() if isinstance(one.default, vf.AgentConfig)
    ]
    if len(roles) != 1:
        raise ValueError(
            f"verifiers(taskset={taskset!r}) is played by several agents ({', '.join(roles)}), all"
            " of which would be the policy: take a taskset of one agent."
        )
    program = harness or (_CHAT if own == _SHELL else own)
    role = {"harness": {"id": program}, "runtime": {"type": runtime}}
    try:
        return kind.model_validate({"taskset": {"id": taskset, **options}, roles[0]: role})
    except (ImportError, ValueError) as error:
        raise ValueError(f"verifiers(taskset={taskset!r}): {_faults(error)}") from error


def _faults(error: Exception) -> str:
    """Writes the faults of settings in one line: the field, and the rule."""
    if not hasattr(error, "errors"):
        return str(error)
    found = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors()]
    return "; ".join(f"{field}: {rule}" for field, rule in found)


@functools.cache
def _environment(written: str) -> Any:
    """Loads an environment."""
    config = _config(written)
    return importlib.import_module(f"{_MODULE}.utils.loaders").load_environment(config)


@functools.cache
def _tasks(written: str) -> tuple[Iterator[Any], list[Any]]:
    """Returns the tasks that were not read yet, and those that were."""
    return iter(_environment(written).taskset), []


def _task(written: str, idx: object) -> Any:
    """Returns the task at a place of the taskset."""
    if type(idx) is not int or idx < 0:
        raise ValueError(
            f"The row's idx is {idx!r}, and must be the place of a task in the taskset: take rows"
            f" of task.name={__name__}:rows(taskset=…)."
        )
    later, tasks = _tasks(written)
    tasks += itertools.islice(later, max(0, idx + 1 - len(tasks)))
    if idx >= len(tasks):
        raise ValueError(f"The row's idx is {idx}, and the taskset has {len(tasks)} tasks.")
    return tasks[idx]


async def _episode(written: str, task: Any, settings: ClientSettings) -> Any:
    """Plays an episode of the package, with the policy as the model."""
    vf, environment = _verifiers(), _environment(written)
    client = vf.EvalClientConfig(base_url=settings.base_url, api_key_var="OPENAI_API_KEY")
    async with environment.serving():
        return await environment.run_episode(task, vf.ModelContext(settings.model, client))


def _outcome(episode: Any) -> Outcome:
    """Reads the end of an episode; one that failed has no rewards, not rewards of 0."""
    traces = episode.traces
    errors = [*episode.errors, *(error for one in traces for error in one.errors)]
    why = "; ".join(f"{error.type}: {error.message}" for error in errors)
    if episode.is_timeout or any(one.is_timeout for one in traces):
        ends = ", ".join(str(one.stop_condition) for one in traces)
        return Outcome({}, reason="time-out", why=why or f"a limit of the environment: {ends}")
    if not episode.ok:
        return Outcome({}, reason="environment failure", why=why or "verifiers gave no reason")
    rewards = {
        name: reward.value
        for one in traces
        for name, reward in one.rewards.items()
        if reward is not None
    }
    metrics = {
        name: float(value)
        for one in traces
        for name, value in one.metrics.items()
        if value is not None
    }
    why = "" if rewards else "the taskset gave no reward"
    return Outcome(rewards, metrics, why=why)
