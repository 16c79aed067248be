import sys

from rl_sync.cluster import malloc
from rl_sync.launcher.processes.supervisor import RoleProcess


def test_settings_of_the_user_s_own_are_left_alone():
    assert malloc.environment({"GLIBC_TUNABLES": "mine", "A": "b"}) == {
        "GLIBC_TUNABLES": "mine",
        "A": "b",
    }


def test_roles_are_started_with_the_settings(tmp_path, monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    log = tmp_path / "log"
    script = "import os; print(os.environ['GLIBC_TUNABLES'])"
    role = RoleProcess.start("role", [sys.executable, "-c", script], log, {})
    role._popen.wait(30)
    assert log.read_text().strip() == malloc.environment({})["GLIBC_TUNABLES"]
    assert "glibc.malloc.hugetlb=1" in log.read_text()
