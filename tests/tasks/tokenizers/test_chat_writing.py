import datetime

import pytest

from rl_sync.tasks.tokenizers.chat_writing import arguments_of, day_of, write_chat
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from tests.environments.families import CHATML, family, load_model, model

THINKS = CHATML.replace(
    "<|im_start|>assistant\n{% endif -%}",
    "<|im_start|>assistant\n{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif -%}",
)
DATED = (
    "{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}"
    "{%- endif %}\n{%- macro told() %}{{ strftime_now('%A, %-d %B %Y, %j 100%%') }}{% endmacro %}"
    "Today: {{ date_string }}; {{ told() }}; {{ strftime_now('%d') | int - 1 }}\n"
    "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
)
SPECIAL = ("<|im_end|>", "<|im_start|>")
USER = [{"role": "user", "content": "Why?"}]


def loaded(template, special=SPECIAL, **settings):
    from rl_sync.tasks.tokenizers import pretrained

    made = load_model(model(special), template, special[0]).backend
    return lambda directory: (
        made.save_pretrained(directory),
        pretrained.load(TokenizerConfig(str(directory), "auto", None, **settings)),
    )[1]


def test_arguments_reach_every_use_of_the_template(tmp_path):
    tokenizer = loaded(THINKS, template_arguments='{"enable_thinking": false}')(tmp_path)
    expected = tokenizer.backend.apply_chat_template(
        USER, add_generation_prompt=True, enable_thinking=False, return_dict=False
    )
    assert tokenizer.encode_prompt("Why?") == expected == tokenizer.encode_messages(USER)
    assert tokenizer.decode_all(expected).endswith("<think>\n\n</think>\n\n")
    assert tokenizer.render(USER).endswith("</think>\n\n")


def test_an_argument_that_the_template_does_not_read_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"'enable_thinkin', but the chat template .* does not read"
    ):
        loaded(THINKS, template_arguments='{"enable_thinkin": false}')(tmp_path)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("enable_thinking=false", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"messages": []}', "names 'messages', which a run gives itself"),
    ],
)
def test_arguments_are_a_json_object(given, complaint):
    with pytest.raises(ValueError, match=complaint):
        TokenizerConfig(template_arguments=given)
    assert arguments_of(None) == arguments_of(" ") == {}


def test_a_template_writes_the_runs_date(tmp_path):
    tokenizer = loaded(DATED, ("</s>",), date="2026-03-07")(tmp_path)
    shown = "Today: 07 Mar 2026; Saturday, 7 March 2026, 066 100%; 6\nWhy?</s>"
    assert tokenizer.render(USER) == shown
    assert tokenizer.decode_all(tokenizer.encode_prompt("Why?")) == shown
    with pytest.raises(ValueError, match=r"tokenizer\.date='7\.3\.2026' must be a date such as"):
        TokenizerConfig(date="7.3.2026")


def test_todays_date_is_written_as_transformers_writes_it():
    backend = load_model(model(("</s>",)), DATED, "</s>").backend
    today = datetime.date.today()
    alike = [write_chat(backend, USER, day=day) for day in (None, today)]
    assert alike[0] == alike[1] or datetime.date.today() != today
    given = write_chat(backend, USER, day=today, arguments={"date_string": "1 May"})
    assert given.startswith("Today: 1 May;")
    assert day_of(None) is None


def test_a_template_without_dates_is_written_as_it_is():
    tokenizer = family("chatml")
    assert tokenizer.day is not None
    wanted = tokenizer.backend.apply_chat_template(USER, tokenize=False)
    assert tokenizer.render(USER, prompts=False) == wanted
