"""A whole run whose policy calls Python, in the sandbox, before it answers."""

import pytest

from rl_sync.records.metrics import read_metrics
from tests.environments.families import FAMILIES, model
from tests.runs.conftest import EMBEDDED, flags
from tests.runs.multiplying import CLOSING, OPENING


@pytest.fixture(name="tokenizer")
def _tokenizer(tmp_path):
    """Saves a ChatML tokenizer that knows calls as tokens, and whose template hides the tools.

    Demonstrations do not show them either, so that few steps teach to call.
    """

    from transformers import PreTrainedTokenizerFast

    template, special, _, plain = FAMILIES["chatml"]
    words = model(special, (*plain, OPENING, CLOSING))
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=special[0])
    fast.chat_template = template.replace("{%- if tools -%}", "{%- if false -%}")
    assert fast.chat_template != template
    fast.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_a_policy_calls_python_and_the_tasks_reward_judges_its_answer(runs, tokenizer):
    run = runs.get(
        EMBEDDED,
        *flags("one_step_off_policy", steps=3),
        f"--config.tokenizer.path={tokenizer}",
        "--config.task.name=tests/runs/multiplying.py:products",
        "--config.task.max_completion_tokens=8",
        "--config.environment.name=python(seconds=5)",
        "--config.environment.max_turns=3",
        "--config.environment.max_tokens=160",
        "--config.sft.steps=60",
        "--config.sft.batch_size=32",
        "--config.sft.probe_every_steps=1000",
        "--config.sft.learning_rate=0.01",
        "--config.trainer.groups_per_step=4",
        "--config.evaluation.problems=4",
        "--config.reward.record=all",
    )
    steps = read_metrics(run.workdir, "rl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        assert step["reward/unjudged"] == 0.0
        assert step["episode/turns"] > 1.5
        assert step["episode/segments"] == 1.0
        assert 0.0 <= step["reward/exact"] <= 1.0
    judged = run.judged
    ended = [one["episode"] for one in judged if one["episode"]["reason"] == "done"]
    assert any(one["metrics"].get("calls", 0) >= 1 and one["turns"] >= 2 for one in ended)
    assert all(one["rewards"] == {} for one in ended)
    assert all("the answer is" in one["why"] for one in judged if one["score"] == 0.0)
