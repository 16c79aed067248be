"""Products to be worked out by calls of Python, and demonstrations of a pupil who calls it."""

import itertools

from rl_sync.tasks.problems import Problems
from rl_sync.types import Prompt

DIGITS = range(2, 10)
OPENING = '<tool_call>\n{"name": "python", "arguments": {"code": "'
CLOSING = '"}}\n</tool_call>'


def products(seed):
    """Makes all products of two digits, for an exact answer, and a call for each."""
    pairs = itertools.product(DIGITS, DIGITS)
    train = [Prompt(i, f"{a}*{b}", f"{a * b}") for i, (a, b) in enumerate(pairs)]
    calls = [one._replace(answer=f"{OPENING}{one.text}{CLOSING}") for one in train]
    return Problems(train=train, held_out=train[::4], demonstrations=calls)
