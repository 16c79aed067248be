"""The filter of system calls, interpreted instruction by instruction."""

import struct

import pytest

from rl_sync.sandbox import seccomp

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
CALLS = {
    "x86_64": {"read": 0, "execve": 59, "clone": 56, "socket": 41, "ioctl": 16, "prlimit64": 302},
    "aarch64": {
        "read": 63,
        "execve": 221,
        "clone": 220,
        "socket": 198,
        "ioctl": 29,
        "prlimit64": 261,
    },
}


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
        elif kind == 0x06:
            return value
        else:
            holds = {0x15: word == value, 0x35: word >= value, 0x45: bool(word & value)}[kind]
            at += then if holds else otherwise


@pytest.fixture(params=list(CALLS))
def call(request):
    machine = seccomp.MACHINES[request.param].audit
    numbers = CALLS[request.param]

    def run(name, *arguments, shared=False):
        code = seccomp.program(request.param, shared)
        number = numbers[name] if isinstance(name, str) else name
        return verdict(code, machine, number, *arguments)

    run.column = list(CALLS).index(request.param)
    return run


def test_ordinary_calls_are_allowed(call):
    assert call("read") == call("execve") == ALLOW
    assert call("clone", 17) == ALLOW  # A fork: only the signal of its end.
    assert call("clone", 0x3D0F00) == ALLOW  # A thread.
    assert call("socket", 1) == ALLOW
    assert call("ioctl", 0, 0x5401) == ALLOW
    assert call("prlimit64", 1234) == ALLOW


def test_each_listed_call_is_refused(call):
    for name, numbers in seccomp.REFUSED.items():
        if (number := numbers[call.column]) is not None:
            assert call(number) == ERRNO | 1, name


def test_a_program_that_shares_files_gets_fewer_calls(call):
    for name, numbers in seccomp.REFUSED_IF_SHARED.items():
        if (number := numbers[call.column]) is not None:
            assert call(number) == ALLOW, name
            assert call(number, shared=True) == ERRNO | 1, name
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
    fcntl = {"x86_64": 72, "aarch64": 25}[list(CALLS)[call.column]]
    for request in (1024, 1026, 10):
        assert call(fcntl, 3, request) == ERRNO | 1
    for request in (0, 1, 2, 3, 4, 1030):  # Duplicates, flags.
        assert call(fcntl, 3, request) == ALLOW


def test_terminals_take_no_input_from_programs(call):
    assert call("ioctl", 0, 0x5412) == ERRNO | 1


def test_calls_that_are_newer_than_the_table_do_not_exist(call):
    assert call(435) == call(425) == call(470) == call(9999) == ERRNO | 38
    assert call(437) == ALLOW


def test_calls_of_other_machines_are_killed():
    code = seccomp.program("x86_64")
    assert verdict(code, 0x40000003, 1) == KILL  # 32 bits.
    assert verdict(code, seccomp.MACHINES["x86_64"].audit, 0x40000000) == KILL  # x32.


def test_an_unknown_machine_has_no_filter():
    assert seccomp.program("riscv64") is None
