"""Ends of replies: those of a checkpoint's files and its chat template's end a reply, and the
template's is trained."""

import functools
from typing import NamedTuple

import pytest

from tests.environments.families import BRACKETS, CHATML, HEADERS, load_model, model

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
BARE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


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
    "no end": (Chat(BARE, "</s>", ("</s>", "<s>"), bos="<s>"), ("</s>",)),
}


@functools.cache
def loaded(name, chat="auto"):
    template, eos, special, ends, bos = CHATS[name][0]
    return load_model(model(special), template, eos, bos=bos, chat=chat, ends=ends)


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
