import pytest

from rl_sync.rollout import buckets
from rl_sync.rollout.buckets import Sizes


@pytest.mark.parametrize(
    ("rows", "slots", "bucket"), [(1, 64, 8), (9, 64, 16), (33, 64, 64), (99, 64, 64), (40, 48, 48)]
)
def test_batches_have_a_power_of_two_of_rows_or_all_slots(rows, slots, bucket):
    assert Sizes(slots, 1).row_bucket(rows) == bucket


@pytest.mark.parametrize(("slots", "sizes"), [(48, (48, 32, 16, 8)), (6, (6,))])
def test_a_batch_shrinks_step_by_step_down_to_eight(slots, sizes):
    made = Sizes(slots, 1)
    assert made.rows == sizes
    assert tuple(map(made.next_smaller, sizes)) == (*sizes[1:], 0)


@pytest.mark.parametrize(
    ("tokens", "length", "span"),
    [(1, 80, 80), (1, 1024, 64), (64, 1024, 64), (65, 1024, 128), (700, 1024, 1024), (72, 272, 72)],
)
def test_spans_are_halves_of_halves_of_the_length(tokens, length, span):
    assert Sizes(8, length).span_bucket(tokens) == span


def test_a_cache_that_is_read_by_pages_needs_one_span():
    assert Sizes(8, 2048).spans == (2048, 1024, 512, 256, 128, 64)
    assert Sizes(8, 2048, paged=True).spans == (2048,)


@pytest.mark.parametrize("length", [1, 63, 100, 1000, 4096])
def test_a_span_holds_the_tokens_and_less_than_twice_as_much_beyond_the_least(length):
    sizes = Sizes(8, length)
    for tokens in range(1, length + 1):
        span = sizes.span_bucket(tokens)
        assert tokens <= span <= max(length, 1)
        assert span <= max(2 * tokens + 8, 136)


def test_prompts_are_padded_to_a_power_of_two_or_to_the_row():
    sizes = Sizes(8, 100)
    assert [sizes.prompt_bucket(tokens) for tokens in (1, 16, 17, 65)] == [16, 16, 32, 100]
    assert sizes.prompt_buckets([65, 3, 1, 99]) == (16, 100)


@pytest.mark.parametrize(
    ("prompts", "tokens", "rows"), [(1, 16, 4), (5, 16, 8), (99, 16, 16), (3, 512, 1), (3, 80, 2)]
)
def test_prefills_are_neither_tiny_nor_beyond_their_limit(prompts, tokens, rows):
    assert buckets.prefill_rows(prompts, tokens, least_tokens=64, most_tokens=256) == rows
