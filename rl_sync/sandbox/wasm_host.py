"""Runs Python in WebAssembly. It is started as a script, by `wasm.py`, for each program."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

import wasmtime

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Runs the interpreter that the first argument describes, and exits as it does."""
    order = json.loads(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    engine = wasmtime.Engine()
    module = wasmtime.Module.deserialize_file(engine, order["module"])
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    wasi = wasmtime.WasiConfig()
    wasi.argv = order["arguments"]
    wasi.env = list(order["environment"].items())
    for inside, outside in order["folders"].items():
        wasi.preopen_dir(outside, inside, fs_mutable=False)
    wasi.inherit_stdin()
    wasi.inherit_stdout()
    wasi.inherit_stderr()
    store = wasmtime.Store(engine)
    store.set_limits(memory_size=order["memory"])
    store.set_wasi(wasi)
    start = linker.instantiate(store, module).exports(store)["_start"]
    code = 0
    try:
        start(store)  # type: ignore[operator]
    except wasmtime.ExitTrap as exit_trap:
        code = exit_trap.code
    except wasmtime.WasmtimeError as error:
        print(str(error).splitlines()[-1], file=sys.stderr, flush=True)
        code = 134
    os._exit(code)


if __name__ == "__main__":
    main()
