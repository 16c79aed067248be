"""Completion and judgement of held-out problems."""

import contextlib
import dataclasses
import json
import types

import numpy as np
import pytest

from configs import gsm8k
from rl_sync.processes.calls import AskVerdicts, Verdict
from rl_sync.rollout.request import Completion
from rl_sync.runtime import evaluation, wiring
from rl_sync.settings.reading import read_settings
from tests.settings.test_run import config_with


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    answer = "It is 3 x 4 = 12.\n#### 12"
    rows = [{"question": f"3 x 4? Say it {i} times.", "answer": answer} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)))
    fields = {
        "task__dataset__path": str(path),
        "tokenizer__path": "tests/data/tokenizer",  # Which ends with 2 or 7.
        "rollout__stop_ids": "9, 11",
        "rollout__stop_strings": ".|!",
        "rollout__temperature": 0.7,
    }
    return read_settings(config_with(gsm8k.get_config(), **fields))


@pytest.fixture(scope="module")
def task(settings):
    return wiring.load_task(settings)


def test_every_end_of_the_tokenizer_and_every_one_of_the_users_ends_a_completion(settings, task):
    for sampling in (wiring.sampling(settings, task), wiring.greedy_sampling(settings, task)):
        assert set(sampling.stop_ids) == {2, 7, 9, 11}
        assert sampling.stop_strings == (".", "!")
        assert sampling.max_new_tokens == task.max_completion_tokens
    assert not wiring.sampling(settings, task).greedy
    assert wiring.greedy_sampling(settings, task).greedy


def test_an_evaluation_ends_completions_as_rollouts_do_and_judges_their_text(
    settings, task, monkeypatch
):
    """With an engine that completes every prompt with 12, ended in each of the two ways."""
    asked, judged = [], []

    class Scripted:
        def __init__(self, config, slots, *, decode, layout):
            assert layout == "layout"
            assert decode([*task.tokenizer.encode("12"), 7]) == "12"

        def load(self, params, version):
            assert params == "params"

        def generate(self, requests):
            asked.extend(requests)
            ends = [(2, 7)[i % 2] for i in range(len(requests))]
            tokens = [np.array([*task.tokenizer.encode("12"), end], np.int32) for end in ends]
            return [[Completion(i, 0, x, x, x, "stop")] for i, x in enumerate(tokens)]

    def judge(call):
        if isinstance(call, AskVerdicts):
            return [Verdict(1.0, True), Verdict(0.5, False)]
        judged.extend(call.items)
        return 1

    monkeypatch.setattr(evaluation, "Engine", Scripted)
    span = types.SimpleNamespace(span=lambda kind, problems: contextlib.nullcontext({}))
    limits = types.SimpleNamespace(wait_secs=5.0, limit_secs=5.0)
    both = types.SimpleNamespace(launch=limits, reward=limits)
    session = types.SimpleNamespace(spans=span, call=judge, settings=both)
    sampling = wiring.greedy_sampling(settings, task)
    evaluator = evaluation.Evaluator(session, None, task, sampling, 8, 4, layout="layout")
    assert evaluator.accuracy("params") == {"accuracy": 0.5, "problems": 2}
    assert [request.sampling for request in asked] == [sampling] * len(task.held_out)
    prompt = task.tokenizer.encode_prompt(task.held_out[0].text)
    assert asked[0].prompt.tolist() == prompt
    asked_for = [(one.prompt_id, one.held_out, one.text, one.truncated) for one in judged]
    assert asked_for == [(p.prompt_id, True, "12", False) for p in task.held_out]


def test_problems_that_could_not_be_judged_are_counted_apart(settings, task, monkeypatch):
    span = types.SimpleNamespace(span=lambda kind, problems: contextlib.nullcontext({}))
    session, sampling = types.SimpleNamespace(spans=span), wiring.greedy_sampling(settings, task)
    evaluator = evaluation.Evaluator(session, None, task, sampling, 8, 4, layout="layout")
    judged = [Verdict(1.0, True), Verdict(None, False)]
    monkeypatch.setattr(evaluation.Evaluator, "_verdicts", lambda *_: judged)
    assert evaluator.accuracy("params") == {"accuracy": 1.0, "problems": 1, "unjudged": 1}


def test_problems_that_are_trained_on_too_are_also_counted_apart(settings, task, monkeypatch):
    seen = task.train[3]._replace(prompt_id=1, answer="another")
    task = dataclasses.replace(task, held_out=[*task.held_out, seen])
    span = types.SimpleNamespace(span=lambda kind, problems: contextlib.nullcontext({}))
    session = types.SimpleNamespace(spans=span)
    sampling = wiring.greedy_sampling(settings, task)
    evaluator = evaluation.Evaluator(session, None, task, sampling, 8, 4, layout="layout")
    judged = [Verdict(1.0, True), Verdict(0.5, False), Verdict(1.0, True)]
    monkeypatch.setattr(evaluation.Evaluator, "_verdicts", lambda *_: judged)
    assert evaluator.accuracy("params") == {
        "accuracy": pytest.approx(2 / 3),
        "problems": 3,
        "accuracy_seen": 1.0,
        "problems_seen": 1,
        "accuracy_unseen": 0.5,
        "problems_unseen": 2,
    }
