"""Server of the endpoint: HTTP on this machine's loopback, with a key in the path for each episode.

POST /rollout/KEY/v1/chat/completions     a reply of the policy
POST /rollout/KEY/v1/outcome              the rewards of the episode
GET  /rollout/KEY/v1/models               the one model
"""

from __future__ import annotations

import collections
import http
import http.server
import json
import logging
import re
import secrets
import selectors
import socket
import socketserver
import threading
from typing import Any

from rl_sync.environments.endpoint import responses
from rl_sync.environments.endpoint.events import Events
from rl_sync.environments.endpoint.inbox import Awaited, Inbox
from rl_sync.environments.endpoint.refusals import RefusalError, closed
from rl_sync.environments.endpoint.requests import read_chat, read_outcome

MOST_BYTES = 16 << 20
"""The most bytes of a request's body."""

_ADDRESS = "127.0.0.1"
_PATH = re.compile(r"/rollout/([\w-]+)/v1/([\w./-]+?)/?(?:\?.*)?")
_SILENT_SECS = 120.0
_CLOSED_KEYS = 10_000
_KEY_BYTES = 24
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Length: 0\r\n\r\n"
)
_log = logging.getLogger(__name__)


class Endpoint:
    """Serves the agents of this process's episodes until it is closed.

    Args:
      connections: the most connections at once; others get status 503.
    """

    def __init__(self, connections: int = 256) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Inbox] = {}
        self._closed: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._server = _Server(self, connections)
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
        return f"http://{_ADDRESS}:{self._server.server_address[1]}/rollout/{key}/v1"

    def shut(self, key: str) -> None:
        """Ends an episode: requests with its key are refused from now on."""
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
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    """A thread for each connection, and a limit of their number."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, endpoint: Endpoint, connections: int) -> None:
        self.endpoint = endpoint
        self._room = threading.Semaphore(connections)
        super().__init__((_ADDRESS, 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            request.sendall(_FULL)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("A connection of an agent broke.", exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    timeout = _SILENT_SECS
    disable_nagle_algorithm = True
    server: _Server
    has_begun = False
    """Whether a part of a stream was sent, behind which no error can have a status."""

    def do_GET(self) -> None:
        """Answers with the model."""
        self._served(self._get)

    def do_POST(self) -> None:
        """Answers with a reply, or takes an outcome."""
        self._served(self._post)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers what the base class refuses with an error of the same form."""
        status = http.HTTPStatus(code)
        self.close_connection = True
        self._send(status, RefusalError(status, message or status.description).body())

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: each episode has many requests."""

    def _served(self, serve: Any) -> None:
        try:
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
        else:
            raise _no_such(what)

    def _chat(self, inbox: Inbox, data: bytes) -> None:
        request = read_chat(data)
        awaited = inbox.ask(request, self._is_gone)
        number = f"chatcmpl-{secrets.token_hex(12)}"
        if request.stream:
            self._stream(awaited, Events(request, number))
        else:
            completion = responses.completion(request, awaited.reply(), number)
            self._send(http.HTTPStatus.OK, completion)

    def _stream(self, awaited: Awaited, events: Events) -> None:
        """Sends a reply in events, as its parts come; a refusal before the first has a status."""
        for part in awaited.parts():
            self._send_piece(events.part(part))
        try:
            pieces = events.rest(awaited.reply())
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
        """Reads the body; after a refusal here, nothing more is read of the connection."""
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
        self.close_connection = closes
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
        """Sends some of a body whose length nobody knows yet."""
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
        """Says whether the client reads bodies in pieces; for others the connection's end ends."""
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


def _no_such(what: str) -> RefusalError:
    return RefusalError(
        http.HTTPStatus.NOT_FOUND,
        f"{what!r} is not served: POST chat/completions and outcome, and GET models, are.",
    )
