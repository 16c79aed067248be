"""A program of workers that does what it is asked, imported by tests and by workers."""

import os
import subprocess
import time
from pathlib import Path

from rl_sync.isolation.process_limits import limit_memory


class Echo:
    """Counts its requests, and answers each by its first word."""

    def __init__(self, fault=""):
        self.fault = fault
        self.count = 0

    def prepare(self):
        if self.fault.startswith("no "):
            raise ValueError(self.fault)
        self.prepared_in = os.getpid()

    def begin(self):
        limit_memory(4 << 30)
        return self.fault

    def answer(self, request):
        self.count += 1
        what, *rest = request if isinstance(request, list) else [request]
        match what:
            case "count":
                return self.count
            case "process":
                return os.getpid()
            case "server":
                return [os.getppid(), self.prepared_in]
            case "raise":
                raise LookupError("a fault of mine")
            case "sleep":
                time.sleep(rest[0])
                return "slept"
            case "long":
                return "x" * rest[0]
            case "memory":
                return bytearray(64 << 30)
            case "object":
                return object()
            case "leave":
                child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
                Path(rest[0]).write_text(str(child.pid))
                return "left"
        return request
