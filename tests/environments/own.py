"""Environments that tests host: proper ones, and ones that do everything wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from rl_sync.environments.interface import Message, Outcome, Reply, Standing, Turn


def user(text: str, **fields) -> Turn:
    return Turn((Message("user", text),), **fields)


class Counting:
    """Counts replies up to the task's `turns`; the first turn tells its process."""

    inline = True

    def __init__(self, start: int = 0):
        self.count = start

    def reset(self, task, seed):
        self.turns = task["turns"]
        return user(str(os.getpid()))

    def step(self, reply: Reply):
        self.count += 1
        if self.count < self.turns:
            return user(f"{self.count} {reply.text}", reward=0.5)
        return Outcome({"count": float(self.count)}, metrics={"length": len(reply.text)})

    def close(self):
        pass


class Checked(Counting):
    """Checks its options before it is hosted."""

    inline = False

    @classmethod
    def check(cls, start=0):
        if start < 0:
            raise ValueError(f"start={start} is below 0.")


class Asynchronous(Counting):
    """Counts in coroutines, which share an event loop."""

    async def reset(self, task, seed):
        self.loop = asyncio.get_running_loop()
        return super().reset(task, seed)

    async def step(self, reply):
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        return super().step(reply)

    async def close(self):
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)


class Drawing:
    """Answers each reply with draws of the global generators."""

    def reset(self, task, seed):
        return user("draw")

    def step(self, reply):
        return user(f"{random.random()} {np.random.random()}")

    def close(self):
        pass


def _left_alone(folder: str) -> None:
    """Starts a process of the worker's group and one that leaves it, and notes their numbers."""
    for leaves in (False, True):
        child = subprocess.Popen(["sleep", "1000"], start_new_session=leaves)
        Path(folder, str(child.pid)).touch()


def _flood():
    return user(str(len([bytearray(1 << 20) for _ in range(4000)])))


def _loop():
    while True:
        pass


def _raise():
    raise ArithmeticError("a fault of mine")


def _kill_siblings():
    parent = os.getppid()
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if int(child) != os.getpid():
            os.kill(int(child), signal.SIGKILL)
    return user("killed")


def _recursive():
    rewards = {}
    rewards["x"] = rewards
    return Outcome({"a": 1.0}, metrics=rewards)


def _print():
    print("to the output", flush=True)
    print("to the errors", file=sys.stderr)
    os.write(1, b"straight to the output\n")
    subprocess.run(["echo", "by another program"], check=True)
    return user("printed")


def _leave_thread():
    threading.Thread(target=time.sleep, args=[1000], daemon=True).start()
    return user("thread")


def _die_later():
    threading.Timer(0.2, os._exit, [7]).start()
    return user("soon")


class Hostile:
    """Does what a reply says; the task may name a fault of `reset` and of `close`."""

    def __init__(self):
        if os.environ.get("OWN_FAULT_OF_INIT"):
            raise ArithmeticError("not made")

    def reset(self, task, seed):
        self.task = task
        if "reset" in task:
            return self.act(task["reset"])
        return user(str(os.getpid()))

    def step(self, reply):
        return self.act(reply.text)

    def act(self, text):
        acts = {
            "ok": lambda: user("ok"),
            "process": lambda: user(str(os.getpid())),
            "done": lambda: Outcome({"score": 1.0}),
            "raise": _raise,
            "exit": lambda: sys.exit(3),
            "die": lambda: os._exit(3),
            "die later": _die_later,
            "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
            "sleep": lambda: time.sleep(1000),
            "loop": _loop,
            "memory": _flood,
            "print": _print,
            "thread": _leave_thread,
            "close everything": lambda: (os.closerange(3, 1000), time.sleep(1000)),
            "kill siblings": _kill_siblings,
            "kill parent": lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(1000)),
            "leave": lambda: (_left_alone(self.task["folder"]), user("left"))[1],
            "leave and loop": lambda: (_left_alone(self.task["folder"]), _loop()),
            "none": lambda: None,
            "nan": lambda: Outcome({"score": float("nan")}),
            "no messages": lambda: Turn(()),
            "object": lambda: Outcome({"score": 1.0}, metrics={"x": 1.0}, messages=(_odd(),)),
            "tool": lambda: user("t", tools=({"function": {"name": "f", "odd": {1, 2}}},)),
            "recursive": lambda: user("t", tools=(_endless(),)),
            "garbage": lambda: (_to_all_sockets(b"\x03\x00\x00\x00abc"), time.sleep(1000)),
            "long frame": lambda: (_to_all_sockets(b"\xff\xff\xff\xff"), time.sleep(1000)),
            "half a frame": lambda: (_to_all_sockets(b"\x00\x10\x00\x00abc"), time.sleep(1000)),
            "numpy": lambda: Outcome({"score": np.float32(0.5)}, metrics={"n": np.int64(3)}),
        }
        if text.startswith("wait "):
            time.sleep(float(text.removeprefix("wait ")))
            return user("waited")
        if text.startswith("say "):
            return user("x" * int(text.removeprefix("say ")))
        return acts[text]()

    def close(self):
        if "close" in self.task:
            self.act(self.task["close"])
        if "closed" in self.task:
            Path(self.task["closed"]).touch()


def _odd() -> Message:
    class Text(str):
        pass

    return Message("user", Text("x"), tool_call_id=object())  # type: ignore[arg-type]


def _endless() -> dict:
    tool: dict = {"function": {"name": "f"}}
    tool["again"] = tool
    return tool


def _to_all_sockets(data: bytes) -> None:
    for descriptor in range(3, 100):
        with contextlib.suppress(OSError):
            os.write(descriptor, data)


class Race:
    """Two players add to a total by turns; who reaches 4 wins. Its methods are async."""

    closed = 0

    async def reset(self, task, seed):
        self.players, self.total, self.at = 2, 0, 0
        return self.turn()

    async def step(self, reply):
        self.total += int(reply.text)
        if self.total >= 4:
            standings = (Standing({"won": float(player == self.at)}) for player in range(2))
            return Outcome({}, standings=tuple(standings))
        self.at = 1 - self.at
        return self.turn()

    async def close(self):
        type(self).closed += 1

    def turn(self):
        return Turn((Message("user", f"{self.total}:"),), player=self.at, moves=("1", "2"))
