"""Completions that a served engine streams, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.rollout.served.vllm_calls import (
    EngineLostError,
    EngineRefusedError,
    ServedTokens,
    VllmCalls,
)


class StreamEvent(NamedTuple):
    """A part of a stream, or the error that ended it.

    Attributes:
      stream: number of the stream.
      part: the new tokens, or the error.
    """

    stream: int
    part: ServedTokens | EngineLostError | EngineRefusedError


class TokenStreams:
    """Streams of one server.

    Args:
      calls: calls of the server.
      most: maximum number of streams at once.
    """

    def __init__(self, calls: VllmCalls, most: int) -> None:
        self._calls = calls
        self._events = queue.SimpleQueue[StreamEvent]()
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._number = 0
        self._http = calls.streaming(most)
        threading.Thread(target=self._loop.run_forever, name="streams", daemon=True).start()

    def begin(self, tokens: Sequence[int], sampling: Mapping[str, Any], salt: str) -> int:
        """Begins a stream; see `VllmCalls.stream`.

        Returns:
          Its number.
        """
        self._number += 1
        number = self._number
        self._loop.call_soon_threadsafe(
            lambda: self._start(number, self._read(number, tokens, sampling, salt))
        )
        return number

    def end(self, number: int) -> None:
        """Ends a stream, of which nothing is wanted any more; the engine stops its request."""
        self._loop.call_soon_threadsafe(lambda: self._stop(number))

    def events(
        self, wait_secs: float, is_enough: Callable[[StreamEvent], bool]
    ) -> list[StreamEvent]:
        """Returns the events so far, in their order.

        Args:
          wait_secs: time to wait for more.
          is_enough: says whether an event ends the wait.
        """
        found, until = list[StreamEvent](), time.monotonic() + wait_secs
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                found.append(self._events.get(timeout=left))
                if is_enough(found[-1]):
                    break
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._events.get_nowait())
        return found

    def close(self) -> None:
        """Ends all streams and the thread."""

        async def end() -> None:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self._http.aclose()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _start(self, number: int, reading: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[number] = self._loop.create_task(reading)
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def _stop(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    async def _read(
        self, number: int, tokens: Sequence[int], sampling: Mapping[str, Any], salt: str
    ) -> None:
        try:
            ended = False
            stream = self._calls.stream(self._http, tokens, sampling, salt)
            async with contextlib.aclosing(stream):
                async for part in stream:
                    ended = part.finish is not None
                    self._events.put(StreamEvent(number, part))
            if not ended:
                raise EngineLostError(f"{self._calls.url} ended a stream before its completion")
        except (EngineLostError, EngineRefusedError) as error:
            self._events.put(StreamEvent(number, error))
