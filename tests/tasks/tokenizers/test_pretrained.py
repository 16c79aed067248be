import json
import shutil
from pathlib import Path

import pytest

from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from tests.tasks.loading import TOKENIZER, dataset, load, write_lines


@pytest.fixture(scope="module")
def peer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOKENIZER)


@pytest.fixture
def copy(tmp_path):
    """Copies the tokenizer with some settings of a file changed; None removes one."""

    def write(file="tokenizer_config.json", template=True, **settings):
        directory = shutil.copytree(TOKENIZER, tmp_path / "tokenizer")
        config = json.loads((directory / file).read_text()) | settings
        kept = {name: value for name, value in config.items() if value is not None}
        (directory / file).write_text(json.dumps(kept))
        if not template:
            (directory / "chat_template.jinja").unlink()
        return str(directory)

    return write


def test_a_prompt_goes_through_the_chat_template_up_to_the_assistants_turn(peer):
    tokenizer = pretrained.load(TokenizerConfig(str(TOKENIZER)))
    message = {"role": "user", "content": "7+5=?"}
    expected = peer.apply_chat_template([message], add_generation_prompt=True, return_dict=False)
    assert tokenizer.encode_prompt("7+5=?") == expected
    assert peer.decode(expected).endswith("assistant: ")


def test_a_system_message_stands_before_the_prompt(peer):
    tokenizer = pretrained.load(TokenizerConfig(str(TOKENIZER), "yes", "Be brief."))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "7+5=?"},
    ]
    expected = peer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.encode_prompt("7+5=?") == expected


def test_without_a_chat_a_prompt_has_the_special_tokens_that_go_first_and_none_that_go_last(copy):
    directory = copy()
    tokenizer_file = f"{directory}/tokenizer.json"
    with open(tokenizer_file) as file:
        described = json.load(file)
    around = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("<s>", "</s>")]
    described["post_processor"]["single"] = [
        around[0],
        {"Sequence": {"id": "A", "type_id": 0}},
        around[1],
    ]
    described["post_processor"]["special_tokens"] = {
        name: {"id": name, "ids": [i], "tokens": [name]} for i, name in ((1, "<s>"), (2, "</s>"))
    }
    with open(tokenizer_file, "w") as file:
        json.dump(described, file)
    tokenizer = pretrained.load(TokenizerConfig(directory, "no", None))
    assert tokenizer.encode_prompt("hi") == [1, *tokenizer.encode("hi")]
    assert tokenizer.encode("hi") == [76, 77]


def test_ids_come_from_the_tokenizer_and_all_ends_from_the_generation_config():
    tokenizer = pretrained.load(TokenizerConfig(str(TOKENIZER)))
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.eos_ids) == (0, 2, (2, 7))
    assert tokenizer.vocab_size == 96


def test_a_tokenizer_without_padding_fills_with_its_end(copy):
    assert pretrained.load(TokenizerConfig(copy(pad_token=None))).pad_id == 2


def test_the_generation_config_may_name_the_only_end(copy):
    assert pretrained.load(TokenizerConfig(copy(eos_token=None))).eos_ids == (2, 7)


def test_a_demonstration_ends_as_the_chat_template_ends_an_answer(copy, tmp_path):
    directory = copy()
    template = tmp_path / "tokenizer" / "chat_template.jinja"
    template.write_text(
        "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}#{% endif %}"
        "{% endfor %}"
    )
    assert pretrained.load(TokenizerConfig(directory)).eos_ids == (7, 2)
    assert pretrained.load(TokenizerConfig(directory, "no", None)).eos_ids == (2, 7)


def test_decoding_ends_at_any_end_and_shows_what_does_not_belong():
    tokenizer = pretrained.load(TokenizerConfig(str(TOKENIZER)))
    assert tokenizer.decode([76, 77, 7, 76]) == "hi"
    assert tokenizer.decode([76, 77, 2]) == "hi"
    assert tokenizer.with_stop_ids((77,)).decode([76, 77]) == "h"
    assert tokenizer.decode([76, 0, 77]) == "h<pad>i"
    assert tokenizer.decode([76, 96, 200, 77]) == "h\ufffd\ufffdi"


def test_a_tokenizer_without_a_chat_template_asks_the_bare_prompt(copy):
    tokenizer = pretrained.load(TokenizerConfig(copy(template=False)))
    assert tokenizer.encode_prompt("hi") == [76, 77]


@pytest.mark.parametrize(
    ("chat", "system", "message"),
    [
        ("yes", None, "tokenizer.chat=yes, but .* has no chat template"),
        ("auto", "Be brief.", "tokenizer.system='Be brief.' needs a chat template"),
    ],
)
def test_a_chat_without_a_template_is_refused(copy, chat, system, message):
    with pytest.raises(ValueError, match=message):
        pretrained.load(TokenizerConfig(copy(template=False), chat, system))


def test_a_tokenizer_that_cannot_end_is_refused(copy, tmp_path):
    directory = copy(eos_token=None)
    (tmp_path / "tokenizer" / "generation_config.json").unlink()
    with pytest.raises(ValueError, match="names no end-of-sequence token"):
        pretrained.load(TokenizerConfig(directory))


def test_a_directory_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"No tokenizer can be loaded from .*tokenizer.path="):
        pretrained.load(TokenizerConfig(str(tmp_path)))
    with pytest.raises(ValueError, match="nowhere does not exist"):
        pretrained.load(TokenizerConfig(str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("tokenizer.json", "version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        ("tokenizer.json", '{"added_tokens"', r"is not JSON .* fetch the file again"),
        ("tokenizer.json", "[1]", r"must hold an object .* not \[1\]"),
        ("tokenizer_config.json", "[1]", r"must hold an object .* not \[1\]"),
        ("generation_config.json", '{"eos', "is not JSON"),
        (
            "generation_config.json",
            '{"eos_token_id": "x"}',
            "eos_token_id='x' must be a token's id",
        ),
    ],
)
def test_a_broken_file_of_a_tokenizer_is_named(copy, file, text, message):
    directory = Path(copy())
    (directory / file).write_text(text)
    with pytest.raises(ValueError, match=rf"tokenizer/{file}:? {message}"):
        pretrained.load(TokenizerConfig(str(directory)))


def test_a_chat_template_that_cannot_be_used_is_refused_with_the_reason(copy):
    directory = Path(copy())
    (directory / "chat_template.jinja").write_text("{% for")
    with pytest.raises(
        ValueError, match=r"chat template of .*tokenizer cannot .*tokenizer.chat=no"
    ):
        pretrained.load(TokenizerConfig(str(directory)))
    assert not pretrained.load(TokenizerConfig(str(directory), "no", None)).chat


def test_a_name_that_is_in_the_hubs_cache_needs_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    checkpoint = tmp_path / "models--someone--something"
    shutil.copytree(TOKENIZER, checkpoint / "snapshots" / "0123abc")
    (checkpoint / "refs").mkdir()
    (checkpoint / "refs" / "main").write_text("0123abc")
    assert pretrained.load(TokenizerConfig("someone/something")).eos_ids == (2, 7)


def test_a_checkpoint_without_a_tokenizer_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    # Which of the two it is depends on the version of transformers.
    with pytest.raises(ValueError, match=r"([Nn]o tokenizer).*tokenizer.path="):
        pretrained.load(TokenizerConfig(str(tmp_path)))


def test_a_tasks_rows_hold_the_template_and_its_texts_do_not(tmp_path, peer):
    rows = [{"prompt": f"{i}+1=?", "answer": i + 1} for i in range(10)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    task = load(tokenizer=TOKENIZER, name="dataset", dataset__path=str(path))
    asked = task.train[0]
    tokens, lengths = task.encode_prompts([asked.text])
    message = {"role": "user", "content": asked.text}
    expected = peer.apply_chat_template([message], add_generation_prompt=True, return_dict=False)
    assert tokens[0, : lengths[0]].tolist() == expected
    assert task.max_prompt_tokens == len(expected)
    [demonstrated], [mask] = task.encode_demonstrations([asked])
    answer = task.tokenizer.encode(asked.answer)
    assert demonstrated[mask].tolist() == [*answer, task.tokenizer.eos_id]
    assert demonstrated[: mask.argmax()].tolist() == expected


@pytest.mark.gate
def test_the_arithmetic_task_takes_a_pretrained_tokenizer():
    task = load(tokenizer=TOKENIZER, chat="no")
    assert (task.max_prompt_tokens, task.max_completion_tokens) == (6, 4)
    assert task.tokenizer.vocab_size == 96


def test_characters_are_tokens_where_no_tokenizer_is_named(tmp_path):
    path = write_lines(
        tmp_path / "r.jsonl", [{"prompt": f"ab{c}", "answer": c} for c in "cdefghijkl"]
    )
    assert dataset(path).tokenizer.charset == "abcdefghijkl"
