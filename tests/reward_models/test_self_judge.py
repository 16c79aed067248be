"""A reward by a language model's own probability of a verdict."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from rl_sync.models.logprobs import token_logprobs
from rl_sync.reward_models.model_on_devices import Served
from rl_sync.reward_models.self_judge import SelfJudge
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.llm.prompt_template import delimiter_of
from rl_sync.rewards.rubric import Rubric
from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from tests.models.huggingface import golden
from tests.roles.test_policy_export import TOKENIZER, run_in

pytestmark = pytest.mark.gate

LLAMA = golden.ROOT / "llama3"
ROW = {"prompt": "1+1=", "answer": "2"}
SHORT = "{completion}?"


def probability(config, params, tokenizer, question, verdict):
    ids = tokenizer.encode_prompt(question)
    ids = [*ids, *tokenizer.encode(verdict)]
    logprobs, _ = token_logprobs(config, params, np.array([ids]))
    asked = len(tokenizer.encode_prompt(question))
    return float(np.exp(np.asarray(logprobs)[0, asked:].sum()))


def question(text):
    delimiter = delimiter_of(text)
    return f"<{delimiter}>\n{text}\n</{delimiter}>?"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("chat", "verdicts"),
    [
        pytest.param("no", (" yes", " no"), marks=pytest.mark.nightly),
        ("auto", ("yes", "no")),
    ],
)
def test_the_score_is_the_share_of_yes(chat, verdicts):
    config, params = golden.load(LLAMA)
    tokenizer = pretrained.load(TokenizerConfig(str(LLAMA), chat, None))
    texts = ["2", "1", "three"]
    judge = SelfJudge(str(LLAMA), question=SHORT, chat=chat, rows=4)
    judged = judge([ROW] * 3, [Completion(text) for text in texts])
    for text, one in zip(texts, judged, strict=True):
        yes, no = (
            probability(config, params, tokenizer, question(text), verdict) for verdict in verdicts
        )
        assert one.score == pytest.approx(yes / (yes + no), rel=1e-3)
        assert one.components["mass"] == pytest.approx(yes + no, rel=1e-3)


def test_equal_completions_are_computed_once(monkeypatch):
    computed = []

    def batch(self, one, width, rows):
        computed.extend(rows)
        return original(self, one, width, rows)

    original = Served._batch
    monkeypatch.setattr(Served, "_batch", batch)
    judge = SelfJudge(str(LLAMA), question=SHORT, chat="no")
    judged = judge([ROW] * 5, [Completion(text) for text in ("2", "1", "2", "2", "1")])
    assert len(computed) == 4, "two completions, with two verdicts each"
    assert judged[0] == judged[2] == judged[3]
    assert judged[1] == judged[4] != judged[0]


@pytest.mark.nightly
def test_verdicts_of_one_s_own_have_values_of_one_s_own():
    config, params = golden.load(LLAMA)
    tokenizer = pretrained.load(TokenizerConfig(str(LLAMA), "no", None))
    verdicts = {"1": 0.0, "2": 0.5, "3": 1.0}
    judge = SelfJudge(str(LLAMA), question=SHORT, verdicts=verdicts, chat="no")
    (one,) = judge([ROW], [Completion("4")])
    held = [probability(config, params, tokenizer, question("4"), verdict) for verdict in verdicts]
    assert one.score == pytest.approx(held[1] / sum(held) / 2 + held[2] / sum(held), rel=1e-3)


@pytest.mark.nightly
def test_a_run_s_policy_judges_as_it_began_and_as_it_is(tmp_path):
    _, model, params = run_in(tmp_path / "run", tokenizer=TOKENIZER)
    path = str(tmp_path / "run")
    scores = [
        SelfJudge(path, step=step, question=SHORT)([ROW], [Completion("4")])[0].score
        for step in (0, 1, 2, None)
    ]
    assert len({*scores}) == 3
    assert scores[2] == scores[3]
    tokenizer = pretrained.load(TokenizerConfig(str(TOKENIZER)))
    yes, no = (
        probability(model, params, tokenizer, question("4"), verdict) for verdict in ("yes", "no")
    )
    assert scores[3] == pytest.approx(yes / (yes + no), rel=1e-3)


def test_a_run_without_that_snapshot_or_with_another_tokenizer_is_refused(tmp_path):
    run_in(tmp_path / "run")
    path = str(tmp_path / "run")
    with pytest.raises(ValueError, match=r"no snapshot of step 7 \(there are \[1, 2\]\)"):
        SelfJudge(path, step=7)
    run_in(tmp_path / "begun")
    shutil.rmtree(tmp_path / "begun" / "checkpoints")
    with pytest.raises(ValueError, match="no snapshot yet: wait for one, or use step=0"):
        SelfJudge(str(tmp_path / "begun"))
    with pytest.raises(ValueError, match="no best snapshot"):
        SelfJudge(path, step="best")
    with pytest.raises(ValueError, match="tokenizer cannot encode it"):
        Rubric(f"self_judge(path={path!r})").check([ROW])


def test_what_is_too_long_is_unknown_and_the_others_are_judged():
    judge = SelfJudge(str(LLAMA), question=SHORT)
    long, good = judge([ROW] * 2, [Completion("1" * 600), Completion("2")])
    assert "the judge takes 512" in long.why
    assert good.is_known


def test_impossible_options_are_refused_and_rows_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere. is no directory"):
        Rubric(f"self_judge(path={str(tmp_path / 'nowhere')!r})")
    with pytest.raises(ValueError, match="asks about no completion"):
        Rubric(f"self_judge(path={str(LLAMA)!r}, question='Right?')")
    with pytest.raises(ValueError, match="must give a number for each of two texts"):
        Rubric(f"self_judge(path={str(LLAMA)!r}, verdicts={{'yes': 1}})")
    rubric = Rubric(f"self_judge(path={str(LLAMA)!r}, question='{{level}} {{completion}}')")
    assert rubric.in_batches
    with pytest.raises(ValueError, match="no field 'level'"):
        rubric.check([ROW])
