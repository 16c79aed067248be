"""A server of HTTP on a socket, whose connections are limited in number."""

from __future__ import annotations

import asyncio
import functools
import json
import resource
import socket
import time

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from rl_sync.addons.agents.endpoint.refusals import refuse

_SILENT_SECS = 120
_FULL_POLL_SECS = 0.02
_ON_ITS_WAY_SECS = 1.0
"""Seconds for which an idle connection stays open, even if others wait."""


class Connection(H11Protocol):
    """A connection, which knows since when its client asks for nothing.

    Attributes:
      silent_since: when it was opened, or had its last answer.
    """

    silent_since = 0.0
    _unread: asyncio.TimerHandle | None = None

    @property
    def is_silent(self) -> bool:
        """Says whether no whole request has arrived that waits for its answer."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.silent_since = time.monotonic()
        super().connection_made(transport)

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are no HTTP in the form of all errors, and closes the connection."""
        del msg
        error = refuse("The request is not HTTP/1: its first line, a header or a chunk is wrong.")
        body = json.dumps(error.body()).encode()
        head = (
            f"HTTP/1.1 {error.status.value} {error.status.phrase}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def on_response_complete(self) -> None:
        self.silent_since = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Waits for a client that reads too slowly, and closes the connection if it stops."""
        super().pause_writing()
        self._unread = self.loop.call_later(_SILENT_SECS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()


class LimitedServer(uvicorn.Server):
    """Serves on a socket, and limits the number of connections: others stay in its queue."""

    def __init__(self, serve: ASGIApp, listener: socket.socket, connections: int) -> None:
        config = uvicorn.Config(
            serve,
            loop="asyncio",
            http=Connection,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_SILENT_SECS,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)
        self._listener, self._most = listener, connections
        # Beyond the limit of open files no client could be accepted, and no idle one be noticed.
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY:
            self._most = max(1, min(connections, files // 2))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._accepting.cancel()
        await super().shutdown(sockets=[self._listener])

    async def _accept(self) -> None:
        """Takes connections as soon as there is room."""
        loop, state = asyncio.get_running_loop(), self.server_state
        make = functools.partial(Connection, self.config, state, {})
        while True:
            while len(state.connections) >= self._most:
                await asyncio.sleep(0 if self._closes_silent() else _FULL_POLL_SECS)
            try:
                taken, _ = await loop.sock_accept(self._listener)
                taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.connect_accepted_socket(make, taken)
            except OSError:
                await asyncio.sleep(_FULL_POLL_SECS)

    def _closes_silent(self) -> bool:
        """Closes the connection that is idle longest, unless its request may be on its way."""
        taken = self.server_state.connections
        silent = [one for one in taken if isinstance(one, Connection) and one.is_silent]
        oldest = min(silent, key=lambda one: one.silent_since, default=None)
        if oldest is None or time.monotonic() - oldest.silent_since < _ON_ITS_WAY_SECS:
            return False
        oldest.transport.abort()
        return True
