"""Texts that drafts are taken from, and whether the clock says that drafts pay."""

import numpy as np
import pytest

from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.sequence import GrowingSequence
from rl_sync.rollout.speculation.draft_history import DraftHistory, reference_tokens
from rl_sync.rollout.speculation.draft_pace import DraftPace
from rl_sync.rollout.speculation.drafts import NO_TOKEN


def sequence(prompt, tokens, index=0):
    request = CompletionRequest(np.array(prompt, np.int32), Sampling(9, ()), 4)
    return GrowingSequence(0, index, request, (0,), tokens=list(tokens))


def test_references_are_other_completions_of_the_prompt():
    history = DraftHistory(12, 1000)
    history.add(sequence([1, 2], [3, 4]))
    history.add(sequence([9], [8, 7]))
    live = {0: sequence([1, 2], [5]), 2: sequence([1, 2], [6, 7]), 3: sequence([5], [5])}
    found = history.references(live, 4)
    end = NO_TOKEN
    assert found[0].tolist() == [end, end, 1, 2, 3, 4, end, 1, 2, 6, 7, end]
    assert found[2].tolist() == [end, end, end, 1, 2, 3, 4, end, 1, 2, 5, end]
    assert (found[[1, 3]] == NO_TOKEN).all()


def test_a_row_without_room_keeps_what_is_newest():
    history = DraftHistory(5, 1000)
    history.add(sequence([1, 2, 3, 4, 5, 6], [7]))
    live = {0: sequence([1, 2, 3, 4, 5, 6], []), 1: sequence([1, 2, 3, 4, 5, 6], [8, 9])}
    assert history.references(live, 2)[0].tolist() == [5, 6, 8, 9, NO_TOKEN]
    history.add(sequence([1, 2, 3, 4, 5, 6], [6]))
    assert history.references({0: live[0]}, 1)[0].tolist() == [4, 5, 6, 6, NO_TOKEN]


def test_history_stays_within_its_bytes_and_drops_what_was_used_least_recently():
    # A prompt and its completion take 4 + 16 bytes.
    history = DraftHistory(100, 50)
    for prompt in (1, 2):
        history.add(sequence([prompt], [7, 8]))
    assert history.held_bytes == 40
    history.references({0: sequence([1], [])}, 1)
    history.add(sequence([3], [7, 8]))
    assert history.held_bytes == 40
    kept = [
        bool((history.references({0: sequence([prompt], [])}, 1) != NO_TOKEN).any())
        for prompt in (1, 2, 3)
    ]
    assert kept == [True, False, True]
    history.add(sequence([4], range(60)))
    assert history.held_bytes == 0, "one that does not fit is not kept"


def test_a_prompt_keeps_its_newest_completions():
    history = DraftHistory(8, 1000)
    for token in (5, 6, 7):
        history.add(sequence([1], [token] * 2))
    assert history.held_bytes == 4 + 2 * 16
    assert history.references({0: sequence([1], [])}, 1)[0].tolist() == [1, 6, 6, -1, 1, 7, 7, -1]


def test_without_memory_there_are_no_references():
    assert reference_tokens(length=100, most_bytes=0) == 0
    assert reference_tokens(length=100, most_bytes=1) == 400
    assert reference_tokens(length=100_000, most_bytes=1) == 2048
    history = DraftHistory(0, 0)
    history.add(sequence([1], [2]))
    assert history.references({0: sequence([1], [])}, 3).shape == (3, 0)


def chunks(secs_with, secs_without, count):
    """Returns for each chunk whether it has drafts, given the seconds for a hundred tokens."""
    pace, found = DraftPace(), []
    for _ in range(count):
        found.append(pace.drafts)
        pace.record(100, secs_with if pace.drafts else secs_without)
    return found


@pytest.mark.parametrize(("secs_with", "kept"), [(0.9, [True] * 64), (1.1, [False] * 512)])
def test_drafts_are_kept_if_they_are_faster_and_tried_again(secs_with, kept):
    trial = [True, False] * 4
    found = chunks(secs_with, 1.0, len(trial) + len(kept) + len(trial))
    assert found == [*trial, *kept, *trial]


def test_times_are_compared_by_tokens():
    pace = DraftPace()
    for _ in range(8):
        # A chunk with drafts takes longer, and gives more tokens.
        pace.record(*((300, 2.0) if pace.drafts else (100, 1.0)))
    assert pace.drafts
