"""The trainer's recorder: what a record says of a trajectory, and that nothing waits for it."""

import json
import threading
import time
import types

import numpy as np
import pytest

from rl_sync.ending import Ending, Move
from rl_sync.images import Image
from rl_sync.isolation.codec import decode, encode
from rl_sync.learning.rows.batching import Batching
from rl_sync.messages.scoring_calls import Judgements
from rl_sync.records.rollouts.recorded_images import ImageFiles
from rl_sync.records.rollouts.rollout_parts import RolloutParts
from rl_sync.records.rollouts.rollout_records import read_rollouts
from rl_sync.roles.trainer.rollout_recorder import Budget, RolloutRecorder
from rl_sync.roles.trainer.rollout_writer import NO_FIGURES, Chosen, Figures, RolloutWriter
from rl_sync.settings.observe_settings import ObserveSettings
from rl_sync.tasks.pictures.tile_processor import SquareTiles
from rl_sync.tasks.tokenizers.tokenizer import EOS_ID, CharacterTokenizer
from rl_sync.types import NO_LEASE, Group, Prompt

TOKENIZER = CharacterTokenizer("0123456789+=?<>")
TASK = types.SimpleNamespace(
    train=[Prompt(0, "1+1=", "2"), Prompt(1, "2+2=", "4")],
    tokenizer=TOKENIZER,
)

TURNS = np.zeros((1, 9), np.float32)
"""Rewards of the turns of an episode."""


def _group(*rows, lease=7, version=3, **fields):
    """A group of a prompt and completions, as texts; E ends a sequence."""
    prompt = TOKENIZER.encode("1+1=")
    drawn = [[EOS_ID if c == "E" else TOKENIZER.encode(c)[0] for c in row] for row in rows]
    tokens = np.zeros((len(rows), 9), np.int32)
    mine = np.zeros(tokens.shape, bool)
    for row, ids in enumerate(drawn):
        tokens[row, : 4 + len(ids)] = prompt + ids
        mine[row, 4 : 4 + len(ids)] = True
    return Group(
        lease_id=lease,
        ordinal=lease,
        prompt_id=0,
        explorer=1,
        tokens=tokens,
        completion_mask=mine,
        behavior_logprobs=np.where(mine, np.float32(-0.123456), 0),
        policy_versions=np.where(mine, version, -1),
        **{"rewards": np.arange(len(rows), dtype=np.float32), **fields},
    )


def _judgements(*counts, endings=None, scores=None):
    every = range(sum(counts))
    return Judgements(
        counts=[*counts],
        scores=[*every] if scores is None else scores,
        whys=[f"why {i}" for i in every],
        components=[{"main": float(i)} for i in every],
        answers=[str(i) for i in every],
        endings=[None] * len(every) if endings is None else endings,
    )


def _records(groups, judgements=None, figures=NO_FIGURES, step=5):
    chosen = Chosen(groups, judgements)
    lines = RolloutWriter(TASK).lines(step, chosen, figures)
    return [json.loads(line) for line in lines]


def test_a_record_says_what_was_written_how_it_was_judged_and_what_the_step_made_of_it():
    advantages = np.array([9, 9, -0.5, 0.5], np.float32)
    nothing = np.full((2, 9), np.nan)
    ratios = np.concatenate([nothing, [[5.0] * 4 + [1.00004, 0.5] + [7.0] * 3, nothing[0]]])
    figures = Figures(advantages, {"token_ratios": ratios, "token_entropies": ratios / 10})
    group = _group("2E", "333", truncated=np.array([False, True]))
    first, other = _records([(1, group)], _judgements(2), figures)
    assert first == {
        "step": 5, "lease": 7, "ordinal": 7, "prompt_id": 0, "explorer": 1, "sample": 0,
        "prompt": "1+1=", "images": [], "expected": "2", "completion": "2", "turns": None,
        "reward": 0.0, "components": {"main": 0.0}, "why": "why 0", "answer": "0",
        "baseline": None, "advantage": -0.5, "staleness": 1, "truncated": False, "episode": None,
        "prompt_ids": TOKENIZER.encode("1+1="), "ids": [4, EOS_ID], "tokens": ["2", ""],
        "logprobs": [-0.1235, -0.1235], "versions": [[3, 2]], "mask": [[1, 2]],
        "ratios": [1.0, 0.5], "entropies": [0.1, 0.05], "token_advantages": [],
    }  # fmt: skip
    assert (other["completion"], other["truncated"], other["advantage"]) == ("333", True, 0.5)
    assert (other["ratios"], other["entropies"]) == ([], []), "they are not known"


@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed", "shared"])
def test_figures_of_tokens_find_their_tokens_in_every_layout(kind):
    groups = [_group("2E", "333", lease=1), _group("45E", "E", lease=2)]
    placed = Batching(kind, 4, 9, 2, 0).placed(groups)
    rows = placed.batch.rows
    figures = Figures(np.zeros(4), {"token_advantages": rows.tokens * 1.0}, placed.source)
    assert np.isin(EOS_ID, rows.tokens), "a figure is the token's number"
    records = _records([(1, groups[1]), (0, groups[0])], None, figures)
    assert [one["lease"] for one in records] == [2, 2, 1, 1]
    assert [one["token_advantages"] for one in records] == [one["ids"] for one in records]
    assert all(one["ids"] for one in records)


def test_tokens_that_no_loss_learns_from_and_figures_that_are_not_finite_are_none():
    group = _group("2E>>5", turn_rewards=TURNS)
    group.completion_mask[0, 6:8], group.policy_versions[0, 6:8] = False, -1
    ratios = np.arange(9.0)[None]
    ratios[0, 5] = np.nan
    (one,) = _records([(0, group)], None, Figures(np.zeros(1), {"token_ratios": ratios}))
    assert one["ratios"] == [4.0, None, None, None, 8.0]


def test_the_greedy_completion_of_a_group_has_a_judgement_and_no_record():
    group = _group("2E", "3E", baselines=np.full(2, 0.25, np.float32))
    following = _group("4E", "5E", lease=8)
    records = _records([(0, group), (1, following)], _judgements(3, 2))
    assert [one["why"] for one in records] == ["why 0", "why 1", "why 3", "why 4"]
    assert [one["baseline"] for one in records] == [0.25, 0.25, None, None]


def test_a_completion_that_could_not_be_judged_has_no_reward_and_is_shown_whole():
    group = _group("2E", "34E")
    group.completion_mask[1] = False
    first, lost = _records([(0, group)], _judgements(2, scores=[1.0, None]))
    assert (first["reward"], lost["reward"]) == (0.0, None)
    assert (lost["completion"], lost["mask"], lost["logprobs"]) == ("34", [[0, 3]], [-0.1235] * 3)


def test_versions_of_one_completion_are_runs_and_the_oldest_counts():
    group = _group("234E")
    group.policy_versions[0, 4:8] = [2, 2, 4, 4]
    (one,) = _records([(0, group)])
    assert (one["versions"], one["staleness"]) == ([[2, 2], [4, 2]], 2)
    assert (one["components"], one["why"]) == ({}, ""), "its judgement is not known"


def test_an_episode_is_recorded_with_its_turns():
    group = _group(
        "2E>>5", truncated=np.array([True]), turn_rewards=TURNS, segments=np.full((1, 9), -1)
    )
    group.segments[0] = [0, 0, 0, 0, 0, 0, 0, 1, 1]
    between = slice(6, 8)  # ">>": the end of one segment, and the beginning of another.
    group.completion_mask[0, between], group.policy_versions[0, between] = False, -1
    ending = Ending({"win": 1.0}, {"moves": 2.0}, "turns", "no more", 2, 2)
    (one,) = _records([(0, group)], _judgements(1, endings=[ending]))
    assert one["turns"] == [
        {"by": "policy", "text": "2", "segment": 0},
        {"by": "environment", "text": ">", "segment": 0},
        {"by": "environment", "text": ">", "segment": 1},
        {"by": "policy", "text": "5", "segment": 1},
    ]
    assert (one["prompt"], one["completion"], one["truncated"]) == ("1+1=", "5", True)
    assert one["logprobs"] == [-0.1235, -0.1235, None, None, -0.1235]
    assert one["versions"] == [[3, 2], [-1, 2], [3, 1]]
    told = {"reason": "turns", "why": "no more", "turns": 2, "rewards": {"win": 1.0}}
    assert one["episode"] == {**told, "metrics": {"moves": 2.0}}


def test_a_game_of_several_players_is_recorded_with_all_moves():
    group = _group("2E>>5", turn_rewards=TURNS, segments=np.zeros((1, 9), int))
    moves = (Move(0, "older.py:mine", "4"), Move(1, "policy 3", "2"))
    ending = Ending({"win": 1.0}, {}, "done", "", 2, seat=1, moves=moves)
    (one,) = _records([(0, group)], _judgements(1, endings=[decode(encode(ending))]))
    assert one["episode"]["seat"] == 1
    assert one["episode"]["moves"] == [
        {"player": 0, "by": "older.py:mine", "text": "4"},
        {"player": 1, "by": "policy 3", "text": "2"},
    ]


def test_an_episode_that_the_environment_ends_is_recorded_to_its_end():
    group = _group("2E>>5", turn_rewards=TURNS, segments=np.zeros((1, 9), int))
    group.completion_mask[0, 6:], group.policy_versions[0, 6:] = False, -1
    (one,) = _records([(0, group)])
    assert [turn["text"] for turn in one["turns"]] == ["2", ">>5"]
    assert (one["versions"], one["mask"]) == ([[3, 2], [-1, 3]], [[1, 2], [0, 3]])


def test_an_episode_in_which_the_policy_said_nothing_has_a_record():
    (one,) = _records([(0, _group("", turn_rewards=TURNS))])
    assert (one["completion"], one["ids"], one["turns"], one["staleness"]) == ("", [], [], 0)


def test_a_text_with_half_a_surrogate_pair_is_recorded():
    task = types.SimpleNamespace(**{**vars(TASK), "train": [Prompt(0, "1+1=", "\ud800")]})
    (line,) = RolloutWriter(task).lines(1, Chosen([(0, _group("2E"))], None))
    assert json.loads(line)["expected"] == "\ud800"


def nothing():
    """Figures of a step that are not known."""
    return NO_FIGURES


class Parts:
    """Holds each step until it is told to go on."""

    def __init__(self):
        self.size_bytes, self.written, self.go_on = 0, [], threading.Semaphore(0)

    def write(self, step, lines):
        assert self.go_on.acquire(timeout=10)
        self.written.append((step, len(lines)))

    def close(self):
        self.written.append("closed")


def _recorder(parts, **settings):
    scribe, free = RolloutWriter(TASK), Budget(1.0, 1e9)
    budget = settings.pop("budget", free)
    made = ObserveSettings(**settings)
    return RolloutRecorder(made, parts=parts, scribe=scribe, budget=budget)


def test_nothing_waits_for_the_disk_and_a_step_that_it_cannot_take_is_left_out(caplog):
    parts = Parts()
    recorder = _recorder(parts)
    chosen = Chosen(recorder.choose([_group("2E", "3E")]), _judgements(2))
    started = time.monotonic()
    for step in (1, 2, 3, 4):
        recorder.record(step, chosen, nothing)
    assert time.monotonic() - started < 2.0
    assert parts.written == []
    parts.go_on.release(2)
    recorder.close()
    assert parts.written == [(1, 2), (2, 2), "closed"]
    assert len(caplog.records) == 1
    assert "step 3 are not recorded" in caplog.text


def test_what_fails_is_told_of_once_and_hurts_nobody(tmp_path, caplog):
    recorder = _recorder(RolloutParts(tmp_path))
    chosen = Chosen(recorder.choose([_group("2E", "3E")]), None)
    for step, some in ((1, chosen), (2, chosen._replace(groups=[(0, None)])), (3, chosen)):
        recorder.record(step, some, nothing)
        recorder._thread.submit(lambda: None).result()  # No step is left out.
    recorder.close()
    assert [one.step for one in read_rollouts(tmp_path)] == [1, 1, 3, 3]
    assert len(caplog.records) == 1


def test_beyond_a_size_a_share_of_the_groups_is_recorded_and_never_demonstrations():
    parts = Parts()
    groups = [_group("2E", lease=lease) for lease in range(1000)]
    recorder = _recorder(parts, rollout_bytes=10, rollout_share=0.1)
    assert len(recorder.choose(groups)) == 1000
    parts.size_bytes = 10
    some = recorder.choose(groups)
    assert 95 <= len(some) <= 105
    assert some == recorder.choose(groups), "it is the same ones"
    assert all(groups[at] is group for at, group in some)
    parts.size_bytes = 0
    assert recorder.choose([_group("2E", lease=NO_LEASE)]) == []
    recorder.close()


def test_a_budget_is_a_share_of_the_time_and_a_little_ahead():
    now = [0.0]
    budget = Budget(0.01, ahead_secs=0.5, clock=lambda: now[0])
    assert budget.affords(10**9) == 1.0, "nothing is known of the cost yet"
    budget.spend(0.4, 100)
    assert budget.affords(24) == 1.0
    assert budget.affords(50) == pytest.approx(0.5)
    budget.spend(0.2, 50)
    assert budget.affords(1) == 0.0, "it has taken more than there was"
    now[0] = 20.0
    assert budget.affords(50) == pytest.approx(0.5)
    now[0] = 1e6
    assert budget.affords(124) == 1.0
    assert budget.affords(250) == pytest.approx(0.5), "no more is saved up than was there at first"


class Tight:
    """A budget for a tenth of all."""

    def affords(self, count):
        self.count = count
        return self.share

    def spend(self, secs, count):
        self.spent = count, secs


def test_of_steps_that_are_too_quick_a_part_is_recorded(tmp_path):
    budget = Tight()
    recorder = _recorder(RolloutParts(tmp_path), budget=budget)
    groups = [_group("2E", "3E", lease=lease) for lease in range(100)]
    budget.share = 0.1
    chosen = recorder.choose(groups)
    assert budget.count == 200
    assert 8 <= len(chosen) <= 12
    budget.share = 0.0
    assert len(recorder.choose(groups)) == 1
    recorder.record(1, Chosen(chosen, None), nothing)
    recorder.close()
    assert budget.spent[0] == 2 * len(chosen) == len(list(read_rollouts(tmp_path)))
    assert budget.spent[1] > 0


class Spaced:
    """Decodes as SentencePiece does: a text's first space is left out."""

    def decode_all(self, ids):
        return "".join({1: "a", 2: " the", 3: "x"}[i] for i in ids).removeprefix(" ")

    def encode(self, text):
        return [1]


class Strange(Spaced):
    """Knows no letters, and says so as the library tokenizers does."""

    def encode(self, text):
        raise Exception("WordLevel error: Missing [UNK] token from the vocabulary")


def test_tokens_have_texts_where_the_tokenizer_knows_no_letters():
    scribe = RolloutWriter(types.SimpleNamespace(tokenizer=Strange()))
    assert scribe._texts[3] == "x"


@pytest.mark.parametrize(("token", "text"), [(2, " the"), (3, "x")])
def test_the_text_of_a_token_is_that_behind_another(token, text):
    scribe = RolloutWriter(types.SimpleNamespace(tokenizer=Spaced()))
    assert scribe._texts[token] == text


def test_the_tokens_of_an_image_are_one_text_and_its_pixels_are_stored(tmp_path):
    image = Image.of_array(np.zeros((20, 28, 3), np.uint8))
    prompt = Prompt(0, "1+1=", "2", {"images": [image, image]})
    task = types.SimpleNamespace(
        **{**vars(TASK), "train": [prompt], "processor": SquareTiles(tile_size=8, tile_tokens=2)}
    )
    at = np.full((2, 9), -1)
    at[:, :4] = [-1, 0, 1, -1]
    one_image = _group("2E", "3E", image_at=at, tile_digests=np.zeros((1, 16), np.uint8))
    at = np.where(at >= 0, at, -1)
    at[:, :4] = [0, 1, 2, 3]
    two_images = _group("2E", "3E", image_at=at, tile_digests=np.zeros((2, 16), np.uint8))
    writer = RolloutWriter(task, ImageFiles(tmp_path, 1 << 20))
    lines = writer.lines(1, Chosen([(0, one_image), (1, two_images)], None))
    records = [json.loads(line) for line in lines]
    assert [one["prompt"] for one in records] == [
        "1⟨image 1: 28x20⟩=",
        "1⟨image 1: 28x20⟩=",
        "⟨image 1: 28x20⟩⟨image 2: 28x20⟩",
        "⟨image 1: 28x20⟩⟨image 2: 28x20⟩",
    ]
    assert {one["digest"] for record in records for one in record["images"]} == {image.digest}
    assert [path.stem for path in tmp_path.rglob("*.png")] == [image.digest]


def test_a_broken_image_leaves_its_record(tmp_path):
    prompt = Prompt(0, "1+1=", "2", {"images": [str(tmp_path / "gone.png")]})
    task = types.SimpleNamespace(
        **{**vars(TASK), "train": [prompt], "processor": SquareTiles(tile_size=8, tile_tokens=2)}
    )
    at = np.full((1, 9), -1)
    at[:, :2] = [0, 1]
    group = _group("2E", image_at=at, tile_digests=np.zeros((1, 16), np.uint8))
    writer = RolloutWriter(task, ImageFiles(tmp_path, 1 << 20))
    (line,) = writer.lines(1, Chosen([(0, group)], None))
    record = json.loads(line)
    assert record["prompt"] == "⟨image tile 1⟩1="
    assert "there is no such file" in record["images"][0]["error"]
