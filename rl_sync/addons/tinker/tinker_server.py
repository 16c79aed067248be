"""HTTP of the service: the paths of Tinker's API, each with the calls that are served."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hmac
import http
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import DecodeError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rl_sync.addons.agents.endpoint.limited_server import LimitedServer
from rl_sync.addons.tinker import tinker_calls as calls
from rl_sync.addons.tinker import tinker_wire_pb2 as wire
from rl_sync.addons.tinker.adapter_files import SAMPLER, TRAINING, AdapterCheckpoint
from rl_sync.addons.tinker.tinker_calls import CallRefusedError, place_of, read_call
from rl_sync.addons.tinker.tinker_service import UNADAPTED, TinkerService

MOST_BYTES = 64 << 20
"""Maximum number of bytes of a call's body."""

_POLL_SECS = 20.0
"""Time for which a client's question for a result waits; its own limit is 45 s."""

_PROTO = "application/x-protobuf"
_CONNECTIONS = 512
_WAITING_CONNECTIONS = 4096
_PREFIX = "/api/v1"
_CHUNK_BYTES = 5_000_000
_KINDS = {TRAINING: "training", SAMPLER: "sampler"}

_IN_TURN = ("save_weights_external",)
"""Calls that are not served, and have a number among their model's calls."""

_Answer = Callable[[TinkerService, Request, bytes], Awaitable[Response]]


class TinkerServer:
    """Serves clients until it is closed.

    Args:
      host, port: address to listen at; port 0 for any free one.
      key: key that clients must have as TINKER_API_KEY; None for any.

    Raises:
      OSError: it cannot listen at the address.
    """

    def __init__(self, service: TinkerService, *, host: str, port: int, key: str | None) -> None:
        listener = listening(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{listener.getsockname()[1]}"
        self._server = LimitedServer(_application(service, key), listener, _CONNECTIONS)
        self._thread = threading.Thread(target=self._server.run, name="tinker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server."""
        self._server.should_exit = True
        self._thread.join()


def listening(host: str, port: int) -> socket.socket:
    """Makes the socket of a server; raises OSError if it cannot listen at the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_WAITING_CONNECTIONS)


def _application(service: TinkerService, key: str | None) -> Starlette:
    def route(method: str, path: str, answer: _Answer) -> Route:
        return Route(f"{_PREFIX}{path}", _Endpoint(service, key, answer), methods=[method])

    routes = [route(method, path, answer) for (method, path), answer in _ANSWERS.items()]
    anything = Route("/{path:path}", _Endpoint(service, key, _unserved))
    return Starlette(routes=[*routes, anything])


class _Endpoint:
    """Answers calls of one path, in the form of ASGI."""

    def __init__(self, service: TinkerService, key: str | None, answer: _Answer) -> None:
        self._service, self._key, self._answer = service, key, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            self._require_key(request)
            response = await self._answer(self._service, request, await _body(request))
        except CallRefusedError as error:
            response = _json({"detail": str(error)}, error.status)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    def _require_key(self, request: Request) -> None:
        brought = request.headers.get("X-API-Key", "")
        if self._key is not None and not hmac.compare_digest(brought.encode(), self._key.encode()):
            raise CallRefusedError(
                "The call lacks the server's key: set TINKER_API_KEY to the content of the file"
                " that the server was given as --key-path.",
                http.HTTPStatus.UNAUTHORIZED,
            )


async def _body(request: Request) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MOST_BYTES:
            raise CallRefusedError(
                f"A call may have {MOST_BYTES >> 20} MiB, and this one has more: send fewer data.",
                http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )
    return bytes(data)


def _json(body: object, status: int = 200) -> Response:
    return Response(json.dumps(body), status, media_type="application/json")


async def _unserved(service: TinkerService, request: Request, body: bytes) -> Response:
    path = request.url.path.removeprefix(f"{_PREFIX}/")
    message = (
        f"{request.method} {path} is not served by rl_sync:"
        f" {', '.join(sorted({known.split('/')[1] for _, known in _ANSWERS}))} are."
    )
    if path in _IN_TURN and (place := place_of(body)) is not None:
        return _promised(service.refuse_in_turn(place, path, message))
    raise CallRefusedError(message, http.HTTPStatus.NOT_FOUND)


async def _health(service: TinkerService, request: Request, body: bytes) -> Response:
    return _json({"status": "ok"})


async def _client_config(service: TinkerService, request: Request, body: bytes) -> Response:
    calls.require_client(read_call(calls.ClientConfigCall, body).sdk_version)
    return _json(
        {
            "pjwt_auth_enabled": False,
            "fwdbwd_max_chunk_len": service.bounds.rows,
            "fwdbwd_max_chunk_bytes_count": _CHUNK_BYTES,
        }
    )


async def _dynamic_config(service: TinkerService, request: Request, body: bytes) -> Response:
    return _json({})


async def _telemetry(service: TinkerService, request: Request, body: bytes) -> Response:
    return _json({"status": "accepted"})


async def _capabilities(service: TinkerService, request: Request, body: bytes) -> Response:
    model = {"model_name": service.name, "max_context_length": service.length}
    return _json({"supported_models": [{**model, "trainable": True, "sampleable": True}]})


async def _create_session(service: TinkerService, request: Request, body: bytes) -> Response:
    session_id = service.begin_session(read_call(calls.SessionCall, body))
    return _json({"type": "create_session", "session_id": session_id, "warning_message": UNADAPTED})


async def _heartbeat(service: TinkerService, request: Request, body: bytes) -> Response:
    service.touch(read_call(calls.HeartbeatCall, body).session_id)
    return _json({"type": "session_heartbeat"})


async def _finish(service: TinkerService, request: Request, body: bytes) -> Response:
    service.end_session(request.path_params["session_id"])
    return _json({})


async def _create_model(service: TinkerService, request: Request, body: bytes) -> Response:
    return _promised(service.create_model(read_call(calls.CreateModelCall, body)))


async def _get_info(service: TinkerService, request: Request, body: bytes) -> Response:
    model = service.model(read_call(calls.ModelCall, body).model_id)
    passes, _ = model.made
    assert passes.config.lora is not None
    return _json(
        {
            "type": "get_info",
            "model_id": model.model_id,
            "model_name": service.name,
            "is_lora": True,
            "lora_rank": passes.config.lora.rank,
            "model_data": {"model_name": service.name, "tokenizer_id": str(service.base)},
        }
    )


async def _forward_backward(service: TinkerService, request: Request, body: bytes) -> Response:
    try:
        message = wire.PassRequest.FromString(body)
    except DecodeError as error:
        raise CallRefusedError(
            f"forward_backward is no message of tinker {calls.CLIENT}: {error}."
        ) from error
    return _promised(service.run_pass(message))


def _in_turn(kind: type[Any], act: Callable[[TinkerService, Any], str]) -> _Answer:
    """Returns the answer to a call that has a number: if it is malformed, it fails in its turn."""

    async def answer(service: TinkerService, request: Request, body: bytes) -> Response:
        try:
            call = read_call(kind, body)
        except CallRefusedError as error:
            if (place := place_of(body)) is None:
                raise
            what = request.url.path.rpartition("/")[2]
            return _promised(service.refuse_in_turn(place, what, str(error)))
        return _promised(act(service, call))

    return answer


async def _sampling_session(service: TinkerService, request: Request, body: bytes) -> Response:
    sampler_id = service.begin_sampling(read_call(calls.SamplingSessionCall, body))
    return _json({"type": "create_sampling_session", "sampling_session_id": sampler_id})


async def _sampler(service: TinkerService, request: Request, body: bytes) -> Response:
    sampler_id = request.path_params["sampler_id"]
    source = service.sources.find(sampler_id)
    described = {"base_model": service.name, "model_path": source.model_path}
    return _json({"sampler_id": sampler_id, **described})


async def _sample(service: TinkerService, request: Request, body: bytes) -> Response:
    call = read_call(calls.SampleCall, body)
    name = service.sample(call)
    sequences = [f"{name}:{index}" for index in range(call.num_samples)]
    return _json({"request_id": name, "sample_sequence_ids": sequences})


async def _retrieve(service: TinkerService, request: Request, body: bytes) -> Response:
    name = read_call(calls.RetrieveCall, body).request_id
    result = service.order.result(name)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(_ended(result), _POLL_SECS)
    if not result.done():
        waits = {"type": "try_again", "request_id": name, "queue_state": "active"}
        return _json(waits, http.HTTPStatus.REQUEST_TIMEOUT)
    if (error := result.exception()) is not None:
        category = "user" if isinstance(error, CallRefusedError) else "server"
        return _json({"error": str(error) or type(error).__name__, "category": category})
    found = result.result()
    if isinstance(found, bytes):
        return Response(found, media_type=_PROTO)
    return _json(found)


async def _ended(result: concurrent.futures.Future[Any]) -> None:
    """Waits for the end of a future, whatever it is; cancelling the wait leaves it alone."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    result.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
    await ended.wait()


async def _training_run(service: TinkerService, request: Request, body: bytes) -> Response:
    model_id = request.path_params["model_id"]
    saved = await asyncio.to_thread(service.files.of_model, model_id)
    if not saved:
        raise CallRefusedError(
            f"There is no training run {model_id} with checkpoints.", http.HTTPStatus.NOT_FOUND
        )
    newest = {kind: _described(one) for one in saved for kind in [_kind(one)]}
    return _json(
        {
            "training_run_id": model_id,
            "base_model": service.name,
            "model_owner": "rl_sync",
            "is_lora": True,
            "lora_rank": saved[-1].lora.rank,
            "last_request_time": saved[-1].created,
            "last_checkpoint": newest.get("training"),
            "last_sampler_checkpoint": newest.get("sampler"),
            "user_metadata": saved[-1].model_metadata,
        }
    )


async def _checkpoints(service: TinkerService, request: Request, body: bytes) -> Response:
    saved = await asyncio.to_thread(service.files.of_model, request.path_params["model_id"])
    return _json({"checkpoints": [_described(one) for one in saved]})


async def _delete_checkpoint(service: TinkerService, request: Request, body: bytes) -> Response:
    place = request.path_params["model_id"], request.path_params["checkpoint_id"]
    await asyncio.to_thread(service.files.delete, "tinker://{}/{}".format(*place))
    return _json({})


async def _weights_info(service: TinkerService, request: Request, body: bytes) -> Response:
    found = service.files.find(read_call(calls.WeightsInfoCall, body).tinker_path)
    return _json(
        {
            "base_model": found.base_model,
            "is_lora": True,
            "lora_rank": found.lora.rank,
            "train_unembed": False,
            "train_mlp": "down" in found.lora.targets,
            "train_attn": "q" in found.lora.targets,
        }
    )


def _promised(name: str) -> Response:
    return _json({"request_id": name})


def _kind(checkpoint: AdapterCheckpoint) -> str:
    return _KINDS[checkpoint.address.split("/")[3]]


def _described(checkpoint: AdapterCheckpoint) -> dict[str, Any]:
    return {
        "checkpoint_id": "/".join(checkpoint.address.split("/")[3:]),
        "checkpoint_type": _kind(checkpoint),
        "time": checkpoint.created,
        "tinker_path": checkpoint.address,
        "size_bytes": checkpoint.size_bytes,
        "user_metadata": checkpoint.user_metadata,
    }


_CHECKPOINTS = "/training_runs/{model_id}/checkpoints"
_ANSWERS: dict[tuple[str, str], _Answer] = {
    ("GET", "/healthz"): _health,
    ("POST", "/client/config"): _client_config,
    ("POST", "/client/dynamic_config"): _dynamic_config,
    ("POST", "/telemetry"): _telemetry,
    ("GET", "/get_server_capabilities"): _capabilities,
    ("POST", "/create_session"): _create_session,
    ("POST", "/session_heartbeat"): _heartbeat,
    ("POST", "/sessions/{session_id}/finish"): _finish,
    ("POST", "/create_model"): _create_model,
    ("POST", "/get_info"): _get_info,
    ("POST", "/forward_backward"): _forward_backward,
    ("POST", "/optim_step"): _in_turn(calls.OptimizerStepCall, TinkerService.step),
    ("POST", "/save_weights"): _in_turn(calls.SaveCall, TinkerService.save),
    ("POST", "/save_weights_for_sampler"): _in_turn(
        calls.SaveForSamplerCall, TinkerService.save_for_sampler
    ),
    ("POST", "/load_weights"): _in_turn(calls.LoadCall, TinkerService.load),
    ("POST", "/create_sampling_session"): _sampling_session,
    ("GET", "/samplers/{sampler_id}"): _sampler,
    ("POST", "/asample"): _sample,
    ("POST", "/retrieve_future"): _retrieve,
    ("GET", "/training_runs/{model_id}"): _training_run,
    ("GET", _CHECKPOINTS): _checkpoints,
    ("DELETE", f"{_CHECKPOINTS}/{{checkpoint_id:path}}"): _delete_checkpoint,
    ("POST", "/weights_info"): _weights_info,
}
"""Answers to the calls that are served, by method and path."""
