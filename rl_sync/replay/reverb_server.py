# /// script
# requires-python = "==3.11.*"
# dependencies = ["dm-reverb==0.14.0", "tensorflow-cpu==2.15.1", "setuptools<81"]
# ///
"""The Reverb server: a script with a Python environment of its own, which JAX cannot share.

    uv run --script rl_sync/replay/reverb_server.py --port 8700 --tables '[{"name": "queue", ...}]'

`--tables` is a JSON list of tables with the fields of `rl_sync.replay.tables.TableSpec`; fields
with a default there are optional. When the server is ready, it prints one line of JSON with the
port. It exits on SIGTERM, and when its standard input ends, so that it never outlives the process
that started it. It imports nothing of rl_sync.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

PORT_TAKEN = 98
REFUSED = 97
STOP_TIMEOUT_SECS = 3.0
_ATTACH_FILTER = 26  # Linux's SO_ATTACH_FILTER
_LOOPBACK_6 = bytes(15) + b"\1"
_NETWORK_HEADER = -0x100000  # Linux's SKF_NET_OFF: where a filter finds a packet's header
NEEDED_FIELDS = ("name", "max_size")
DEFAULTS = {
    "sampler": "fifo",
    "max_times_sampled": 0,
    "min_size_to_sample": 1,
    "samples_per_insert": 1.0,
    "min_diff": -sys.float_info.max,
    "max_diff": sys.float_info.max,
    "priority_exponent": 1.0,
}

Serve = Callable[[argparse.Namespace, Callable[[int], None]], None]
"""A function that serves according to the arguments. Once it is ready, it calls its second argument
with the port; that call returns when the server has to stop.
"""


class PortTakenError(OSError):
    """The port to listen on is not free."""


def run(serve: Serve, description: str) -> int:
    """Parses the command line, serves until standard input ends or SIGTERM comes, and exits.

    Returns:
      The exit status if it cannot serve: PORT_TAKEN, or REFUSED if the tables are invalid.
    """
    args = read_arguments(description)
    stop, serving = threading.Event(), threading.Event()

    def leave(*_: object) -> None:
        """Stops the server cleanly if it is ready; before that, ends the process immediately."""
        if not serving.is_set():
            os._exit(0)
        if stop.is_set():
            return
        stop.set()
        threading.Timer(STOP_TIMEOUT_SECS, os._exit, [0]).start()

    def watch_stdin() -> None:
        while os.read(0, 4096):
            pass
        leave()

    def wait(port: int) -> None:
        serving.set()
        print(json.dumps({"port": port, "pid": os.getpid()}), flush=True)
        # In short waits, since Python runs signal handlers in this thread.
        while not stop.wait(0.5):
            pass

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    threading.Thread(target=watch_stdin, name="life line", daemon=True).start()
    try:
        args.port = free_port(args.port, args.host)
        serve(args, wait)
    except PortTakenError as error:
        print(error, file=sys.stderr)
        return PORT_TAKEN
    except ValueError as error:
        print(error, file=sys.stderr)
        return REFUSED
    sys.stdout.flush()
    os._exit(0)  # without TensorFlow's slow tear-down


def read_arguments(description: str) -> argparse.Namespace:
    """Parses the command line of a replay server."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, required=True, help="0 for any free one")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on; 0.0.0.0: all"
    )
    parser.add_argument("--tables", required=True, help="JSON list of tables")
    parser.add_argument(
        "--checkpoints", help="directory of checkpoints; the server begins with the newest one"
    )
    return parser.parse_args()


def free_port(port: int, host: str) -> int:
    """Returns `port` of an address of this machine, or a free one for 0.

    Raises:
      PortTakenError: another process listens there. (gRPC itself would share the port silently.)
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            raise PortTakenError(
                f"Port {port} of {host} cannot be used: {error.strerror}. Choose another, or 0 for"
                " any."
            ) from error
        return probe.getsockname()[1]


def serve_reverb(args: argparse.Namespace, wait: Callable[[int], None]) -> None:
    """Serves with Reverb; see `Serve`."""
    specs = read_tables(args.tables)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import reverb

    free_port(args.port, args.host)  # checked again, since the import took seconds
    tables = [make_table(reverb, spec) for spec in specs]
    checkpointer = None
    if args.checkpoints:
        checkpointer = reverb.checkpointers.DefaultCheckpointer(args.checkpoints)
    server = reverb.Server(tables, args.port, checkpointer)
    answer_at(args.host, args.port)
    wait(args.port)
    server.stop()


def answer_at(host: str, port: int) -> None:
    """Makes this process's server at a port answer only calls to one address.

    Reverb always listens on all interfaces, and a listening socket cannot be bound to one address
    afterwards. So a filter in the kernel drops packets for other addresses, like a firewall.
    """
    address = host if ":" in host else socket.gethostbyname(host)
    if address in ("0.0.0.0", "::"):
        return
    code = b"".join(struct.pack("HBBI", *step) for step in address_filter(address))
    buffer = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))
    for listening in listening_sockets(port):
        with listening:
            try:
                listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, described)
            except OSError as error:
                print(f"Port {port} is open at all addresses: {error}", file=sys.stderr)


def address_filter(address: str) -> list[tuple[int, int, int, int]]:
    """Returns a classic BPF program that keeps packets to an address, and drops others.

    With an IPv4 address of the loopback interface it also keeps packets to IPv6's loopback address.
    It is written out here, since this script has to run without any other file of ours.
    """

    def load(code: int, offset: int) -> tuple[int, int, int, int]:
        return code, 0, 0, (_NETWORK_HEADER + offset) & 0xFFFFFFFF

    is_version_6 = ":" in address
    own_6 = socket.inet_pton(socket.AF_INET6, address) if is_version_6 else _LOOPBACK_6
    wanted_6 = struct.unpack("!4I", own_6)
    wanted = 0 if is_version_6 else struct.unpack("!I", socket.inet_aton(address))[0]
    # Instructions to skip: for an IPv4 packet with the wanted address to keep it or to drop it, and
    # for an IPv6 packet either to the test of its address or to the drop.
    version_4 = 9 if is_version_6 else 8
    version_6 = 2 if is_version_6 or address.startswith("127.") else 11
    return [  # (code, instructions to skip if equal, instructions to skip if not, value)
        load(0x30, 0),
        (0x74, 0, 0, 4),  # The first half of the first byte is the IP version.
        (0x15, 0, version_6, 4),
        load(0x20, 16),
        (0x15, version_4, 9, wanted),
        load(0x20, 24),
        (0x15, 0, 7, wanted_6[0]),
        load(0x20, 28),
        (0x15, 0, 5, wanted_6[1]),
        load(0x20, 32),
        (0x15, 0, 3, wanted_6[2]),
        load(0x20, 36),
        (0x15, 0, 1, wanted_6[3]),
        (0x06, 0, 0, 0xFFFFFFFF),  # Keep.
        (0x06, 0, 0, 0),  # Drop.
    ]


def listening_sockets(port: int) -> list[socket.socket]:
    """Returns copies of the sockets of this process that listen on a port."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            number = os.dup(int(name))
        except OSError:  # It was closed meanwhile.
            continue
        try:
            copy = socket.socket(fileno=number)
        except OSError:  # It is not a socket.
            os.close(number)
            continue
        is_listening = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        )
        if is_listening and copy.getsockname()[1] == port:
            found.append(copy)
        else:
            copy.close()
    return found


def read_tables(text: str) -> list[dict[str, Any]]:
    """Reads table specifications from a JSON list, and adds the defaults of missing fields.

    Raises:
      ValueError: the text is not such a list, or a field is missing or unknown.
    """
    rows = json.loads(text)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"--tables is a JSON list of objects, one a table, not {text}.")
    for row in rows:
        missing = [name for name in NEEDED_FIELDS if name not in row]
        unknown = [name for name in row if name not in (*NEEDED_FIELDS, *DEFAULTS)]
        if missing or unknown:
            raise ValueError(
                f"A table needs {' and '.join(NEEDED_FIELDS)}, and may have {', '.join(DEFAULTS)};"
                f" {json.dumps(row)} does not fit: {', '.join(missing + unknown)}."
            )
    return [{**DEFAULTS, **row} for row in rows]


def make_table(reverb: Any, spec: dict[str, Any]) -> Any:
    """Makes a reverb.Table from a table specification."""

    def selector(kind: str) -> Any:
        if kind == "prioritized":
            return reverb.selectors.Prioritized(spec["priority_exponent"])
        selectors = {
            "fifo": reverb.selectors.Fifo,
            "lifo": reverb.selectors.Lifo,
            "uniform": reverb.selectors.Uniform,
            "max_heap": reverb.selectors.MaxHeap,
            "min_heap": reverb.selectors.MinHeap,
        }
        return selectors[kind]()

    limits = ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff")
    return reverb.Table(
        name=spec["name"],
        sampler=selector(spec["sampler"]),
        remover=reverb.selectors.Fifo(),
        max_size=spec["max_size"],
        max_times_sampled=spec["max_times_sampled"],
        rate_limiter=reverb.rate_limiters.RateLimiter(**{name: spec[name] for name in limits}),
    )


if __name__ == "__main__":
    sys.exit(run(serve_reverb, __doc__.splitlines()[0]))
