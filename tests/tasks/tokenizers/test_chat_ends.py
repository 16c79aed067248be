"""Ends of replies: those of a checkpoint's files and its chat template's end a reply, and the
template's is trained."""

import functools
from typing import NamedTuple

import pytest
from tokenizers import normalizers

from tests.environments.families import BRACKETS, CHATML, HEADERS, THINKING, load_model, model
from tests.tasks.loading import load, write_lines

PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{{ '<|assistant|>\n' if add_generation_prompt else eos_token }}"
)
COMMAND = (
    "{% for m in messages %}<|turn|>{% if m.role == 'assistant' %}<|chatbot|><|answer|>{% else %}"
    "<|user|>{% endif %}{{ m.content }}{{ '</answer>' if m.role == 'assistant' }}<|end_of_turn|>"
    "{% endfor %}{{ '<|turn|><|chatbot|><|answer|>' if add_generation_prompt }}"
)
GLM = (
    "[gMASK]{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{{ '<|assistant|>\n' if add_generation_prompt }}"
)
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final"
    "{% endif %}<|message|>{{ m.content }}"
    "{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}"
    "{{ '<|start|>assistant' if add_generation_prompt }}"
)
BARE = (
    "{% for m in messages %}{{ m.role }}:\n{{ m.content }}\n{% endfor %}"
    "{{ 'assistant:\n' if add_generation_prompt }}"
)
SPACED = (
    "{% for m in messages %}{{ ' ' + m.content + ' </s>' if m.role == 'assistant' else"
    " '[INST] ' + m.content + ' [/INST]' }}{% endfor %}"
)
FORGETS = CHATML.replace(
    "{{ write(message) }}",
    """{%- if message.role == 'assistant' -%}
{%- set message = {'role': message.role, 'content': message.content.split('</think>')[-1]} -%}
{%- endif -%}{{ write(message) }}""",
)


class Chat(NamedTuple):
    """A checkpoint: its template, its `eos_token`, other ends of its files, and special tokens."""

    template: str
    eos: str
    special: tuple[str, ...]
    ends: tuple[str, ...] = ()
    bos: str | None = None


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PHI = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")
_COMMAND = ("<|end_of_turn|>", "<|turn|>", "<|chatbot|>", "<|user|>", "<|answer|>", "</answer>")
_GLM = ("<|endoftext|>", "[gMASK]", "<|user|>", "<|assistant|>", "<|observation|>")
_HARMONY = ("<|return|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>")
_HEADERS = ("<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>")

CHATS = {  # With the ends that are right, the trained one first.
    "base of Qwen 2.5": (
        Chat(CHATML, "<|endoftext|>", _CHATML),
        ("<|im_end|>", "<|endoftext|>"),
    ),
    "Qwen 2.5": (
        Chat(CHATML, "<|im_end|>", _CHATML, ("<|endoftext|>",)),
        ("<|im_end|>", "<|endoftext|>"),
    ),
    "files that name both, the text's end first": (
        Chat(CHATML, "<|endoftext|>", _CHATML, ("<|im_end|>",)),
        ("<|im_end|>", "<|endoftext|>"),
    ),
    "one end": (Chat(CHATML, "<|im_end|>", _CHATML), ("<|im_end|>",)),
    "base of Llama 3": (
        Chat(HEADERS, "<|end_of_text|>", (*_HEADERS, "<|eot_id|>"), bos="<|begin_of_text|>"),
        ("<|eot_id|>", "<|end_of_text|>"),
    ),
    "Phi 3": (
        Chat(PHI, "<|endoftext|>", _PHI, ("<|assistant|>", "<|end|>")),
        ("<|end|>", "<|endoftext|>", "<|assistant|>"),
    ),
    "Phi 3 without a list": (Chat(PHI, "<|endoftext|>", _PHI), ("<|end|>", "<|endoftext|>")),
    "an answer in brackets": (Chat(COMMAND, "<|end_of_turn|>", _COMMAND), ("<|end_of_turn|>",)),
    "the next turn's header": (
        Chat(GLM, "<|endoftext|>", _GLM, ("<|user|>", "<|observation|>")),
        ("<|user|>", "<|endoftext|>", "<|observation|>"),
    ),
    "a header that no file names": (Chat(GLM, "<|endoftext|>", _GLM), ("<|endoftext|>",)),
    "another end before the next turn": (
        Chat(HARMONY, "<|return|>", _HARMONY, ("<|call|>",)),
        ("<|return|>", "<|call|>"),
    ),
    "Mistral": (
        Chat(BRACKETS, "</s>", ("</s>", "<s>", "[INST]", "[/INST]"), bos="<s>"),
        ("</s>",),
    ),
    "Llama 2": (Chat(SPACED, "</s>", ("</s>", "<s>")), ("</s>",)),
    "thoughts": (
        Chat(THINKING, "<|endoftext|>", _CHATML),
        ("<|im_end|>", "<|endoftext|>"),
    ),
    "no end": (Chat(BARE, "</s>", ("</s>", "<s>"), bos="<s>"), ("</s>",)),
}


@functools.cache
def loaded(name, chat="auto"):
    template, eos, special, ends, bos = CHATS[name][0]
    return load_model(model(special), template, eos, bos=bos, chat=chat, ends=ends)


def answered(tokenizer, answer, asked="What is 7 + 5?"):
    """Returns the ids of a demonstration and those of `apply_chat_template`, up to the end."""
    question = {"role": "user", "content": asked}
    ids = tokenizer.backend.apply_chat_template(
        [question, {"role": "assistant", "content": answer}], return_dict=False
    )
    found = [*tokenizer.encode_messages([question]), *tokenizer.encode_reply(answer)]
    if tokenizer.eos_id in ids[len(found) :]:
        found.append(tokenizer.eos_id)
    return found, ids[: len(found)]


def named(tokenizer):
    return tuple(tokenizer.decode_all([i]) for i in tokenizer.eos_ids)


def test_the_ends_are_the_templates_and_then_those_of_the_files(subtests):
    for name, (_, right) in CHATS.items():
        with subtests.test(name):
            assert named(loaded(name)) == right


def test_a_template_that_is_not_used_ends_nothing():
    assert named(loaded("base of Qwen 2.5", chat="no")) == ("<|endoftext|>",)


def test_a_template_may_name_the_only_end():
    name = "base of Qwen 2.5"
    template, _, special, *_ = CHATS[name][0]
    backend = model(special)
    assert named(load_model(backend, template, None)) == ("<|im_end|>",)
    with pytest.raises(ValueError, match="names no end-of-sequence token"):
        load_model(backend, template, None, chat="no")


def test_a_notice_says_that_the_templates_end_is_not_the_tokenizers(subtests):
    for name in CHATS:
        with subtests.test(name):
            tokenizer = loaded(name)
            differs = named(tokenizer)[0] != CHATS[name][0].eos
            assert bool(tokenizer.describe_ends()) == differs
    assert loaded("base of Qwen 2.5").describe_ends() == (
        "The tokenizer's end of sequence is '<|endoftext|>', but its chat template ends replies"
        " with '<|im_end|>': both end a reply, and demonstrations end with '<|im_end|>'."
    )
    assert not loaded("base of Qwen 2.5", chat="no").describe_ends()


ANSWERS = (
    "12",
    " 12 ",
    "\n12",
    "",
    "user",
    "think",
    "im_end",
    "12 is 5 + 7.\n",
    "<think>\nCarry?\n</think>\n\n12",
    "<think>Carry?</think>12",
)


def test_a_demonstration_has_the_ids_of_apply_chat_template_up_to_its_end(subtests):
    for name in CHATS:
        tokenizer, ended = loaded(name), 0
        for answer in ANSWERS:
            with subtests.test(name, answer=answer):
                found, right = answered(tokenizer, answer)
                assert found == right
                ended += found[-1] == tokenizer.eos_id
        has_end = name not in ("no end", "the next turn's header", "a header that no file names")
        assert ended == len(ANSWERS) * has_end


def test_a_reply_is_encoded_behind_its_header_though_texts_begin_with_a_space():
    backend = model(("</s>", "<s>"))
    backend.normalizer = normalizers.Prepend(" ")
    tokenizer = load_model(backend, BARE, "</s>")
    found, right = answered(tokenizer, "12 is it")
    assert found == right
    assert tokenizer.encode("12 is it") != tokenizer.encode_reply("12 is it")


def test_a_reply_keeps_thoughts_that_the_template_leaves_out():
    tokenizer = load_model(model(_CHATML), FORGETS, "<|im_end|>")
    assert tokenizer.decode_all(tokenizer.encode_reply("<think>7</think>12")) == (
        "<think>7</think>12"
    )


def test_the_rest_of_a_reply_that_is_begun_has_nothing_before_it():
    tokenizer = loaded("thoughts")
    whole, rest = (tokenizer.encode_reply("12", continues=one) for one in (False, True))
    assert tokenizer.decode_all(whole) == "<think>\n\n</think>\n\n12"
    assert tokenizer.decode_all(rest) == "12"
    spaced = loaded("Llama 2")
    assert spaced.decode_all(spaced.encode_reply("12", continues=True)) == "12 "


def test_a_task_learns_the_reply_and_the_templates_end(tmp_path, subtests):
    begun = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "It is"}]
    rows = [{"prompt": "7 + 5?", "answer": "12"}, {"prompt": begun, "answer": "12"}]
    path = str(write_lines(tmp_path / "rows.jsonl", rows))
    for name, front in (("thoughts", "<think>\n\n</think>\n\n"), ("base of Qwen 2.5", "")):
        tokenizer = loaded(name)
        tokenizer.backend.save_pretrained(tmp_path / name)
        named = {"dataset__path": path, "dataset__held_out_path": path}
        task = load(tokenizer=tmp_path / name, name="dataset", **named)
        for demonstration in task.demonstrations:
            with subtests.test(name, prompt=demonstration.text):
                (tokens,), (mask,) = task.encode_demonstrations([demonstration])
                learned = tokens[mask].tolist()
                whole = front * (demonstration.text == "7 + 5?") + "12<|im_end|>"
                assert tokenizer.decode_all(learned) == whole
                row = demonstration.row
                assert task.encoder.completion_length("12", row) == len(learned)
        assert len(task.demonstrations) == 2
        assert task.max_completion_tokens == len(tokenizer.encode_reply("12")) + 1
        assert "both end a reply" in task.describe()


def test_padding_that_is_an_end_leaves_no_token_to_learn_out(tmp_path):
    tokenizer = load_model(model(_CHATML), CHATML, "<|im_end|>")
    tokenizer.backend.pad_token = "<|im_end|>"
    tokenizer.backend.save_pretrained(tmp_path)
    rows = [
        {"prompt": "7 + 5?", "answer": one, "better": one, "worse": "no"} for one in ("12", "4")
    ]
    path = str(write_lines(tmp_path / "rows.jsonl", rows))
    named = {"dataset__path": path, "dataset__held_out_path": path}
    named |= {"dataset__chosen": "better", "dataset__rejected": "worse"}
    task = load(tokenizer=tmp_path, name="dataset", **named)
    assert task.tokenizer.pad_id == task.tokenizer.eos_id
    said = [one.answer for one in task.demonstrations]
    pairs = [text for one in task.preferences for text in (one.chosen, one.rejected)]
    for texts, (tokens, mask) in (
        (said, task.encode_demonstrations(task.demonstrations)),
        (pairs, task.encode_preferences(task.preferences)),
    ):
        assert len(texts) == len(tokens) > 0
        for text, ids, learned in zip(texts, tokens, mask, strict=True):
            end = task.tokenizer.eos_id
            assert ids[learned].tolist() == [*task.tokenizer.encode(text), end]
            assert (ids[: learned.argmax()] == end).sum() == 1, "the prompt has an end, too"
