"""Sandboxes of processes that hold some of root's rights only, as in containers and units."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pyseccomp
import pytest

from rl_sync.sandbox import bubblewrap, probe, sandbox_choice
from rl_sync.sandbox.bubblewrap import Bubblewrap
from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.program_limits import ProgramLimits
from rl_sync.sandbox.sandbox import Sandbox

ROOT = Path(__file__).parents[2]
TRIAL = """
import os, sys
from rl_sync.sandbox.sandbox_choice import choose
from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.sandbox import Sandbox
try:
    layer = choose(sys.argv[1])
except SandboxError as error:
    sys.exit(f"refused: {error}")
print(layer.name)
sandbox = Sandbox(layer)
with sandbox.folder({"main.py": sys.argv[2].encode()}) as folder:
    run = sandbox.run(folder, ("script", "main.py"))
sys.stdout.write(run.stdout.decode() + run.stderr.decode())
"""
OPENS_SETTINGS = """
import os
for path in ("kernel/core_pattern", "kernel/modprobe", "vm/drop_caches", "kernel/hostname"):
    try:
        os.close(os.open("/proc/sys/" + path, os.O_WRONLY))
    except OSError:
        continue
    print("opened", path)
print(os.getuid(), "is the user")
open("/dev/stdin").close()
"""


def public_interpreter():
    """Returns a Python that other users may run; some live in a folder of root alone."""
    for path in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if path is None:
            continue
        facts = "import sys; print(sys.version_info >= (3, 11), sys.base_prefix)"
        new, prefix = subprocess.check_output([path, "-c", facts], text=True).split()
        folders = [Path(prefix), *Path(prefix).parents]
        if new == "True" and all(folder.stat().st_mode & 0o005 == 0o005 for folder in folders):
            return path
    pytest.skip("no Python here can be run by every user")


def as_root_without(rights, kind, program, folder, python=sys.executable):
    """Runs a program in a new process of root that has lost some rights for good."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("it takes root and setpriv (util-linux) to give up rights of root")
    return in_new_process(["setpriv", "--bounding-set", rights], kind, program, folder, python)


def in_new_process(prefix, kind, program, folder, python=sys.executable):
    """Runs a program in a sandbox that a new process chooses, whose PATH has bubblewrap."""
    folder.chmod(0o755)
    path = os.environ["PATH"]
    if shutil.which("bwrap") is None and (found := bubblewrap.binaries()):
        # That of the package: another interpreter does not look for it, and another user may not
        # be able to reach it.
        package = Path(found[0]).parents[1]
        for part in package.parent.glob(f"{package.name}*"):  # Its libraries lie beside it.
            shutil.copytree(part, folder / part.name)
        path = f"{folder / package.name / Path(found[0]).parent.name}{os.pathsep}{path}"
    shutil.copytree(psutil.__path__[0], folder / "packages" / "psutil")  # For any Python 3.
    shutil.copy(pyseccomp.__file__, folder / "packages")
    packages = f"{ROOT}{os.pathsep}{folder / 'packages'}"
    return subprocess.run(
        [*prefix, python, "-c", TRIAL, kind, program],
        env={**os.environ, "PATH": path, "TMPDIR": str(folder), "PYTHONPATH": packages},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def public_folder():
    """A folder that every user may enter, which that of `tmp_path` is not."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.mark.gate
@pytest.mark.parametrize("rights", ["-sys_admin", "-sys_admin,-setpcap,-sys_ptrace,-net_admin"])
def test_root_without_namespaces_becomes_another_user_before_it_makes_one(rights, public_folder):
    done = as_root_without(
        rights, "bubblewrap", OPENS_SETTINGS, public_folder, public_interpreter()
    )
    if "refused" in done.stderr and "user namespace:" in done.stderr:
        pytest.skip(f"this machine allows users no namespaces: {done.stderr[-300:]}")
    first, *rest = done.stdout.splitlines()
    assert "own user in a user namespace" in first, done
    assert "opened" not in done.stdout
    assert len(rest) == 1, rest  # No traceback: it could open its input, too.
    assert int(rest[0].removesuffix(" is the user")) > 10_000


@pytest.mark.parametrize("rights", ["-setuid", "-sys_admin,-setuid", "-sys_admin,-kill,-setgid"])
def test_root_that_cannot_become_another_user_gets_no_namespace(rights, public_folder):
    done = as_root_without(rights, "bubblewrap", OPENS_SETTINGS, public_folder)
    assert done.returncode == 1, done
    assert "refused" in done.stderr
    assert "would hold the machine's root" in done.stderr
    assert done.stdout == ""


@pytest.mark.gate
@pytest.mark.parametrize("rights", ["-sys_admin", "-sys_admin,-setuid"])
def test_auto_chooses_nothing_that_opens_settings_of_the_machine(rights, public_folder):
    done = as_root_without(rights, "auto", OPENS_SETTINGS, public_folder)
    assert "opened" not in done.stdout, done
    assert "(user namespace" not in done.stdout


@pytest.mark.parametrize("user", ["--map-user=1000", "--map-root-user", "--map-user=65534"])
def test_root_under_another_name_of_a_user_namespace_is_root(user, public_folder):
    """The namespace calls root a user of its own, and the kernel still takes it for root."""
    prefix = ["unshare", "--user", user]
    if os.geteuid() != 0 or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("it takes root, unshare (util-linux) and user namespaces")
    asked = "from rl_sync.sandbox import bubblewrap as b; print(b.is_root_of_machine())"
    found = subprocess.check_output([*prefix, sys.executable, "-c", asked], cwd=ROOT, text=True)
    assert found == "True\n"
    done = in_new_process(prefix, "bubblewrap", OPENS_SETTINGS, public_folder)
    assert "refused" in done.stderr, done
    assert "(user namespace" not in done.stderr
    assert done.stdout == ""


def test_a_variant_that_keeps_root_refuses_to_make_a_command(monkeypatch):
    monkeypatch.setattr(bubblewrap, "is_root_of_machine", lambda: True)
    layer = Bubblewrap("bwrap", "ours")
    with pytest.raises(SandboxError, match="machine's root"):
        layer.prepare()
    assert "machine's root" in probe.fault(layer)
    assert all(variant.user != "ours" for variant in bubblewrap.variants())


def test_the_root_of_a_small_user_namespace_has_no_users_to_spare(monkeypatch, tmp_path):
    import builtins

    small = tmp_path / "uid_map"
    small.write_text("         0       1000          1\n")
    real = builtins.open
    monkeypatch.setattr(
        builtins, "open", lambda path, *a, **k: real(small if "uid_map" in str(path) else path)
    )
    with pytest.raises(SandboxError, match="has 1 ids"):
        Bubblewrap("bwrap", "own").prepare()


def test_settings_of_the_machine_are_read_only_in_bubblewrap():
    try:
        layer = sandbox_choice.choose("bubblewrap")
    except SandboxError as error:
        pytest.skip(str(error))
    program = """
import errno, os
for path in ("/proc/sys/kernel/ostype", "/proc/self/comm", "/proc/self/oom_score_adj"):
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        print(errno.errorcode[error.errno])
for folder in ("/proc", "/proc/sys", "/proc/self"):
    print(bool(os.statvfs(folder).f_flag & os.ST_RDONLY))
print(open("/proc/sys/kernel/ostype").read())
"""
    sandbox = Sandbox(layer, ProgramLimits())
    with sandbox.folder({"main.py": program.encode()}) as folder:
        words = sandbox.run(folder, ("script", "main.py")).stdout.decode().split()
    if "no /proc" in layer.name:
        pytest.skip("this machine allows no /proc")
    assert words[-4:] == ["True", "True", "True", "Linux"]
    assert set(words[:-4]) <= {"EROFS", "EACCES"}
    assert len(words) == 7


def test_the_canary_finds_a_writable_setting_of_the_machine(monkeypatch):
    """A sandbox that confines nothing but the files that other attacks try."""
    if not os.access("/proc/sys/kernel/core_pattern", os.W_OK):
        pytest.skip("this user may not write settings of the machine")
    attacks = probe.CANARY.read_text()
    head, _, rest = attacks.partition("for attack in (")
    only = f"{head}for attack in (change_settings_of_the_machine,):{rest.partition('):')[2]}"
    path = Path(os.environ.get("TMPDIR", "/tmp"), f"canary-{os.getpid()}.py")
    path.write_text(only)
    monkeypatch.setattr(probe, "CANARY", path)
    try:
        from rl_sync.sandbox.unconfined import Unconfined

        assert probe.fault(Unconfined()) == "a program could change settings of the machine"
        assert probe.fault(sandbox_choice.choose()) is None
    finally:
        path.unlink()
