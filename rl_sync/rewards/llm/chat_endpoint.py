"""An OpenAI-compatible endpoint: requests with limits, retries and a cache.

All requests of a process run on one event loop in a thread of its own, so that connections, limits
and requests in flight outlive the call that needs them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import email.utils
import functools
import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_sync.rewards.llm.reply_text import ModelReply, Replies

if TYPE_CHECKING:
    import httpx2

_TRANSIENT = (408, 409, 425, 429)
_FIRST_DELAY_SECS = 0.5
_LONGEST_DELAY_SECS = 20.0
_LONGEST_RETRY_AFTER_SECS = 120.0
_CHARACTERS_A_TOKEN = 3.5  # For English: an estimate until the endpoint has counted.
_SHOWN_CHARACTERS = 300


class EndpointError(RuntimeError):
    """Raised for a request that got no reply."""


@dataclasses.dataclass(frozen=True)
class ChatEndpoint:
    """An endpoint with `/chat/completions`.

    Attributes:
      base_url: its address, such as `https://api.openai.com/v1`.
      key_variable: the environment variable with the API key; None for no key.
      timeout_secs: the longest wait for a reply to one request.
      attempts: the number of attempts before a request fails.
      concurrency: the maximum number of requests in flight from this process.
      requests_per_minute, tokens_per_minute: limits of all processes that share `cache`, together;
        0 for no limit.
      cache: the directory of replies; None keeps them in this process's memory.
    """

    base_url: str
    key_variable: str | None
    timeout_secs: float
    attempts: int
    concurrency: int
    requests_per_minute: float
    tokens_per_minute: float
    cache: str | None

    async def ask(self, body: Mapping[str, Any]) -> ModelReply:
        """Sends a request, unless its reply is cached. It can be awaited on any event loop.

        Raises:
          EndpointError: the last attempt got no reply, or the endpoint refuses the request.
        """
        desk = _desk(self)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(desk.ask(body), _loop()))


class _RequestThreads:
    """The state of an endpoint; only the event loop's thread may use it."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        import httpx2

        self._endpoint = endpoint
        self._http = httpx2.AsyncClient(
            timeout=endpoint.timeout_secs,
            limits=httpx2.Limits(max_connections=endpoint.concurrency),
            verify=endpoint.base_url.startswith("https"),  # Certificates take a while to load.
        )
        self._failures = httpx2.TransportError
        self._room = asyncio.Semaphore(endpoint.concurrency)
        self._flying: dict[str, asyncio.Task[ModelReply]] = {}
        self._plain = False  # True once the endpoint has refused a schema.

    @functools.cached_property
    def _replies(self) -> Replies:
        cache = self._endpoint.cache
        return Replies(None if cache is None else Path(cache).expanduser())

    async def ask(self, body: Mapping[str, Any]) -> ModelReply:
        """Returns a cached reply, or sends a request; equal requests in flight share one reply."""
        key = _key(self._endpoint.base_url, body)
        known = self._replies.find(key)
        if known is not None:
            return known
        task = self._flying.get(key)
        if task is not None:
            return (await asyncio.shield(task))._replace(cached=True)
        task = self._flying[key] = asyncio.ensure_future(self._fetched(key, body))
        task.add_done_callback(lambda done: self._landed(key, done))
        # The caller may give up. The reply is cached all the same, for the next request.
        return await asyncio.shield(task)

    def _landed(self, key: str, task: asyncio.Task[ModelReply]) -> None:
        self._flying.pop(key, None)
        if not task.cancelled():
            task.exception()  # Marks an error as seen, as nobody may wait for it any more.

    async def _fetched(self, key: str, body: Mapping[str, Any]) -> ModelReply:
        reply = await self._tried(body)
        if reply.text is not None:
            self._replies.keep(key, reply)
        return reply

    async def _tried(self, body: Mapping[str, Any]) -> ModelReply:
        fault = ""
        for attempt in range(self._endpoint.attempts):
            delay = _backoff(attempt)
            try:
                response = await self._post(body)
            except self._failures as error:
                fault = f"{type(error).__name__} {error}".strip()
            else:
                if response.status_code == 200:
                    try:
                        return _reply(response.json())
                    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                        fault = f"a reply that cannot be read ({type(error).__name__}: {error})"
                elif response.status_code in _TRANSIENT or response.status_code >= 500:
                    fault = self._fault(response)
                    delay = _retry_after(response.headers.get("retry-after"), delay)
                    if delay > _LONGEST_RETRY_AFTER_SECS:
                        raise EndpointError(f"{fault}; it asks to wait {delay:.0f} s")
                elif not self._plain and _refuses_schema(response, body):
                    self._plain, delay = True, 0.0
                    fault = self._fault(response)
                else:
                    raise EndpointError(self._fault(response))
            if attempt + 1 < self._endpoint.attempts:
                await asyncio.sleep(delay)
        raise EndpointError(f"no reply in {self._endpoint.attempts} attempts; the last: {fault}")

    async def _post(self, body: Mapping[str, Any]) -> httpx2.Response:
        endpoint = self._endpoint
        if self._plain:
            body = {name: value for name, value in body.items() if name != "response_format"}
        text = json.dumps(body)
        number = await self._admitted(str(body.get("model")), len(text) / _CHARACTERS_A_TOKEN)
        headers = {"content-type": "application/json"}
        if endpoint.key_variable is not None:
            headers["authorization"] = f"Bearer {os.environ.get(endpoint.key_variable, '')}"
        url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        async with self._room:
            response = await self._http.post(url, content=text, headers=headers)
        used = _used(response)
        if number is not None and used:
            self._replies.correct(number, used)
        return response

    async def _admitted(self, model: str, tokens: float) -> int | None:
        """Waits until the limits allow a request; returns its number, or None without limits."""
        endpoint = self._endpoint
        limits = endpoint.requests_per_minute, endpoint.tokens_per_minute
        if not any(limits):
            return None
        name = f"{endpoint.base_url} {model}"
        while not isinstance(found := self._replies.enter(name, tokens, *limits), int):
            await asyncio.sleep(found)
        return found

    def _fault(self, response: httpx2.Response) -> str:
        text = response.text[:_SHOWN_CHARACTERS].strip()
        variable = self._endpoint.key_variable
        key = os.environ.get(variable, "") if variable else ""
        text = text.replace(key, "…") if key else text
        return f"HTTP {response.status_code} of {self._endpoint.base_url}: {text}"


@functools.cache
def _desk(endpoint: ChatEndpoint) -> _RequestThreads:
    return asyncio.run_coroutine_threadsafe(_made(endpoint), _loop()).result()


async def _made(endpoint: ChatEndpoint) -> _RequestThreads:
    return _RequestThreads(endpoint)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="endpoints", daemon=True).start()
    return loop


def _key(base_url: str, body: Mapping[str, Any]) -> str:
    text = json.dumps([base_url, body], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _reply(found: Any) -> ModelReply:
    """Reads a chat completion."""
    choice = found["choices"][0]
    message, finish = choice["message"], choice.get("finish_reason")
    text, refusal = message.get("content"), message.get("refusal")
    if finish == "content_filter":
        refusal = refusal or "the endpoint's filter stopped the reply"
    if finish == "length":
        refusal = "the reply was cut at its most tokens"
    if not refusal and not isinstance(text, str):
        raise ValueError(f"the content is {text!r}")
    usage = found.get("usage") or {}
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    tokens_in, tokens_out = (count if isinstance(count, int) else None for count in counts)
    return ModelReply(None if refusal else text, refusal or None, tokens_in, tokens_out)


def _used(response: httpx2.Response) -> float:
    """Returns the tokens that a response counts; 0 if it counts none."""
    try:
        total = response.json()["usage"]["total_tokens"]
    except (ValueError, KeyError, TypeError):
        return 0.0
    return float(total) if isinstance(total, int) else 0.0


def _refuses_schema(response: httpx2.Response, body: Mapping[str, Any]) -> bool:
    """Says whether an endpoint refused the schema that a request asks replies to follow."""
    if "response_format" not in body or response.status_code not in (400, 404, 415, 422, 501):
        return False
    return any(word in response.text for word in ("response_format", "json_schema", "schema"))


def _backoff(attempt: int) -> float:
    """Draws a delay (exponential with full jitter)."""
    most = min(_LONGEST_DELAY_SECS, _FIRST_DELAY_SECS * 2**attempt)
    return random.uniform(most / 10, most)


def _retry_after(header: str | None, otherwise: float) -> float:
    """Reads Retry-After: seconds, or a date (RFC 9110, section 10.2.3)."""
    if header is None:
        return otherwise
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError):
        return otherwise
