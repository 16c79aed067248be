"""Asks served engines before a run, so that one that is missing does not end it later."""

from __future__ import annotations

import contextlib

from rl_sync.role_names import explorer_name
from rl_sync.rollout.served.vllm_calls import EngineLostError, EngineRefusedError, VllmCalls
from rl_sync.settings.explorer_settings import VLLM
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings

_ANSWER_SECS = 10.0


def check_engines(settings: RunSettings) -> None:
    """Rejects engines of `explorer.engine` that do not answer, or not as they have to.

    Those of explorers on other machines may be out of reach from here, and are not asked.

    Raises:
      ConfigError: the message names the engine, the fault and the remedy.
    """
    for number, engine in enumerate(settings.explorer.engines, start=1):
        if explorer_name(number) in settings.launch.elsewhere:
            continue
        with contextlib.closing(VllmCalls(engine.removeprefix(VLLM), _ANSWER_SECS)) as calls:
            try:
                calls.served_length()
                calls.is_paused()
            except EngineLostError as error:
                raise ConfigError(
                    f"explorer.engine={engine}: no vLLM server answers there ({error}). Start it"
                    " first (docs/served-engines.md), or leave explorer.engine empty."
                ) from error
            except EngineRefusedError as error:
                raise ConfigError(f"explorer.engine={engine}: {error}") from error
