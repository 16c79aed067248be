"""The page beside a run."""

import socket
import time
import urllib.request

import pytest

from rl_sync.launcher.processes.page_beside import PageBeside
from rl_sync.workdir import Workdir
from tests.page.small_run import write_run


@pytest.fixture
def workdir(tmp_path):
    return Workdir(write_run(tmp_path / "run"))


def _news(page):
    deadline = time.monotonic() + 60
    while (news := page.news()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return news


@pytest.mark.nightly
def test_a_page_beside_a_run_tells_its_address_once_and_ends_with_the_run(workdir):
    with PageBeside(workdir, 0) as page:
        said = _news(page)
        assert said.startswith("The page is at http://127.0.0.1:")
        address = said.removeprefix("The page is at ")
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b"trainer step" in answer.read()
        assert page.news() is None
    with pytest.raises(OSError):
        urllib.request.urlopen(address, timeout=5)
    with PageBeside(workdir, 0) as page:
        assert _news(page) != said, "the log of a run that goes on has the old address, too"


@pytest.mark.nightly
def test_a_page_that_cannot_be_served_is_told_of_once(workdir):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with PageBeside(workdir, port) as page:
            said = _news(page)
            assert said.startswith("The page has ended, and the run goes on without it: Nothing")
            assert f"port {port}" in said
            assert page.news() is None
