"""Texts that drafts are taken from besides a sequence itself: completions of the same prompt.

They are those in flight, and those that finished before, in this epoch or an earlier one. They only
suggest tokens, so they decide nothing about results, and are never saved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from rl_sync.rollout.sequence import GrowingSequence
from rl_sync.rollout.speculation.drafts import MATCHED_TOKENS, NO_TOKEN

_MOST_TOKENS = 2048
_MOST_SEQUENCES = 4
_END = np.array([NO_TOKEN], np.int32)


def reference_tokens(length: int, most_bytes: int) -> int:
    """Returns the number of tokens of references that a slot has room for.

    Args:
      length: maximum number of tokens of a sequence.
      most_bytes: see `DraftHistory`; without it there are no references.
    """
    return min(_MOST_TOKENS, _MOST_SEQUENCES * length) if most_bytes else 0


class DraftHistory:
    """Finished completions by their prompts, up to a limit.

    The completions of the prompts that were used least recently are dropped first.

    Args:
      width: see `reference_tokens`; a prompt keeps no more tokens than that.
      most_bytes: host memory for the tokens of prompts and completions.

    Attributes:
      held_bytes: size of the tokens that are kept.
    """

    def __init__(self, width: int, most_bytes: int) -> None:
        self._width, self._most_bytes = width, most_bytes
        self._found: OrderedDict[bytes, list[Int[np.ndarray, " T"]]] = OrderedDict()
        self.held_bytes = 0

    def add(self, sequence: GrowingSequence) -> None:
        """Keeps a finished completion."""
        if not self._width:
            return
        key = _key(sequence)
        if key not in self._found:
            self._found[key] = []
            self.held_bytes += len(key)
        self._found.move_to_end(key)
        kept = self._found[key]
        kept.append(_ended(sequence))
        self.held_bytes += kept[-1].nbytes
        while sum(map(len, kept)) > self._width and len(kept) > 1:
            self.held_bytes -= kept.pop(0).nbytes
        while self.held_bytes > self._most_bytes:
            key, dropped = self._found.popitem(last=False)
            self.held_bytes -= len(key) + sum(one.nbytes for one in dropped)

    def references(
        self, sequences: Mapping[int, GrowingSequence], rows: int
    ) -> Int[np.ndarray, "B E"]:
        """Returns the references of each slot, the newest last; see `Text`.

        Args:
          sequences: sequences in flight, by their slots.
          rows: number of slots.
        """
        table = np.full((rows, self._width), NO_TOKEN, np.int32)
        if not self._width:
            return table
        groups: dict[bytes, list[int]] = {}
        for slot, sequence in sequences.items():
            groups.setdefault(_key(sequence), []).append(slot)
        for key, slots in groups.items():
            in_flight = {slot: _ended(sequences[slot]) for slot in slots}
            before = self._found.get(key, [])
            if before:
                self._found.move_to_end(key)
            for slot in slots:
                others = [text for other, text in in_flight.items() if other != slot]
                _fill(table[slot], [*before, *others])
        return table


def _key(sequence: GrowingSequence) -> bytes:
    return sequence.request.prompt.tobytes()


def _ended(sequence: GrowingSequence) -> Int[np.ndarray, " T"]:
    """Returns a completion with the prompt's last tokens, which its first ones are found by."""
    prompt, tokens = sequence.request.prompt[-MATCHED_TOKENS:], sequence.tokens
    return np.concatenate([prompt, np.array(tokens, np.int32), _END])


def _fill(row: Int[np.ndarray, " E"], texts: Sequence[Int[np.ndarray, " T"]]) -> None:
    """Puts the last of the texts at the end of a row; one that has no room loses its beginning."""
    end = len(row)
    for text in reversed(texts):
        count = min(len(text), end)
        row[end - count : end] = text[len(text) - count :]
        end -= count
        if not end:
            return
