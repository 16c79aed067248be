"""Engines are asked before a run, and one that is missing is told with the way out."""

import http.server
import threading

import pytest

from rl_sync.roles.explorer.engine_check import check_engines
from rl_sync.settings.records import ConfigError
from tests.rollout.served.test_served_engine import CONFIG
from tests.rollout.served.vllm_double import Faults, VllmDouble
from tests.settings.changed import settings_with


class Page(http.server.BaseHTTPRequestHandler):
    """A server of something else."""

    body, status = b"<html>", 200

    def do_GET(self):
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


def _check(*urls):
    settings = settings_with(
        sync__mode="multi_explorer" if len(urls) > 1 else "asynchronous",
        explorer__count=len(urls) if len(urls) > 1 else None,
        explorer__engine=",".join(f"vllm:{url}" for url in urls),
    )
    check_engines(settings)


@pytest.fixture
def other():
    """Returns a function that starts another server, and returns its address."""
    begun = []

    def start(body, status=200):
        handler = type("Other", (Page,), {"body": body, "status": status})
        server = http.server.HTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        begun.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in begun:
        server.shutdown()
        server.server_close()


def test_engines_that_answer_pass_and_one_that_is_dead_does_not():
    servers = [VllmDouble(CONFIG), VllmDouble(CONFIG)]
    _check(*(server.url for server in servers))
    servers[1].die()
    with pytest.raises(ConfigError, match=f"vllm:{servers[1].url}: no vLLM server answers there"):
        _check(*(server.url for server in servers))
    for server in servers:
        server.close()
    with pytest.raises(ConfigError, match=r"ConnectError.*Start it first \(docs/served-engines"):
        _check(servers[0].url)


def test_engines_of_other_machines_are_not_asked_and_may_have_equal_addresses():
    settings = settings_with(
        sync__mode="multi_explorer",
        explorer__count=2,
        explorer__engine="vllm:http://localhost:1,vllm:http://127.0.0.1:1",
        launch__host="10.0.0.1",
        launch__hosts="explorer1=10.0.0.2,explorer2=10.0.0.3",
    )
    check_engines(settings)


def test_a_server_without_its_development_mode_is_told_how_to_start():
    server = VllmDouble(CONFIG, Faults(in_development=False))
    with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1 in its environment"):
        _check(server.url)
    server.close()


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"<html>", 200, "answers with no JSON, so this is no vLLM server: <html>"),
        (b'{"data": [{"id": "gpt-4"}]}', 200, "names no max_model_len"),
        (b'{"data": []}', 200, "names no max_model_len"),
        (b"{}", 404, "answers 404: start vLLM 0.32 or newer"),
        (b"{}", 401, "set VLLM_API_KEY"),
        (b"{}", 503, "no vLLM server answers there"),
    ],
)
def test_other_servers_are_no_engines(other, body, status, why):
    with pytest.raises(ConfigError, match=why):
        _check(other(body, status))
