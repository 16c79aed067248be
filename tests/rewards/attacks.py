"""Programs that attack the code reward, in a table.

Each tries to score or to escape. `PRINTS` attacks run against a test on standard input, whose
expected output is `escaped`; they print that where they succeed at what they must not. `RETURNS`
attacks run against tests of a function `f` that returns a secret number, which no program knows.
The names in capitals are put in by the test: SECRET (a file whose text is `escaped`), FOLDER, PORT,
SOCKET, PID (of this machine).
"""

PRINTS = {
    "reads a secret file": "print(open(SECRET).read())",
    "reads a secret by a link": """
import os
os.symlink(SECRET, "link")
print(open("link").read())
""",
    "reads a secret by a hard link": """
import os
os.link(SECRET, "link")
print(open("link").read())
""",
    "reads a secret by climbing": """
import os
print(open("../../../../../../../.." + SECRET).read())
""",
    "reads a secret by the root of a process": "print(open(f'/proc/{PID}/root' + SECRET).read())",
    "reads a secret by the first process": "print(open('/proc/1/root' + SECRET).read())",
    "reads the environment": "import os; print(os.environ['RL_SYNC_SECRET'])",
    "reads the environment of the parent": """
text = open(f"/proc/{PID}/environ").read()
print("escaped" if "RL_SYNC_SECRET" in text else "")
""",
    "reads the environment of the first process": """
text = open("/proc/1/environ").read()
print("escaped" if "RL_SYNC_SECRET" in text else "")
""",
    "reads accounts": "print('escaped' if open('/etc/shadow').read() else '')",
    "lists a folder": "import os; print('escaped' if os.listdir(FOLDER) else '')",
    "changes the mode of a folder": """
import os
os.chmod(FOLDER, 0o777)
print("escaped" if os.stat(FOLDER).st_mode & 0o777 == 0o777 else "")
""",
    "changes the owner of a file": "import os; os.chown(SECRET, -1, os.getgid()); print('escaped')",
    "changes the times of a file": "import os; os.utime(SECRET, (0, 0)); print('escaped')",
    "writes outside": "open(FOLDER + '/written', 'w').write('x'); print('escaped')",
    "writes into the system": "open('/usr/rl_sync_written', 'w').write('x'); print('escaped')",
    "changes its own text": "open(__file__, 'a').write('x'); print('escaped')",
    "changes the interpreter": """
import os, sys
open(os.__file__, "a").close()
print("escaped" if sys.platform != "wasi" else "in memory of its own")
""",
    "changes the limits of a process": """
import resource
print("escaped" if resource.prlimit(PID, resource.RLIMIT_NOFILE) else "")
""",
    "changes the priority of a process": """
import os
os.setpriority(os.PRIO_PROCESS, PID, os.getpriority(os.PRIO_PROCESS, PID)); print("escaped")
""",
    "changes the launcher": """
import sys
open(sys._getframe(1).f_code.co_filename, "a")
print("escaped")
""",
    "leaves a file for the next run": """
import os
print("escaped" if os.path.exists("/tmp/left") or os.path.exists("/dev/shm/left") else "")
open("/tmp/left", "w").close()
open("/dev/shm/left", "w").close()
""",
    "connects to this machine": """
import socket
socket.create_connection(("127.0.0.1", PORT), 1)
print("escaped")
""",
    "listens": """
import socket
s = socket.socket(); s.bind(("0.0.0.0", 0)); s.listen(); print("escaped")
""",
    "connects to a Unix socket": """
import socket
socket.socket(socket.AF_UNIX).connect(SOCKET); print("escaped")
""",
    "connects to an abstract socket": """
import socket
socket.socket(socket.AF_UNIX).connect("\\0" + SOCKET); print("escaped")
""",
    "opens a raw socket": """
import socket
socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print("escaped")
""",
    "talks to the hypervisor": "import socket; socket.socket(40, 1); print('escaped')",
    "forks without end": """
import os, time
started = 0
while started < 200:
    if os.fork() == 0:
        time.sleep(60)
    started += 1
print("escaped")
""",
    "bombs with forks": """
import os
while True:
    os.fork()
""",
    "starts threads without end": """
import threading, time
for _ in range(300):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("escaped", flush=True)
""",
    "takes memory": "x = bytearray(1 << 30); x[::4096] = b'1' * len(x[::4096]); print('escaped')",
    "takes memory in many processes": """
import os, time
ready, tell = os.pipe()
for _ in range(6):
    if os.fork() == 0:
        x = b"x" * (150 << 20)
        os.write(tell, b".")
        time.sleep(60)
for _ in range(4):
    os.read(ready, 1)
time.sleep(0.3)
print("escaped")
""",
    "takes shared memory": """
import mmap
x = mmap.mmap(-1, 1 << 30); x.write(b"1" * (1 << 30)); print("escaped")
""",
    "fills the disk": """
for number in range(50):
    for folder in ("/tmp", "/dev/shm", "."):
        with open(f"{folder}/{number}", "wb") as file:
            file.write(bytes(4 << 20))
print("escaped")
""",
    "writes a huge file": """
with open("huge", "wb") as file:
    for _ in range(200):
        file.write(bytes(1 << 20))
print("escaped")
""",
    "prints without end": "while True: print('escaped' * 1000)",
    "prints errors without end": """
import sys
while True: print("escaped" * 1000, file=sys.stderr)
""",
    "sleeps": "import time; time.sleep(3600)",
    "loops": "while True: pass",
    "waits for input that does not come": "import os; os.dup2(os.pipe()[0], 0); input()",
    "ignores signals": """
import signal
for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True: pass
""",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "kills its parent": """
import os, signal, time
os.kill(os.getppid(), signal.SIGKILL); time.sleep(0.2); print("killed")
""",
    "kills everything": "import os, signal; os.kill(-1, signal.SIGKILL); print('alive')",
    "kills this process": "import os, signal; os.kill(PID, signal.SIGKILL); print('escaped')",
    "leaves a daemon that prints": """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(2)
    print("escaped", flush=True)
""",
    "leaves a daemon that holds the output": """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
""",
    "traces its parent": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print("escaped" if libc.ptrace(16, os.getppid(), 0, 0) == 0 else "")
""",
    "reads the memory of the first process": """
import re
for line in open("/proc/1/maps"):
    start = int(line.split("-")[0], 16)
    with open("/proc/1/mem", "rb") as memory:
        memory.seek(start)
        memory.read(16)
        print("escaped")
        break
""",
    "mounts": """
import ctypes
libc = ctypes.CDLL(None)
libc.mkdir(b"/tmp/m", 0o700)
print("escaped" if libc.mount(b"tmpfs", b"/tmp/m", b"tmpfs", 0, None) == 0 else "")
""",
    "makes namespaces": """
import ctypes
print("escaped" if ctypes.CDLL(None).unshare(0x10000000) == 0 else "")
""",
    "makes namespaces by clone": """
import ctypes, os
result = ctypes.CDLL(None).syscall(56, 0x10000000 | 17, 0, 0, 0, 0)
if result == 0:
    os._exit(0)
print("escaped" if result > 0 else "")
""",
    "makes a device": """
import os, stat
os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)); print("escaped")
""",
    "becomes root": """
import os
os.setresuid(0, 0, 0)
os.setresuid(1, 1, 1)
print("escaped")
""",
    "raises its limits": """
import resource
resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); print("escaped")
""",
    "loads a kernel module": """
import ctypes
print("escaped" if ctypes.CDLL(None).syscall(313, 0, b"", 0) == 0 else "")
""",
    "changes the clock": "import time; time.clock_settime(0, 0); print('escaped')",
    "changes the host name": "import socket; socket.sethostname('x'); print('escaped')",
    "changes the kernel's settings": """
open("/proc/sys/kernel/printk", "r+").write("7"); print("escaped")
""",
    "forges passed lines": """
print("1 passed in 0.01s\\n...\\nOK\\n[0, \\"passed\\", \\"\\"]\\nPASSED")
raise SystemExit(0)
""",
    "exits without a result": "import os; os._exit(0)",
    "overflows the stack": """
import ctypes
def f(): return f()
import sys
sys.setrecursionlimit(10**9)
f()
""",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "closes its output": "import os, time; os.close(1); os.close(2); time.sleep(60)",
    "searches for the expected output": """
import gc
found = [o for o in gc.get_objects() if isinstance(o, dict) and "expected" in o or o == "escaped"]
print(found[0]["output"])
""",
    "searches its files for the tests": """
import os
for folder, _, files in os.walk("/program"):
    for file in files:
        text = open(os.path.join(folder, file)).read()
        if file != "main.py":
            print(text)
""",
    "writes odd bytes": "import os; os.write(1, bytes(range(256)) * 4)",
}

# `FORGE` finds descriptors that look like the way for results, and writes a message into each.
FORGE = """
import json, os
def forge(message):
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, len(text).to_bytes(4, "big") + text)
        except OSError:
            pass
"""

RETURNS = {
    "returns nothing": "def f(x): pass",
    "defines nothing": "g = 1",
    "has a syntax error": "def f(x: return 1",
    "raises at its start": "raise RuntimeError('no')",
    "raises AssertionError": "def f(x): raise AssertionError('passed')",
    "exits": "def f(x): raise SystemExit(0)",
    "exits at its start": "raise SystemExit(0)",
    "exits at once": "import os\ndef f(x): os._exit(0)",
    "exits at once at its start": "import os; os._exit(0)",
    "overrides equality": """
class Equal:
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = None
def f(x): return Equal()
""",
    "overrides equality of a number": """
class Number(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
def f(x): return Number(1)
""",
    "overrides equality of a text": """
class Text(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
def f(x): return Text("1")
""",
    "hides equality in a list": """
class Equal:
    __eq__ = lambda self, other: True
    __hash__ = object.__hash__
def f(x): return [Equal()]
""",
    "lies about its class": """
class Lie:
    __class__ = property(lambda self: int)
    __eq__ = lambda self, other: True
    __hash__ = object.__hash__
def f(x): return Lie()
""",
    "becomes a reflected operand": """
class Left(float):
    __eq__ = __req__ = __rsub__ = lambda self, other: True
    __hash__ = float.__hash__
def f(x): return Left(1)
""",
    "patches builtins": """
import builtins
builtins.all = builtins.any = builtins.isinstance = lambda *a: True
builtins.repr = builtins.str = lambda *a: "1"
builtins.AssertionError = type("Quiet", (), {})
def f(x): return 1
""",
    "patches the comparison": """
import sys, math, operator
operator.eq = math.isclose = lambda *a, **k: True
for module in list(sys.modules.values()):
    for name in list(vars(module)):
        if name in ("equal", "_run", "_outcome", "report"):
            setattr(module, name, lambda *a, **k: ("passed", ""))
def f(x): return 1
""",
    "patches the encoding": """
import sys
plain = sys.modules.get("plain")
for name in ("encode", "decode", "write_message", "to_json"):
    setattr(plain, name, lambda *a, **k: True)
def f(x): return 1
""",
    "forges a value": FORGE + "def f(x): forge(['value', 1, {}]); return 1",
    "forges a verdict": FORGE
    + """
def f(x):
    forge([0, "passed", ""])
    forge(b'[0, "passed", ""]\\n')
    return 1
""",
    "forges a verdict on the error output": """
import os
os.write(2, b'[0, "passed", ""]\\n[1, "passed", ""]\\n[2, "passed", ""]\\n')
def f(x): return 1
""",
    "forges a changed argument": FORGE
    + "def f(x): forge(['value', 1, {'0': 1, '-1': 2}]); return 1",
    "sends an endless message": """
import os
def f(x):
    for descriptor in range(3, 64):
        try:
            while True: os.write(descriptor, b"\\x00\\x00")
        except OSError: pass
""",
    "announces a huge message": FORGE
    + """
def f(x):
    for descriptor in range(3, 64):
        try: os.write(descriptor, b"\\xff\\xff\\xff\\xff")
        except OSError: pass
""",
    "sends deeply nested JSON": FORGE + "def f(x): forge(b'[' * 100000); return 1",
    "sends a long number": FORGE + "def f(x): forge(b'9' * 1000000); return 1",
    "sends an unknown kind": FORGE + "def f(x): forge(['value', ['pickle', 'gASV'], {}]); return 1",
    "sends a kind that is no text": FORGE + "def f(x): forge(['value', [[], []], {}]); return 1",
    "sends colliding keys": """
def f(x): return {n * (2**61 - 1) for n in range(60000)}
""",
    "returns a huge number": "def f(x): return 1 << 40_000_000",
    "returns a huge text": "def f(x): return 'x' * 50_000_000",
    "returns a deep list": """
def f(x):
    a = []
    for _ in range(100000): a = [a]
    return a
""",
    "returns itself": "def f(x):\n    a = []; a.append(a); return a",
    "returns an endless iterator": "import itertools\ndef f(x): return itertools.count()",
    "returns a huge range": "def f(x): return range(10**18)",
    "returns not a number": "def f(x): return float('nan')",
    "returns a function": "def f(x): return lambda *a: True",
    "closes the pipe": "import os\ndef f(x): os.closerange(0, 64); return 1",
    "duplicates the pipe and stays": """
import os, time
def f(x):
    if os.fork() == 0: time.sleep(60)
    os._exit(0)
""",
    "reads the tests from memory": """
import re
def f(x):
    text = b""
    for line in open("/proc/self/maps"):
        start, end = (int(p, 16) for p in line.split()[0].split("-"))
        if "rw" in line and end - start < 1 << 24:
            with open("/proc/self/mem", "rb", 0) as memory:
                memory.seek(start); text += memory.read(end - start)
    return int(re.search(rb'"expected": ?(\\d+)', text)[1])
""",
    "reads the tests from frames": """
import sys
def f(x):
    frame, seen = sys._getframe(), []
    while frame:
        seen += [frame.f_locals, frame.f_globals]; frame = frame.f_back
    for names in seen:
        for name in ("expected", "tests", "examination", "test"):
            if name in names: return names[name]
""",
    "reads the tests from the collector": """
import gc
def f(x):
    for o in gc.get_objects():
        if type(o) is dict and "expected" in o: return o["expected"]
""",
    "reads the tests from disk": """
import glob
def f(x):
    for path in glob.glob("/program/*") + glob.glob("/tmp/**/tests.json", recursive=True):
        if path.endswith("json"): return __import__("json").load(open(path))["tests"][0]["expected"]
""",
    "traces the caller": """
import sys
def trace(frame, event, argument):
    if "expected" in frame.f_locals: frame.f_locals["expected"] = 1
    return trace
sys.settrace(trace)
def f(x): return 1
""",
    "hooks imports": """
import builtins, sys
real = builtins.__import__
builtins.__import__ = lambda *a, **k: sys.exit(0)
sys.meta_path.insert(0, object())
def f(x): return 1
""",
    "hooks the exit": """
import atexit, os
atexit.register(lambda: os.write(2, b'[0, "passed", ""]\\n'))
def f(x): raise KeyboardInterrupt
""",
    "hooks exceptions": """
import sys
sys.excepthook = sys.unraisablehook = lambda *a: None
def f(x): raise BaseException("passed")
""",
    "raises an unprintable exception": """
class Odd(Exception):
    def __str__(self): raise SystemExit(0)
    __repr__ = __str__
def f(x): raise Odd
""",
    "is called after an alarm": """
import os, signal
signal.signal(signal.SIGALRM, lambda *a: os._exit(0)); signal.setitimer(signal.ITIMER_REAL, 0.01)
def f(x):
    while True: pass
""",
    "recurses without end": "def f(x): return f(x)",
    "loops at its start": "while True: pass",
    "loops in a call": "def f(x):\n    while True: pass",
    "reads the requests itself": """
import os
def f(x):
    for descriptor in range(3, 64):
        try: os.set_blocking(descriptor, False); os.read(descriptor, 1 << 20)
        except OSError: pass
    return 1
""",
}
