import pytest

from rl_sync.rollout import buckets


@pytest.mark.parametrize(
    ("rows", "slots", "bucket"), [(1, 64, 8), (9, 64, 16), (33, 64, 64), (99, 64, 64), (40, 48, 48)]
)
def test_batches_have_a_power_of_two_of_rows_or_all_slots(rows, slots, bucket):
    assert buckets.row_bucket(rows, slots) == bucket


def test_a_batch_shrinks_to_the_next_power_of_two_down_to_eight():
    assert [buckets.next_smaller(rows, 48) for rows in (48, 32, 16, 8)] == [32, 16, 8, 0]


@pytest.mark.parametrize(
    ("tokens", "length", "span"),
    [(1, 80, 80), (1, 1024, 64), (64, 1024, 64), (65, 1024, 128), (700, 1024, 1024), (72, 272, 72)],
)
def test_spans_are_halves_of_halves_of_the_length(tokens, length, span):
    assert buckets.span_bucket(tokens, length) == span


@pytest.mark.parametrize("length", [1, 63, 100, 1000, 4096])
def test_a_span_holds_the_tokens_and_less_than_twice_as_much_beyond_the_least(length):
    for tokens in range(1, length + 1):
        span = buckets.span_bucket(tokens, length)
        assert tokens <= span <= max(length, 1)
        assert span <= max(2 * tokens + 8, 136)


def test_prompts_are_padded_to_a_power_of_two_or_to_the_row():
    assert [buckets.prompt_bucket(tokens, 100) for tokens in (1, 16, 17, 65)] == [16, 16, 32, 100]


@pytest.mark.parametrize(
    ("prompts", "tokens", "rows"), [(1, 16, 4), (5, 16, 8), (99, 16, 16), (3, 512, 1), (3, 80, 2)]
)
def test_prefills_are_neither_tiny_nor_beyond_their_limit(prompts, tokens, rows):
    assert buckets.prefill_rows(prompts, tokens, least_tokens=64, most_tokens=256) == rows
