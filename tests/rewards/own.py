"""Rewards as users write them, imported by tests and by worker processes."""

import asyncio
import ctypes
import os
import time

from rl_sync.rewards.judgement import Judgement


def tokens(row, completion):
    return len(completion.tokens)


def scaled(row, completion, factor=1.0):
    return factor * float(completion.text)


def thoughtful(row, completion, thoughts=1):
    return thoughts


def batch(rows, completions):
    return [len(completions)] * len(rows)


def short_batch(rows, completions):
    return [1.0]


async def patient(row, completion):
    await asyncio.sleep(float(completion.text))
    return Judgement(1.0, "waited")


async def patient_batch(rows, completions):
    return [0.5 for _ in rows]


class Threshold:
    def __init__(self, least=1):
        self.least = least

    def check(self, row):
        if "size" not in row:
            raise ValueError("there is no 'size': add the field.")

    def __call__(self, row, completion):
        return Judgement(float(row["size"] >= self.least), f"{row['size']}", {"raw": row["size"]})


class NeedsDevices:
    """Cannot be prepared where it has to judge."""

    def warm_up(self):
        raise ValueError("a mesh of 64 devices does not fit 1 device.")

    def __call__(self, row, completion):
        return 1.0


def hostile(row, completion):
    """Does what the completion says."""
    match completion.text:
        case "sleep":
            time.sleep(60)
        case "loop":
            while True:
                pass
        case "exit":
            os._exit(3)
        case "exit without a fault":
            os._exit(0)
        case "crash":
            ctypes.string_at(0)
        case "memory":
            return len(bytearray(1 << 40))
        case "raise":
            raise KeyError("a field")
        case "nan":
            return float("nan")
        case "text":
            return "1.0"
        case "nothing":
            return None
    return 1.0


def once(row, completion):
    """Fails the first time that it sees a file's name."""
    try:
        os.close(os.open(completion.text, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return 1.0
    raise RuntimeError("the first time")


def process(row, completion):
    return os.getpid()


def alone(row):
    return 1.0
