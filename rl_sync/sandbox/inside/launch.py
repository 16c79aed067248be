"""Starts a task inside a sandbox: sets the limits of the process, then becomes the program.

It runs as a script, `launch.py LIMITS FOLDER TASK OPERANDS`, and imports as little as possible:
its start adds to the cost of each judged program.
"""

import os
import sys

STARTED = b"\0"


def limit(uid: int, memory: int, cpu_secs: int, file_size: int, processes: int) -> None:
    """Sets the limits of this process and its children, and drops the rights of root.

    Args:
      uid: the user to become; negative to stay the same user.
      memory: bytes of address space; negative for bytes of data, if a program reserves far more
        address space than it uses.
      cpu_secs: seconds of processor time.
      file_size: bytes of a file.
      processes: the number of processes and threads of the user.
    """
    try:
        import resource
    except ImportError:  # WebAssembly: its host holds the limits.
        return
    if uid >= 0:
        # A separate user: the kernel counts processes by user, and never refuses them to root.
        for descriptor in range(3):
            os.fchmod(descriptor, 0o666)  # So that the user can open /dev/stdin.
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    limits = {
        resource.RLIMIT_AS if memory > 0 else resource.RLIMIT_DATA: (abs(memory), abs(memory)),
        resource.RLIMIT_CPU: (cpu_secs, cpu_secs + 1),
        resource.RLIMIT_FSIZE: (file_size, file_size),
        resource.RLIMIT_NPROC: (processes, processes),
        resource.RLIMIT_NOFILE: (128, 128),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_STACK: (64 << 20, 64 << 20),
    }
    for kind, (soft, hard) in limits.items():
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))


def install(path: str) -> None:
    """Installs the filter of system calls whose instructions are in a file."""
    import ctypes

    class FilterProgram(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    with open(path, "rb") as file:
        code = file.read()
    libc = ctypes.CDLL(None, use_errno=True)
    program = FilterProgram(len(code) // 8, code)
    # PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with SECCOMP_MODE_FILTER.
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no filter of system calls can be installed")


def main_module(path: str) -> dict:
    """Puts an empty main module in place, as `python FILE` does, and returns its namespace."""
    import _sitebuiltins
    import builtins

    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D")
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D")
    main = type(sys)("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins)
    sys.modules["__main__"] = main
    sys.argv = [path]
    return main.__dict__


def run_script(path: str) -> None:
    """Runs a Python file as the main module, as `python FILE` does."""
    namespace = main_module(path)
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec"), namespace)


def start(limits: str, folder: str, task: str, *operands: str) -> None:
    """Runs a task of this machine's interpreter.

    Args:
      limits: the arguments of `limit` and the file of `install`, separated by commas.
      folder: the folder of the program's files.
      task: `script` runs a Python file, `command` a command. The others are modules beside this
        one, whose function `serve` gets the path of a file.
      operands: the file or the command, with `{folder}` in it for the folder. An operand that
        begins with `+` is a folder of packages that Python can import.
    """
    rest = [operand.replace("{folder}", folder) for operand in operands if operand[:1] != "+"]
    module = None
    if task not in ("script", "command"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        module = __import__(task)
        del sys.path[0]
    sys.path.extend(operand[1:] for operand in operands if operand[:1] == "+")
    if task == "command" and not any(
        os.access(os.path.join(path, rest[0]), os.X_OK) for path in os.environ["PATH"].split(":")
    ):
        raise SystemExit(f"there is no command {rest[0]}")
    *numbers, code = limits.split(",", 5)
    limit(*map(int, numbers))
    if code:
        install(code)
    # A failure before this mark is the sandbox's fault, a failure after it the program's.
    os.write(2, STARTED)
    if module is not None:
        module.serve(os.path.join(folder, rest[0]))
    elif task == "script":
        run_script(os.path.join(folder, rest[0]))
    else:
        os.execvp(rest[0], rest)


if __name__ == "__main__":
    start(*sys.argv[1:])
