"""A reward by a reward model: its scores, its scale, and what it refuses."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest

from rl_sync.models.heads import token_scalars
from rl_sync.models.huggingface.notes import NOTES_FILE, ScoreNotes
from rl_sync.models.huggingface.writing import FrameSources, write_checkpoint
from rl_sync.models.transformer import init_params
from rl_sync.reward_models.reward_model import RewardModel
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.scoring.local_scorer import LocalScorer
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from rl_sync.tasks.tokenizers.tokenizer_files import token_ids, tokenizer_files
from tests.models import tiny

pytestmark = pytest.mark.gate

CHARACTERS = CharacterTokenizer("0123456789+-=")
MODEL = dataclasses.replace(
    tiny.CONFIG, vocab_size=CHARACTERS.vocab_size, max_length=40, scalar_head=True
)
TEXTS = ["231", "2", "", "2" * 20, "12"]
ROW = {"prompt": "47+85=", "answer": "231"}
NOTES = ScoreNotes(mean=0.25, std=2.0, accuracy=0.9, pairs=10)


def write(path, model=MODEL, notes=NOTES):
    params = init_params(model, jax.random.key(1))
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(2), x.shape), params)
    frame = FrameSources(
        files=tokenizer_files(CHARACTERS),
        token_ids=token_ids(CHARACTERS),
        notes={NOTES_FILE: notes.to_json()} if notes else None,
    )
    write_checkpoint(path, model, params, frame)
    return params


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("reward") / "model"
    return str(path), write(path)


def expected(params, text, *, ended=True):
    ids = [*CHARACTERS.encode_prompt(ROW["prompt"]), *CHARACTERS.encode(text)]
    ids += [CHARACTERS.eos_id] * ended
    return float(token_scalars(MODEL, params, np.array([ids]))[0, -1])


@pytest.mark.nightly
def test_a_score_is_that_of_the_last_token_in_units_of_the_held_out_scores(checkpoint):
    path, params = checkpoint
    judged = RewardModel(path, rows=2)([ROW] * 5, [Completion(text) for text in TEXTS])
    raw = [expected(params, text) for text in TEXTS]
    assert np.std(raw) > 0.05
    np.testing.assert_allclose([one.components["raw"] for one in judged], raw, atol=1e-5)
    np.testing.assert_allclose([one.score for one in judged], (np.array(raw) - 0.25) / 2, atol=1e-5)
    assert judged[0].why == f"score {judged[0].components['raw']:.4g}"


def test_the_scale_can_be_given_or_left_out(checkpoint):
    path, params = checkpoint
    raw = expected(params, "231")
    for options, wanted in (
        ({"normalize": False}, raw),
        ({"mean": 1.0, "std": 0.5}, 2 * (raw - 1)),
    ):
        (one,) = RewardModel(path, **options)([ROW], [Completion("231")])
        assert one.score == pytest.approx(wanted, abs=1e-5)


def test_a_truncated_completion_has_no_end_of_sequence(checkpoint):
    path, params = checkpoint
    (one,) = RewardModel(path, normalize=False)([ROW], [Completion("231", truncated=True)])
    assert one.score == pytest.approx(expected(params, "231", ended=False), abs=1e-5)


def test_what_is_too_long_or_cannot_be_encoded_is_unknown_and_the_others_are_judged(checkpoint):
    path, _ = checkpoint
    texts = ["1" * 34, "a sum", "231"]
    long, strange, good = RewardModel(path)([ROW] * 3, [Completion(text) for text in texts])
    assert long.why == "41 tokens, where the reward model takes 1 to 40"
    assert strange.why.startswith("the completion cannot be encoded")
    assert [one.is_known for one in (long, strange, good)] == [False, False, True]


@pytest.mark.nightly
def test_devices_that_share_a_model_give_the_same_scores(checkpoint):
    path, _ = checkpoint
    completions = [Completion(text) for text in TEXTS]
    one = RewardModel(path)([ROW] * 5, completions)
    more = RewardModel(path, fsdp=2, tensor=2, rows=4)([ROW] * 5, completions)
    np.testing.assert_allclose([x.score for x in more], [x.score for x in one], atol=1e-5)


@pytest.mark.nightly
def test_a_worker_serves_it_in_a_sum(checkpoint):
    path, params = checkpoint
    expression = f"exact + 0.5 * reward_model(path={path!r}, normalize=False)"
    assert Rubric(expression).in_batches
    judges = LocalScorer(expression, RewardSettings(workers=1, limit_secs=120))
    try:
        right, wrong = judges.judge(
            [ScoringRequest(ROW, Completion(text)) for text in ("231", "2")]
        )
    finally:
        judges.close()
    assert right.score == pytest.approx(1 + 0.5 * expected(params, "231"), abs=1e-5)
    assert wrong.components["reward_model/raw"] == pytest.approx(expected(params, "2"), abs=1e-5)


@pytest.mark.nightly
def test_a_worker_lays_the_model_over_devices_of_its_own(checkpoint):
    path, params = checkpoint
    expression = f"reward_model(path={path!r}, normalize=False, fsdp=2, rows=4)"
    judges = LocalScorer(expression, RewardSettings(workers=1, limit_secs=120))
    try:
        judged = judges.judge([ScoringRequest(ROW, Completion(text)) for text in TEXTS])
    finally:
        judges.close()
    raw = [expected(params, text) for text in TEXTS]
    np.testing.assert_allclose([one.score for one in judged], raw, atol=1e-5)


def test_prompts_that_the_model_cannot_read_are_refused_before_the_run(checkpoint):
    rubric = Rubric(f"reward_model(path={checkpoint[0]!r})")
    rubric.check([ROW])
    with pytest.raises(ValueError, match="tokenizer cannot encode it"):
        rubric.check([{"prompt": "one and one", "answer": "2"}])
    with pytest.raises(ValueError, match="it has 40 tokens for the model, which takes at most 40"):
        rubric.check([{"prompt": "1" * 40, "answer": "2"}])


def test_what_is_no_reward_model_is_refused(tmp_path, checkpoint):
    with pytest.raises(ValueError, match=r"nowhere. is no directory"):
        RewardModel(str(tmp_path / "nowhere"))
    write(tmp_path / "policy", dataclasses.replace(MODEL, scalar_head=False), None)
    with pytest.raises(ValueError, match="is not a reward model"):
        RewardModel(str(tmp_path / "policy"))
    write(tmp_path / "unmeasured", notes=None)
    with pytest.raises(ValueError, match=r"no mean and std .* normalize=False"):
        RewardModel(str(tmp_path / "unmeasured"))
    with pytest.raises(ValueError, match="std above 0"):
        RewardModel(checkpoint[0], std=0.0)
    with pytest.raises(ValueError, match="rows=3 must be a multiple of data · fsdp = 2"):
        RewardModel(checkpoint[0], fsdp=2, rows=3)
    two = json.loads((tmp_path / "unmeasured" / "config.json").read_text())
    two["id2label"] = {"0": "bad", "1": "good"}
    (tmp_path / "unmeasured" / "config.json").write_text(json.dumps(two))
    with pytest.raises(ValueError, match="num_labels=2"):
        RewardModel(str(tmp_path / "unmeasured"), normalize=False)
