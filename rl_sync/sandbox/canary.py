"""A hostile program that tests a sandbox. It runs in the sandbox, and is never imported.

Each attack that succeeds prints a line with its name; the last line is `alive`. `probe.py` passes
the targets as the argument: SECRET is a file that must not be read, FOLDER a folder that must not
be written into, PORT a port of this machine, SOCKET a Unix socket, PROCESS the process that tries
the sandbox, VICTIM a process to kill, and LIMIT the maximum number of processes.
"""

# ruff: noqa: SIM115
import ast
import os
import sys
import time

SECRET, FOLDER, PORT, SOCKET, PROCESS, VICTIM, LIMIT = ast.literal_eval(sys.argv[1])

SETTINGS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sysrq-trigger",
    "/proc/kcore",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/power/state",
    "/sys/fs/cgroup/cgroup.procs",
)


def read_secret():
    open(SECRET).read()


def read_environment():
    if "RL_SYNC_CANARY" not in os.environ:
        raise OSError("no secret")


def read_environment_of_parent():
    if b"RL_SYNC_CANARY" not in open(f"/proc/{PROCESS}/environ", "rb").read():
        raise OSError("no secret")


def write_outside():
    open(os.path.join(FOLDER, "written"), "w").close()


def change_program():
    open(__file__, "a").close()


def change_mode():
    os.chmod(FOLDER, 0o777)
    raise OSError("the folder tells whether its mode was changed")


def delete_outside():
    os.unlink(SECRET)


def reach_network():
    import socket

    socket.create_connection(("127.0.0.1", PORT), 0.3)


def reach_unix_socket():
    import socket

    socket.socket(socket.AF_UNIX).connect(SOCKET)


def reach_abstract_socket():
    import socket

    socket.socket(socket.AF_UNIX).connect("\0" + SOCKET)


def change_settings_of_the_machine():
    """Opens kernel files for writing, and writes nothing."""
    flags = os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)

    def files():
        # A sandbox may let programs open files that it does not list.
        yield from SETTINGS
        for top in ("/proc", "/sys"):
            for folder, folders, names in os.walk(top):
                if folder == "/proc":
                    # Files that belong only to this process may be changed.
                    own = ("self", "thread-self", str(os.getpid()))
                    folders[:] = [name for name in folders if name not in own]
                for name in names:
                    yield os.path.join(folder, name)

    for path in files():
        try:
            os.close(os.open(path, flags))
        except OSError:
            continue
        return
    raise OSError("none can be opened")


def fork_without_end():
    started = []
    try:
        for _ in range(LIMIT + 24):
            if (child := os.fork()) == 0:
                time.sleep(5)
                os._exit(0)
            started.append(child)
    finally:
        for child in started:
            os.kill(child, 9)
            os.waitpid(child, 0)


def kill_process_outside():
    # In a process namespace, the number may be one of our own processes.
    if os.getpid() != VICTIM:
        os.kill(VICTIM, 9)
    raise OSError("the process tells whether it was killed")


for attack in (
    read_secret,
    read_environment,
    read_environment_of_parent,
    write_outside,
    change_program,
    change_mode,
    delete_outside,
    reach_network,
    reach_unix_socket,
    reach_abstract_socket,
    kill_process_outside,
    change_settings_of_the_machine,
    fork_without_end,
):
    try:
        attack()
    except Exception:
        continue
    print(attack.__name__, flush=True)
print("alive", flush=True)
