"""Small tokenizers with chat templates of the shapes of model families, made for the tests."""

from __future__ import annotations

import functools
import tempfile
from typing import NamedTuple

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import PretrainedTokenizer, TokenizerConfig

CORPUS = [
    "user assistant system tool What is the sum of seven and five? The answer is 12.",
    'Look it up: {"name": "look", "arguments": {"place": "north"}} {"parameters": {}}',
    "think about the answer, then say the answer; the tool said that it is north of here",
] * 4

_CHATML_TURN = """
{%- macro write(message) -%}
<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.role == 'tool' -%}
<tool_response>
{{ message.content }}
</tool_response>
{%- else -%}
{{ message.content }}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{ '\n' if message.content or not loop.first }}<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endmacro -%}
{%- if tools -%}
<|im_start|>system
Tools, to be called as <tool_call>{"name": ..., "arguments": {...}}</tool_call>:
{% for tool in tools %}{{ tool.function | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
"""

CHATML = (
    _CHATML_TURN
    + """
{%- for message in messages -%}{{ write(message) }}{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
)

# Thinking stays only behind the last question of a user; the last reply always has some.
THINKING = (
    _CHATML_TURN
    + """
{%- set ns = namespace(question=-1) -%}
{%- for message in messages if message.role == 'user' -%}{%- set ns.question = loop.index0 -%}
{%- endfor -%}
{%- set ns.users = -1 -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.users = ns.users + 1 -%}{%- endif -%}
{%- if message.role == 'assistant' -%}
{%- set thought = message.content.split('</think>')[0] if '</think>' in message.content else '' -%}
{%- set said = message.content.split('</think>')[-1].lstrip('\n') -%}
{%- if ns.users == ns.question and (loop.last or thought) -%}
{%- set said = '<think>\n' + thought.split('<think>')[-1].strip('\n')
    + '\n</think>\n\n' + said -%}
{%- endif -%}
{{ write({'role': 'assistant', 'content': said, 'tool_calls': message.tool_calls}) }}
{%- else -%}{{ write(message) }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
)

HEADERS = """
{{- bos_token -}}
{%- for message in messages -%}
{%- set role = 'ipython' if message.role == 'tool' else message.role -%}
<|start_header_id|>{{ role }}<|end_header_id|>

{% if message.tool_calls -%}
{%- for call in message.tool_calls -%}
{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}
{%- endfor -%}
{%- else -%}
{%- if loop.first and tools -%}Tools: {{ tools | tojson }}{{ '\n' }}{%- endif -%}
{{ message.content | trim }}
{%- endif -%}
<|eot_id|>
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start_header_id|>assistant<|end_header_id|>

{% endif -%}
"""

BRACKETS = """
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{%- if loop.first and tools -%}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{%- endif -%}
[INST] {{ message.content }}[/INST]
{%- elif message.role == 'tool' -%}
{%- if message.tool_call_id is not defined or message.tool_call_id | length != 9 -%}
{{ raise_exception('tool answers need ids of nine characters') }}
{%- endif -%}
[TOOL_RESULTS]{{ {'content': message.content, 'call_id': message.tool_call_id} | tojson -}}
[/TOOL_RESULTS]
{%- elif message.tool_calls -%}
[TOOL_CALLS][
{%- for call in message.tool_calls -%}
{{ dict(call.function, id=call.id) | tojson }}{{ ', ' if not loop.last }}
{%- endfor -%}]{{ eos_token }}
{%- else -%}
{{ ' ' + message.content }}{{ eos_token }}
{%- endif -%}
{%- endfor -%}
"""


class Family(NamedTuple):
    """The template of a family, and the special tokens that it writes: the first one ends turns."""

    template: str | None
    special: tuple[str, ...]
    bos: str | None = None
    plain: tuple[str, ...] = ()


_CHATML_SPECIAL = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
_CHATML_PLAIN = ("<tool_call>", "</tool_call>", "<think>", "</think>")
FAMILIES = {
    "chatml": Family(CHATML, _CHATML_SPECIAL, plain=_CHATML_PLAIN),
    "thinking": Family(THINKING, _CHATML_SPECIAL, plain=_CHATML_PLAIN),
    "headers": Family(
        HEADERS,
        (
            "<|eot_id|>",
            "<|begin_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|python_tag|>",
        ),
        bos="<|begin_of_text|>",
    ),
    "brackets": Family(
        BRACKETS,
        ("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        bos="<s>",
    ),
    "plain": Family(None, ("</s>", "<s>"), bos="<s>"),
}


def model(special: tuple[str, ...], plain: tuple[str, ...] = ()) -> Tokenizer:
    """Trains a byte-level BPE on the corpus, with special tokens and other added ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False) for text in plain])
    return tokenizer


def load_model(
    tokenizer: Tokenizer,
    template: str | None,
    eos: str | None,
    bos: str | None = None,
    chat: str = "auto",
    system: str | None = None,
    ends: tuple[str, ...] = (),
) -> PretrainedTokenizer:
    """Loads a tokenizer as a run does, from files; `ends` are other tokens that end a reply."""

    from transformers import PreTrainedTokenizerFast

    if bos is not None:
        # As tokenizers of some families do, it begins and ends every text by itself.
        around = [(text, tokenizer.token_to_id(text)) for text in (bos, eos)]
        tokenizer.post_processor = processors.TemplateProcessing(f"{bos} $A {eos}", None, around)
    names = ({} if eos is None else {"eos_token": eos}) | (
        {} if bos is None else {"bos_token": bos}
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    if template is not None:
        fast.chat_template = template
    with tempfile.TemporaryDirectory() as directory:
        fast.save_pretrained(directory)
        if ends:
            ids = [tokenizer.token_to_id(end) for end in (eos, *ends)]
            with open(f"{directory}/generation_config.json", "w") as file:
                file.write(f'{{"eos_token_id": {ids}}}')
        return pretrained.load(TokenizerConfig(directory, chat, system))


@functools.cache
def family(name: str, system: str | None = None) -> PretrainedTokenizer:
    """Returns the tokenizer of a family of `FAMILIES`; the ChatML ones also end at end of text."""
    template, special, bos, plain = FAMILIES[name]
    ends = ("<|endoftext|>",) if "<|endoftext|>" in special else ()
    return load_model(
        model(special, plain), template, special[0], bos=bos, system=system, ends=ends
    )
