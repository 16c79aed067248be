"""Server of the endpoint: HTTP, with a key in the path for each episode.

POST /rollout/KEY/v1/chat/completions     a reply of the policy
POST /rollout/KEY/v1/responses            the same, in the form of the Responses API
POST /rollout/KEY/v1/messages             the same, in the form of Anthropic's Messages API
POST /rollout/KEY/v1/messages/count_tokens    the number of tokens of such a request
POST /rollout/KEY/v1/outcome              the rewards of the episode
GET  /rollout/KEY/v1/models               the one model
"""

from __future__ import annotations

import asyncio
import collections
import functools
import hmac
import http
import json
import re
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rl_sync.addons.agents.endpoint import responses
from rl_sync.addons.agents.endpoint.block_events import BlockEvents
from rl_sync.addons.agents.endpoint.chat_events import Events
from rl_sync.addons.agents.endpoint.inbox import Inbox
from rl_sync.addons.agents.endpoint.item_events import ItemEvents
from rl_sync.addons.agents.endpoint.items import conversation_after, read_items, response
from rl_sync.addons.agents.endpoint.limited_server import LimitedServer
from rl_sync.addons.agents.endpoint.message_events import MessageEvents
from rl_sync.addons.agents.endpoint.messages import message, read_messages
from rl_sync.addons.agents.endpoint.refusals import RefusalError, closed, refuse
from rl_sync.addons.agents.endpoint.requests import ChatRequest, read_chat, read_outcome
from rl_sync.environments.hosts.episode_limits import Access
from rl_sync.environments.interface import ANEW, PartialReply, Reply, Turn

MOST_BYTES = 16 << 20
"""Maximum number of bytes of a request's body."""

_PATH = re.compile(r"/rollout/([\w-]+)/v1/([\w./-]+?)/?")
_CLOSED_KEYS = 10_000
_KEY_BYTES = 24
_WAITING_CONNECTIONS = 4096
"""Maximum length of the system's queue of connections, which may have a lower limit."""
_EVENTS_BEGIN = {
    "type": "http.response.start",
    "status": http.HTTPStatus.OK,
    "headers": [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")],
}
_UNREAD = (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
"""Errors of requests whose bodies are not read."""


class AgentEndpoint:
    """Serves the agents of this process's episodes until it is closed.

    Args:
      access: access to the endpoint.
      count: counts the tokens of a conversation, in any thread; None if nothing here can. It raises
        ValueError if the policy cannot be given the conversation.

    Raises:
      OSError: it cannot listen at the address.
    """

    def __init__(
        self, access: Access | None = None, count: Callable[[Turn], int] | None = None
    ) -> None:
        self.access, self.count = access or Access(), count
        self._lock = threading.Lock()
        self._open: dict[str, Inbox] = {}
        self._closed: collections.OrderedDict[str, None] = collections.OrderedDict()
        family = socket.AF_INET6 if ":" in self.access.host else socket.AF_INET
        listener = socket.create_server(
            (self.access.host, 0), family=family, backlog=_WAITING_CONNECTIONS
        )
        self._port = listener.getsockname()[1]
        self._server = LimitedServer(
            functools.partial(_serve, self), listener, self.access.connections
        )
        self._thread = threading.Thread(target=self._server.run, name="endpoint", daemon=True)
        self._thread.start()

    def open(self, inbox: Inbox) -> str:
        """Opens an episode; returns its key."""
        key = secrets.token_urlsafe(_KEY_BYTES)
        with self._lock:
            self._open[key] = inbox
        return key

    def base_url(self, key: str) -> str:
        """Returns the URL that clients of OpenAI take, for an episode's key."""
        host = f"[{self.access.host}]" if ":" in self.access.host else self.access.host
        return f"http://{host}:{self._port}/rollout/{key}/v1"

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
        self._server.should_exit = True
        self._thread.join()


async def _serve(endpoint: AgentEndpoint, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers one request, as ASGI has it."""
    try:
        answer = await _answer(endpoint, Request(scope, receive))
        await answer(scope, receive, send)
    except RefusalError as error:
        closes = {"Connection": "close"} if error.status in _UNREAD else None
        body = error.message_body() if _is_anthropic(scope) else error.body()
        await _json(body, error.status, closes)(scope, receive, send)
    except ClientDisconnect:
        return


def _is_anthropic(scope: Scope) -> bool:
    """Says whether a client of Anthropic asks, which reads errors in another form."""
    found = _PATH.fullmatch(scope["path"])
    is_message = found is not None and found[2].split("/")[0] == "messages"
    return is_message or any(name == b"anthropic-version" for name, _ in scope["headers"])


async def _answer(endpoint: AgentEndpoint, request: Request) -> ASGIApp:
    _require_key(endpoint.access.key, request)
    data = await _body(request)
    path = request.scope["path"]
    if (found := _PATH.fullmatch(path)) is None:
        raise RefusalError(
            http.HTTPStatus.NOT_FOUND,
            f"Nothing is served at {path!r}: take OPENAI_BASE_URL as it is, which ends in /v1.",
        )
    inbox, what = endpoint.find(found[1]), found[2]
    match request.method, what.split("/"):
        case "GET", ["models"]:
            return _json(responses.models())
        case "GET", ["models", *_]:
            return _json(responses.model())
        case "POST", ["outcome"]:
            outcome = read_outcome(data)
            inbox.post(outcome)
            return _json({"rewards": dict(outcome.rewards), "metrics": dict(outcome.metrics)})
        case "POST", ["chat", "completions"]:
            return await _chat(request, inbox, data)
        case "POST", ["responses"]:
            return await _respond(request, inbox, data)
        case "POST", ["messages"]:
            return await _message(request, inbox, data)
        case "POST", ["messages", "count_tokens"] if endpoint.count is not None:
            return await _counted(endpoint.count, read_messages(data, inbox.reasoning))
    raise RefusalError(
        http.HTTPStatus.NOT_FOUND,
        f"{request.method} {what!r} is not served: POST chat/completions, responses, messages and"
        " outcome, and GET models, are.",
    )


def _require_key(key: str | None, request: Request) -> None:
    """Rejects a request without the run's key if other machines can reach the endpoint."""
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    brought = (bearer, request.headers.get("X-Api-Key", ""))
    are_right = [
        key is None or hmac.compare_digest(one.strip().encode(), key.encode()) for one in brought
    ]
    if not any(are_right):
        raise RefusalError(
            http.HTTPStatus.UNAUTHORIZED,
            "The request lacks the run's key for agents: send OPENAI_API_KEY as the agent was"
            " given it, in the header Authorization: Bearer KEY, or X-Api-Key: KEY.",
        )


async def _body(request: Request) -> bytes:
    """Reads the body, unless it is too large."""
    data, size = bytearray(), int(request.headers.get("Content-Length", 0))
    if size <= MOST_BYTES:
        async for part in request.stream():
            data += part
            if (size := len(data)) > MOST_BYTES:
                break
        else:
            return bytes(data)
    raise RefusalError(
        http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"A request may have {MOST_BYTES >> 20} MiB; this one has {size:,} bytes or more.",
    )


class _Waiting:
    """A request for replies, of which its client waits for the parts.

    Attributes:
      is_gone: whether the client has closed the connection.
    """

    def __init__(self, request: Request) -> None:
        self.is_gone = False
        self._loop = asyncio.get_running_loop()
        self._parts: asyncio.Queue[tuple[int, PartialReply | None]] = asyncio.Queue()
        self._watch = self._loop.create_task(self._until_gone(request))

    def hear(self, index: int, part: PartialReply | None) -> None:
        """Adds a part of a choice, or its end; any thread calls it."""
        self._loop.call_soon_threadsafe(self._parts.put_nowait, (index, part))

    async def until_all_end(self, choices: int) -> AsyncIterator[tuple[int, PartialReply | None]]:
        """Waits for the parts of all choices, each of which ends with None."""
        while choices:
            index, part = await self._parts.get()
            choices -= part is None
            yield index, part

    async def _until_gone(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True


async def _chat(request: Request, inbox: Inbox, data: bytes) -> ASGIApp:
    asked = read_chat(data, inbox.reasoning)
    waiting = _Waiting(request)
    choices = inbox.ask(asked, lambda: waiting.is_gone, waiting.hear)
    number = f"chatcmpl-{secrets.token_hex(12)}"
    replies = [choice.reply for choice in choices]
    if asked.stream:
        return _stream(replies, waiting, Events(asked, number))
    async for _ in waiting.until_all_end(len(choices)):
        pass
    return _json(responses.completion(asked, [reply() for reply in replies], number))


async def _respond(request: Request, inbox: Inbox, data: bytes) -> ASGIApp:
    asked = read_items(data, inbox.kept, inbox.reasoning)
    waiting = _Waiting(request)
    (awaited,) = inbox.ask(asked.chat, lambda: waiting.is_gone, waiting.hear)
    number = f"resp_{secrets.token_hex(12)}"

    def replied() -> Reply:
        reply = awaited.reply()
        if asked.keeps:
            inbox.keep(number, conversation_after(asked, reply))
        return reply

    if asked.chat.stream:
        return _stream([replied], waiting, ItemEvents(asked, number))
    async for _ in waiting.until_all_end(1):
        pass
    return _json(response(asked, replied(), number))


async def _message(request: Request, inbox: Inbox, data: bytes) -> ASGIApp:
    asked = read_messages(data, inbox.reasoning)
    waiting = _Waiting(request)
    (awaited,) = inbox.ask(asked, lambda: waiting.is_gone, waiting.hear)
    number = f"msg_{secrets.token_hex(12)}"
    if asked.stream:
        return _stream([awaited.reply], waiting, MessageEvents(asked, number))
    async for _ in waiting.until_all_end(1):
        pass
    return _json(message(asked, awaited.reply(), number))


async def _counted(count: Callable[[Turn], int], asked: ChatRequest) -> ASGIApp:
    turn = Turn(asked.messages, asked.tools, after=ANEW)
    try:
        return _json({"input_tokens": await asyncio.to_thread(count, turn)})
    except ValueError as error:
        raise refuse(str(error), "messages") from error


def _stream(
    replies: Sequence[Callable[[], Reply]], waiting: _Waiting, events: Events | BlockEvents
) -> ASGIApp:
    """Sends replies as events, part by part; a refusal before the first part has a status."""

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False
        try:
            async for index, part in waiting.until_all_end(len(replies)):
                if part is None:
                    piece = b"".join(events.rest(index, replies[index]()))
                else:
                    piece = events.part(index, part)
                if piece and not has_begun:
                    has_begun = True
                    await send(_EVENTS_BEGIN)
                if piece:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            last = b"".join(events.end())
        except RefusalError as error:
            if not has_begun:
                raise
            last = events.broken(error)
        await send({"type": "http.response.body", "body": last})

    return stream


def _json(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(body), status, headers, media_type="application/json")
