"""Describes how a data set's rows become problems: the meaning of fields, and named presets."""

from __future__ import annotations

import dataclasses
import re
import string

_FIELD = re.compile(r"[^{}|]+(\|[^{}|]+)*")
_FIELD_OF_TEMPLATE = re.compile(_FIELD.pattern + r"\|?")


@dataclasses.dataclass(frozen=True)
class RowFormat:
    r"""Meaning of a row's fields.

    A field is named by its path: `reward.answers.0` is the first of the answers in `reward`.
    `question|problem` is the first of these two fields that the row has. A field may also be a list
    of messages, in the form of OpenAI or of ShareGPT. As the prompt it is the whole conversation,
    which the policy answers, or whose last message it continues if that is the assistant's; as the
    answer, the last assistant message; as the demonstration, the whole list. If the same list is
    prompt and answer or demonstration, the prompt ends before the last assistant message.

    Attributes:
      prompt: field of the question.
      template: format string of the question, such as `Solve: {question}`, with fields in braces
        (literal braces are doubled); `{}` is the field of `prompt`, followed by the choices unless
        the template names them. A field may be empty, and `{context|}` may also be missing in
        a row; the white space before it is then left out. None for the field of `prompt`, followed
        by the choices.
      answer: field of the answer, for rewards. Rewards get a list, an object, true or
        false as it is; as a text, a list of texts is lines. None for no answer.
      answer_pattern: regular expression; the answer is the last group of its last match in the
        field, such as `####\s*(.+)`. None for the whole field.
      choices: field of a question's options. They are written as lettered lines, also in a
        template, and the answer becomes the letter of the right option.
      demonstration: field of the demonstration, for SFT; None for the answer.
      tools: field of the schemas of the tools that the assistant sees, where the prompt or the
        demonstration is a list of messages; None for none.
      chosen, rejected: fields of the preferred and the rejected completion: texts, or lists of
        messages, of which the last counts; those before it are the prompt, unless the row has its
        messages. None for no pairs.
      margin: field of the minimum difference between their scores; None for none.
      images: field of the images of the question: an image or a list of them, in any form of
        `rl_sync.images.Image.of`; None for none.

    Raises:
      ValueError: a name, a template or a pattern is invalid.
    """

    prompt: str | None = None
    template: str | None = None
    answer: str | None = None
    answer_pattern: str | None = None
    choices: str | None = None
    demonstration: str | None = None
    tools: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    margin: str | None = None
    images: str | None = "images"

    def __post_init__(self) -> None:
        if (self.chosen is None) != (self.rejected is None):
            raise ValueError(
                f"chosen={self.chosen!r} and rejected={self.rejected!r} are the completions of a"
                " pair: name both fields, or none."
            )
        for name in (
            "prompt",
            "answer",
            "choices",
            "demonstration",
            "tools",
            "chosen",
            "rejected",
            "margin",
            "images",
        ):
            value = getattr(self, name)
            if value is not None and not _FIELD.fullmatch(value):
                raise ValueError(
                    f"{name}={value!r} must be the name of a field, such as question,"
                    " reward.answer or question|problem."
                )
        if self.answer_pattern is not None:
            try:
                re.compile(self.answer_pattern)
            except re.error as error:
                raise ValueError(
                    f"answer_pattern={self.answer_pattern!r} is not a regular expression: {error}."
                ) from error
        if self.template is not None:
            self._check_template(self.template)

    def _check_template(self, template: str) -> None:
        try:
            parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
        except ValueError as error:
            raise ValueError(f"template={template!r} is not a format string: {error}.") from error
        is_field = [
            (_FIELD_OF_TEMPLATE.fullmatch(name) if name else self.prompt is not None)
            and not (spec or conversion)
            for _, name, spec, conversion in parts
        ]
        if not is_field or not all(is_field):
            raise ValueError(
                f"template={template!r} must name fields in braces, such as {{question}}, or the"
                " field of `prompt` by {}; a literal brace is doubled."
            )

    @property
    def template_fields(self) -> list[str]:
        """The fields in a template's braces, in order; the prompt's is an empty text."""
        parsed = string.Formatter().parse(self.template or "")
        return [field for _, field, _, _ in parsed if field is not None]

    def override(self, **fields: str | None) -> RowFormat:
        """Replaces fields of this format; None keeps a field, and an empty text removes it."""
        changed = {name: text or None for name, text in fields.items() if text is not None}
        return dataclasses.replace(self, **changed)


def _boxed() -> str:
    r"""Returns a pattern for \boxed{…}, with up to four levels of nested braces, and for \boxed
    5."""
    inside = r"[^{}]*"
    for _ in range(4):
        inside = rf"(?:[^{{}}]|\{{{inside}\}})*"
    return rf"\\(?:boxed|fbox)\s*(?:\{{({inside})\}}|([^\s{{}}$.,]+))"


FORMATS = {
    "plain": RowFormat(prompt="prompt", answer="answer", tools="tools"),
    "gsm8k": RowFormat(
        prompt="question",
        answer="answer",
        answer_pattern=r"####\s*(.+)",
        demonstration="answer",
    ),
    "math": RowFormat(
        prompt="problem",
        answer="solution",
        answer_pattern=_boxed(),
        demonstration="solution",
    ),
    "code": RowFormat(
        prompt="prompt|text|question",
        answer="test|test_list|tests|input_output",
        demonstration="canonical_solution|code|solution",
    ),
    "multiple_choice": RowFormat(
        prompt="question|question_stem",
        choices="choices|options",
        answer="answer|answerKey|label",
    ),
    "messages": RowFormat(
        prompt="messages|conversations",
        answer="messages|conversations",
        demonstration="messages|conversations",
        tools="tools",
    ),
    "alpaca": RowFormat(template="{instruction}\n\n{input|}", answer="output"),
    "preference": RowFormat(
        prompt="prompt|question|instruction", chosen="chosen", rejected="rejected", tools="tools"
    ),
}
"""Presets: for rows of {"prompt", "answer"}, GSM8K, MATH, HumanEval, MBPP and APPS, MMLU and ARC,
chats {"messages", "tools"} or {"conversations", "system"} (ShareGPT's), Alpaca, and pairs
{"prompt", "chosen", "rejected"} such as UltraFeedback's.
"""
