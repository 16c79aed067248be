"""Following a run: a checkpoint of transformers that gets each version that the run publishes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.huggingface.writing import FrameSources, write_checkpoint
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.placement import abstract_params, cast_abstract
from rl_sync.models.sharding import Layout
from rl_sync.settings.mesh_settings import ShardingSettings
from rl_sync.settings.records import ConfigError
from rl_sync.transfers.checkpoint import CheckpointPuller
from rl_sync.types import Params
from rl_sync.weights.deltas.encoding import EncodingError
from rl_sync.weights.deltas.version_files import VersionFiles, VersionFilesError
from rl_sync.weights.ends_interface import WeightsMismatchError, WeightsTimeoutError
from rl_sync.weights.locations import is_remote

_SLICE_SECS = 1.0
_READ_SECS = 60.0


class FollowedVersion(NamedTuple):
    """A version that is in the target.

    Attributes:
      version: the version.
      digest: its verified digest.
      received_bytes: bytes that were read for it.
      secs: time of reading, verifying and writing it.
    """

    version: int
    digest: str
    received_bytes: int
    secs: float


def follow(
    source: str,
    target: Path,
    on_version: Callable[[FollowedVersion], None],
    *,
    once: bool = False,
    idle_secs: float | None = None,
    start_secs: float = 600.0,
    on_wait: Callable[[str], None] = lambda told: None,
) -> None:
    """Keeps a checkpoint of transformers up to date with the versions of a run.

    The target is a symbolic link to a directory beside it, and moves to the next version in one
    step. So whoever opens it finds one whole version; the one before is kept, too.

    Args:
      source: directory of versions, `gs://bucket/…` or `s3://bucket/…`, that a run writes.
      target: the checkpoint.
      on_version: called with each version.
      once: whether to return after the first version.
      idle_secs: time without a new version after which it returns; None for no such time.
      start_secs: maximum time until the first version is there.
      on_wait: called with a sentence if the first version has to be awaited.

    Raises:
      ConfigError: the source has no such versions, or none that can be verified; or the target
        exists already.
    """
    if target.exists() and not target.is_symlink():
        raise ConfigError(f"--to={target} exists already; name a new directory.")
    if not is_remote(source) and not Path(source).is_dir():
        raise ConfigError(
            f"--from={source} is no directory. Start the run first: its weights are in"
            " `weights` in its work directory, or where sync.directory says."
        )
    with tempfile.TemporaryDirectory() as folder:
        frame, model, abstract = _model(source, Path(folder), start_secs, on_wait)
        dtype = str(jax.tree.leaves(abstract)[0].dtype)
        reader = f"follow-{socket.gethostname()}-{os.getpid()}"
        puller = CheckpointPuller(source, abstract, reader=reader)
        have, since = -1, time.monotonic()
        try:
            while True:
                if puller.newest(have + 1, _SLICE_SECS) <= have:
                    _check_patience(source, have, since, idle_secs, start_secs)
                    waited = time.monotonic() - since
                    if have >= 0 and idle_secs is not None and waited > idle_secs:
                        return
                    continue
                began = time.monotonic()
                have, params = puller.pull(at_least=have + 1, timeout_secs=_READ_SECS)
                _replace(target, have, model, params, frame, dtype)
                stats, since = puller.stats, time.monotonic()
                nbytes = stats.received_bytes if stats else 0
                on_version(FollowedVersion(have, puller.digest or "", nbytes, since - began))
                if once:
                    return
        except (EncodingError, WeightsMismatchError, WeightsTimeoutError, ValueError) as error:
            raise ConfigError(f"--from={source}: {error}") from error
        finally:
            with contextlib.suppress(OSError):
                puller.close()


def _check_patience(
    source: str, have: int, since: float, idle_secs: float | None, start_secs: float
) -> None:
    if have < 0 and time.monotonic() - since > start_secs:
        raise ConfigError(
            f"--from={source} has had no version that can be read for {start_secs:g} s: the run has"
            " not published one, or its files are incomplete."
        )


def _model(
    source: str, folder: Path, start_secs: float, on_wait: Callable[[str], None]
) -> tuple[Path, ModelConfig, Params]:
    """Waits for the first version, and returns its frame, its model and abstract params."""
    try:
        files = VersionFiles(source, create=False)
        deadline = time.monotonic() + start_secs
        if not files.stored():
            on_wait(f"Waiting for the first version in {source}, at most {start_secs:g} s.")
        while not (stored := files.stored()):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"--from={source} has no versions after {start_secs:g} s. It must be the"
                    " directory of weights of a run with sync.transfer=checkpoint, such as"
                    " runs/first/weights."
                )
            time.sleep(files.poll_secs)
        content = files.read_frame()
    except (VersionFilesError, ImportError, OSError) as error:
        raise ConfigError(f"--from={source}: {error}") from error
    if "config.json" not in content:
        raise ConfigError(
            f"--from={source} has no model/config.json: the run publishes adapters alone or"
            " quantized kernels, or transformers has no such model. Use export for its snapshots."
        )
    frame = folder / "frame"
    frame.mkdir()
    for name, data in content.items():
        (frame / name).write_bytes(data)
    try:
        model = load_config(frame, vision=True)
    except ValueError as error:
        raise ConfigError(f"--from={source}: {error}") from error
    here = jax.local_devices(backend="cpu")[:1]
    layout = Layout(MeshShape().mesh(here), ShardingSettings().rules)
    dtype = stored[-1].leaves[0][1]
    return frame, model, cast_abstract(abstract_params(model, layout), dtype)


def _replace(
    target: Path, version: int, model: ModelConfig, params: Params, frame: Path, dtype: str
) -> None:
    """Writes a version beside the target, and moves the link to it."""
    target = target.absolute()
    mine = f".{target.name}-version-"
    made = target.with_name(f"{mine}{version:08d}")
    shutil.rmtree(made, ignore_errors=True)
    before = os.readlink(target) if target.is_symlink() else None
    write_checkpoint(made, model, params, FrameSources(source=frame, dtype=dtype))
    link = target.with_name(f".{target.name}-link")
    link.unlink(missing_ok=True)
    link.symlink_to(made.name)
    os.replace(link, target)
    for old in target.parent.glob(f"{mine}*"):
        if old.name not in (made.name, before):
            shutil.rmtree(old, ignore_errors=True)
