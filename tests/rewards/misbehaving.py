"""A reward that misbehaves as its completion says, imported by tests and by worker processes."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
from decimal import Decimal
from fractions import Fraction

import numpy as np

from rl_sync.rewards.judgement import Judgement


class NoWordsError(Exception):
    def __str__(self):
        raise RuntimeError("there are no words for it")


class Unprintable:
    def __repr__(self):
        raise RuntimeError("it cannot be printed")


class Outcome(BaseException):
    """As the outcomes of test frameworks, which are no `Exception`."""


def _noted(row, pid):
    with open(row["pids"], "a") as file:
        print(pid, file=file)


def _sleep():
    time.sleep(600)


def misbehaves(row, completion):
    """Does what the completion says."""
    match completion.text:
        case "surrogate in an error":
            raise ValueError("half of a pair: \ud83d")
        case "surrogate in a reason":
            return Judgement(1.0, "half of a pair: \ud83d", {"a\udc00b": 1.0}, answer="\udfff")
        case "escape codes":
            return Judgement(1.0, "bell \x07", {"red\x1b[31m": 1.0})
        case "long reason":
            return Judgement(1.0, "x" * 10**7)
        case "sys.exit":
            sys.exit(3)
        case "sys.exit with a text":
            sys.exit("that is all")
        case "interrupt":
            raise KeyboardInterrupt
        case "outcome":
            raise Outcome("skipped")
        case "no words":
            raise NoWordsError
        case "unprintable":
            return Unprintable()
        case "huge integer":
            return 10**400
        case "huge negative integer":
            return -(10**400)
        case "huge judgement":
            return Judgement(10**400)
        case "huge component":
            return Judgement(1.0, components={"part": 10**400})
        case "more than float32":
            return 1e300
        case "nan":
            return float("nan")
        case "nan of numpy":
            return np.float32("nan")
        case "infinity":
            return Judgement(float("inf"))
        case "component without a number":
            return Judgement(1.0, components={"part": "much"})
        case "complex":
            return 1j
        case "recursion":
            return misbehaves(row, completion)
        case "fork that returns":
            if pid := os.fork():
                _noted(row, pid)
            return 1.0
        case "fork that raises":
            if os.fork() == 0:
                raise RuntimeError("the child")
        case "fork that exits":
            if os.fork() == 0:
                sys.exit(1)
        case "fork that sleeps":
            if pid := os.fork():
                _noted(row, pid)
            else:
                _sleep()
        case "fork of a fork":
            if (pid := os.fork()) == 0:
                if os.fork() == 0:
                    _noted(row, os.getpid())
                    _sleep()
                os._exit(0)
            os.waitpid(pid, 0)
        case "many forks":
            for _ in range(20):
                if pid := os.fork():
                    _noted(row, pid)
                else:
                    _sleep()
        case "process":
            started = multiprocessing.get_context("fork").Process(target=_sleep)
            started.start()
            _noted(row, started.pid)
        case "program":
            _noted(row, subprocess.Popen(["sleep", "600"]).pid)
        case "wait for a fork":
            if pid := os.fork():
                _noted(row, pid)
                os.wait()
            _sleep()
        case "wait for a program":
            program = subprocess.Popen(["sleep", "600"])
            _noted(row, program.pid)
            program.wait()
        case "decimal":
            return Decimal("0.5")
        case "fraction":
            return Fraction(1, 2)
        case "array of one number":
            return np.array([0.5])
        case "judgement of arrays":
            return Judgement(np.array([[0.5]]), components={"part": np.array([0.5])})
        case "number of numpy":
            return np.float16(0.5)
    return 1.0


async def misbehaves_later(row, completion):
    await asyncio.sleep(0)
    return misbehaves(row, completion)


def misbehaves_in_batches(rows, completions):
    return [misbehaves(row, one) for row, one in zip(rows, completions, strict=True)]
