import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page.small_run import write_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/usr/bin/chromium"), reason="there is no Chromium")
@pytest.mark.skipif(shutil.which("uv") is None, reason="there is no uv")
def test_the_page_of_a_thousand_steps_is_quick_and_live_in_a_browser(tmp_path):
    run = write_run(tmp_path / "run", steps=1000)
    pictures = os.environ.get("PAGE_PICTURES")
    serve = [sys.executable, "-m", "launcher", "page", f"--workdir={run}"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'launch'}"}
    look = ["uv", "run", "--no-project", "--with", "playwright", "python"]
    script = [str(ROOT / "tests/page/browser.py")]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, env=environment, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address
            arguments = [address[0], str(run), *([pictures] if pictures else [])]
            done = subprocess.run(
                [*look, *script, *arguments], capture_output=True, text=True, timeout=200
            )
            assert done.returncode == 0, done.stdout + done.stderr
        finally:
            server.terminate()
