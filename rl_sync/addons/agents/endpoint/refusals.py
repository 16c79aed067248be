"""Refusals of requests: the endpoint's error answers."""

from __future__ import annotations

import http
from typing import Any

_KINDS = {
    http.HTTPStatus.NOT_FOUND: "not_found_error",
    http.HTTPStatus.GONE: "episode_closed",
    http.HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}

_MESSAGE_KINDS = {
    http.HTTPStatus.UNAUTHORIZED: "authentication_error",
    http.HTTPStatus.NOT_FOUND: "not_found_error",
    http.HTTPStatus.GONE: "not_found_error",
    http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    http.HTTPStatus.INTERNAL_SERVER_ERROR: "api_error",
}
"""Kinds of errors in the Messages API, which has names of its own."""


class RefusalError(Exception):
    """Raised to answer a request with an error.

    Args:
      status: the status of HTTP.
      message: the rule, the value and the way out.
      field: the part of the request that is at fault.
    """

    def __init__(self, status: http.HTTPStatus, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field

    def body(self) -> dict[str, Any]:
        """Returns the error as clients of OpenAI read it."""
        kind = _KINDS.get(self.status, "invalid_request_error")
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.field,
                "code": None if self.status == http.HTTPStatus.BAD_REQUEST else kind,
            }
        }

    def message_body(self) -> dict[str, Any]:
        """Returns the error as clients of Anthropic read it."""
        kind = _MESSAGE_KINDS.get(self.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def refuse(message: str, field: str | None = None) -> RefusalError:
    """Makes the refusal of a request that is wrong."""
    return RefusalError(http.HTTPStatus.BAD_REQUEST, message, field)


def closed() -> RefusalError:
    """Makes the refusal of a request for an episode that has ended."""
    return RefusalError(
        http.HTTPStatus.GONE, "The episode of this key has ended: nothing replies any more."
    )
