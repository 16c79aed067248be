"""Small tokenizers with the special tokens and the chat templates of vision checkpoints."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

# Newlines merge, so that texts around images must not be encoded apart from their own newlines.
_MERGES = (("Ċ", "Ċ"), ("ĊĊ", "Ċ"), ("ĊĊ", "ĊĊ"), ("i", "m"), ("im", "a"), ("ima", "g"), (">", "Ċ"))

GEMMA_TEMPLATE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% if messages[0]['content'] is string %}{% set first = messages[0]['content'] + '\n\n' %}"
    "{% else %}{% set first = messages[0]['content'][0]['text'] + '\n\n' %}{% endif %}"
    "{% set messages = messages[1:] %}{% else %}{% set first = '' %}{% endif %}"
    "{% for message in messages %}"
    "{{ '<start_of_turn>' + message['role'] + '\n' + (first if loop.first else '') }}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for item in message['content'] %}"
    "{% if item['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
SMOLVLM_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def gemma3_tokenizer():
    """Makes a tokenizer like Gemma 3's, whose newlines merge."""

    from transformers import PreTrainedTokenizerFast

    made = _bytes_of(
        ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"],
        ["<start_of_image>", "<image_soft_token>", "<end_of_image>"],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<end_of_turn>",
        bos_token="<bos>",
        chat_template=GEMMA_TEMPLATE,
        extra_special_tokens={
            "boi_token": "<start_of_image>",
            "image_token": "<image_soft_token>",
            "eoi_token": "<end_of_image>",
        },
    )


def smolvlm_tokenizer():
    """Makes a tokenizer like SmolVLM's."""

    from transformers import PreTrainedTokenizerFast

    grid = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    made = _bytes_of(
        ["<|endoftext|>", "<|im_start|>", "<end_of_utterance>"],
        ["<fake_token_around_image>", "<image>", "<global-img>", *grid],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<|endoftext|>",
        eos_token="<end_of_utterance>",
        bos_token="<|im_start|>",
        chat_template=SMOLVLM_TEMPLATE,
    )


def _bytes_of(*special):
    names = [*special[0], *special[1], *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [left + right for left, right in _MERGES]
    made = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, list(_MERGES)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([name for of in special for name in of])
    return made
