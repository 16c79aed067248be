"""A client of a Reverb server that needs no TensorFlow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn, TypeVar

import grpc
import grpc.experimental
from google.protobuf.message import Message

from rl_sync.replay import reverb_pb2, wire
from rl_sync.replay.replay_interface import (
    RPC_TIMEOUT_SECS,
    Columns,
    ReplayError,
    ReplayTimeoutError,
    ReplayUnavailableError,
    Sample,
)
from rl_sync.replay.streams import InsertStream, Ticket
from rl_sync.replay.tables import TableInfo

SERVICE = "/deepmind.reverb.ReverbService/"
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]

_MESSAGE_ITEMS = 64
_MESSAGE_BYTES = 1 << 20
_REQUEST_SAMPLES = 256
_DRAW_SECS = 2.0
_LOOK_SECS, _MOST_LOOK_SECS = 0.005, 0.05
_LOOK_SHARE = 0.02  # Poll interval as a share of the time that the table was empty.
_FRESH_SECS = 0.1
_STATE_SECS = 5.0  # For what a message about a time-out adds.

M = TypeVar("M", bound=Message)


class ReplayClient:
    """Reads and writes the tables of one server.

    Threads may share a client, and call all its methods except `close` concurrently. It must not be
    used in a forked process.

    Args:
      address: `host:port`. No connection is made before the first request.
      columns: names of the columns of items that another client wrote without names; by default
        column_0, column_1, ….
      may_restart: whether the server may be started again with an earlier checkpoint. If not, lost
        items are an error.
    """

    def __init__(
        self, address: str, columns: Sequence[str] | None = None, *, may_restart: bool = False
    ) -> None:
        self.address = address
        self.may_restart = may_restart
        self._names = columns
        self._lock = threading.Lock()
        self._streams: dict[str, InsertStream] = {}
        self._broken_streams = 0  # Those that others have taken the places of.
        self._there: dict[str, int] = {}
        self._looking = threading.Lock()
        self._counts: dict[str, tuple[int, int]] = {}
        self._drawn: dict[str, int] = {}
        self._looked_secs = 0.0
        self._empty_since_secs: dict[str, float] = {}
        # A call driven by the calling thread takes half as long as one driven by gRPC's threads.
        driven_by_caller = (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)
        self._channel = grpc.insecure_channel(address, options=[*CHANNEL_OPTIONS, driven_by_caller])
        pb = reverb_pb2
        self._server_info = self._unary("ServerInfo", pb.ServerInfoResponse)
        self._reset = self._unary("Reset", pb.ResetResponse)
        self._checkpoint = self._unary("Checkpoint", pb.CheckpointResponse)
        # The server reads a stream of requests. We send a stream of only one request, which saves a
        # thread for each call.
        self._sample_stream = self._channel.unary_stream(
            SERVICE + "SampleStream",
            request_serializer=pb.SampleStreamRequest.SerializeToString,
            response_deserializer=pb.SampleStreamResponse.FromString,
        )

    def __enter__(self) -> ReplayClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def insert(
        self, table: str, columns: Columns, *, priority: float = 1.0, timeout_secs: float
    ) -> None:
        """Inserts one item, and returns when the table holds it.

        Raises:
          ReplayTimeoutError: the table had no room in that time. The item is not lost: it waits at
            the server, and is inserted as soon as there is room. So do not insert it again; wait
            for it with `flush`.
          ValueError: a dtype cannot be stored.
        """
        self.insert_many(table, [columns], priorities=[priority], timeout_secs=timeout_secs)

    def insert_many(
        self,
        table: str,
        items: Sequence[Columns],
        *,
        priorities: Sequence[float] | None = None,
        timeout_secs: float,
    ) -> None:
        """Inserts items in order, pipelined; otherwise like `insert`.

        If one of them cannot be stored, those before it may already be stored.
        """
        deadline = time.monotonic() + timeout_secs
        weights = [1.0] * len(items) if priorities is None else priorities
        stream = self._stream(table)
        tickets = []
        encoded = (
            wire.encode_item(table, columns, weight)
            for columns, weight in zip(items, weights, strict=True)
        )
        for batch in _batches(encoded):
            message = b"".join(piece for item in batch for piece in item.pieces)
            tickets.append(stream.send(message, [item.key for item in batch]))
        self._settle(table, stream, tickets, deadline, timeout_secs)

    def flush(self, timeout_secs: float) -> None:
        """Waits until all items inserted through this object are in their tables.

        Raises:
          ReplayTimeoutError: some items still wait for room.
        """
        deadline = time.monotonic() + timeout_secs
        with self._lock:
            streams = dict(self._streams)
        for table, stream in streams.items():
            self._settle(table, stream, stream.outstanding(), deadline, timeout_secs)

    def sample(self, table: str, count: int = 1, *, timeout_secs: float) -> list[Sample]:
        """Samples `count` items, or as many as possible in the given time, but at least one.

        Raises:
          ReplayTimeoutError: no item could be sampled in time.
        """
        deadline = time.monotonic() + timeout_secs
        samples: list[Sample] = []
        while len(samples) < count:
            # If a server gives up on a request, it may lose items that it took from the table for
            # the request. So a request does not wait: it only asks for items that are there.
            there = self._drawable(table)
            if there:
                self._empty_since_secs.pop(table, None)
                wanted = min(count - len(samples), there, _REQUEST_SAMPLES)
                drawn = self._draw(table, wanted, _DRAW_SECS)
                samples += drawn
                self._drawn[table] = self._drawn.get(table, 0) + len(drawn)
                self._there[table] = there - wanted if len(drawn) == wanted else 0
            elif time.monotonic() < deadline:
                time.sleep(min(self._pause_secs(table), max(0.0, deadline - time.monotonic())))
            elif samples:
                break
            else:
                raise ReplayTimeoutError(
                    f"Waited {timeout_secs:.1f} s for an item to sample from replay table"
                    f" {table!r} at {self.address}; {self._state_of(table)}."
                )
        return samples

    def _pause_secs(self, table: str) -> float:
        """Returns the seconds to wait before polling an empty table again."""
        now = time.monotonic()
        empty_secs = now - self._empty_since_secs.setdefault(table, now)
        return min(max(_LOOK_SECS, _LOOK_SHARE * empty_secs), _MOST_LOOK_SECS)

    def _drawable(self, table: str) -> int:
        """Returns the number of items that can be sampled at once, as far as this client knows."""
        fresh = time.monotonic() - self._looked_secs < _FRESH_SECS
        if not fresh or not self._there.get(table):
            with self._looking:
                drawn = dict(self._drawn)  # Before the request: other threads may sample meanwhile.
                response = self._ask(
                    self._server_info, reverb_pb2.ServerInfoRequest(), "describe itself"
                )
                if not self.may_restart:
                    for info in response.table_info:
                        self._require_growth(wire.read_info(info), drawn.get(info.name, 0))
            self._there = {info.name: wire.drawable(info) for info in response.table_info}
            self._looked_secs = time.monotonic()
            if table not in self._there:
                raise ReplayError(
                    f"The replay server at {self.address} has no table {table!r}; its tables are"
                    f" {', '.join(self._there)}."
                )
        return self._there[table]

    def _require_growth(self, info: TableInfo, drawn: int) -> None:
        """Raises ReplayError if a table's counts are lower than when this client last saw them.

        Counts restart in a table that another client has reset. Its items are gone, and a wait for
        them would never end.
        """
        inserted, sampled = self._counts.get(info.name, (0, 0))
        sampled = max(sampled, drawn)
        if info.num_inserted < inserted or info.num_sampled < sampled:
            raise ReplayError(
                f"Replay table {info.name!r} at {self.address} has lost its items: it counts"
                f" {info.num_inserted} inserted and {info.num_sampled} drawn, after {inserted} and"
                f" {sampled}. Another process emptied it (a Reset of Reverb), or started the server"
                " anew; any process that reaches its port can. A run needs a table of its own."
            )
        self._counts[info.name] = info.num_inserted, info.num_sampled

    def info(self, timeout_secs: float = RPC_TIMEOUT_SECS) -> dict[str, TableInfo]:
        """Returns the state of every table, by name."""
        request = reverb_pb2.ServerInfoRequest()
        response = self._ask(self._server_info, request, "describe itself", timeout_secs)
        return {table.name: wire.read_info(table) for table in response.table_info}

    def reset(self, table: str) -> None:
        """Empties a table and resets its rate limiter."""
        with self._looking:
            self._there, self._counts, self._drawn = {}, {}, {}
            self._ask(self._reset, reverb_pb2.ResetRequest(table=table), f"reset table {table!r}")

    @property
    def breaks(self) -> int:
        """Number of times that the server has ended while this client inserted, or might have."""
        with self._lock:
            open_ones = self._streams.values()
            return self._broken_streams + sum(one.error is not None for one in open_ones)

    def checkpoint(self, timeout_secs: float = RPC_TIMEOUT_SECS) -> str:
        """Lets the server write a checkpoint of all tables; returns its path there."""
        request = reverb_pb2.CheckpointRequest()
        return self._ask(
            self._checkpoint, request, "write a checkpoint", timeout_secs
        ).checkpoint_path

    def close(self) -> None:
        """Ends streams and threads. Items that still wait for room stay at the server."""
        with self._lock:
            streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.close()
        self._channel.close()

    def _unary(self, method: str, response: type[M]) -> Callable[..., M]:
        return self._channel.unary_unary(
            SERVICE + method,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response.FromString,
        )

    def _open_stream(
        self, requests: Iterator[bytes], on_response: Callable[[bytes], bytes]
    ) -> grpc.Call:
        method = self._channel.stream_stream(
            SERVICE + "InsertStream", request_serializer=None, response_deserializer=on_response
        )
        return method(requests)

    def _stream(self, table: str) -> InsertStream:
        """Returns the table's stream; makes a new one if there is none or it has ended.

        There is one for each table, since a full table blocks everything behind it on its stream.
        """
        with self._lock:
            stream = self._streams.get(table)
            if stream is None or (stream.error is not None and not stream.outstanding()):
                self._broken_streams += stream is not None
                stream = self._streams[table] = InsertStream(self._open_stream)
            return stream

    def _settle(
        self,
        table: str,
        stream: InsertStream,
        tickets: Sequence[Ticket],
        deadline: float,
        timeout_secs: float,
    ) -> None:
        """Waits for confirmations; if they do not come, raises an error that says why."""
        try:
            if stream.wait(tickets, deadline):
                return
        except grpc.RpcError as error:
            unsure = sum(ticket.unconfirmed for ticket in tickets)
            with self._lock:
                if self._streams.get(table) is stream:
                    del self._streams[table]
                    self._broken_streams += 1
            self._fail(error, f"confirm {unsure} item(s) of table {table!r}")
        left = sum(ticket.unconfirmed for ticket in tickets)
        raise ReplayTimeoutError(
            f"Waited {timeout_secs:.1f} s for room for {left} item(s) in replay"
            f" table {table!r} at {self.address}; {self._state_of(table)}. They go in as soon as"
            " there is room: wait for them with flush(), do not insert them again."
        )

    def _draw(self, table: str, count: int, wait_secs: float) -> list[Sample]:
        """Samples `count` items, or fewer if other clients take them and no more come in time."""
        request = reverb_pb2.SampleStreamRequest(table=table, num_samples=count)
        request.rate_limiter_timeout.milliseconds = max(1, round(wait_secs * 1000))
        call = self._sample_stream(request, timeout=RPC_TIMEOUT_SECS + wait_secs)
        samples: list[Sample] = []
        info = reverb_pb2.SampleInfo()
        chunks: list[reverb_pb2.Chunk] = []
        try:
            for response in call:
                for entry in response.entries:
                    info = entry.info if entry.HasField("info") else info
                    chunks.extend(entry.data)
                    if entry.end_of_sequence:
                        samples.append(wire.read_sample(info, chunks, self._names))
                        chunks = []
        except grpc.RpcError as error:
            refused_by_limiter = "rate limiter" in (error.details() or "").lower()
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and refused_by_limiter:
                return samples
            self._fail(error, f"sample from table {table!r}")
        return samples

    def _ask(
        self,
        method: Callable[..., M],
        request: Message,
        doing: str,
        timeout_secs: float = RPC_TIMEOUT_SECS,
    ) -> M:
        try:
            return method(request, timeout=timeout_secs)
        except grpc.RpcError as error:
            self._fail(error, doing)

    def _fail(self, error: grpc.RpcError, doing: str) -> NoReturn:
        """Raises our error for a gRPC error."""
        code, details = error.code(), error.details()
        if code == grpc.StatusCode.NOT_FOUND:
            raise ReplayError(
                f"The replay server at {self.address} cannot {doing}: {details}. Its tables are"
                f" {', '.join(self.info())}."
            ) from error
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            raise ReplayUnavailableError(
                f"The replay server at {self.address} did not {doing}: it cannot be reached"
                f" ({details}). Is it running? Its log says why it ended."
            ) from error
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise ReplayUnavailableError(
                f"The replay server at {self.address} did not {doing} in time: it hangs, or is"
                f" overloaded ({details})."
            ) from error
        raise ReplayError(
            f"The replay server at {self.address} refused to {doing}: {code.name}: {details}"
        ) from error

    def _state_of(self, table: str) -> str:
        """Describes a table, for the message of a time-out."""
        try:
            info = self.info(_STATE_SECS).get(table)
        except ReplayError as error:
            return str(error).rstrip(".")
        if info is None:
            return "the server has no such table"
        return f"it holds {info.current_size} of at most {info.max_size} items"


def _batches(items: Iterable[wire.EncodedItem]) -> Iterator[list[wire.EncodedItem]]:
    """Groups items into messages that are neither tiny nor huge."""
    batch, size_bytes = [], 0
    for item in items:
        batch.append(item)
        size_bytes += item.size_bytes
        if len(batch) >= _MESSAGE_ITEMS or size_bytes >= _MESSAGE_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch
