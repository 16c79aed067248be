"""Controls access to the page: checks the Host header, and a token if one is required."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable

from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "rl_sync_page"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src"
        " 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""Headers of every response: they forbid loading from elsewhere, framing and caching."""


class Guard:
    """Rejects requests before they reach the page.

    The Host header must be an IP address or a name of this machine. A site whose name points here
    (DNS rebinding) sends its own name, and is rejected. If a token is set, a request must have it,
    once as `?token=…` and afterwards in a cookie.

    Args:
      app: the page.
      names: further names of this machine.
      token: the token; empty for none.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = (), token: str = ""):
        own = {"localhost", socket.gethostname(), *names}
        self._app, self._names = app, {name.lower() for name in own if name}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # The page uses no web sockets.

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), text.encode()) for name, text in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        response = self._refusal(Request(scope)) or self._app
        await response(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """Returns the answer to a rejected request; None if it may reach the page."""
        if not self._knows(request.headers.get("host", "")):
            return PlainTextResponse(
                "The page answers to IP addresses and to names of its machine. Open it by the"
                " address that it printed.",
                status_code=421,
            )
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("The page can only be read.", status_code=405)
        if not self._token:
            return None
        if "token" in request.query_params:
            return self._admit(request)
        if self._fits(request.cookies.get(COOKIE, "")):
            return None
        return _not_admitted()

    def _admit(self, request: Request) -> Response:
        """Replaces a token in the address by a cookie."""
        if not self._fits(request.query_params["token"]):
            return _not_admitted()
        clean = request.url.remove_query_params("token")
        response = RedirectResponse(_local(clean), status_code=303)
        response.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
        return response

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _knows(self, host: str) -> bool:
        """Says whether a Host header is an address, or a name of this machine."""
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        name = name.strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True


def is_loopback(host: str) -> bool:
    """Says whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _local(url: URL) -> str:
    """Returns the path and the query of an address, so that they cannot lead to another host."""
    path = "/" + url.path.lstrip("/\\")
    return f"{path}?{url.query}" if url.query else path


def _not_admitted() -> Response:
    return PlainTextResponse(
        "The page needs its token: open the address that it printed at its start.", status_code=401
    )
