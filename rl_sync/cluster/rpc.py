"""Remote calls between processes: records over gRPC.

Every call (`rl_sync.messages.call.Call`) carries the secret of its run; a call without it is
rejected before its content is read.
"""

from __future__ import annotations

import concurrent.futures
import hmac
import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from rl_sync.addresses import address_of
from rl_sync.isolation.codec import decode, encode
from rl_sync.isolation.machine_limits import end_if_exhausted
from rl_sync.messages.call import Call, Handler

_METHOD = "/rl_sync.Role/Call"
_SECRET = "rl-sync-secret"
# The default secret, which only this process knows.
_OWN = secrets.token_hex(32)
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    # Without this, a client that called before the server was up would keep failing for seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Roles call each other directly, even if the user's downloads go through a proxy.
    ("grpc.enable_http_proxy", 0),
]
_log = logging.getLogger(__name__)

R = TypeVar("R")


class CallHandlers:
    """Answers calls of several kinds."""

    def __init__(self, *handlers: Handler):
        self._answers = dict(handlers)

    def __call__(self, call: Call[R]) -> R:
        """Returns the result of a call.

        Raises:
          ValueError: this process does not answer calls of that kind.
          Exception: the call failed with this error.
        """
        answer = self._answers.get(type(call))
        if answer is None:
            raise ValueError(f"This process does not answer {type(call).__name__}.")
        return answer(call)


class RemoteError(RuntimeError):
    """The called role raised an exception; the message has the exception's name and message."""


class RefusedError(RemoteError):
    """The called role has another secret."""


class PeerLostError(RuntimeError):
    """The called role has ended, or does not answer."""


class PeerGoneError(PeerLostError):
    """Nobody listens at the called role's address, or the connection broke: it has ended."""


class RpcServer:
    """Answers calls until it is closed.

    Args:
      answer: answers a call; called from several threads.
      port: port to listen on; 0 for any free one.
      host: interface to listen on.
      threads: number of calls that are served at once; each long poll occupies one.
      secret: secret that callers must know; by default, only this process's own calls are answered.

    Raises:
      ValueError: the port is taken.
    """

    def __init__(
        self,
        answer: Callable[[Call[Any]], Any],
        port: int,
        host: str = "127.0.0.1",
        threads: int = 32,
        secret: str = _OWN,
    ):
        self._answer = answer
        executor = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="rpc")
        self._server = grpc.server(executor, options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_Door(self._serve, secret),))
        try:
            self.port = self._server.add_insecure_port(address_of(host, port))
        except RuntimeError as error:
            raise ValueError(f"Port {port} on {host} is taken; choose another, or 0.") from error
        if self.port == 0:
            raise ValueError(f"Port {port} on {host} is taken; choose another, or 0 for any.")
        self._server.start()

    def _serve(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        del context
        name = "A call that cannot be read"
        try:
            call = decode(request)
            name = type(call).__name__
            return encode((True, self._answer(call)))
        except Exception as error:
            end_if_exhausted(error)
            _log.exception("%s failed", name)
            return encode((False, f"{type(error).__name__}: {error}"))

    def close(self, grace_secs: float = 1.0) -> None:
        """Stops serving; calls in flight get `grace_secs` to finish."""
        self._server.stop(grace_secs).wait()


class _Door(grpc.GenericRpcHandler):
    """Admits calls that carry the secret.

    Args:
      serve: handler of these calls.
      secret: see `RpcServer`.
    """

    def __init__(self, serve: Callable[[bytes, grpc.ServicerContext], bytes], secret: str):
        self._serve, self._secret = serve, secret.encode()

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """Chooses the handler of a call by its metadata, before anything else is read."""
        if handler_call_details.method != _METHOD:
            return None
        presented = dict(handler_call_details.invocation_metadata).get(_SECRET, "")
        if hmac.compare_digest(presented.encode(), self._secret):
            return grpc.unary_unary_rpc_method_handler(self._serve)
        # A streaming handler need not read the message.
        return grpc.stream_unary_rpc_method_handler(_refuse)


def _refuse(requests: Iterator[bytes], context: grpc.ServicerContext) -> None:
    del requests
    _log.warning("A call from %s is refused: it lacks the secret of this run.", context.peer())
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the call lacks the secret of the run")


class RpcClient:
    """Calls one server; thread-safe.

    Args:
      address: `host:port`.
      peer: name of the other side in errors, such as "master".
      secret: the run's secret; by default, that of this process's own servers.
      own_connection: whether the client has a connection of its own; otherwise clients of one
        address share one. On a slow network several connections carry more than one.
    """

    def __init__(
        self, address: str, peer: str, secret: str = _OWN, *, own_connection: bool = False
    ):
        self._peer = f"the {peer} at {address}"
        options = [("grpc.use_local_subchannel_pool", 1)] if own_connection else []
        self._channel = grpc.insecure_channel(address, options=_OPTIONS + options)
        self._call = self._channel.unary_unary(_METHOD)
        self._metadata = ((_SECRET, secret),)

    def call(self, call: Call[R], deadline_secs: float) -> R:
        """Sends a call, and waits for its result.

        Raises:
          RemoteError: the call failed on the server.
          RefusedError: the server has another secret, for example because it belongs to another
            run.
          PeerGoneError: nobody listens there, or the connection broke.
          PeerLostError: no answer came within `deadline_secs`.
        """
        name = type(call).__name__
        try:
            reply = self._call(
                encode(call), timeout=deadline_secs, wait_for_ready=False, metadata=self._metadata
            )
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel is closed.
            if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNAUTHENTICATED:
                raise RefusedError(
                    f"{name} is refused by {self._peer}: {error.details()}. Another run has"
                    " that address, or this process was started with another work directory."
                ) from error
            reason = error.details() if isinstance(error, grpc.Call) else str(error)
            is_gone = isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNAVAILABLE
            lost = PeerGoneError if is_gone else PeerLostError
            raise lost(
                f"No answer from {self._peer} to {name} within {deadline_secs:g} s: {reason}"
            ) from error
        succeeded, answer = decode(reply)
        if not succeeded:
            raise RemoteError(answer)
        return answer

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()
