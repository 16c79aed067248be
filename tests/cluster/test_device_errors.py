"""Errors of JAX's devices are told in a line, by roles and by commands."""

import importlib

import jax
import pytest

from rl_sync.cluster.user_errors import DeviceFullError, RunEndedError, explained
from rl_sync.launcher import __main__ as launcher
from rl_sync.launcher.command_table import COMMANDS

FULL = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes.\nAllocations: …"
LOST = (
    "Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices. (set"
    " JAX_PLATFORMS='' to automatically choose an available backend)"
)
TAKEN = (
    "FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above for more"
    " details."
)
NO_ROOM = "INTERNAL: CUDA error: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
FOR_USERS = [
    (FULL, DeviceFullError, "no more memory: Out of memory while trying to allocate 12 bytes."),
    (FULL, DeviceFullError, "If another program holds some of a GPU's (nvidia-smi), end it, or"),
    (TAKEN, RunEndedError, "XLA_PYTHON_CLIENT_MEM_FRACTION=0.75."),
    (NO_ROOM, RunEndedError, "seems: INTERNAL: CUDA error: CUDA_ERROR_OUT_OF_MEMORY: out of mem"),
    (LOST, RunEndedError, "cannot use this machine's GPU: FAILED_PRECONDITION: No visible GPU"),
]


@pytest.mark.parametrize(("text", "kind", "told"), FOR_USERS)
def test_what_jax_says_of_devices_is_for_users(text, kind, told):
    found = explained(jax.errors.JaxRuntimeError(text))
    assert type(found) is kind
    assert told in str(found)
    assert "\n" not in str(found)
    assert explained(found) is found


@pytest.mark.parametrize(
    "error",
    [jax.errors.JaxRuntimeError("INTERNAL: a bug"), ValueError(FULL), RunEndedError(FULL)],
)
def test_other_errors_stay(error):
    assert explained(error) is error


@pytest.mark.parametrize(("text", "kind", "told"), FOR_USERS)
def test_a_command_ends_with_the_line(monkeypatch, capsys, text, kind, told):
    del kind

    def fails(arguments):
        raise jax.errors.JaxRuntimeError(text)

    module = importlib.import_module(COMMANDS["modes"].module)
    monkeypatch.setattr(module, "execute", fails)
    assert launcher.main(["modes"]) == 1
    shown = capsys.readouterr().err
    assert shown == f"error: {explained(jax.errors.JaxRuntimeError(text))}\n"
    assert told in shown
