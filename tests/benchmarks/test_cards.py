"""The tables of models that fit one GPU are what their benchmark prints."""

from pathlib import Path

import pytest

from rl_sync.plan.memory.memory_estimate import MemoryEstimate
from tests.plan.test_memory_text import settings_with

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text().splitlines()
PAGE = (ROOT / "docs/how-to/gpus.md").read_text()
SMALL, LARGE = ["Qwen2.5-0.5B"], ["Qwen3-4B", "Qwen2.5-7B", "Llama-3.1-8B"]


@pytest.fixture
def cards(benchmarks):
    return benchmarks("cards")


@pytest.fixture
def sizes(cards, monkeypatch):
    """Makes a row take 1 GB, a slot 0.1, and the rest 10, of which savings take 2 and 1 away."""

    def trainer(model, rank, tokens, rows, offloads):
        return MemoryEstimate({}, {"all": (rows + 8 - 2 * offloads) * 10**9}, {})

    def explorer(model, rank, tokens, slots, quantization, mode):
        size = slots * 10**8 + (2 - (quantization == "int8")) * 10**9
        return MemoryEstimate({}, {"all": size}, {})

    monkeypatch.setattr(cards, "_plain", lambda *of: settings_with())
    monkeypatch.setattr(cards, "_trainer", trainer)
    monkeypatch.setattr(cards, "_explorer", explorer)
    return cards


@pytest.mark.parametrize(
    ("room", "rank", "expected"),
    [
        (20.4, 0, (4, 64, (), 20.4)),
        (20.3, 0, (1, 64, (), 17.4)),
        (12.6, 0, (1, 16, (), 12.6)),
        (12.5, 0, (1, 32, ("offload",), 12.2)),
        (10.5, 0, (1, 16, ("offload", "int8"), 9.6)),
        (8.9, 0, (1, 8, ("offload", "int8"), 8.8)),
        (8.4, 0, (1, 4, ("offload", "int8"), 8.4)),
        (8.3, 0, None),
        (12.5, 16, (1, 16, ("int8",), 11.6)),
    ],
)
def test_the_first_settings_that_fit_are_taken(sizes, room, rank, expected):
    found = sizes.fit("any", rank, 1024, room / sizes.RESERVED + 1e-9)
    if expected is None:
        assert found is None
        return
    *settings, peak = found
    assert tuple(settings) == expected[:3]
    assert peak / 1e9 == pytest.approx(expected[3])


def test_models_that_fit_nowhere_are_left_out(sizes):
    assert sizes.table(SMALL, [5], [1024]) == ["| model | trained | 5 GB |", "|---|---|---|"]
    lines = sizes.table(SMALL, [5, 10, 24], [1024])[2:]
    assert lines == [
        "| Qwen2.5-0.5B | all parameters | – | 1 × 1,024, 8 slots, offload, int8: 8.8 GB"
        " | 4 × 1,024, 64 slots: 20.4 GB |",
        "| Qwen2.5-0.5B | adapters | – | – | 4 × 1,024, 64 slots: 20.4 GB |",
    ]


@pytest.mark.gate
def test_readme_has_the_lines_of_a_small_model(cards):
    assert {*cards.table(SMALL, cards.CARDS, cards.TOKENS)} <= {*README}


@pytest.mark.nightly
def test_readme_has_the_whole_table(cards):
    assert "\n".join(cards.table([*cards.MODELS], cards.CARDS, cards.TOKENS)) in "\n".join(README)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("models", "sizes_gb", "tokens", "mode"),
    [
        (None, (8, 16), (1024,), ""),
        (LARGE, None, (4096, 16384), ""),
        (None, (8, 16, 24, 40), (1024,), "synchronous"),
    ],
)
def test_the_page_has_smaller_gpus_longer_rows_and_turns(cards, models, sizes_gb, tokens, mode):
    lines = cards.table(models or [*cards.MODELS], sizes_gb or cards.CARDS, tokens, mode)
    assert "\n".join(lines) in PAGE
