"""Builds a filter of system calls: a program that Linux runs before each call (seccomp).

The filter rejects calls by which a confined program could reach rarely used parts of the kernel,
other processes, or memory that its limits do not count. Namespaces do the rest. The
format is that of `struct sock_filter` (linux/filter.h), which `bwrap --seccomp` reads.

No library can make this filter. libseccomp (which pyseccomp needs on the machine, and bubblewrap
does not) compares calls one by one. It has no rule for all calls from some number on, so it would
allow the calls of newer kernels.
"""

from __future__ import annotations

import platform
import struct
from typing import NamedTuple

# struct seccomp_data: the call's number, the machine, and from byte 16 the arguments.
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
# Instructions of the classic BPF.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_AF_UNIX = 1
# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
_NEW_NAMESPACES = 0x80 | 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x70000000
# F_SETLEASE, F_NOTIFY and F_SETSIG report who opens files, and can delay them.
_WATCHING_REQUESTS = (1024, 1026, 10)
# These put characters into the input of a terminal.
_TERMINAL_REQUESTS = (0x5412, 0x541C)
# Calls from this number on have the same number on every machine. Only these are allowed.
_FIRST_COMMON = 424
_COMMON = {
    "pidfd_send_signal": 424,
    "pidfd_open": 434,
    "close_range": 436,
    "openat2": 437,
    "faccessat2": 439,
    "epoll_pwait2": 441,
    "futex_waitv": 449,
    "fchmodat2": 452,
    "futex_wake": 454,
    "futex_wait": 455,
    "futex_requeue": 456,
}
_X32 = 0x40000000


class Architecture(NamedTuple):
    """A processor architecture: its number in the kernel, and the numbers of some calls."""

    audit: int
    clone: int
    socket: int
    socketpair: int
    ioctl: int
    prlimit: int
    fcntl: int
    clone3: int = 435


MACHINES = {
    "x86_64": Architecture(
        audit=0xC000003E, clone=56, socket=41, socketpair=53, ioctl=16, prlimit=302, fcntl=72
    ),
    "aarch64": Architecture(
        audit=0xC00000B7, clone=220, socket=198, socketpair=199, ioctl=29, prlimit=261, fcntl=25
    ),
}

# Refused calls: number on x86_64, number on aarch64 (None if it does not exist).
REFUSED: dict[str, tuple[int, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "finit_module": (313, 273),
    "get_mempolicy": (239, 236),
    "init_module": (175, 105),
    # A watch on a file reports all processes that open the file.
    "inotify_add_watch": (254, 27),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "memfd_create": (319, 279),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "seccomp": (317, 277),
    "semget": (64, 190),
    "set_mempolicy": (238, 237),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
}

# Calls to reject if a program shares its user's files and processes: Landlock does not protect
# owners, modes, times and attributes of files, nor priorities of processes.
REFUSED_IF_SHARED: dict[str, tuple[int, int | None]] = {
    "chmod": (90, None),
    "chown": (92, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "futimesat": (261, None),
    "ioprio_set": (251, 30),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
    "setxattr": (188, 5),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
}


def program(architecture: str | None = None, shared: bool = False) -> bytes | None:
    """Returns the filter for an architecture, or None if there is no table of its calls.

    Args:
      shared: whether the program shares the files and processes of its user.
      architecture: the name as `platform.machine()` gives it; this machine's by default.
    """
    name = architecture or platform.machine()
    if (machine := MACHINES.get(name)) is None:
        return None
    column = list(MACHINES).index(name)
    table = {**REFUSED, **(REFUSED_IF_SHARED if shared else {})}
    refused = [numbers[column] for numbers in table.values()]
    code = [
        _step(_LOAD, _MACHINE),
        *_unless(_EQUAL, machine.audit, _KILL),
        _step(_LOAD, _NUMBER),
        # Calls of the x32 ABI have the same machine and other numbers.
        *_when(_AT_LEAST, _X32, _KILL),
        *(step for number in refused if number is not None for step in _refuse(number, _EPERM)),
        # A filter cannot see the flags of clone3, which are behind a pointer. Without it, libc uses
        # clone.
        *_refuse(machine.clone3, _ENOSYS),
        *(step for number in _COMMON.values() for step in _when(_EQUAL, number, _ALLOW)),
        *_when(_AT_LEAST, _FIRST_COMMON, _ERRNO | _ENOSYS),
        *_inspect(machine.clone, 0, _when(_ANY_BIT, _NEW_NAMESPACES, _ERRNO | _EPERM)),
        *_inspect(machine.socket, 0, _unless(_EQUAL, _AF_UNIX, _ERRNO | _EAFNOSUPPORT)),
        *_inspect(machine.socketpair, 0, _unless(_EQUAL, _AF_UNIX, _ERRNO | _EAFNOSUPPORT)),
        *_inspect(
            machine.ioctl,
            1,
            [s for r in _TERMINAL_REQUESTS for s in _when(_EQUAL, r, _ERRNO | _EPERM)],
        ),
        *_inspect(
            machine.fcntl,
            1,
            [s for r in _WATCHING_REQUESTS for s in _when(_EQUAL, r, _ERRNO | _EPERM)],
        ),
        # A program may use prlimit only for itself, which is process 0.
        *(_inspect(machine.prlimit, 0, _unless(_EQUAL, 0, _ERRNO | _EPERM)) if shared else ()),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(code)


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """Encodes an instruction; `then` and `otherwise` are numbers of instructions to skip."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def _when(test: int, value: int, verdict: int) -> list[bytes]:
    """Ends with a verdict if the loaded word passes a test."""
    return [_step(test, value, 0, 1), _step(_RETURN, verdict)]


def _unless(test: int, value: int, verdict: int) -> list[bytes]:
    """Ends with a verdict if the loaded word fails a test."""
    return [_step(test, value, 1, 0), _step(_RETURN, verdict)]


def _refuse(number: int, error: int) -> list[bytes]:
    """Ends with an error if the loaded word is the number of a call."""
    return _when(_EQUAL, number, _ERRNO | error)


def _inspect(number: int, argument: int, checks: list[bytes]) -> list[bytes]:
    """Runs checks of a call's argument (its low 32 bits), then allows the call."""
    body = [_step(_LOAD, _ARGUMENTS + 8 * argument), *checks, _step(_RETURN, _ALLOW)]
    return [_step(_EQUAL, number, 0, len(body)), *body]
