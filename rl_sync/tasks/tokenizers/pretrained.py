"""Wraps tokenizers of Hugging Face checkpoints, with their chat templates.

`transformers` is imported with the first tokenizer, because that takes seconds, and a run with a
character tokenizer does not need it.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_sync.models.huggingface.files import read_object
from rl_sync.setting import check, setting
from rl_sync.tasks.pictures.places import PLACE, joined, unused_character
from rl_sync.tasks.pictures.tile_processor import PictureMarks
from rl_sync.tasks.tokenizers.chat_writing import (
    arguments_of,
    day_of,
    end_of_reply,
    keeps,
    write_chat,
)
from rl_sync.tasks.tokenizers.prompt_messages import SYSTEM_ROLES
from rl_sync.tasks.tokenizers.special_tokens import Shield, SpecialTokens, encoded
from rl_sync.tasks.tokenizers.tokenizer import Messages, Schemas, plain_text
from rl_sync.thoughts import KNOWN, ThoughtMarks, marks_of

CHAT_CHOICES = ("auto", "yes", "no")
_FILES = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json")
_REPLACEMENT = "\ufffd"
_ANY_TEXT = "0"
_LINE = "\n"
_ASKED = "Yes?"
_ANSWERED = "Yes."


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """`config.tokenizer`.

    Raises:
      ValueError: an unknown choice.
    """

    path: str | None = setting(
        None,
        "Tokenizer of a Hugging Face checkpoint: a directory, or a name on the hub.",
        implied="that of model.path if it is set, otherwise one token a character",
        is_path=True,
    )
    chat: str = setting(
        "auto",
        "Whether prompts are written in the tokenizer's chat template, as a user's message to the"
        " assistant: `yes`, `no`, or `auto` for yes if there is a template and `task.shots` is"
        " 0.",
        choices=CHAT_CHOICES,
    )
    system: str | None = setting(
        None,
        "System message before each prompt, unless the row's own messages have one.",
        implied="no system message",
    )
    template_arguments: str | None = setting(
        None,
        'Values that the chat template reads, as a JSON object: `{"enable_thinking": false}`.',
        implied="none",
    )
    date: str | None = setting(
        None,
        "Date that the chat template writes if it asks for today's, such as 2026-03-31. A resumed"
        " run keeps its own.",
        implied="the day on which the run begins",
    )
    thoughts: str | None = setting(
        None,
        "Marks around a reply's thoughts, with a space between them, such as"
        " `<reasoning> </reasoning>`; `none` for replies without thoughts. Rewards read the answer"
        " after the thoughts.",
        implied="`<think> </think>` and the marks of other model families",
    )

    def __post_init__(self) -> None:
        check(self, "tokenizer")
        arguments_of(self.template_arguments)
        day_of(self.date)
        marks_of(self.thoughts)


@dataclasses.dataclass(frozen=True, eq=False)
class PretrainedTokenizer:
    """A tokenizer of `transformers`.

    Attributes:
      backend: the `PreTrainedTokenizerBase`.
      chat: whether prompts are written in its chat template.
      system: system message before a prompt.
      arguments: values that the chat template reads.
      day: date that the chat template writes if it asks for today's.
      thoughts: see `Tokenizer`.
      vocab_size, pad_id, eos_ids: see `Tokenizer`.
      stop_ids: ids that end a completion besides the ends of sequence.
    """

    backend: Any
    chat: bool
    system: str | None
    vocab_size: int
    pad_id: int
    eos_ids: tuple[int, ...]
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    day: datetime.date | None = None
    thoughts: tuple[ThoughtMarks, ...] = KNOWN
    stop_ids: tuple[int, ...] = ()

    @property
    def eos_id(self) -> int:
        """Id that ends a demonstration: the first of `eos_ids`."""
        return self.eos_ids[0]

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All ids that end a completion."""
        return (*self.eos_ids, *self.stop_ids)

    def with_stop_ids(self, stop_ids: tuple[int, ...]) -> PretrainedTokenizer:
        """Returns the tokenizer of a policy whose completions also end with these ids."""
        return dataclasses.replace(self, stop_ids=stop_ids)

    def encode(self, text: str) -> list[int]:
        """Encodes a text, without special tokens around it.

        Raises:
          ValueError: the vocabulary has no token for a part of it, nor one for what is unknown.
        """
        return encoded(self.backend.encode, text, add_special_tokens=False)

    def encode_prompt(self, text: str) -> list[int]:
        """Encodes a prompt in the chat template, or without one after initial special tokens.

        In the template, names of special tokens in the text are plain text.

        Raises:
          ValueError: the template rejects the prompt, such as its system message, or the
            vocabulary does, as in `encode`.
        """
        if self.chat:
            return self.encode_messages([{"role": "user", "content": text}])
        return self._continued(encoded(self.backend.encode, text))

    def encode_messages(self, messages: Messages, tools: Schemas = ()) -> list[int]:
        """Encodes a conversation as a prompt; see `Tokenizer`.

        The ids are those of `apply_chat_template` with `add_generation_prompt`, or with
        `continue_final_message` if the last message is the assistant's.
        """
        if not self.chat:
            text = plain_text(messages, tools)
            return self.encode_literally(text, begins=True)
        return self.encode_covered(self._asked(messages, tools, self._shield.cover), self._shield)

    def _asked(
        self,
        messages: Messages,
        tools: Schemas,
        cover: Callable[[Any], Any],
        shows: bool = False,
    ) -> str:
        """Writes a conversation that asks for a reply, or for the rest of its last message.

        Args:
          messages, tools: see `encode_messages`.
          cover: covers the contents, except that of a reply that is begun: its author writes in
            the policy's place, which draws special tokens.
          shows: whether U+FFFC stands for an image.
        """
        continues = messages[-1]["role"] == "assistant"
        covered = [cover(dict(one)) | {"role": one["role"]} for one in messages]
        if continues:
            covered[-1]["content"] = messages[-1]["content"]
        written = [self.with_parts(one, shows) for one in covered]
        rendered = self.render(written, [cover(one) for one in tools], continues=continues)
        for one in covered:
            if one["role"] == "system" and (one["content"] or "").strip() not in rendered:
                raise ValueError(
                    f"The chat template leaves out the system message {one['content']!r:.100}: put"
                    " its text into the user's message, or use another template."
                )
        return rendered

    def with_parts(self, message: dict[str, Any], shows: bool) -> dict[str, Any]:
        """Returns a message whose content is a list of parts, if the template needs one.

        Args:
          message: a message for the template.
          shows: whether U+FFFC in its content stands for an image.
        """
        content = message.get("content")
        if not isinstance(content, str):
            return message
        texts = content.split(PLACE) if shows else [content]
        if len(texts) == 1 and self.reads_texts:
            return message
        parts: list[dict[str, str]] = []
        for number, text in enumerate(texts):
            parts += [{"type": "image"}] if number else []
            parts += [{"type": "text", "text": text}] if text or len(texts) == 1 else []
        return message | {"content": parts}

    @functools.cached_property
    def reads_texts(self) -> bool:
        """True if the template writes contents that are texts; some write only lists of parts."""
        asked: dict[str, Any] = {"role": "user", "content": _ASKED}
        parts = [{"type": "text", "text": _ASKED}]
        return self._writes(asked) or not self._writes(asked | {"content": parts})

    def _writes(self, message: dict[str, Any]) -> bool:
        try:
            return _ASKED in self._apply([message], (), add_generation_prompt=True)
        except Exception:  # Errors of Jinja, or of the template's own code.
            return False

    def template_end(self) -> int | None:
        """Returns the id with which the chat template ends a reply; see `end_of_reply`.

        Raises:
          Exception: an error of Jinja, or of the template's own code.
        """
        no_ends = {self.backend.unk_token_id, self.backend.bos_token_id}
        for goes_on in (False, True):
            behind = self.encode(self._replied(_ANSWERED, goes_on).partition(_ANSWERED)[2])
            # The header of the next turn ends a reply only if the checkpoint says so.
            special = frozenset() if goes_on else self.special.ids - no_ends
            end = end_of_reply(behind, self.eos_ids, special)
            if end is not None:
                return end
        return None

    def encode_covered(self, rendered: str, shield: Shield) -> list[int]:
        """Encodes a text with special tokens, in which covered names are text.

        Text between two special tokens is encoded in one piece, even if it has a name in it: the
        name's neighbors merge with it as in any text.
        """
        pattern = self.special.pattern
        ids: list[int] = []
        done = start = 0
        matches = pattern.finditer(rendered) if pattern is not None else ()
        spans = [match.span() for match in matches] if shield.covers(rendered) else []
        for stop, following in [*spans, (len(rendered), len(rendered))]:
            run = rendered[start:stop]
            if shield.covers(run):
                ids += self.encode(rendered[done:start])
                ids += self.encode_literally(shield.uncover(run))
                done = stop
            start = following
        return ids + self.encode(rendered[done:])

    def encode_behind(self, rendered: str, shield: Shield) -> list[int]:
        """Encodes a text with special tokens that follows another one; see `encode_covered`.

        Some tokenizers, such as those of Llama 2 and Mistral, begin every text with a space, which
        does not belong before a part of one.
        """
        before = self.encode(_LINE)
        whole = self.encode_covered(_LINE + rendered, shield) if self._begins_texts else []
        if before and whole[: len(before)] == before:
            return whole[len(before) :]
        return self.encode_covered(rendered, shield)

    @functools.cached_property
    def _begins_texts(self) -> bool:
        """True if the tokenizer begins every text with a space."""
        alone = self.encode(_ANY_TEXT)
        return self.encode(_LINE + _ANY_TEXT) != self.encode(_LINE) + alone

    def encode_literally(self, text: str, begins: bool = False) -> list[int]:
        """Encodes a text in which the names of special tokens are plain text.

        Args:
          text: the text.
          begins: whether to add the special tokens at the beginning of a sequence, if there are
            any.
        """
        return self._opening * begins + self.special.encode_as_text(text)

    def image_id(self, marks: PictureMarks | None) -> int:
        """Returns the id of the token that stands for a part of an image.

        Raises:
          ValueError: the vocabulary has no such token.
        """
        name = None if marks is None else marks.token
        found = None if name is None else self.backend.get_vocab().get(name)
        if found is None:
            raise ValueError(
                f"The tokenizer has no token for images ({name or 'no name is known'}): use the"
                " tokenizer of the vision-language model's checkpoint."
            )
        return found

    def encode_pictured(
        self,
        texts: Sequence[str],
        pictures: Sequence[Sequence[str | int]],
        marks: PictureMarks | None,
        asked: tuple[Messages, Schemas] | None = None,
    ) -> list[list[int] | int]:
        """Encodes a prompt with images; see `Tokenizer`.

        Raises:
          ValueError: the chat template does not write the images or the texts.
        """
        assert marks is not None, "checked by image_id"
        contents = [] if asked is None else [str(one.get("content")) for one in asked[0]]
        cut = unused_character([*texts, *contents, self.system or ""])

        def cover(value: object) -> Any:
            if isinstance(value, str):
                value = _cut_names(value, marks, cut)
                return self._shield.cover(value) if self.chat else value
            if isinstance(value, Mapping):
                return {name: cover(one) for name, one in value.items()}
            return [cover(one) for one in value] if isinstance(value, list | tuple) else value

        if asked is not None and self.chat:
            texts = self._asked(*asked, cover, shows=bool(pictures)).split(marks.template)
            if len(texts) != len(pictures) + 1:
                raise ValueError(
                    f"The chat template writes {len(texts) - 1} of the {len(pictures)} images of a"
                    f" conversation (as {marks.template}): show images in messages of the user, or"
                    " use the template of the vision-language model's checkpoint."
                )
        else:
            if asked is not None:
                written = plain_text(*asked)
                texts = written.split(PLACE) if pictures else [written]
            texts = [cover(text) for text in texts]
            if self.chat:
                system = None if self.system is None else cover(self.system)
                texts = self._chat_around(texts, system, marks.template)
        pieces: list[list[int] | int] = [] if self.chat else [list(self._opening)]
        for one in joined(texts, pictures):
            pieces.append(self._encode_cut(one, cut) if isinstance(one, str) else one)
        return pieces

    def encode_reply(
        self, text: str, *, continues: bool = False, marks: PictureMarks | None = None
    ) -> list[int]:
        """Encodes a reply up to its end; see `Tokenizer`.

        With the end, the ids behind the prompt's are those of `apply_chat_template`. If the
        template loses a part of the reply, such as its thoughts, the text is encoded as it is.
        """
        if marks is not None and re.search(marks.names, text):
            cut = unused_character([text])
            return self._encode_cut(_cut_names(text, marks, cut), cut)
        if not self.chat:
            return self.encode(text)
        prompt, behind, closing = self._reply_frame
        reply = text
        if not continues:
            written = self._replied(text)
            said = written.removeprefix(prompt).removesuffix(behind)
            if f"{prompt}{said}{behind}" == written and keeps(said, text):
                reply = said
        # Encoded behind the prompt: some tokenizers begin every text with a space.
        before, whole = self.encode(prompt), self.encode(prompt + reply + closing)
        follows = whole[: len(before)] == before
        return whole[len(before) :] if follows else self.encode(reply + closing)

    @functools.cached_property
    def _reply_frame(self) -> tuple[str, str, str]:
        """Texts of the template: up to a reply, behind it, and behind it before its end."""
        asked = [self.with_parts({"role": "user", "content": _ASKED}, shows=False)]
        prompt = self._apply(asked, (), add_generation_prompt=True)
        behind = self._replied(_ANSWERED).partition(_ANSWERED)[2]
        closing, end, _ = behind.partition(self.decode_all([self.eos_id]))
        return prompt, behind, closing if end else ""

    def _replied(self, text: str, goes_on: bool = False) -> str:
        """Writes a question and its reply in the template, and perhaps another question."""
        turns = [("user", _ASKED), ("assistant", text), ("user", _ASKED)][: 2 + goes_on]
        messages = [
            self.with_parts({"role": role, "content": content}, shows=False)
            for role, content in turns
        ]
        return self._apply(messages, (), add_generation_prompt=False)

    def _encode_cut(self, text: str, cut: str) -> list[int]:
        parts = [part for part in text.split(cut) if part]
        return [i for part in parts for i in self.encode_covered(part, self._shield)]

    def _chat_around(self, texts: Sequence[str], system: str | None, image: str) -> list[str]:
        """Writes a user's message with images in the chat template; returns the texts around them.

        Templates differ: some write only texts, some only lists of parts.
        """
        parts: list[dict[str, str]] = []
        for number, text in enumerate(texts):
            parts += [{"type": "image"}] if number else []
            parts += [{"type": "text", "text": text}] if text else []
        text_first = len(texts) == 1
        contents = [image.join(texts), parts] if text_first else [parts, image.join(texts)]
        heads = [system, [{"type": "text", "text": system}]] if system else [None]
        for content, head in itertools.product(contents, heads):
            messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
            if head is not None:
                messages.insert(0, {"role": "system", "content": head})
            try:
                written = self._apply(messages, (), add_generation_prompt=True)
            except Exception:  # Errors of Jinja, or of the template's own code.
                continue
            around = written.split(image)
            shown = zip(texts, around, strict=False)
            if (
                len(around) == len(texts)
                and all(text.strip() in there for text, there in shown)
                and (system or "").strip() in around[0]
            ):
                return around
        raise ValueError(
            f"The chat template does not write a user's text with {len(texts) - 1} images (as"
            f" {image}): use the template of the vision-language model's checkpoint, or"
            " tokenizer.chat=no."
        )

    def template(self, has_tools: bool) -> str:
        """Returns the source of the chat template, for conversations with or without tools.

        Raises:
          ValueError: there is no such template.
        """
        return self.backend.get_chat_template(tools=[{}] if has_tools else None)

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Schemas = (),
        prompts: bool = True,
        continues: bool = False,
    ) -> str:
        """Writes a conversation in the chat template.

        Args:
          messages: messages in the form of `transformers`; `system` is put before them, unless they
            have a system message.
          tools: JSON schemas of the tools that the policy may call.
          prompts: whether to end with the header of the assistant's answer.
          continues: whether to end inside the last message, which the policy continues; `prompts`
            is then not used.

          Raises:
            ValueError: the template rejects the conversation, or there is no template.
        """
        messages = list(messages)
        if self.system is not None and not any(m["role"] in SYSTEM_ROLES for m in messages):
            system: dict[str, Any] = {"role": "system", "content": self.system}
            messages.insert(0, self.with_parts(system, shows=False))
        way = {"continue_final_message": True} if continues else {"add_generation_prompt": prompts}
        try:
            return self._apply(messages, tools, **way)
        except Exception as error:  # Errors of Jinja, or of the template's own code.
            roles = ", ".join(message["role"] for message in messages)
            raise ValueError(
                f"The chat template rejects a conversation of {roles}:"
                f" {str(error).partition(chr(10))[0]}. Change the messages, or the template."
            ) from error

    def _apply(self, messages: Sequence[dict[str, Any]], tools: Schemas, **way: bool) -> str:
        return write_chat(
            self.backend, messages, tools, arguments=self.arguments, day=self.day, **way
        )

    @functools.cached_property
    def _shield(self) -> Shield:
        return Shield(self.special.names)

    @functools.cached_property
    def special(self) -> SpecialTokens:
        """The special tokens, and an encoder for texts that contain their names."""
        return SpecialTokens(self.backend)

    @functools.cached_property
    def _opening(self) -> list[int]:
        alone = self.encode(_ANY_TEXT)
        return self._continued(self.backend.encode(_ANY_TEXT))[: -len(alone)]

    def _continued(self, ids: list[int]) -> list[int]:
        # Some tokenizers end every text, but a completion must continue this one.
        return ids[:-1] if ids and ids[-1] in self.eos_ids else ids

    def describe_prompt(
        self,
        asked: tuple[Messages, Schemas] | None,
    ) -> str:
        """Says in words what writes a prompt, and which system message it has."""
        if not self.chat:
            return "without a chat template"
        path = self.backend.name_or_path
        if asked is not None and any(one["role"] in SYSTEM_ROLES for one in asked[0]):
            system = "the row's system message"
        elif self.system is not None:
            system = f"tokenizer.system={self.system!r:.100}"
        else:
            system = "no system message but what the template itself may write"
        return f"in the chat template of {path} with {system}"

    def describe_ends(self) -> str:
        """Says that the chat template's end of a reply is not the tokenizer's; empty if it is."""
        own, end = self.backend.eos_token_id, self.eos_id
        if not self.chat or own in (None, end):
            return ""
        named, written = (repr(self.decode_all([i])) for i in (own, end))
        return (
            f"The tokenizer's end of sequence is {named}, but its chat template ends replies with"
            f" {written}: both end a reply, and demonstrations end with {written}."
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Decodes up to the first id that ends a completion; special tokens inside stay visible.

        An id that the tokenizer lacks becomes U+FFFD, because a checkpoint's vocabulary may be
        padded beyond its tokenizer's.
        """
        ends = self.end_ids
        return self.decode_all(list(itertools.takewhile(lambda i: i not in ends, ids)))

    def decode_all(self, ids: Sequence[int]) -> str:
        """Decodes every id like `decode`, even after an end of sequence."""
        runs = itertools.groupby(ids, lambda i: 0 <= i < self.vocab_size)
        return "".join(
            self.backend.decode(list(run), clean_up_tokenization_spaces=False)
            if known
            else _REPLACEMENT * len(list(run))
            for known, run in runs
        )


def _cut_names(text: str, marks: PictureMarks, cut: str) -> str:
    """Cuts the names of image tokens in two, so that they are encoded as text."""
    return re.sub(marks.names, lambda name: name[0][:1] + cut + name[0][1:], text)


def load(config: TokenizerConfig) -> PretrainedTokenizer:
    """Loads a tokenizer from a directory, from the hub's cache, or otherwise from the hub.

    Args:
      config: settings, with a path.

    Raises:
      ValueError: there is no tokenizer; it has no end of sequence; or it lacks a chat template that
        the settings need.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # We need no torch.
    assert config.path is not None, "the caller has a path"
    path = config.path
    backend, eos_ids = _read(path)
    has_template = backend.chat_template is not None
    if not has_template:
        _require_none_needed(config)
    chats = config.chat != "no" and has_template
    arguments = arguments_of(config.template_arguments)
    if arguments:
        _require_read(path, backend.chat_template, arguments, chats)
    made = PretrainedTokenizer(
        backend=backend,
        chat=chats,
        system=config.system,
        vocab_size=max(backend.get_vocab().values()) + 1,
        pad_id=backend.pad_token_id,
        eos_ids=eos_ids,
        arguments=arguments,
        day=day_of(config.date) or datetime.date.today(),
        thoughts=marks_of(config.thoughts),
    )
    if chats and (end := _template_end(made, path)) is not None:
        eos_ids = tuple(dict.fromkeys((end, *eos_ids)))
    if not eos_ids:
        raise ValueError(
            f"The tokenizer of {path} names no end-of-sequence token, so no completion would end:"
            " set eos_token in its tokenizer_config.json."
        )
    pad_id = eos_ids[0] if made.pad_id is None else made.pad_id
    made = dataclasses.replace(made, eos_ids=eos_ids, pad_id=pad_id)
    if config.system is not None and chats:
        _require_system_written(made)
    return made


def _require_none_needed(config: TokenizerConfig) -> None:
    """Rejects settings that need a chat template, where there is none."""
    if config.chat == "yes":
        raise ValueError(
            f"tokenizer.chat=yes, but the tokenizer of {config.path} has no chat template: use"
            " tokenizer.chat=no, or the tokenizer of an instruction-tuned checkpoint."
        )
    if config.system is not None:
        raise ValueError(
            f"tokenizer.system={config.system!r} needs a chat template, but the tokenizer of"
            f" {config.path} has none: leave it out."
        )


def _template_end(made: PretrainedTokenizer, path: str) -> int | None:
    """Returns the id that ends a reply in the chat template; raises if the template fails."""
    try:
        return made.template_end()
    except Exception as error:  # Errors of Jinja, or of the template's own code.
        raise ValueError(
            f"The chat template of {path} cannot be used: {str(error).partition(chr(10))[0]}."
            " Correct it, or use tokenizer.chat=no."
        ) from error


def _require_system_written(made: PretrainedTokenizer) -> None:
    """Rejects a system message that the chat template refuses."""
    try:
        made.encode_prompt(_ASKED)
    except ValueError as error:
        raise ValueError(
            f"tokenizer.system={made.system!r:.100}: {error} Leave it out, or write its text into"
            " each prompt (task.dataset.template)."
        ) from error


def _require_read(path: str, template: object, arguments: Mapping[str, Any], chats: bool) -> None:
    """Rejects arguments that no chat template reads."""
    source = json.dumps(template)
    for name in arguments:
        if not chats or not re.search(rf"\b{re.escape(name)}\b", source):
            reads = f"does not read {name!r}" if chats else "is not used"
            raise ValueError(
                f"tokenizer.template_arguments names {name!r}, but the chat template of {path}"
                f" {reads}: correct the name, or leave it out."
            )


def _read(path: str) -> tuple[Any, tuple[int, ...]]:
    """Loads the `PreTrainedTokenizerBase` of a path, with all end-of-sequence ids in its files."""
    from huggingface_hub import snapshot_download

    if Path(path).is_dir():
        return _from_pretrained(path)
    if path.startswith((".", "/", "~")):
        raise ValueError(f"The tokenizer's directory {path} does not exist.")
    try:
        # A cached tokenizer is used unchanged, so that all roles of a run have the same.
        return _from_pretrained(snapshot_download(path, local_files_only=True))
    except (OSError, ValueError):
        return _from_pretrained(path)


def _from_pretrained(path: str) -> tuple[Any, tuple[int, ...]]:
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    way_out = "Give --config.tokenizer.path=DIRECTORY, with a tokenizer.json in it."
    try:
        backend = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # transformers and tokenizers raise errors of all kinds.
        _refuse_broken(Path(path))
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"No tokenizer can be loaded from {path}: {reason} {way_out}") from error
    # If a directory has a model's config but no tokenizer, transformers makes an empty vocabulary.
    if not backend.encode(_ANY_TEXT, add_special_tokens=False):
        raise ValueError(f"{path} has a model's config but no tokenizer. {way_out}")
    generation = cached_file(
        path, "generation_config.json", _raise_exceptions_for_missing_entries=False
    )
    more = read_object(Path(generation)).get("eos_token_id") if generation else None
    named = [backend.eos_token_id, *(more if isinstance(more, list) else [more])]
    if not all(i is None or type(i) is int for i in named):
        raise ValueError(f"{generation}: eos_token_id={more!r} must be a token's id, or a list.")
    return backend, tuple(dict.fromkeys(i for i in named if i is not None))


def _refuse_broken(directory: Path) -> None:
    """Raises ValueError if one of a tokenizer's files is damaged, after a failed load."""
    for name in _FILES:
        if (directory / name).exists():
            read_object(directory / name)
