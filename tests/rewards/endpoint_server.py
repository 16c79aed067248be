"""A small OpenAI-compatible server that answers as a test says."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def reply(content, *, refusal=None, finish="stop", usage=(100, 20)):
    """The body of a chat completion."""
    message = {"role": "assistant", "content": content, "refusal": refusal}
    body = {"choices": [{"message": message, "finish_reason": finish}]}
    if usage:
        tokens = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
        body["usage"] = tokens | {"total_tokens": sum(usage)}
    return body


class Answer:
    """An answer to one request.

    Args:
      body: an object, or the text itself.
      cut: whether the connection breaks in the middle.
    """

    def __init__(self, body, status=200, headers=(), delay_secs=0.0, cut=False):
        self.text = body if isinstance(body, str) else json.dumps(body)
        self.status, self.headers = status, dict(headers)
        self.delay_secs, self.cut = delay_secs, cut


class Server:
    """Requests so far, and what the next ones get."""

    def __init__(self, answer: Callable[[dict, int], Answer]) -> None:
        self.answer = answer
        self.requests: list[dict] = []
        self.headers: list[dict] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.url = ""


@contextlib.contextmanager
def serving(answer: Callable[[dict, int], Answer]) -> Iterator[Server]:
    """Serves on a free port; `answer` gets a request's body and its number, from 0."""
    server = Server(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with server.lock:
                number = len(server.requests)
                server.requests.append(body)
                server.headers.append({k.lower(): v for k, v in self.headers.items()})
                server.at_once += 1
                server.most_at_once = max(server.most_at_once, server.at_once)
            try:
                self._answer(server.answer(body, number))
            finally:
                with server.lock:
                    server.at_once -= 1

        def _answer(self, answer: Answer) -> None:
            time.sleep(answer.delay_secs)
            data = answer.text.encode()
            with contextlib.suppress(OSError):
                self.send_response(answer.status)
                self.send_header("content-length", str(len(data)))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if answer.cut else data)
            self.close_connection = answer.cut

        def log_message(self, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    threading.Thread(target=http.serve_forever, args=[0.02], daemon=True).start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
