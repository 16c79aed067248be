"""Server of the endpoint: HTTP, with a key in the path for each episode.

POST /rollout/KEY/v1/chat/completions     a reply of the policy
POST /rollout/KEY/v1/responses            the same, in the form of the Responses API
POST /rollout/KEY/v1/outcome              the rewards of the episode
GET  /rollout/KEY/v1/models               the one model
"""

from __future__ import annotations

import collections
import contextlib
import hmac
import http
import http.server
import json
import logging
import re
import resource
import secrets
import selectors
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rl_sync.addons.agents.endpoint import responses
from rl_sync.addons.agents.endpoint.chat_events import Events
from rl_sync.addons.agents.endpoint.inbox import Inbox, Parts
from rl_sync.addons.agents.endpoint.item_events import ItemEvents
from rl_sync.addons.agents.endpoint.items import conversation_after, read_items, response
from rl_sync.addons.agents.endpoint.refusals import RefusalError, closed
from rl_sync.addons.agents.endpoint.requests import read_chat, read_outcome
from rl_sync.environments.hosts.episode_limits import Access
from rl_sync.environments.interface import PartialReply, Reply

MOST_BYTES = 16 << 20
"""Maximum number of bytes of a request's body."""

_PATH = re.compile(r"/rollout/([\w-]+)/v1/([\w./-]+?)/?(?:\?.*)?")
_SILENT_SECS = 120.0
_CLOSED_KEYS = 10_000
_KEY_BYTES = 24
_CLOSING_POLL_SECS = 0.1
_ON_ITS_WAY_SECS = 1.0
"""Seconds for which an idle connection stays open, even if others wait."""
_log = logging.getLogger(__name__)


class AgentEndpoint:
    """Serves the agents of this process's episodes until it is closed.

    Args:
      access: access to the endpoint.

    Raises:
      OSError: it cannot listen at the address.
    """

    def __init__(self, access: Access | None = None) -> None:
        self.access = access or Access()
        self._lock = threading.Lock()
        self._open: dict[str, Inbox] = {}
        self._closed: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._server = _LimitedServer(self)
        serve = threading.Thread(
            target=self._server.serve_forever, args=[0.1], name="endpoint", daemon=True
        )
        serve.start()

    def open(self, inbox: Inbox) -> str:
        """Opens an episode; returns its key."""
        key = secrets.token_urlsafe(_KEY_BYTES)
        with self._lock:
            self._open[key] = inbox
        return key

    def base_url(self, key: str) -> str:
        """Returns the URL that clients of OpenAI take, for an episode's key."""
        host = f"[{self.access.host}]" if ":" in self.access.host else self.access.host
        return f"http://{host}:{self._server.server_address[1]}/rollout/{key}/v1"

    def api_key(self, key: str) -> str:
        """Returns the key that clients of OpenAI take, for an episode's key."""
        return self.access.key or key

    def shut(self, key: str) -> None:
        """Ends an episode: requests with its key are rejected from now on."""
        with self._lock:
            inbox = self._open.pop(key)
            self._closed[key] = None
            if len(self._closed) > _CLOSED_KEYS:
                self._closed.popitem(last=False)
        inbox.close()

    def find(self, key: str) -> Inbox:
        """Returns the inbox of an episode.

        Raises:
          RefusalError: the episode has ended (status 410), or never was (404).
        """
        with self._lock:
            if (inbox := self._open.get(key)) is not None:
                return inbox
            if key in self._closed:
                raise closed()
        raise RefusalError(
            http.HTTPStatus.NOT_FOUND, "No episode has this key: take OPENAI_BASE_URL as it is."
        )

    def close(self) -> None:
        """Ends all episodes, and the server."""
        for key in list(self._open):
            self.shut(key)
        self._server.is_closing = True
        self._server.shutdown()
        self._server.server_close()


class _LimitedServer(socketserver.ThreadingTCPServer):
    """Serves each connection in a thread, and limits the number of connections.

    Attributes:
      is_closing: whether waiting connections are dropped.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    # Waiting connections stay in the system's queue, which has its own limit.
    request_queue_size = 4096

    def __init__(self, endpoint: AgentEndpoint) -> None:
        self.endpoint, self.is_closing = endpoint, False
        self._changed = threading.Condition()
        self._taken = 0
        # Beyond the limit of open files no client could be accepted, and no idle one be noticed.
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = endpoint.access.connections
        if files != resource.RLIM_INFINITY:
            self._most = max(1, min(self._most, files // 2))
        self._silent: collections.OrderedDict[socket.socket, float] = collections.OrderedDict()
        if ":" in endpoint.access.host:
            self.address_family = socket.AF_INET6
        super().__init__((endpoint.access.host, 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection as soon as there is room."""
        with self._changed:
            while self._taken >= self._most and not self.is_closing:
                self._close_silent()
                self._changed.wait(_CLOSING_POLL_SECS)
            self._taken += 1
            self._silent[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._left(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._left(request)

    def has_asked(self, request: socket.socket) -> None:
        """Records that a whole request has arrived on a connection."""
        with self._changed:
            self._silent.pop(request, None)

    def has_answered(self, request: socket.socket) -> None:
        """Records that a connection waits for its client's next request."""
        with self._changed:
            self._silent[request] = time.monotonic()
            self._changed.notify_all()

    def _close_silent(self) -> None:
        """Closes the connection that is idle longest, unless its request may be on its way."""
        oldest, since = next(iter(self._silent.items()), (None, 0.0))
        if oldest is not None and time.monotonic() - since > _ON_ITS_WAY_SECS:
            del self._silent[oldest]
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # Its thread then ends.

    def _left(self, request: socket.socket) -> None:
        with self._changed:
            self._taken -= 1
            self._silent.pop(request, None)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("A connection of an agent broke.", exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    timeout = _SILENT_SECS
    disable_nagle_algorithm = True
    server: _LimitedServer
    has_begun = False
    """Whether a part of a stream was sent, after which no error can have a status."""

    def do_GET(self) -> None:
        """Answers with the model."""
        self._served(self._get)

    def do_POST(self) -> None:
        """Answers with a reply, or takes an outcome."""
        self._served(self._post)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers with an error of the usual form if the base class rejects a request."""
        status = http.HTTPStatus(code)
        self.close_connection = True
        self._send(status, RefusalError(status, message or status.description).body())

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, since each episode has many requests."""

    def _served(self, serve: Any) -> None:
        try:
            self._require_key()
            serve()
        except RefusalError as error:
            self._send(error.status, error.body())
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            _log.exception("A request of an agent could not be served.")
            if self.has_begun:
                self.close_connection = True
                return
            self.send_error(http.HTTPStatus.INTERNAL_SERVER_ERROR)
        finally:
            self.server.has_answered(self.connection)

    def _require_key(self) -> None:
        """Rejects a request without the run's key if other machines can reach the endpoint."""
        if (key := self.server.endpoint.access.key) is None:
            return
        brought = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(brought.encode(), key.encode()):
            self.close_connection = True  # Its body is not read.
            raise RefusalError(
                http.HTTPStatus.UNAUTHORIZED,
                "The request lacks the run's key for agents: send OPENAI_API_KEY as the agent was"
                " given it, in the header Authorization: Bearer KEY.",
            )

    def _get(self) -> None:
        key, what = self._where()
        self.server.endpoint.find(key)
        if what == "models":
            self._send(http.HTTPStatus.OK, responses.models())
        elif what.startswith("models/"):
            self._send(http.HTTPStatus.OK, responses.model())
        else:
            raise _no_such(what)

    def _post(self) -> None:
        data = self._body()
        key, what = self._where()
        inbox = self.server.endpoint.find(key)
        if what == "outcome":
            outcome = read_outcome(data)
            inbox.post(outcome)
            found = {"rewards": dict(outcome.rewards), "metrics": dict(outcome.metrics)}
            self._send(http.HTTPStatus.OK, found)
        elif what == "chat/completions":
            self._chat(inbox, data)
        elif what == "responses":
            self._respond(inbox, data)
        else:
            raise _no_such(what)

    def _chat(self, inbox: Inbox, data: bytes) -> None:
        request = read_chat(data, inbox.reasoning)
        choices, parts = inbox.ask(request, self._is_gone)
        number = f"chatcmpl-{secrets.token_hex(12)}"
        if request.stream:
            self._stream([choice.reply for choice in choices], parts, Events(request, number))
        else:
            replies = [choice.reply() for choice in choices]
            self._send(http.HTTPStatus.OK, responses.completion(request, replies, number))

    def _respond(self, inbox: Inbox, data: bytes) -> None:
        request = read_items(data, inbox.kept, inbox.reasoning)
        (awaited,), parts = inbox.ask(request.chat, self._is_gone)
        number = f"resp_{secrets.token_hex(12)}"

        def replied() -> Reply:
            reply = awaited.reply()
            if request.keeps:
                inbox.keep(number, conversation_after(request, reply))
            return reply

        if request.chat.stream:
            self._stream([replied], parts, ItemEvents(request, number))
        else:
            self._send(http.HTTPStatus.OK, response(request, replied(), number))

    def _stream(
        self, replies: Sequence[Callable[[], Reply]], parts: Parts, events: Events | ItemEvents
    ) -> None:
        """Sends replies as events, part by part; a refusal before the first part has a status."""
        try:
            for index, part in _until_all_end(parts, len(replies)):
                if part is not None:
                    self._send_piece(events.part(index, part))
                    continue
                for piece in events.rest(index, replies[index]()):
                    self._send_piece(piece)
            pieces = events.end()
        except RefusalError as error:
            if not self.has_begun:
                raise
            pieces = [events.broken(error)]
        for piece in pieces:
            self._send_piece(piece)
        self._end_pieces()

    def _where(self) -> tuple[str, str]:
        """Returns the key in the path, and what follows it."""
        found = _PATH.fullmatch(self.path)
        if found is None:
            raise RefusalError(
                http.HTTPStatus.NOT_FOUND,
                f"Nothing is served at {self.path!r}: take OPENAI_BASE_URL as it is, which ends in"
                " /v1.",
            )
        return found[1], found[2]

    def _body(self) -> bytes:
        """Reads the body; after a refusal here, nothing more is read from the connection."""
        length = self.headers.get("Content-Length", "")
        closes, self.close_connection = self.close_connection, True
        if not length.isdecimal():
            raise RefusalError(
                http.HTTPStatus.LENGTH_REQUIRED, "A request needs the header Content-Length."
            )
        if int(length) > MOST_BYTES:
            raise RefusalError(
                http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"A request may have {MOST_BYTES >> 20} MiB, not {int(length) / (1 << 20):.1f}.",
            )
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            raise ConnectionResetError("The client went before its request was whole.")
        self.close_connection = closes
        self.server.has_asked(self.connection)
        return data

    def _is_gone(self) -> bool:
        """Says whether the client has closed the connection."""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self.connection, selectors.EVENT_READ)
                is_silent = not selector.select(0)
            return not is_silent and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def _send_piece(self, piece: bytes) -> None:
        """Sends a part of a body of unknown length."""
        if not piece:
            return  # An empty piece would end the body.
        if not self.has_begun:
            self.has_begun = True
            self.send_response(http.HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            if self._knows_pieces:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.close_connection = True
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
        framed = b"%x\r\n%b\r\n" % (len(piece), piece) if self._knows_pieces else piece
        self.wfile.write(framed)

    def _end_pieces(self) -> None:
        if self._knows_pieces:
            self.wfile.write(b"0\r\n\r\n")
        self.has_begun = False

    @property
    def _knows_pieces(self) -> bool:
        """Says whether the client reads chunked bodies; others end with the connection."""
        return self.request_version != "HTTP/1.0"

    def _send(self, status: http.HTTPStatus, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


def _until_all_end(parts: Parts, choices: int) -> Iterator[tuple[int, PartialReply | None]]:
    """Waits for the parts of all choices, each of which ends with None."""
    while choices:
        index, part = parts.get()
        choices -= part is None
        yield index, part


def _no_such(what: str) -> RefusalError:
    return RefusalError(
        http.HTTPStatus.NOT_FOUND,
        f"{what!r} is not served: POST chat/completions, responses and outcome, and GET models,"
        " are.",
    )
