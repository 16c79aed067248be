import dataclasses
import types

import numpy as np
import pytest

from rl_sync.api.loaded_policy import Policy
from rl_sync.models.sharding import Layout
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.sequence_images import SequenceImages
from rl_sync.tasks.pictures.tile_processor import SquareTiles
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from tests.environments.families import family
from tests.models import tiny
from tests.rollout.pictures import CONFIG, IMAGE, VISION
from tests.tasks.tokenizers.test_prompt_messages import CONVERSATIONS

TOKENIZER = CharacterTokenizer("abcdefghi", shows_images=True)
TILE = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


def policy(processor):
    params = tiny.params(CONFIG)
    return Policy(TOKENIZER, CONFIG, params, 0, Layout.single(), lambda: processor)


@pytest.fixture(scope="module")
def seeing():
    return policy(SquareTiles(VISION.image_size, VISION.tile_tokens))


@pytest.mark.nightly
def test_a_loaded_policy_completes_prompts_with_and_without_images(seeing):
    found = seeing.generate(["a<image>b", "ab"], images=[[TILE], []], max_new_tokens=4, greedy=True)
    ids = np.array([2, *[IMAGE] * 4, 3], np.int32)
    images = SequenceImages(np.array([-1, 0, 1, 2, 3, -1], np.int32), TILE[None], ("tile",))
    sampling = Sampling(max_new_tokens=4, stop_ids=(1,), greedy=True)
    engine = seeing.engine(2, 32)
    wanted = engine.generate(
        [
            CompletionRequest(ids, sampling, images=images),
            CompletionRequest(np.array([2, 3], np.int32), sampling),
        ]
    )
    assert [one.tokens.tolist() for [one] in found] == [one.tokens.tolist() for [one] in wanted]
    for [one], [other] in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=1e-5)
    [alone] = seeing.generate("a<image>b", images=[TILE], max_new_tokens=4, greedy=True)
    assert alone[0].tokens.tolist() == found[0][0].tokens.tolist()


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ([[TILE]], "2 prompts have 1 lists of images"),
        ([[TILE], [TILE, TILE]], "1 place for images"),
        ([["gone.png"], []], "gone.png cannot be read"),
    ],
)
def test_images_that_do_not_fit_are_refused(seeing, images, said):
    with pytest.raises(ValueError, match=said):
        seeing.generate(["a", "<image>b"], images=images)


@pytest.mark.gate
def test_each_prompt_of_a_call_has_random_numbers_of_its_own(seeing):
    found = seeing.generate(["abc"] * 4, max_new_tokens=8)
    assert len({one.text for [one] in found}) > 1
    again = seeing.generate(["abc"] * 4, max_new_tokens=8)
    assert [one.text for [one] in again] == [one.text for [one] in found]


def test_a_conversation_goes_through_the_chat_template(monkeypatch):
    tokenizer, asked = family("chatml"), []
    loaded = dataclasses.replace(policy(None), tokenizer=tokenizer)
    monkeypatch.setattr(Policy, "engine", lambda self, *sizes: asked.append(sizes) or Echo())
    messages = CONVERSATIONS["begun"]
    [[alone]] = loaded.generate(messages)
    both = loaded.generate([messages, "Why?"])
    expected = tokenizer.encode_messages(messages)
    assert alone.tokens.tolist() == both[0][0].tokens.tolist() == expected
    assert both[1][0].tokens.tolist() == tokenizer.encode_prompt("Why?")
    with pytest.raises(ValueError, match="needs a chat template, and this policy has none"):
        policy(None).generate(messages)


def test_a_call_may_leave_the_template_out_or_ask_for_it(monkeypatch):
    tokenizer = family("chatml")
    loaded = dataclasses.replace(policy(None), tokenizer=tokenizer)
    monkeypatch.setattr(Policy, "engine", lambda *_: Echo())
    plain = dataclasses.replace(tokenizer, chat=False)
    for given, chat, expected in (
        (tokenizer, None, tokenizer),
        (tokenizer, False, plain),
        (plain, None, plain),
        (plain, True, tokenizer),
    ):
        [[found]] = dataclasses.replace(loaded, tokenizer=given).generate("Why?", chat=chat)
        assert found.tokens.tolist() == expected.encode_prompt("Why?")
    assert tokenizer.encode_prompt("Why?") != plain.encode_prompt("Why?")
    with pytest.raises(ValueError, match="chat=True needs a chat template"):
        policy(None).generate("ab", chat=True)
    policy(None).generate("ab", chat=False)


def test_completions_end_where_those_of_the_run_end(monkeypatch):
    asked = []
    run = dataclasses.replace(policy(None), stop_strings=("###",), stop_ids=(7,))
    monkeypatch.setattr(Policy, "engine", lambda *_: Echo(asked))
    run.generate("ab")
    run.generate("ab", stop_strings=[])
    ends = [(one.sampling.stop_strings, one.sampling.stop_ids) for one in asked]
    assert ends == [(("###",), (*TOKENIZER.eos_ids, 7)), ((), (*TOKENIZER.eos_ids, 7))]


class Echo:
    """An engine whose completions are the prompts."""

    def __init__(self, asked=None):
        self.asked = [] if asked is None else asked

    def generate(self, requests):
        self.asked += requests
        return [
            [types.SimpleNamespace(tokens=one.prompt, logprobs=one.prompt, finish="stop")]
            for one in requests
        ]


def test_a_policy_that_reads_text_alone_refuses_images():
    with pytest.raises(ValueError, match="reads text alone"):
        policy(None).generate("ab", images=[TILE])
