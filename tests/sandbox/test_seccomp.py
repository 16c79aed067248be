"""The filter of system calls, interpreted instruction by instruction."""

import struct
import sys

import pyseccomp
import pytest

from rl_sync.sandbox import seccomp
from rl_sync.sandbox.layer import SandboxError

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
MACHINES = {"x86_64": pyseccomp.Arch.X86_64, "aarch64": pyseccomp.Arch.AARCH64}


class Filter(pyseccomp.SyscallFilter):
    """A filter for another machine, with all rules that libseccomp can translate."""

    machine = pyseccomp.Arch.NATIVE

    def __init__(self, action):
        super().__init__(action)
        if not self.exist_arch(self.machine):
            self.remove_arch(pyseccomp.Arch.NATIVE)
            self.add_arch(self.machine)

    def add_rule(self, action, call, *arguments):
        try:
            super().add_rule(action, call, *arguments)
        except OSError:
            assert call > NEWEST, call


NEWEST = 450
"""A number below which libseccomp knows all calls."""


def verdict(code, machine, number, *arguments):
    """Runs a program of the classic BPF on a call."""
    data = struct.pack("<IIQ6Q", number, machine, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("=HBBI", code))
    at, word = 0, 0
    while True:
        kind, then, otherwise, value = steps[at]
        at += 1
        if kind == 0x20:
            word = struct.unpack_from("<I", data, value)[0]
        elif kind == 0x54:
            word &= value
        elif kind == 0x05:
            at += value
        elif kind == 0x06:
            return value
        else:
            holds = {0x15: word == value, 0x25: word > value, 0x35: word >= value}[kind]
            at += then if holds else otherwise


@pytest.fixture(params=list(MACHINES))
def call(request, monkeypatch):
    machine = MACHINES[request.param]
    monkeypatch.setattr(pyseccomp, "SyscallFilter", Filter)
    monkeypatch.setattr(Filter, "machine", machine)
    codes = [seccomp.program.__wrapped__(shared) for shared in (False, True)]

    def run(name, *arguments, shared=False):
        number = pyseccomp.resolve_syscall(machine, name) if isinstance(name, str) else name
        return None if number < 0 else verdict(codes[shared], machine, number, *arguments)

    return run


def test_ordinary_calls_are_allowed(call):
    assert call("read") == call("execve") == ALLOW
    assert call("clone", 17) == ALLOW  # A fork: only the signal of its end.
    assert call("clone", 0x3D0F00) == ALLOW  # A thread.
    assert call("socket", 1) == ALLOW
    assert call("ioctl", 0, 0x5401) == ALLOW
    assert call("prlimit64", 1234) == ALLOW


def test_each_listed_call_is_refused(call):
    found = [call(name) for name in seccomp.REFUSED]
    assert {*found} <= {ERRNO | 1, None}
    assert found.count(None) < 5, "one of the two machines has no such call"


def test_a_program_that_shares_files_gets_fewer_calls(call):
    for name in seccomp.REFUSED_IF_SHARED:
        assert call(name) in (ALLOW, None), name
        assert call(name, shared=True) in (ERRNO | 1, None), name
    assert call("prlimit64", 0, shared=True) == ALLOW
    assert call("prlimit64", 1234, shared=True) == ERRNO | 1


@pytest.mark.parametrize(
    "flag", [0x20000, 0x2000000, 0x4000000, 0x10000000, 0x20000000, 0x40000000]
)
def test_new_namespaces_are_refused(call, flag):
    assert call("clone", flag | 17) == ERRNO | 1


def test_sockets_other_than_of_unix_are_refused(call):
    for family in (2, 10, 16, 17, 38, 40):
        assert call("socket", family) == ERRNO | 97


def test_files_are_not_watched(call):
    for request in (1024, 1026, 10):
        assert call("fcntl", 3, request) == ERRNO | 1
    for request in (0, 1, 2, 3, 4, 1030):  # Duplicates, flags.
        assert call("fcntl", 3, request) == ALLOW


def test_terminals_take_no_input_from_programs(call):
    for request in (0x5412, 0x541C, 1 << 32 | 0x5412):  # The kernel reads 32 bits.
        assert call("ioctl", 0, request) == ERRNO | 1


def test_calls_that_are_newer_than_the_table_do_not_exist(call):
    assert call(435) == call(425) == call(440) == ERRNO | 38
    assert call(437) == ALLOW
    code = seccomp.program()
    machine = pyseccomp.system_arch()
    assert verdict(code, machine, 470) == verdict(code, machine, 1023) == ERRNO | 38
    assert verdict(code, machine, 456) == ALLOW


def test_calls_of_other_machines_are_killed():
    code = seccomp.program()
    assert verdict(code, pyseccomp.Arch.X86, 1) == KILL  # 32 bits.
    if pyseccomp.system_arch() == pyseccomp.Arch.X86_64:
        assert verdict(code, pyseccomp.Arch.X86_64, 0x40000000) == KILL  # x32.


def test_without_the_library_there_is_no_sandbox_but_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(SandboxError, match="libseccomp2"):
        seccomp.program.__wrapped__()
