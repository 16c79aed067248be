"""Calls of a vLLM server that a trainer needs: tokens, a pause, new weights and their digests.

The server needs its development mode (`VLLM_SERVER_DEV_MODE=1`), `--enable-scale-out` for tokens in
and out with the weights of each, and `--logprobs-mode=processed_logprobs`. The names are those of
vLLM 0.32.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    import httpx2

KEY_VARIABLE = "VLLM_API_KEY"
"""Environment variable with the server's API key, by the name that vLLM gives it."""

# It would log each request.
logging.getLogger("httpx2").setLevel(logging.WARNING)

_GENERATE = "/inference/v1/generate"
_INIT = "/init_weight_transfer_engine"
_NO_BACKEND = "Weight transfer not configured"
_BACKEND = (
    " — explorer.engine_transfer=delta needs vLLM with the package rl_sync_vllm, started with"
    ' --weight-transfer-config=\'{"backend": "rl_sync"}\'.'
)
_SHOWN_CHARACTERS = 400
_CONNECT_SECS = 5.0
_IDLE_SECS = 1.0
"""Time after which an idle connection is not used again; the server closes it after five."""
_STREAM_CONNECT_SECS = 60.0
"""Longest time for connecting a stream: thousands may connect at once."""
_DATA = "data: "


class EngineLostError(Exception):
    """A served engine did not answer, or answered that it has died."""


class EngineAwayError(TimeoutError):
    """A served engine was away for longer than it may be."""


class EngineRefusedError(ValueError):
    """A served engine cannot be used as it was started."""


class VersionSpan(NamedTuple):
    """Tokens of one version of the weights, by the engine's own record.

    Attributes:
      label: label of the weights that sampled them.
      start, end: places of the tokens among those of the request.
    """

    label: str
    start: int
    end: int


class ServedTokens(NamedTuple):
    """A part of a completion that an engine streams.

    Attributes:
      tokens: sampled tokens.
      logprobs: their log-probabilities, in nats, in the distribution that they were sampled from.
      finish: the engine's reason of its end (`stop`, `length`, `abort` or others); None before it.
      spans: versions of all tokens of the request, with its last part.
    """

    tokens: list[int]
    logprobs: list[float]
    finish: str | None = None
    spans: tuple[VersionSpan, ...] = ()


class VllmCalls:
    """The calls of one server. Each opens and ends within `timeout_secs`, except a stream.

    Args:
      url: address of the server, such as `http://10.0.0.3:8000`.
      timeout_secs: longest wait for a reply, or for the next part of a stream.
    """

    def __init__(self, url: str, timeout_secs: float) -> None:
        import httpx2

        self.url = url.rstrip("/")
        key = os.environ.get(KEY_VARIABLE)
        self._headers = {"content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._timeout = httpx2.Timeout(timeout_secs, connect=_CONNECT_SECS)
        self._http = httpx2.Client(
            timeout=self._timeout,
            headers=self._headers,
            limits=httpx2.Limits(keepalive_expiry=_IDLE_SECS),
        )
        self._failures = (httpx2.TransportError,)

    def streaming(self, connections: int) -> httpx2.AsyncClient:
        """Makes a client for `stream`, with as many connections as streams."""
        import httpx2

        return httpx2.AsyncClient(
            timeout=httpx2.Timeout(self._timeout.read, connect=_STREAM_CONNECT_SECS),
            headers=self._headers,
            limits=httpx2.Limits(max_connections=connections, keepalive_expiry=_IDLE_SECS),
        )

    async def stream(
        self,
        http: httpx2.AsyncClient,
        tokens: Sequence[int],
        sampling: Mapping[str, Any],
        salt: str,
    ) -> AsyncGenerator[ServedTokens, None]:
        """Generates one completion; closing the iterator ends the request.

        Args:
          tokens: token ids of the prompt.
          sampling: sampling parameters, by vLLM's names.
          salt: cached prefixes are shared only between requests of the same salt.

        Raises:
          EngineLostError: the engine is gone, or the stream broke off.
          EngineRefusedError: the engine does not serve such a request.
        """
        body = {
            "token_ids": [*map(int, tokens)],
            "sampling_params": {"detokenize": False, **sampling, "logprobs": 0},
            "stream": True,
            "cache_salt": salt,
        }
        try:
            async with http.stream(
                "POST", self.url + _GENERATE, content=orjson.dumps(body)
            ) as response:
                if response.status_code != 200:
                    await response.aread()
                    self._require_served(response, _GENERATE)
                async for line in response.aiter_lines():
                    if line.startswith(_DATA + "{"):
                        yield self._part(orjson.loads(line.removeprefix(_DATA)))
        except self._failures as error:
            raise self._lost(error) from error

    def _part(self, reply: Mapping[str, Any]) -> ServedTokens:
        if "choices" not in reply:  # The engine has died, and says so in the stream.
            raise EngineLostError(f"{self.url} ends a stream: {str(reply)[:_SHOWN_CHARACTERS]}")
        (choice,) = reply["choices"]
        content = (choice["logprobs"] or {}).get("content") or []
        return ServedTokens(
            choice["token_ids"] or [],
            [one["logprob"] for one in content],
            choice["finish_reason"],
            tuple(
                VersionSpan(one["version"], one["start"], one["end"])
                for one in choice["weight_versions"] or ()
            ),
        )

    def complete(self, tokens: Sequence[int], sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the reply to a request that is not streamed."""
        body = {
            "token_ids": [*map(int, tokens)],
            "sampling_params": {**sampling, "detokenize": False},
        }
        return self._post(_GENERATE, body)

    def served_length(self) -> int:
        """Returns the maximum number of tokens of a sequence, prompt included."""
        try:
            return int(self._get("/v1/models")["data"][0]["max_model_len"])
        except (KeyError, IndexError, TypeError) as error:
            raise EngineRefusedError(
                f"{self.url}/v1/models names no max_model_len, so this is no vLLM server."
            ) from error

    def is_paused(self) -> bool:
        """Says whether the engine is paused; only a server in development mode answers."""
        return bool(self._get("/is_paused")["is_paused"])

    def label(self) -> str:
        """Returns the label of the engine's weights."""
        return str(self._get("/weight_info")["weight_version"])

    def pause(self) -> None:
        """Stops the engine between two tokens; requests in flight stay."""
        self._post("/pause?mode=keep")

    def resume(self) -> None:
        """Lets the requests in flight continue."""
        self._post("/resume")

    def reload(self, path: str) -> None:
        """Lets the paused engine read a checkpoint.

        Args:
          path: directory of the checkpoint, by a name that the server can open.
        """
        arguments = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        self._post("/collective_rpc", arguments)

    def order_fetch(self, url: str, key: str) -> None:
        """Lets an engine with the backend `rl_sync` fetch a checkpoint while it generates.

        Args:
          url: address of a `WeightsDesk`.
          key: name of the checkpoint there.
        """
        self._post(_INIT, {"init_info": {"url": url, "key": key}})

    def load_fetched(self, key: str) -> None:
        """Lets the paused engine take the weights that it has fetched."""
        self._post("/start_weight_update")
        self._post("/update_weights", {"update_info": {"key": key}})
        self._post("/finish_weight_update")

    def name_weights(self, label: str, recompute: bool) -> None:
        """Labels the paused engine's weights, and lets go of the keys and values of older ones.

        Args:
          label: name of the weights.
          recompute: whether requests in flight get new keys and values.
        """
        # Blocks of requests in flight cannot be dropped; requests of this label do not find them.
        running = "?reset_running_requests=true" if recompute else ""
        self._post(f"/reset_prefix_cache{running}")
        self._post("/update_weight_version", {"new_version": label})

    def digests(self) -> dict[str, str]:
        """Returns the SHA-256 of the bytes of each tensor that the engine holds, by its name."""
        return dict(self._post("/weight_checker", {"action": "checksum"})["checksums"])

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _get(self, path: str) -> Any:
        try:
            response = self._http.get(self.url + path)
        except self._failures as error:
            raise self._lost(error) from error
        return self._require_served(response, path)

    def _post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            response = self._http.post(self.url + path, content=orjson.dumps(body or {}))
        except self._failures as error:
            raise self._lost(error) from error
        return self._require_served(response, path)

    def _lost(self, error: Exception) -> EngineLostError:
        return EngineLostError(f"{self.url}: {type(error).__name__} {error}".strip())

    def _require_served(self, response: httpx2.Response, path: str) -> Any:
        status, text = response.status_code, response.text[:_SHOWN_CHARACTERS]
        if status == 200:
            try:
                return response.json()
            except ValueError as error:
                raise EngineRefusedError(
                    f"{self.url}{path} answers with no JSON, so this is no vLLM server: {text}"
                ) from error
        if status in (401, 403) and "scale-out" not in text.lower():
            raise EngineRefusedError(
                f"{self.url}{path} answers {status}: set {KEY_VARIABLE} to the server's API key."
            )
        if status in (403, 404, 405):
            raise EngineRefusedError(
                f"{self.url}{path} answers {status}: start vLLM 0.32 or newer with"
                " VLLM_SERVER_DEV_MODE=1 in its environment, and with --enable-scale-out"
                " --logprobs-mode=processed_logprobs."
            )
        if 400 <= status < 500 or _NO_BACKEND in response.text:
            raise EngineRefusedError(
                f"{self.url}{path} answers {status}: {text}"
                + (_BACKEND if path.startswith(_INIT) else "")
            )
        raise EngineLostError(f"{self.url}{path} answers {status}: {text}")
