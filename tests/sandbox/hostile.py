"""Hostile programs of the second battery, as data. `benchmarks/hostile.py` makes their table.

Programs of `ESCAPES` and `GREEDY` run on standard input; they print a word where they got what
they must not. Those of `FORGERIES` run against tests in Python that no program may pass. Names in
`{braces}` are facts of this machine. Nothing here does harm where it should succeed, but programs
of `GREEDY` take much of a machine without a sandbox.
"""

# ruff: noqa: E501
from __future__ import annotations

import ctypes
import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

WORD = "ESCAPED"


class Hostile(NamedTuple):
    """A hostile program: its language, its text, and the row that judges it."""

    name: str
    language: str
    text: str
    row: dict[str, Any]
    kind: str


_CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if {condition}: print("ESCAPED")
"""
_C = """#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static void *idle(void *p) { pause(); return p; }
static void won(void) { puts("ESCAPED"); fflush(stdout); }
int main(void) { (void)idle; BODY return 0; }
"""
_JAVA = """import java.io.*; import java.net.*; import java.nio.*; import java.nio.file.*;
import java.util.*;
public class Main { public static void main(String[] a) throws Throwable { BODY } }
"""


def _call(condition: str) -> str:
    return _CALL.replace("{condition}", condition)


def _c(body: str) -> str:
    return _C.replace("BODY", body)


def _java(body: str) -> str:
    return _JAVA.replace("BODY", body)


_OPENS = """
import os
for path in {paths}:
    try:
        os.close(os.open(path, os.{mode} | os.O_NONBLOCK))
    except OSError:
        continue
    print("ESCAPED"); break
"""


def _opens(mode: str, *paths: str) -> str:
    return _OPENS.replace("{paths}", repr(paths)).replace("{mode}", mode)


def _lists(*folders: str) -> str:
    return f"""
import os
for folder in {folders!r}:
    try:
        if os.listdir(folder): print("ESCAPED"); break
    except OSError:
        pass
"""


ESCAPES: dict[str, tuple[str, str]] = {
    # Python
    "watches a folder of the system (inotify)": (
        "python",
        _call('libc.inotify_add_watch(libc.inotify_init1(0), b"/usr/bin", 0xFFF) >= 0'),
    ),
    "watches a folder outside (inotify)": (
        "python",
        _call('libc.inotify_add_watch(libc.inotify_init1(0), b"{FOLDER}", 0xFFF) >= 0'),
    ),
    "takes a lease on a file of the system": (
        "python",
        "import fcntl\nfcntl.fcntl(open('/usr/bin/env'), 1024, fcntl.F_RDLCK); print('ESCAPED')",
    ),
    "asks for signals about a folder of the system": (
        "python",
        "import fcntl, os\nfcntl.fcntl(os.open('/usr/bin', os.O_RDONLY), 1026, 7); print('ESCAPED')",
    ),
    "marks files for the audit of all programs (fanotify)": (
        "python",
        _call("libc.syscall(300, 0, 0) >= 0"),
    ),
    "maps a library of the system to write": (
        "python",
        "import mmap, os\nfd = os.open(os.__file__, os.O_RDWR)\n"
        "mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE); print('ESCAPED')",
    ),
    "opens memory, disks and tunnels of the machine": (
        "python",
        _opens(
            "O_RDONLY",
            "/dev/mem",
            "/dev/port",
            "/dev/vda",
            "/dev/sda",
            "/dev/nvme0n1",
            "/dev/loop-control",
            "/dev/fuse",
            "/dev/kvm",
            "/dev/net/tun",
            "/dev/vhost-vsock",
        ),
    ),
    "reads the kernel's log": ("python", _opens("O_RDONLY", "/dev/kmsg", "/proc/kmsg")),
    "reads the kernel's addresses and memory": (
        "python",
        _opens("O_RDONLY", "/proc/kcore", "/proc/kpageflags", "/proc/vmallocinfo"),
    ),
    "writes the files that load at each start": (
        "python",
        _opens(
            "O_WRONLY",
            "/etc/ld.so.cache",
            "/etc/passwd",
            "/etc/crontab",
            "/etc/environment",
            "/etc/profile",
            "/root/.bashrc",
            "/usr/lib/os-release",
        ),
    ),
    "reads homes": (
        "python",
        _opens("O_RDONLY", "/root/.bashrc", "/root/.profile", "/root/.ssh", "/home", "/etc/skel"),
    ),
    "reads logs, mail and jobs": ("python", _lists("/var/log", "/var/spool", "/var/lib")),
    "reads sockets and secrets of services": ("python", _lists("/run", "/var/run", "/run/secrets")),
    "reads the hardware's numbers": ("python", _lists("/sys/class", "/sys/devices")),
    "reads the kernel and its settings": ("python", _lists("/boot", "/lib/modules", "/etc/ssh")),
    "reads names and numbers of this machine": (
        "python",
        _opens("O_RDONLY", "/etc/machine-id", "/etc/passwd", "/etc/fstab", "/etc/resolv.conf"),
    ),
    "finds descriptors that the judge left open": (
        "python",
        # WebAssembly has its two folders as descriptors.
        "import os, stat\nfor fd in range(3, 128):\n    try: mode = os.fstat(fd).st_mode\n"
        "    except OSError: continue\n    if not stat.S_ISDIR(mode): print('ESCAPED'); break",
    ),
    "makes a ring of calls past the filter (io_uring)": (
        "python",
        _call("libc.syscall(425, 8, ctypes.create_string_buffer(256)) >= 0"),
    ),
    "stops the kernel at its page faults": ("python", _call("libc.syscall(323, 0) >= 0")),
    "loads a program into the kernel": (
        "python",
        _call("libc.syscall(321, 0, ctypes.create_string_buffer(128), 128) >= 0"),
    ),
    "counts other programs' events": (
        "python",
        _call(
            "libc.syscall(298, ctypes.create_string_buffer(bytes([1,0,0,0,112]), 112), -1, 0, -1, 0) >= 0"
        ),
    ),
    "keeps a key in the kernel": (
        "python",
        _call('libc.syscall(248, b"user", b"k", b"v", 1, -3) >= 0'),
    ),
    "makes a file of memory alone": ("python", _call('libc.syscall(319, b"m", 0) >= 0')),
    "asks for handles of files": (
        "python",
        _call(
            "libc.syscall(303, -100, b'/usr', ctypes.create_string_buffer(bytes([128]), 256),"
            " ctypes.byref(ctypes.c_int()), 0) == 0"
        ),
    ),
    "takes a descriptor of its parent": (
        "python",
        "import ctypes, os\nlibc = ctypes.CDLL(None)\npid = libc.syscall(434, os.getppid(), 0)\n"
        "if pid >= 0 and libc.syscall(438, pid, 0, 0) >= 0: print('ESCAPED')",
    ),
    "reads the judge's memory": (
        "python",
        "import ctypes\nclass V(ctypes.Structure): _fields_ = [('b', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
        "buffer = ctypes.create_string_buffer(8)\nhere = V(ctypes.addressof(buffer), 8)\n"
        "there = V({ADDRESS}, 8)\n"
        "if ctypes.CDLL(None).process_vm_readv({PID}, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0:"
        " print('ESCAPED')",
    ),
    "changes its root": ("python", _call("libc.chroot(b'/tmp') == 0")),
    "opens a tree of mounts": ("python", _call("libc.syscall(428, -100, b'/', 1) >= 0")),
    "opens a new file system": ("python", _call("libc.syscall(430, b'tmpfs', 0) >= 0")),
    "makes the root writable again": (
        "python",
        _call("libc.mount(None, b'/', None, 32 | 4096, None) == 0"),
    ),
    "enters the judge's namespaces": (
        "python",
        "import ctypes, os\nfor kind in ('mnt', 'net', 'pid', 'user'):\n    try: fd = os.open(f'/proc/{PID}/ns/{kind}', 0)\n"
        "    except OSError: continue\n    if ctypes.CDLL(None).setns(fd, 0) == 0: print('ESCAPED'); break",
    ),
    "binds the judge to one processor": (
        "python",
        "import os\ncpus = os.sched_getaffinity({PID})\nos.sched_setaffinity({PID}, cpus); print('ESCAPED')",
    ),
    "runs before all others (real time)": (
        "python",
        "import os\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); print('ESCAPED')",
    ),
    "is the last that the kernel kills": (
        "python",
        "open('/proc/self/oom_score_adj', 'w').write('-1000'); print('ESCAPED')",
    ),
    "talks to the kernel's network (netlink)": (
        "python",
        "import socket\nsocket.socket(16, socket.SOCK_RAW, 0).bind((0, 0)); print('ESCAPED')",
    ),
    "uses the kernel's ciphers (AF_ALG)": (
        "python",
        "import socket\ns = socket.socket(socket.AF_ALG, 5); s.bind(('hash', 'sha256')); print('ESCAPED')",
    ),
    "asks a name server": (
        "python",
        "import socket\ns = socket.socket(2, 2); s.sendto(b'x', ('{HOST}', 53)); print('ESCAPED')",
    ),
    "signals the judge to see it": ("python", "import os\nos.kill({PID}, 0) or print('ESCAPED')"),
    "types into the judge's terminal": (
        "python",
        "import fcntl\nfcntl.ioctl(0, 0x5412, b'x'); print('ESCAPED')",
    ),
    # C and C++
    "makes a user namespace by clone3": (
        "c",
        _c(
            "long v[11] = {0x10000000, 0, 0, 0, 17}; long r = syscall(435, v, 88);"
            " if (r == 0) _exit(0); if (r > 0) won();"
        ),
    ),
    "calls the kernel as a program of 32 bits": (
        "c",
        _c(
            'long r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(20) : "memory");'
            " if (r > 0) won();"
        ),
    ),
    "calls the kernel by x32": ("c", _c("if (syscall(0x40000000 | 39) > 0) won();")),
    "turns off no_new_privs by a program of root": (
        "c",
        _c('if (system("/usr/bin/su -c true root </dev/null >/dev/null 2>&1") == 0) won();'),
    ),
    "includes a file of accounts when it is compiled": (
        "c",
        '__asm__(".section .rodata\\nsecret: .incbin \\"/etc/passwd\\"\\n.byte 0\\n.text");\n'
        + _c('extern const char secret[]; if (strstr(secret, "root:")) won();'),
    ),
    "includes the judge's secret when it is compiled": (
        "cpp",
        '#include <cstdio>\nconst char *s =\n#include "{SECRET}"\n;\nint main() { puts(s); }',
    ),
    "finds the compiler's other programs": (
        "cpp",
        "#include <filesystem>\n#include <iostream>\nint main() { for (auto &e :"
        ' std::filesystem::directory_iterator("{PARENT}")) { (void)e; std::cout << "ESCAPED"; break; } }',
    ),
    "links to a file outside": (
        "c",
        _c(
            'if (!link("{SECRET}", "l") || !linkat(AT_FDCWD, "{SECRET}", AT_FDCWD, "m", 0x400)) won();'
        ),
    ),
    # JavaScript
    "starts a shell that reads accounts": (
        "javascript",
        "const o = require('child_process').execSync('cat /etc/shadow /etc/passwd; true').toString();\n"
        "if (o.includes('root:')) console.log('ESCAPED')",
    ),
    "connects from JavaScript": (
        "javascript",
        "require('net').connect({PORT}, '127.0.0.1', () => { console.log('ESCAPED'); process.exit() })"
        ".on('error', () => {})",
    ),
    "watches files from JavaScript": (
        "javascript",
        "require('fs').watch('/usr/bin', () => {}); console.log('ESCAPED'); process.exit()",
    ),
    "opens the inspector": (
        "javascript",
        "require('inspector').open(0, '0.0.0.0'); if (require('inspector').url()) console.log('ESCAPED');"
        " process.exit()",
    ),
    "kills the judge's group from JavaScript": (
        "javascript",
        "process.kill({PID}, 0); console.log('ESCAPED')",
    ),
    # Java
    "reads accounts by a process of Java": (
        "java",
        _java(
            'var p = new ProcessBuilder("cat", "/etc/shadow", "/etc/passwd").start();'
            ' if (new String(p.getInputStream().readAllBytes()).contains("root:"))'
            ' System.out.println("ESCAPED");'
        ),
    ),
    "serves the network from Java": (
        "java",
        _java('new ServerSocket(0); System.out.println("ESCAPED");'),
    ),
    "lists processes by Java": (
        "java",
        _java(
            "if (ProcessHandle.allProcesses().anyMatch(p -> p.pid() == {PID}L"
            ' && p.info().command().isPresent())) System.out.println("ESCAPED");'
        ),
    ),
    # Bash and Perl
    "connects by Bash": ("bash", "exec 3<>/dev/tcp/127.0.0.1/{PORT} && echo ESCAPED"),
    "takes back its limits": (
        "bash",
        "ulimit -Hn 100000 && ulimit -n 100000 && echo ESCAPED",
    ),
    "looks into the judge's folder through links": (
        "bash",
        "cd /proc/{PID}/cwd && ls >/dev/null && echo ESCAPED",
    ),
    "reads the judge's command line": (
        "bash",
        "[ -n \"$(tr -d '\\0' </proc/{PID}/cmdline)\" ] && echo ESCAPED",
    ),
    "traces the judge by Perl": (
        "perl",
        "print 'ESCAPED' if syscall(101, 0x4206, {PID}, 0, 0) == 0",
    ),
    "makes a device of the disk by Perl": (
        "perl",
        "print 'ESCAPED' if syscall(133, '/tmp/d', 0060600, 0x800) == 0",
    ),
}

GREEDY: dict[str, tuple[str, str]] = {
    "forks by vfork and clone": (
        "c",
        _c(
            "int n = 0; for (int i = 0; i < 400; i++) { pid_t p = i % 2 ? fork() :"
            " syscall(SYS_clone, 17, 0, 0, 0, 0); if (p == 0) { sleep(4); _exit(0); } n += p > 0; }"
            " if (n > 200) won();"
        ),
    ),
    "starts threads in C": (
        "c",
        _c(
            "pthread_t t; int n = 0; while (n < 400 && !pthread_create(&t, 0, idle, 0)) n++;"
            " if (n >= 400) won();"
        ),
    ),
    "locks memory": (
        "c",
        _c(
            "void *p = mmap(0, 900L << 20, 3, 0x22, -1, 0); if (p != MAP_FAILED &&"
            " !mlock(p, 900L << 20)) won();"
        ),
    ),
    "opens descriptors without end": (
        "c",
        _c('int n = 0; while (n < 5000 && open("/dev/null", 0) >= 0) n++; if (n >= 5000) won();'),
    ),
    "fills pipes": (
        "c",
        _c(
            "int n = 0, f[2]; char b[65536] = {0}; while (n < 3000 && !pipe(f)) { fcntl(f[1], 1031,"
            " 1 << 20); fcntl(f[1], 4, 2048); while (write(f[1], b, sizeof b) > 0); n++; }"
            " if (n >= 3000) won();"
        ),
    ),
    "keeps a segment of shared memory": (
        "c",
        _c("if (syscall(SYS_shmget, 0, 700L << 20, 01600) >= 0) won();"),
    ),
    "keeps sets of semaphores": ("c", _c("if (syscall(SYS_semget, 0, 32000, 01600) >= 0) won();")),
    "writes a file with a hole, and fills it": (
        "c",
        _c(
            'int f = open("hole", 66, 0600); if (f < 0) f = open("/tmp/hole", 66, 0600);'
            " if (f >= 0 && !posix_fallocate(f, 0, 800L << 20)) won();"
        ),
    ),
    "makes a million files": (
        "c",
        _c(
            'char n[32]; int i = 0; if (chdir("/tmp")) {} for (; i < 1000000; i++) { sprintf(n, "f%d", i);'
            " int f = open(n, 66, 0600); if (f < 0) break; close(f); } if (i >= 1000000) won();"
        ),
    ),
    "compiles to a gigabyte": ("c", "static int a[1 << 28] = {1};\nint main() { return a[0]; }"),
    "includes itself without end": ("c", "#include __FILE__\n#include __FILE__\nint main() {}"),
    "computes without end when it is compiled": (
        "cpp",
        "template <int N> struct A { static constexpr int v = A<N + 1>::v + A<N + 2>::v; };\n"
        "int main() { return A<0>::v; }",
    ),
    "starts threads in C++": (
        "cpp",
        "#include <iostream>\n#include <thread>\n#include <vector>\nint main() {\n"
        " std::vector<std::thread> t; try { for (int i = 0; i < 400; i++) t.emplace_back([] {"
        ' std::this_thread::sleep_for(std::chrono::seconds(9)); }); std::cout << "ESCAPED" <<'
        " std::endl; } catch (...) {} std::_Exit(0); }",
    ),
    "starts workers in JavaScript": (
        "javascript",
        "const { Worker } = require('worker_threads'); let n = 0;\n"
        "for (let i = 0; i < 200; i++) new Worker('setInterval(()=>{}, 1e6)', { eval: true }).on('online',"
        " () => { if (++n === 150) { console.log('ESCAPED'); process.exit() } })",
    ),
    "takes buffers in JavaScript": (
        "javascript",
        "const b = []; for (let i = 0; i < 14; i++) b.push(Buffer.alloc(64 << 20, 1));\n"
        "setTimeout(() => console.log('ESCAPED'), 400)",
    ),
    "grows memory of WebAssembly": (
        "javascript",
        "const m = new WebAssembly.Memory({ initial: 1, maximum: 20000 }); m.grow(14000);\n"
        "new Uint8Array(m.buffer).fill(1); setTimeout(() => console.log('ESCAPED'), 400)",
    ),
    "never lets JavaScript's clock strike": (
        "javascript",
        "const f = () => Promise.resolve().then(f); f(); setTimeout(() => console.log('ESCAPED'), 1)",
    ),
    "starts threads in Java": (
        "java",
        _java(
            "for (int i = 0; i < 500; i++) { var t = new Thread(() -> { try { Thread.sleep(9000); }"
            ' catch (Exception e) {} }); t.start(); } System.out.println("ESCAPED"); System.exit(0);'
        ),
    ),
    "takes memory past Java's heap": (
        "java",
        _java(
            "var l = new ArrayList<ByteBuffer>(); for (int i = 0; i < 14; i++) { var b ="
            " ByteBuffer.allocateDirect(64 << 20); while (b.hasRemaining()) b.putLong(1); l.add(b); }"
            ' Thread.sleep(400); System.out.println("ESCAPED");'
        ),
    ),
    "will not stop when Java ends": (
        "java",
        _java(
            "Runtime.getRuntime().addShutdownHook(new Thread(() -> { while (true); }));"
            " System.exit(0);"
        ),
    ),
    "doubles a text in Bash": (
        "bash",
        "x=1; for i in {1..31}; do x=$x$x; done; echo ESCAPED",
    ),
    "expands without end in Bash": (
        "bash",
        "echo {1..9}{1..9}{1..9}{1..9}{1..9}{1..9}{1..9}{1..9} >/dev/null; echo ESCAPED",
    ),
    "searches by a pattern without end": (
        "perl",
        "print 'ESCAPED' if ('a' x 40) =~ /^(\\w+\\s?)*\\1b(a|aa)+$/ or 1 == (('a' x 29) =~ /^((a|aa)+)+$(?!x)b/) or sleep 60;",
    ),
}

_SORTS = {
    "tests": ["xs = [3, 1, 2]; assert f(xs) == sorted(xs) and len(xs) == 3"],
    "functions": ["f"],
}
_EACH = {
    "tests": ["for got, want in zip(map(f, [1, 2, 3]), [7, 14, 21]): assert got == want"],
    "functions": ["f"],
}
_RAISES = {"tests": ["try: f(-1)\nexcept Exception: pass\nelse: assert False"], "functions": ["f"]}
_SECRET = {"tests": ["assert f(1) == 48151623", "assert f(2) == 42108"], "functions": ["f"]}
_CASE = {
    "tests": [
        "import unittest\nclass T(unittest.TestCase):\n"
        "    def test_f(self): self.assertEqual(f(2), 48151623)"
    ],
    "functions": ["f"],
}
_STACK = {
    "tests": ["s = Stack(); s.push(4); assert total(s.items) == 4 and s.peek() == 4"],
    "functions": ["total"],
    "classes": ["Stack"],
}
_ORDER = {
    "tests": [
        "got = f([3, 1, 2])\nassert len(got) == 3\nfor a, b in zip(got, got[1:]): assert not a > b"
    ],
    "functions": ["f"],
}

FORGERIES: dict[str, tuple[dict[str, Any], str]] = {
    "empties what it is compared with": (_SORTS, "def f(x): x.clear(); return []"),
    "ends the comparisons": (_EACH, "def f(x): raise StopIteration(7)"),
    "ends the comparisons after a guess": (
        _EACH,
        "def f(x):\n    if x == 1: return 7\n    raise StopIteration",
    ),
    "closes the generator of the comparisons": (_EACH, "def f(x): raise GeneratorExit"),
    "ends instead of raising": (_RAISES, "import os\ndef f(x): os._exit(0)"),
    "returns itself instead of raising": (_RAISES, "def f(x): return f"),
    "returns too much instead of raising": (_RAISES, "def f(x): return 'x' * 9_000_000"),
    "closes the pipe instead of raising": (_RAISES, "import os\ndef f(x): os.closerange(0, 99)"),
    "is killed instead of raising": (
        _RAISES,
        "import os\ndef f(x):\n    try: os.kill(os.getpid(), 11)\n    except AttributeError: return 0",
    ),
    "is in no order": (_ORDER, "def f(x): return [float('nan')] * 3"),
    "is in no order, in decimals": (
        _ORDER,
        "from decimal import Decimal\ndef f(x): return [Decimal('nan')] * 3",
    ),
    "makes itself unknown by an attribute": (
        _STACK,
        "class Stack:\n    items = property(lambda s: iter)\n    def push(s, x): pass\n    def peek(s): return 4\n"
        "def total(x): return 4",
    ),
    "makes itself unknown by an attribute of attributes": (
        _STACK,
        "class Any:\n    __getattr__ = __call__ = lambda s, *a: Any()\nclass Stack(Any):\n    items = [Any()]\n"
        "def total(x): return 4",
    ),
    "answers ahead of the question": (
        _SECRET,
        "import os\nimport sys, json\ndef f(x):\n    t = json.dumps(['value', 42108, {}]).encode()\n"
        "    for fd in range(3, 40):\n        try: os.write(fd, 2 * (len(t).to_bytes(4, 'big') + t))\n"
        "        except OSError: pass\n    return 48151623 - 1",
    ),
    "replaces how calls are looked up": (
        _SECRET,
        "import builtins\nbuiltins.eval = lambda *a: (lambda *b: True)\ndef f(x): return 1",
    ),
    "replaces how answers are written": (
        _SECRET,
        "import sys\np = sys.modules['plain']\nreal = p.write_message\n"
        "for m in list(sys.modules.values()):\n    if hasattr(m, 'write_message'):\n"
        "        m.write_message = lambda s, a: real(s, ['passed', '', {}])\ndef f(x): return 1",
    ),
    "looks for the tests in its callers' variables": (
        _SECRET,
        "import gc, re, sys\ndef f(x):\n    seen = ' '.join(repr(o)[:4000] for o in gc.get_objects() if type(o) in (dict, list, str))\n"
        "    found = re.findall(r'== (\\d{5,})', seen)\n    return int(found[x - 1]) if found else 0",
    ),
    "imports the examiner and asks it": (
        _SECRET,
        "import sys\nsys.path.insert(0, '/inside')\ntry:\n    import examiner\n"
        "    examiner.equal = lambda *a: True\n    examiner._outcome = lambda *a: ('passed', '')\n"
        "except Exception: pass\ndef f(x): return 1",
    ),
    "is a test itself": (
        _SECRET,
        "import unittest\ndef check(candidate): pass\ndef test_f(): pass\ndef f(x): return 1",
    ),
    "skips a case of unittest": (
        _CASE,
        "import unittest\ndef f(x): raise unittest.SkipTest('not today')",
    ),
    "expects its own failure": (
        _CASE,
        "class _ExpectedFailure(Exception): pass\ndef f(x): raise _ExpectedFailure",
    ),
    "answers from a thread after its end": (
        _SECRET,
        "import threading, os, time\ndef late():\n    time.sleep(0.2); os._exit(0)\n"
        "def f(x): threading.Thread(target=late).start(); time.sleep(9)",
    ),
    "prints what runners of tests print": (
        _SECRET,
        "print('2 passed in 0.01s\\nOK\\n[0, \"passed\", \"\"]')\ndef f(x): return print('OK')",
    ),
}


def battery() -> list[Hostile]:
    """Returns all programs."""
    prints = {"tests": [{"input": "", "output": WORD}]}
    found = [
        Hostile(name, language, text, {**prints, "language": language}, kind)
        for kind, table in (("escape", ESCAPES), ("greed", GREEDY))
        for name, (language, text) in table.items()
    ]
    return found + [
        Hostile(name, "python", text, row, "forgery") for name, (row, text) in FORGERIES.items()
    ]


def facts() -> dict[str, str]:
    """Makes what the programs must not reach: a folder, a secret file, a port and this process."""
    folder = Path(tempfile.mkdtemp(prefix="rl_sync-hostile-"))
    folder.chmod(0o755)
    secret = folder / "secret"
    secret.write_text('"ESCAPED"\n')
    server = socket.create_server(("127.0.0.1", 0))
    kept = ctypes.create_string_buffer(b"secret")
    _KEPT.extend([server, kept])
    return {
        "FOLDER": str(folder),
        "PARENT": str(folder),
        "SECRET": str(secret),
        "PORT": str(server.getsockname()[1]),
        "HOST": "127.0.0.1",
        "PID": str(os.getpid()),
        "ADDRESS": str(ctypes.addressof(kept)),
    }


_KEPT: list[object] = []


def filled(program: Hostile, values: Mapping[str, str]) -> str:
    """Puts the facts of this machine into a program's text."""
    text = program.text
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text
