"""Builds a filter of system calls with libseccomp: a program that Linux runs before each call.

The filter rejects calls by which a confined program could reach rarely used parts of the kernel,
other processes, or memory that its limits do not count. Namespaces do the rest. The
format is that of `struct sock_filter` (linux/filter.h), which `bwrap --seccomp` reads.

Other calls are allowed, and not the other way round: libseccomp cannot allow a call for all values
of an argument but a few.
"""

from __future__ import annotations

import errno
import functools
import tempfile

from rl_sync.sandbox.layer import SandboxError

# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
_NEW_NAMESPACES = (
    *(0x80, 0x20000, 0x2000000, 0x4000000),
    *(0x8000000, 0x10000000, 0x20000000, 0x40000000),
)
_AF_UNIX = 1
# F_SETLEASE, F_NOTIFY and F_SETSIG report who opens files, and can delay them.
_WATCHING_REQUESTS = (1024, 1026, 10)
# These put characters into the input of a terminal.
_TERMINAL_REQUESTS = (0x5412, 0x541C)
# Calls from 424 on have the same number on every machine. Only these are allowed.
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
# Linux 6.18 ends at about 470, and gets a few calls a year.
_OTHER_COMMON = sorted({*range(424, 1024)} - {*_COMMON.values()})
# The kernel reads 32 bits of a request, and libseccomp compares 64.
_LOW_BITS = 0xFFFFFFFF

# An inotify watch on a file reports all processes that open the file.
REFUSED = [
    "acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime",
    "delete_module", "fanotify_init", "fanotify_mark", "finit_module", "get_mempolicy",
    "init_module", "inotify_add_watch", "inotify_init", "inotify_init1", "io_setup",
    "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie",
    "mbind", "memfd_create", "migrate_pages", "modify_ldt", "mount", "move_pages",
    "mq_open", "msgget", "name_to_handle_at", "open_by_handle_at", "perf_event_open",
    "personality", "pivot_root", "process_vm_readv", "process_vm_writev", "ptrace",
    "quotactl", "reboot", "request_key", "seccomp", "semget", "set_mempolicy",
    "setdomainname", "sethostname", "setns", "settimeofday", "shmget", "swapoff", "swapon",
    "syslog", "umount2", "unshare", "userfaultfd", "vhangup", "vmsplice",
]  # fmt: skip

# Calls to reject if a program shares its user's files and processes: Landlock does not protect
# owners, modes, times and attributes of files, nor priorities of processes.
REFUSED_IF_SHARED = [
    _COMMON["fchmodat2"],
    "chmod", "chown", "fchmod", "fchmodat", "fchown", "fchownat", "fremovexattr",
    "fsetxattr", "futimesat", "ioprio_set", "lchown", "lremovexattr", "lsetxattr",
    "removexattr", "sched_setaffinity", "sched_setattr", "sched_setparam",
    "sched_setscheduler", "setpriority", "setxattr", "utime", "utimensat", "utimes",
]  # fmt: skip


@functools.cache
def program(shared: bool = False) -> bytes:
    """Returns the filter for this machine.

    Args:
      shared: whether the program shares the files and processes of its user.

    Raises:
      SandboxError: libseccomp is not installed.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as error:
        raise SandboxError(
            "the filter of system calls needs the packages pyseccomp (pip) and libseccomp2 (Debian;"
            f" elsewhere libseccomp): {error}"
        ) from error
    arg, refused = pyseccomp.Arg, pyseccomp.ERRNO
    made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    made.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)
    made.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, 2)  # Finds a call by bisection.
    for call in (*REFUSED, *(REFUSED_IF_SHARED if shared else ())):
        made.add_rule(refused(errno.EPERM), call)
    # One of these is clone3: a filter cannot see its flags, which are behind a pointer. Without it,
    # libc uses clone.
    for call in _OTHER_COMMON:
        made.add_rule(refused(errno.ENOSYS), call)
    for flag in _NEW_NAMESPACES:
        made.add_rule(refused(errno.EPERM), "clone", arg(0, pyseccomp.MASKED_EQ, flag, flag))
    for call in ("socket", "socketpair"):
        made.add_rule(refused(errno.EAFNOSUPPORT), call, arg(0, pyseccomp.NE, _AF_UNIX))
    for call, requests in (("ioctl", _TERMINAL_REQUESTS), ("fcntl", _WATCHING_REQUESTS)):
        for request in requests:
            compared = arg(1, pyseccomp.MASKED_EQ, _LOW_BITS, request)
            made.add_rule(refused(errno.EPERM), call, compared)
    if shared:  # A program may use prlimit only for itself, which is process 0.
        made.add_rule(refused(errno.EPERM), "prlimit64", arg(0, pyseccomp.NE, 0))
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()
