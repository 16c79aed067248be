"""The page in Chromium. It also takes the pictures of a run for README and docs/page.md:

PAGE_PICTURES=docs PAGE_RUN=runs/… PAGE_GROUP=STEP:LEASE pytest -m nightly tests/page
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page.small_run import write_run

ROOT = Path(__file__).resolve().parents[2]
PICTURES, RUN, GROUP = (os.environ.get(f"PAGE_{name}") for name in ("PICTURES", "RUN", "GROUP"))

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not os.path.exists("/usr/bin/chromium"), reason="there is no Chromium"),
    pytest.mark.skipif(shutil.which("uv") is None, reason="there is no uv"),
]


def look(run, *arguments):
    """Serves the page of a run, and has browser.py look at it."""
    serve = [sys.executable, "-m", "launcher", "page", f"--workdir={run}"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'launch'}"}
    command = ["uv", "run", "--no-project", "--with", "playwright", "python"]
    command.append(str(ROOT / "tests/page/browser.py"))
    with subprocess.Popen(serve, stdout=subprocess.PIPE, env=environment, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address
            command += [address[0], str(server.pid), str(run), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=200)
            assert done.returncode == 0, done.stdout + done.stderr
        finally:
            server.terminate()


def test_the_page_of_a_thousand_steps_is_quick_and_live_in_a_browser(tmp_path):
    look(write_run(tmp_path / "run", steps=1000), str(tmp_path))
    pictures = {path.stem for path in tmp_path.glob("*.png")}
    assert {"page", "page-dark", "page-group", "page-timeline-dark"} <= pictures


@pytest.mark.skipif(None in (PICTURES, RUN, GROUP), reason="no run is named")
def test_pictures_of_a_run_are_taken():
    step, _, lease = GROUP.partition(":")
    look(RUN, PICTURES, step, lease)
