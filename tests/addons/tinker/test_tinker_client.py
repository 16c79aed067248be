"""The client of Tinker's own package trains and samples with the server."""

import dataclasses
import http
import json
import urllib.request

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.models.vocabulary.token_sets import LOGITS_BYTES
from tests.addons.tinker.conftest import NAME, serving

pytestmark = pytest.mark.gate

tinker = pytest.importorskip(
    "tinker", reason="tinker is not installed: `pip install tinker==0.38.0`"
)
types = tinker.types
TOKENS = [5, 17, 40, 8, 33, 21, 60, 12]
LIMIT_SECS = 240


def connected(served, key="tml-any"):
    return tinker.ServiceClient(base_url=served.address, api_key=key)


@pytest.fixture(scope="module", name="client")
def _client(served):
    client = connected(served)
    yield client
    client.close("success").result(LIMIT_SECS)


def trained_model(client, **more):
    made = client.create_lora_training_client(NAME, rank=4, seed=1, train_unembed=False, **more)
    return made.result(LIMIT_SECS)


@pytest.fixture(scope="module", name="model")
def _model(client):
    return trained_model(client)


def tensor(values, dtype=np.float32):
    return types.TensorData.from_numpy(np.array(values, dtype))


def datum(tokens=TOKENS, **inputs):
    given = {"weights": tensor(np.ones(len(tokens) - 1)), **inputs}
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tensor(tokens[1:], np.int64),
            **{name: values for name, values in given.items() if values is not None},
        },
    )


def prompt(tokens=TOKENS):
    return types.ModelInput.from_ints(tokens)


def refusal(future):
    """The message with which the server refused a request."""
    with pytest.raises(tinker.TinkerError) as raised:
        future.result(LIMIT_SECS)
    return str(raised.value)


def test_a_client_trains_samples_saves_and_goes_on(client, served, policy):
    """One path through all that a training loop does, with the numbers of our forward pass."""
    model = trained_model(client)
    losses = []
    for _ in range(3):
        passed = model.forward_backward([datum(), datum(TOKENS[::-1])], "cross_entropy")
        taken = model.optim_step(types.AdamParams(learning_rate=2e-2))
        losses.append(passed.result(LIMIT_SECS).metrics["loss:sum"])
        assert taken.result(LIMIT_SECS).metrics["step"] == len(losses)
    assert losses[2] < losses[1] < losses[0]
    first = model.forward([datum()], "cross_entropy").result(LIMIT_SECS)
    logprobs = first.loss_fn_outputs[0]["logprobs"].data

    # The base model's forward pass, with the adapters of the server's model.
    held = served.service.model(model.model_id)
    forward = Forward(held.passes.config, 1.0, LOGITS_BYTES)
    rows = RowInputs(jnp.array([TOKENS]))
    ours = jax.jit(forward.logprobs)(held.state.adapters, policy.params, rows)
    np.testing.assert_allclose(logprobs, ours[0, 1:], rtol=1e-4, atol=1e-5)
    assert first.metrics["loss:sum"] == pytest.approx(-float(ours.sum()), rel=1e-4)

    sampler = model.save_weights_and_get_sampling_client().result(LIMIT_SECS)
    scored = sampler.compute_logprobs(prompt()).result(LIMIT_SECS)
    assert scored[0] is None
    np.testing.assert_allclose(scored[1:], logprobs, rtol=1e-4, atol=1e-5)
    choice = types.SamplingParams(max_tokens=6, seed=3, stop=[])
    drawn = sampler.sample(prompt(), 3, choice).result(LIMIT_SECS)
    again = sampler.sample(prompt(), 3, choice).result(LIMIT_SECS)
    assert [one.tokens for one in drawn.sequences] == [one.tokens for one in again.sequences]
    assert len({tuple(one.tokens) for one in drawn.sequences}) > 1
    one = drawn.sequences[0]
    assert (len(one.tokens), one.stop_reason) == (6, "length")
    whole = sampler.compute_logprobs(prompt([*TOKENS, *one.tokens])).result(LIMIT_SECS)
    np.testing.assert_allclose(one.logprobs, whole[len(TOKENS) :], rtol=1e-3, atol=1e-4)
    ended = sampler.sample(
        prompt(), 1, types.SamplingParams(max_tokens=6, seed=3, stop=[one.tokens[1]])
    ).result(LIMIT_SECS)
    assert ended.sequences[0].tokens == one.tokens[:2]
    assert ended.sequences[0].stop_reason == "stop"
    likeliest = types.SamplingParams(max_tokens=3, temperature=0, stop=[])
    greedy = sampler.sample(prompt(), 1, likeliest).result(LIMIT_SECS).sequences[0]
    whole = sampler.compute_logprobs(prompt([*TOKENS, *greedy.tokens])).result(LIMIT_SECS)
    np.testing.assert_allclose(greedy.logprobs, whole[len(TOKENS) :], rtol=1e-3, atol=1e-4)

    # From the checkpoint on, with the optimizer, the next step is the same to the bit.
    saved = model.save_state("one").result(LIMIT_SECS).path
    loaded = client.create_training_client_from_state_with_optimizer(saved).result(LIMIT_SECS)
    assert loaded.get_info().lora_rank == 4
    after = []
    for one in (model, loaded):
        one.forward_backward([datum()], "cross_entropy")
        one.optim_step(types.AdamParams(learning_rate=1e-2)).result(LIMIT_SECS)
        found = one.forward([datum()], "cross_entropy").result(LIMIT_SECS)
        after.append(found.loss_fn_outputs[0]["logprobs"].data)
    assert after[0] == after[1]
    assert after[0] != list(logprobs)
    # A sampler of a checkpoint has its weights, whatever was trained since.
    named = client.create_sampling_client(model_path=saved).result(LIMIT_SECS)
    kept = named.compute_logprobs(prompt()).result(LIMIT_SECS)
    np.testing.assert_allclose(kept[1:], logprobs, rtol=1e-4, atol=1e-5)
    base = client.create_sampling_client(base_model=NAME).result(LIMIT_SECS)
    before = base.compute_logprobs(prompt()).result(LIMIT_SECS)
    assert before[1:] != pytest.approx(kept[1:], rel=1e-3)
    rest = client.create_rest_client()
    assert rest.get_training_run_by_tinker_path(saved).result(LIMIT_SECS).lora_rank == 4
    rest.delete_checkpoint_from_tinker_path(saved).result(LIMIT_SECS)
    assert "There is no checkpoint" in refusal(model._load_state_impl(saved, False, None))
    records = [json.loads(line) for line in (served.root / "calls.jsonl").read_text().splitlines()]
    assert {"create_model", "forward_backward", "optim_step", "sample"} <= {
        one["call"] for one in records
    }


def test_losses_of_policies_have_the_options_that_a_client_sends(model):
    recorded = model.forward([datum()], "cross_entropy").result(LIMIT_SECS)
    logprobs = np.array(recorded.loss_fn_outputs[0]["logprobs"].data)
    advantages = np.array([1, -1, 2, -2, 0.5, -0.5, 1.5])
    # Ratios e^±0.5, some of them on the far side of both clips.
    shift = np.array([-0.5, 0.5, -0.05, 0.5, 0.5, -0.5, 0.0])
    given = datum(weights=None, logprobs=tensor(logprobs + shift), advantages=tensor(advantages))
    ratio = np.exp(-shift)
    found = model.forward([given], "importance_sampling").result(LIMIT_SECS)
    assert found.metrics["loss:sum"] == pytest.approx(-(ratio * advantages).sum(), rel=1e-4)
    for low, high in ((0.8, 1.2), (0.5, 3.0)):
        clips = {"clip_low_threshold": low, "clip_high_threshold": high}
        found = model.forward([given], "ppo", clips).result(LIMIT_SECS)
        terms = np.minimum(ratio * advantages, np.clip(ratio, low, high) * advantages)
        assert found.metrics["loss:sum"] == pytest.approx(-terms.sum(), rel=1e-4)


@pytest.mark.parametrize(
    ("given", "loss", "options", "rule"),
    [
        ({}, "gspo", None, "The loss 'gspo' is not served: cross_entropy, "),
        ({}, "ppo", {"clip": 1.0}, "no option 'clip'"),
        ({"mask": tensor(np.ones(7))}, "cross_entropy", None, "the loss has no input 'mask'"),
        ({}, "importance_sampling", None, "data[0]: the loss has no input 'weights'"),
        ({"weights": None}, "importance_sampling", None, "the loss needs 'advantages'"),
        ({"weights": tensor(np.ones(6))}, "cross_entropy", None, "must have the shape [7]"),
        ({"weights": tensor([np.nan] * 7)}, "cross_entropy", None, "NaN or infinite"),
    ],
)
def test_what_a_pass_cannot_do_is_refused_by_its_name(model, given, loss, options, rule):
    assert rule in refusal(model.forward([datum(**given)], loss, options))


def test_rows_beyond_the_bounds_are_refused_and_the_model_goes_on(model):
    assert "1 to 96 tokens, and has 99" in refusal(
        model.forward([datum([1] * 100)], "cross_entropy")
    )
    assert "the token ids 5 to 96" in refusal(model.forward([datum([5, 96, 7])], "cross_entropy"))
    image = types.ImageChunk(data=b"", format="png", expected_tokens=1)
    seen = dataclasses.replace(datum([1, 2]), model_input=types.ModelInput(chunks=[image]))
    assert "a chunk of the kind image is not served" in refusal(
        model.forward([seen], "cross_entropy")
    )
    # Seven data are two calls, since the client is told that six may be in one.
    assert (
        len(model.forward([datum()] * 7, "cross_entropy").result(LIMIT_SECS).loss_fn_outputs) == 7
    )


def test_a_step_after_a_failed_pass_is_refused_and_the_next_one_is_taken(model):
    model.forward_backward([datum()], "cross_entropy")
    model.forward_backward([datum()], "gspo")
    assert "No step was taken" in refusal(model.optim_step(types.AdamParams(learning_rate=0.1)))
    assert "call forward_backward before it" in refusal(model.optim_step(types.AdamParams()))
    model.forward_backward([datum()], "cross_entropy")
    model.optim_step(types.AdamParams(learning_rate=0.0)).result(LIMIT_SECS)


def test_calls_that_are_not_served_are_refused_by_their_names(client, model):
    assert "save_weights_external is not served" in refusal(model.save_weights_external("x"))
    rest = client.create_rest_client()
    assert "copy_weights is not served" in refusal(
        rest.copy_weights("tinker://a/weights/b", destination_project_id="p")
    )
    sampler = model.save_weights_and_get_sampling_client().result(LIMIT_SECS)
    choice = types.SamplingParams(max_tokens=1)
    assert "topk_prompt_logprobs: " in refusal(
        sampler.sample(prompt(), 1, choice, topk_prompt_logprobs=2)
    )
    assert "need rows of 108" in refusal(
        sampler.sample(prompt(), 1, types.SamplingParams(max_tokens=100))
    )
    assert "kind: Input should be 'snapshot'" in refusal(
        model.save_weights_and_get_sampling_client(kind="inflight")
    )
    assert "'other/model' is not served: this server has 'tiny/qwen2'" in refusal(
        client.create_lora_training_client("other/model")
    )
    # Nothing of this has stopped the model.
    model.forward([datum()], "cross_entropy").result(LIMIT_SECS)


def test_more_models_than_the_bound_are_refused_until_a_session_ends(policy, tmp_path):
    with serving(policy, tmp_path) as served:
        first, second = connected(served), connected(served)
        for _ in range(3):
            trained_model(first)
        assert "3 models are in use, as many as --models allows" in refusal(
            second.create_lora_training_client(NAME)
        )
        first.close("success").result(LIMIT_SECS)
        trained_model(second)
        second.close("success").result(LIMIT_SECS)


def test_a_client_of_another_version_is_told_which_one_fits(served, client, monkeypatch):
    monkeypatch.setattr(tinker.lib.internal_client_holder, "tinker_sdk_version", "0.37.2")
    with pytest.raises(tinker.BadRequestError, match=r"pip install 'tinker==0\.38\.\*'") as raised:
        connected(served).create_sampling_client(base_model=NAME)
    assert "this client is tinker 0.37.2" in str(raised.value)
    assert "\n" not in str(raised.value)
    # The client of the right version has lost nothing.
    assert client.create_sampling_client(base_model=NAME).result(LIMIT_SECS)


def test_a_key_is_asked_for_where_there_is_one(policy, tmp_path):
    with serving(policy, tmp_path, key="tml-right") as served:
        request = urllib.request.Request(
            f"{served.address}/api/v1/get_server_capabilities", headers={"X-API-Key": "tml-wrong"}
        )
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request)
        assert raised.value.code == http.HTTPStatus.UNAUTHORIZED
        assert "--key-path" in raised.value.read().decode()
        request.headers["X-api-key"] = "tml-right"
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["supported_models"][0]["model_name"] == NAME
