"""A replay server in Python, with the part of Reverb's gRPC protocol that our client uses.

    python -m rl_sync.replay.embedded_server --port 8700 --tables '[{"name": "queue", ...}]'

The command line and the ready line are the same as those of `rl_sync/replay/reverb_server.py`, and
it also ends with its standard input.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import NoReturn

import grpc
from google.protobuf.message import Message

from rl_sync.addresses import address_of
from rl_sync.replay import reverb_pb2 as pb
from rl_sync.replay import reverb_server, stored_items, tables, wire
from rl_sync.replay.client import CHANNEL_OPTIONS, SERVICE
from rl_sync.replay.store import DrawnItem, EmbeddedTable, Stored
from rl_sync.replay.tables import TableSpec

_MAX_STREAMS = 256
_LOOK_AROUND_SECS = 0.1
_RESPONSE_BYTES = 1 << 20
_RESPONSE_ITEMS = 64


class ReplayService:
    """Reverb's methods, on tables in this process's memory.

    Each item is kept as the messages in which it arrived.

    Args:
      specs: its tables.
      checkpoints: directory of the checkpoint, which is restored if there is one; None for no
        checkpoints.

    Raises:
      ValueError: two tables have the same name, or the checkpoint is damaged.
    """

    def __init__(self, specs: Sequence[TableSpec], checkpoints: Path | None = None) -> None:
        tables.check_names(specs)
        self._tables = {spec.name: EmbeddedTable(spec) for spec in specs}
        self._checkpoint = None if checkpoints is None else checkpoints / stored_items.NAME
        self._checkpointing = threading.Lock()
        if self._checkpoint is not None and self._checkpoint.exists():
            stored_items.load(self._checkpoint, self._tables)

    def insert_stream(
        self, requests: Iterable[pb.InsertStreamRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.InsertStreamResponse]:
        """Receives chunks and items, and confirms the items that are in their tables."""
        chunks: dict[int, pb.Chunk] = {}
        for request in requests:
            chunks.update((chunk.chunk_key, chunk) for chunk in request.chunks)
            submitted = []
            for item in request.items:
                table = self._table(item.table, context)
                stored = Stored(item.key, item.priority, _payload(item, chunks, context))
                table.submit(stored)
                submitted.append((table, stored))
            kept = set(request.keep_chunk_keys)
            chunks = {key: chunk for key, chunk in chunks.items() if key in kept}
            for table, stored in submitted:
                while table.wait_inserted([stored], time.monotonic() + _LOOK_AROUND_SECS):
                    if not context.is_active():
                        return
            if submitted:
                yield pb.InsertStreamResponse(keys=[stored.key for _, stored in submitted])

    def sample_stream(
        self, requests: Iterable[pb.SampleStreamRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.SampleStreamResponse]:
        """Samples the requested number of items, and waits for each up to the time-out."""
        for request in requests:
            table = self._table(request.table, context)
            timeout_secs = request.rate_limiter_timeout.milliseconds / 1000
            if not request.HasField("rate_limiter_timeout") or timeout_secs < 0:
                timeout_secs = float("inf")
            left = request.num_samples
            while left > 0:
                count = min(left, _RESPONSE_ITEMS)
                drawn = self._draw(table, count, time.monotonic() + timeout_secs, context)
                left -= len(drawn)
                yield from _responses(drawn, table.spec.name)

    def server_info(
        self, request: pb.ServerInfoRequest, context: grpc.ServicerContext
    ) -> pb.ServerInfoResponse:
        """Describes the tables."""
        response = pb.ServerInfoResponse()
        for table in self._tables.values():
            wire.write_info(response.table_info.add(), table.spec, table.info())
        return response

    def checkpoint(
        self, request: pb.CheckpointRequest, context: grpc.ServicerContext
    ) -> pb.CheckpointResponse:
        """Writes all items to the checkpoint, which replaces the one before."""
        del request
        path = self._checkpoint
        if path is None:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "No directory of checkpoints")
        try:
            with self._checkpointing:
                stored_items.save(path, self._tables)
        except OSError as error:
            _abort(context, grpc.StatusCode.INTERNAL, f"{path} cannot be written: {error}")
        return pb.CheckpointResponse(checkpoint_path=str(path))

    def reset(self, request: pb.ResetRequest, context: grpc.ServicerContext) -> pb.ResetResponse:
        """Empties a table."""
        self._table(request.table, context).reset()
        return pb.ResetResponse()

    def _table(self, name: str, context: grpc.ServicerContext) -> EmbeddedTable:
        if (table := self._tables.get(name)) is None:
            _abort(context, grpc.StatusCode.NOT_FOUND, f"Priority table {name} was not found")
        return table

    def _draw(
        self, table: EmbeddedTable, count: int, deadline: float, context: grpc.ServicerContext
    ) -> list[DrawnItem]:
        """Samples items in short waits, so that a client that has left takes no items."""
        while context.is_active():
            drawn = table.sample(count, min(deadline, time.monotonic() + _LOOK_AROUND_SECS))
            if drawn:
                return drawn
            if time.monotonic() >= deadline:
                break
        _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, "Rate Limiter: Timeout exceeded")


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, details: str) -> NoReturn:
    context.abort(code, details)
    raise AssertionError("abort raises")


def _payload(
    item: pb.Item, chunks: dict[int, pb.Chunk], context: grpc.ServicerContext
) -> tuple[pb.FlatTrajectory, list[pb.Chunk]]:
    keys = {
        part.chunk_key for column in item.flat_trajectory.columns for part in column.chunk_slices
    }
    missing = keys - chunks.keys()
    if missing:
        _abort(
            context,
            grpc.StatusCode.INTERNAL,
            f"Item {item.key} refers to chunks that were not sent, or not kept: {missing}",
        )
    return item.flat_trajectory, [chunks[key] for key in sorted(keys)]


def _responses(drawn: list[DrawnItem], table: str) -> Iterator[pb.SampleStreamResponse]:
    response, size_bytes = pb.SampleStreamResponse(), 0
    for one in drawn:
        trajectory, chunks = one.payload
        entry = response.entries.add(data=chunks, end_of_sequence=True)
        entry.info.probability = one.probability
        entry.info.table_size = one.table_size
        item = entry.info.item
        item.key, item.table, item.priority = one.key, table, one.priority
        item.times_sampled = one.times_sampled
        item.flat_trajectory.CopyFrom(trajectory)
        size_bytes += sum(chunk.ByteSize() for chunk in chunks)
        if size_bytes >= _RESPONSE_BYTES:
            yield response
            response, size_bytes = pb.SampleStreamResponse(), 0
    if response.entries:
        yield response


def start(
    specs: Sequence[TableSpec], port: int, host: str, checkpoints: Path | None = None
) -> tuple[grpc.Server, int]:
    """Starts serving, in threads of this process.

    Args:
      specs: its tables.
      port: 0 for any free one.
      host: the address to listen on.
      checkpoints: see `ReplayService`.

    Returns:
      The server, and its port; `stop` ends the server.

    Raises:
      PortTakenError: another process listens there.
      ValueError: see `ReplayService`.
    """
    service = ReplayService(specs, checkpoints)

    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    handlers = {
        "InsertStream": _method(stream, service.insert_stream, pb.InsertStreamRequest),
        "SampleStream": _method(stream, service.sample_stream, pb.SampleStreamRequest),
        "ServerInfo": _method(unary, service.server_info, pb.ServerInfoRequest),
        "Checkpoint": _method(unary, service.checkpoint, pb.CheckpointRequest),
        "Reset": _method(unary, service.reset, pb.ResetRequest),
    }
    # An open stream occupies a thread; beyond the limit clients get an error.
    server = grpc.server(
        futures.ThreadPoolExecutor(_MAX_STREAMS, thread_name_prefix="replay-server"),
        options=[*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)],
        maximum_concurrent_rpcs=_MAX_STREAMS,
    )
    name = SERVICE.strip("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    try:
        bound = server.add_insecure_port(address_of(host, port))
    except RuntimeError as error:
        raise reverb_server.PortTakenError(f"Port {port} cannot be used: {error}") from error
    server.start()
    return server, bound


def _method(
    kind: Callable[..., grpc.RpcMethodHandler],
    function: Callable[..., object],
    request: type[Message],
) -> grpc.RpcMethodHandler:
    """Makes the handler of a method, from the kind of its streams and the class of its requests."""
    return kind(
        function,
        request_deserializer=request.FromString,
        response_serializer=lambda response: response.SerializeToString(),
    )


def main() -> int:
    def serve(args: argparse.Namespace, wait: Callable[[int], None]) -> None:
        checkpoints = Path(args.checkpoints) if args.checkpoints else None
        server, port = start(tables.from_json(args.tables), args.port, args.host, checkpoints)
        wait(port)
        server.stop(grace=None).wait()

    return reverb_server.run(serve, __doc__.splitlines()[0])


if __name__ == "__main__":
    sys.exit(main())
