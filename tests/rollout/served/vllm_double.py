"""A server with those calls of vLLM that explorers make, over a model of ours.

It reads checkpoints, holds joined tensors, and draws with their weights; so what it claims of a
token can be checked. It fails as a test says.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import itertools
import json
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import uvicorn
from rl_sync_vllm.fetching import HeldTensor, fetch, report
from safetensors.numpy import load_file, save_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import WEIGHTS_FILE
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.placement import abstract_params
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import hidden_states, init_params, logits

JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
POLL_SECS, CLOSE_SECS = 0.002, 5.0


@dataclasses.dataclass
class Faults:
    """Behavior of the server.

    Attributes:
      in_development, scales_out, processed: whether it was started with what explorers need.
      most_tokens: length of its sequences.
      packed: whether kernels have no bytes to read.
      ignores_weights: whether it keeps its weights, whatever it is told to read.
      token_secs: time of a token.
      aborts: number of streams to abort after their first token.
      has_backend: whether it was started with the backend of `rl_sync_vllm`.
      forgets_orders: number of orders to fetch that it forgets, as a worker that is restarted does.
    """

    in_development: bool = True
    scales_out: bool = True
    processed: bool = True
    most_tokens: int = 10_000
    packed: bool = False
    ignores_weights: bool = False
    token_secs: float = 0.0
    aborts: int = 0
    has_backend: bool = True
    forgets_orders: int = 0


@dataclasses.dataclass
class Growing:
    """A completion that the server draws, and the queue of its parts."""

    prompt: list[int]
    most: int
    stops: set[int]
    temperature: float
    queue: asyncio.Queue[Any]
    loop: asyncio.AbstractEventLoop
    tokens: list[int] = dataclasses.field(default_factory=list)
    labels: list[str] = dataclasses.field(default_factory=list)
    finish: str = ""

    def tell(self, part: Any) -> None:
        """Puts a part into the queue; None breaks the stream off."""
        self.loop.call_soon_threadsafe(self.queue.put_nowait, part)


class VllmDouble:
    """The server; it runs until `close`."""

    def __init__(self, config: ModelConfig, faults: Faults | None = None) -> None:
        self.config, self.faults = config, faults or Faults()
        self._layout = Layout.single()
        self._fresh = jax.jit(init_params, static_argnums=0)(config, jax.random.key(77))
        self.calls: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self._lock, self._rng = threading.RLock(), np.random.default_rng(0)
        self._closed = False
        self._start()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        paths = {
            "/v1/models": ("GET", self._models),
            "/is_paused": ("GET", self._is_paused),
            "/weight_info": ("GET", self._weight_info),
            "/pause": ("POST", self._pause),
            "/resume": ("POST", self._resume),
            "/collective_rpc": ("POST", self._reload),
            "/reset_prefix_cache": ("POST", self._reset),
            "/update_weight_version": ("POST", self._name),
            "/weight_checker": ("POST", self._digests),
            "/init_weight_transfer_engine": ("POST", self._order),
            "/start_weight_update": ("POST", self._reset),
            "/update_weights": ("POST", self._load_fetched),
            "/finish_weight_update": ("POST", self._reset),
            "/inference/v1/generate": ("POST", self._generate),
        }
        routes = [
            Route(path, self._watched(path, call), methods=[verb])
            for path, (verb, call) in paths.items()
        ]
        self._server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error"))
        self._serving = threading.Thread(
            target=self._server.run, args=([self._listener],), daemon=True
        )
        self._serving.start()
        _next_logprobs(config, self._params, np.zeros(config.max_length, np.int32), 1)
        threading.Thread(target=self._draw, daemon=True).start()
        while not self._server.started:
            time.sleep(0.01)

    def _start(self) -> None:
        """Begins with weights of its own, as a process that was started does."""
        self.alive, self.paused, self.labels = True, False, ["default"]
        self._params, self._growing = jax.tree.map(np.asarray, self._fresh), list[Growing]()
        self._tensors: dict[str, np.ndarray] | None = None
        self._fetched: tuple[str, dict[str, HeldTensor]] = ("", {})

    def die(self) -> None:
        """Breaks off all streams, and answers nothing any more."""
        with self._lock:
            self.alive = False
            for one in self._growing:
                one.tell(None)

    def restart(self) -> None:
        """Begins anew."""
        with self._lock:
            self._start()

    def close(self) -> None:
        """Ends the server."""
        self._closed = True
        self._server.should_exit = True
        self._serving.join(CLOSE_SECS)

    def _watched(self, path, call):
        async def watched(request: Request) -> Response:
            self.calls.append(path)
            if not self.alive:
                return JSONResponse({"error": "the engine is dead"}, status_code=500)
            if not self.faults.in_development and path in ("/is_paused", "/pause"):
                return JSONResponse({"detail": "Not Found"}, status_code=404)
            if request.headers.get("content-type") != "application/json":
                assert request.method == "GET"
            return await call(request)

        return watched

    async def _models(self, _) -> Response:
        return JSONResponse({"data": [{"id": "m", "max_model_len": self.faults.most_tokens}]})

    async def _is_paused(self, _) -> Response:
        return JSONResponse({"is_paused": self.paused})

    async def _weight_info(self, _) -> Response:
        return JSONResponse({"weight_version": self.labels[-1]})

    async def _pause(self, request: Request) -> Response:
        assert request.query_params["mode"] == "keep"
        await asyncio.to_thread(self._stop)
        return JSONResponse({})

    async def _resume(self, _) -> Response:
        self.paused = False
        return JSONResponse({})

    async def _reload(self, request: Request) -> Response:
        body = await request.json()
        assert body["method"] == "reload_weights"
        assert self.paused, "weights are exchanged between two tokens"
        self._read(Path(body["kwargs"]["weights_path"]))
        return JSONResponse({"results": [None]})

    def _read(self, checkpoint: Path) -> None:
        if not self.faults.ignores_weights:
            self._tensors = load_file(checkpoint / WEIGHTS_FILE)
            abstract = abstract_params(self.config, self._layout)
            loaded = load_params(checkpoint, self.config, abstract)
            self._params = jax.tree.map(np.array, loaded)

    async def _order(self, request: Request) -> Response:
        if not self.faults.has_backend:
            lacks = {"message": "Weight transfer not configured. Please set weight_transfer_config"}
            return JSONResponse({"error": lacks}, status_code=500)
        order = (await request.json())["init_info"]
        if self.faults.forgets_orders:
            self.faults.forgets_orders -= 1
        else:
            threading.Thread(target=self._fetch, args=(order,), daemon=True).start()
        return JSONResponse({})

    def _fetch(self, order: dict[str, str]) -> None:
        """Fetches as a worker does: with the package that is installed beside vLLM."""
        self._fetched = order["key"], fetch(order["url"], order["key"], self._fetched[1])
        report(order["url"], order["key"], 0, 1, "")

    async def _load_fetched(self, request: Request) -> Response:
        assert self.paused, "weights are exchanged between two tokens"
        key, tensors = self._fetched
        assert (await request.json())["update_info"] == {"key": key}
        with tempfile.TemporaryDirectory() as folder:
            values = {
                name: one.content.view(one.dtype).reshape(one.shape)
                for name, one in tensors.items()
            }
            save_file(values, Path(folder) / WEIGHTS_FILE)
            self._read(Path(folder))
        return JSONResponse({})

    async def _reset(self, _) -> Response:
        return JSONResponse({"success": True})

    async def _name(self, request: Request) -> Response:
        self.labels.append((await request.json())["new_version"])
        return JSONResponse({})

    async def _digests(self, _) -> Response:
        if self._tensors is None:
            return JSONResponse({"checksums": {"dp0:pp0:pcp0:tp0:model.norm.weight": "0" * 64}})
        tensors = {**self._tensors}
        for whole, parts in JOINED.items():
            for name in [name for name in tensors if f".{parts[0]}." in name]:
                names = [name.replace(parts[0], part) for part in parts]
                joined = np.concatenate([tensors.pop(one) for one in names])
                tensors[name.replace(parts[0], whole)] = joined
        return JSONResponse(
            {
                "checksums": {
                    f"dp0:pp0:pcp0:tp0:{name}": hashlib.sha256(
                        b"" if self.faults.packed and "proj" in name else value.tobytes()
                    ).hexdigest()
                    for name, value in tensors.items()
                }
            }
        )

    async def _generate(self, request: Request) -> Response:
        if not self.faults.scales_out:
            return JSONResponse({"error": "Scale-out endpoints are disabled"}, status_code=403)
        body = await request.json()
        self.sent.append(body)
        asked = body["sampling_params"]
        if "prompt_logprobs" in asked:
            row = np.array([body["token_ids"]], np.int32)
            scores = np.asarray(_scores(self.config, self._params, row)[0])[0]
            found = [None] + [
                {str(t): {"logprob": float(s)}} for t, s in zip(row[0][1:], scores[1:], strict=True)
            ]
            return JSONResponse({"prompt_logprobs": found, "choices": [{}]})
        if not body.get("stream"):
            logprob = 0.0 if self.faults.processed else -2.5
            return JSONResponse(
                {"choices": [{"logprobs": {"content": [{"token_id": 1, "logprob": logprob}]}}]}
            )
        growing = Growing(
            prompt=body["token_ids"],
            most=asked["max_tokens"],
            stops={*asked["stop_token_ids"]},
            temperature=asked["temperature"],
            queue=asyncio.Queue(),
            loop=asyncio.get_running_loop(),
        )
        await asyncio.to_thread(self._add, growing)
        return StreamingResponse(self._stream(growing.queue))

    async def _stream(self, queue: asyncio.Queue[Any]):
        while (part := await queue.get()) is not None:
            yield f"data: {json.dumps(part)}\n\n"
            if part["choices"][0]["finish_reason"]:
                break
        if part is not None:
            yield "data: [DONE]\n\n"

    def _add(self, growing: Growing) -> None:
        with self._lock:
            self._growing.append(growing)

    def _stop(self) -> None:
        with self._lock:
            self.paused = True

    def _draw(self) -> None:
        while not self._closed:
            time.sleep(POLL_SECS + self.faults.token_secs)
            with self._lock:
                if self.alive and not self.paused:
                    for one in self._growing:
                        self._extend(one)
                    self._growing = [one for one in self._growing if not one.finish]

    def _extend(self, one: Growing) -> None:
        row = np.zeros(self.config.max_length, np.int32)
        whole = [*one.prompt, *one.tokens]
        row[: len(whole)] = whole
        scores = np.asarray(_next_logprobs(self.config, self._params, row, len(whole)))
        if one.temperature:
            scores = scores / one.temperature
            scores -= np.log(np.exp(scores).sum())
            token = int(self._rng.choice(len(scores), p=np.exp(scores) / np.exp(scores).sum()))
        else:
            token = int(scores.argmax())
        one.tokens.append(token)
        one.labels.append(self.labels[-1])
        if token in one.stops:
            one.finish = "stop"
        elif len(one.tokens) == one.most:
            one.finish = "length"
        elif self.faults.aborts:
            self.faults.aborts, one.finish = self.faults.aborts - 1, "abort"
        spans, start = [], 0
        for label, run in itertools.groupby(one.labels):
            end = start + len([*run])
            spans.append({"version": label, "start": start, "end": end})
            start = end
        choice = {
            "index": 0,
            "token_ids": [token],
            "logprobs": {"content": [{"token_id": token, "logprob": float(scores[token])}]},
            "finish_reason": one.finish or None,
            "weight_versions": spans if one.finish else None,
        }
        one.tell({"choices": [choice]})


_scores = jax.jit(token_logprobs, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _next_logprobs(config, params, row, length):
    """Computes the log-probabilities of the token after the first `length` ones of a row."""
    hidden = hidden_states(config, params, row[None])[:, length - 1]
    return jax.nn.log_softmax(logits(config, params, hidden)[0])
