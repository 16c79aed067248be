"""The choice of a sandbox layer: the first that withstands a hostile program on this machine."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from rl_sync.sandbox import bubblewrap, landlock, wasm
from rl_sync.sandbox.layer import SandboxError, SandboxLayer
from rl_sync.sandbox.probe import CANARY, fault
from rl_sync.sandbox.sandbox_cache import cache_folder
from rl_sync.sandbox.unconfined import Unconfined
from rl_sync.spelling import require_one_of

_choosing = threading.Lock()
_log = logging.getLogger("rl_sync")

LAYERS: dict[str, Callable[[], Iterator[SandboxLayer]]] = {
    "bubblewrap": bubblewrap.variants,
    "landlock": landlock.variants,
    "wasm": wasm.variants,
}
"""Functions that yield the installed variants of each layer, the strongest first."""


def choose(kind: str = "auto", unsandboxed: bool = False) -> SandboxLayer:
    """Returns the layer to run programs in, and logs it once for each machine and environment.

    Args:
      kind: a name of `LAYERS`, or `auto` for the first that works.
      unsandboxed: whether to run programs without a sandbox if none works.

    Raises:
      ValueError: no such layer.
      SandboxError: no layer works here.
    """
    require_one_of("sandbox layer", kind, ["auto", *LAYERS])
    with _choosing:
        layer, faults = _choose(kind)
        if layer is None and not unsandboxed:
            raise SandboxError(_refusal(kind, faults))
        return layer or _unconfined(faults)


@functools.cache
def _choose(kind: str) -> tuple[SandboxLayer | None, str]:
    """Returns the layer that an earlier process chose, or the first that works.

    If none works, returns None and the fault of each.
    """
    kinds = list(LAYERS) if kind == "auto" else [kind]
    installed = [layer for name in kinds for layer in LAYERS[name]()]
    cache = _cache_file(kind)
    remembered = cache.read_text() if cache.exists() else None
    for layer in installed:
        if layer.name == remembered:
            layer.prepare()
            return layer, ""
    faults = []
    for layer in installed:
        if (reason := fault(layer)) is None:
            _log.info("Programs of completions run in the sandbox %s.", layer.name)
            _write(cache, layer.name)
            return layer, ""
        faults.append(f"{layer.name}: {reason}")
    return None, f"Tried: {'; '.join(faults)}." if faults else "None is installed."


@functools.cache
def _unconfined(faults: str) -> SandboxLayer:
    _log.warning(
        "PROGRAMS OF COMPLETIONS RUN WITHOUT A SANDBOX: they can read, write, send and kill all "
        "that this user can. %s",
        faults,
    )
    return Unconfined()


def _refusal(kind: str, faults: str) -> str:
    wanted = "No sandbox" if kind == "auto" else f"The sandbox {kind} does not work, and no other"
    return (
        f"{wanted} for programs of completions works on this machine. {faults} "
        "Install one: `apt-get install bubblewrap`, or `pip install 'rl_sync[sandbox]'` on Linux, "
        "or `pip install 'rl_sync[wasm]'` for plain Python on any system. A container may have to "
        "allow user namespaces. `unsandboxed=True` runs programs without any sandbox."
    )


def _cache_file(kind: str) -> Path:
    """Returns the file that remembers a choice until the next boot, for this user and container."""
    facts = [kind, sys.prefix, CANARY.read_text()]
    for source in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/user", "/proc/self/ns/mnt"):
        with contextlib.suppress(OSError):
            facts.append(os.readlink(source) if "/ns/" in source else Path(source).read_text())
    with contextlib.suppress(OSError):
        # Landlock, filters and lost rights of a parent belong to a process and its children.
        lines = Path("/proc/self/status").read_text().splitlines()
        facts += [line for line in lines if line.startswith(("Cap", "Seccomp", "NoN"))]
    return cache_folder() / f"{_hash(facts)}.choice"


def _hash(facts: list[str]) -> str:
    """Returns a name for a list of texts, the same in each process."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
