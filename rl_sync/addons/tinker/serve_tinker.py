"""`tinker`: serves clients of Tinker's API on the devices of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import signal
import sys
from pathlib import Path

from rl_sync.addons.tinker.sampler_calls import SampledModel
from rl_sync.addons.tinker.sampler_pool import SamplerPool, SamplersLostError
from rl_sync.addons.tinker.service_bounds import ServiceBounds
from rl_sync.addons.tinker.tinker_server import TinkerServer, listening
from rl_sync.addons.tinker.tinker_service import TinkerService
from rl_sync.api import loaded_policy
from rl_sync.cluster import compilation_cache
from rl_sync.cluster.gpus import shared_out
from rl_sync.cluster.host_names import check_own
from rl_sync.launcher.command import Arguments
from rl_sync.launcher.commands.serving import end_asked
from rl_sync.models.huggingface.reading import CONFIG_FILE, locate
from rl_sync.roles.exit_status import FAILED
from rl_sync.settings.records import ConfigError
from rl_sync.weights.digest import digest

_LOOPBACK = "127.0.0.1"
_ALWAYS_ALLOWED = 4
"""Number of samplers that may be started on any machine."""
_EVERYWHERE = ("0.0.0.0", "::")
_SERVER = "server"
_KEY_PREFIX = "tml-"
"""Beginning of every key, which the client requires."""


def execute(arguments: Arguments) -> int:
    """Serves a checkpoint until SIGTERM or Ctrl-C; returns the exit status.

    Raises:
      ConfigError: there is no such checkpoint, a bound is out of range, the address cannot be used
        or needs a key, or the directory cannot be written.
    """
    flags = arguments.flags
    host, key = flags.get("host", _LOOPBACK), read_key(flags.get("key-path"))
    if host != _LOOPBACK and key is None:
        raise ConfigError(
            f"--host={host} can be reached from other machines: give --key-path=FILE, whose content"
            f" clients set as TINKER_API_KEY, beginning with {_KEY_PREFIX}."
        )
    if host not in (_LOOPBACK, *_EVERYWHERE):
        check_own("--host", host)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    compilation_cache.use(None, os.environ)
    name = str(flags["model"])
    try:
        bounds = ServiceBounds(
            **{
                field.name: flags[flag]
                for field in dataclasses.fields(ServiceBounds)
                if (flag := field.name.replace("_", "-")) in flags
            }
        )
        base = locate(name).absolute()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not (base / CONFIG_FILE).is_file():
        raise ConfigError(
            f"--model={name} holds no {CONFIG_FILE}: give a Hugging Face checkpoint, such as"
            " `export` writes of a run."
        )
    devices = _devices(flags.get("samplers", 0))
    root = Path(flags.get("out", "tinker")).absolute()
    _check_place(host, flags.get("port", 0), root)
    # Until it serves, a signal ends it like an error, so that its samplers end with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    os.environ.update(devices.pop(_SERVER))  # Before JAX looks for devices.
    policy = loaded_policy.load(base, dtype=flags.get("dtype"))
    with contextlib.ExitStack() as open_parts:
        pool = None
        try:
            if devices:
                model = SampledModel(str(base), flags.get("dtype"), digest(policy.params), bounds)
                pool = SamplerPool(model, devices, root / "samplers")
                open_parts.enter_context(contextlib.closing(pool))
                pool.start()
            service = TinkerService(
                policy, base=base, name=name, root=root, bounds=bounds, sampler=pool
            )
            open_parts.enter_context(contextlib.closing(service))
            server = TinkerServer(service, host=host, port=flags.get("port", 0), key=key)
            open_parts.enter_context(contextlib.closing(server))
        except SamplersLostError as error:
            raise ConfigError(f"The server cannot start: {error}.") from error
        except OSError as error:
            raise ConfigError(f"The server cannot start: {error.strerror or error}.") from error
        asked = end_asked()
        print(f"Model: {name}. Checkpoints and records: {root}")
        print(
            f"Serving at {server.address}: set TINKER_BASE_URL={server.address} and TINKER_API_KEY="
            f"{_KEY_PREFIX if key is None else 'the key'}{'any' if key is None else ''}."
            " Ctrl-C ends it.",
            flush=True,
        )
        try:
            service.run(asked)
        except SamplersLostError as error:
            print(f"error: The server has ended: {error}.", file=sys.stderr)
            return FAILED
    print("The server has ended.")
    return 0


def _check_place(host: str, port: int, root: Path) -> None:
    """Raises ConfigError if the address is taken, or the directory cannot be written."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"--out={root} must be a directory that can be made and written:"
            f" {error.strerror or error}. Give another."
        ) from error
    try:
        listening(host, port).close()
    except OSError as error:
        raise ConfigError(
            f"--port={port} cannot be served at {host}: {os.strerror(error.errno or 0)}. Give"
            " another, or leave it out for any free one."
        ) from error


def _devices(samplers: int) -> dict[str, dict[str, str]]:
    """Returns environment variables of the server and of its samplers, by their names.

    Raises:
      ConfigError: there are more samplers than cores; see also `shared_out`.
    """
    if not samplers:
        return {_SERVER: {}}
    if samplers > (most := max(_ALWAYS_ALLOWED, os.cpu_count() or 1)):
        raise ConfigError(
            f"--samplers={samplers} would start {samplers} processes that each hold the base model"
            f" and compute, and this machine has {os.cpu_count()} cores: use at most {most}."
        )
    names = [_SERVER, *(f"sampler{number + 1}" for number in range(samplers))]
    counts = dict.fromkeys(names, 1)
    return shared_out(counts, os.environ, "The server and its samplers", "--samplers")


def read_key(path: Path | str | None) -> str | None:
    """Reads the key of a server; None if no file is given.

    Raises:
      ConfigError: the file cannot be read, or no client would send such a key.
    """
    if path is None:
        return None
    try:
        key = Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"--key-path={path} cannot be read: {error.strerror or error}."
        ) from error
    if not key.startswith(_KEY_PREFIX) or len(key) <= len(_KEY_PREFIX):
        raise ConfigError(
            f"--key-path={path} must hold a key that begins with {_KEY_PREFIX}, since Tinker's"
            f" client sends no other: write one with `echo {_KEY_PREFIX}$(openssl rand -hex 16) >"
            f" {path}`."
        )
    return key
