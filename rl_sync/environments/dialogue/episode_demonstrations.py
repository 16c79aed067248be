"""Encodes dialogues of demonstrations as an episode would: the same ids, token in, token out.

Each reply is encoded by itself, since a policy draws it behind the header that the template writes;
turns between replies come from the bridge of episodes. Tokens to imitate are exactly those that a
policy would draw: the text of a reply and the token that ends it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl_sync.environments.dialogue.bridge import Bridge, ReplyPrompt
from rl_sync.environments.dialogue.conversation import Conversation, Renderer, renderer_of
from rl_sync.environments.dialogue.sight import Sight
from rl_sync.environments.interface import Message, ToolCall, Turn
from rl_sync.images import MOST_PIXELS
from rl_sync.tasks.dialogues import Demonstrated, Dialogue, DialogueMessage
from rl_sync.tasks.pictures.placed_images import PlacedImages
from rl_sync.tasks.pictures.places import PLACE
from rl_sync.tasks.pictures.tile_processor import TileProcessor
from rl_sync.tasks.tokenizers.chat_writing import keeps
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer


def demonstrated(
    tokenizer: Tokenizer, dialogue: Dialogue, processor: TileProcessor | None = None
) -> list[Demonstrated]:
    """Writes a dialogue in a tokenizer's chat template; see `Rendering`.

    If the template writes earlier messages anew, as some do without their thoughts, a new sequence
    begins, as in an episode. Sequences without a token to imitate are left out.

    Raises:
      ValueError: the template refuses the dialogue, has no place for its tools, or begins a
        reply in other words than it asks for one.
    """
    sight = _sight(tokenizer, dialogue, processor)
    bridge = Bridge(tokenizer, sight)
    renderer = renderer_of(tokenizer, None if processor is None else processor.marks)
    sequences: list[Demonstrated] = []
    step: ReplyPrompt | None = None
    said: tuple[Message, list[int]] | None = None
    waiting: list[Message] = []
    for line in dialogue.lines:
        message = _message(line, shows=sight is not None)
        if line.role != "assistant":
            waiting.append(message)
            continue
        turn = Turn(tuple(waiting), tools=dialogue.tools)
        if step is None or said is None:
            step = bridge.first(turn)
        else:
            step = bridge.next(step.conversation, *said, turn)
        if step.begins_segment:
            sequences.append(Demonstrated((), ()))
        reply, end = _reply(bridge, renderer, step.conversation, message)
        names = ((i, tokenizer.decode_all([i])) for i in tokenizer.eos_ids)
        last, space = next(
            ((i, end.partition(name)[0]) for i, name in names if name and name in end),
            (tokenizer.eos_id, ""),
        )
        drawn = [*renderer.encode(reply + space, begins=False), last]
        sequences[-1] = _followed(sequences[-1], step, drawn, line.is_learned)
        said, waiting = (message, drawn), []
    return [one for one in sequences if any(one.mask)]


def _followed(
    before: Demonstrated, step: ReplyPrompt, drawn: Sequence[int], is_learned: bool
) -> Demonstrated:
    """Appends the tokens up to a reply, and the reply."""
    images = before.images
    if images is not None or step.images is not None:
        images = (images or PlacedImages()).followed(len(before.tokens), step.images)
    return Demonstrated(
        (*before.tokens, *step.ids.tolist(), *drawn),
        (*before.mask, *[False] * len(step.ids), *[is_learned] * len(drawn)),
        images,
    )


def _sight(
    tokenizer: Tokenizer, dialogue: Dialogue, processor: TileProcessor | None
) -> Sight | None:
    """Returns the sight of a policy that sees; the bound on pixels is that of the images."""
    if processor is None:
        return None
    most = min((image.most_pixels for image in dialogue.images), default=MOST_PIXELS)
    return Sight(processor, tokenizer.image_id(processor.marks), most)


def _message(line: DialogueMessage, *, shows: bool) -> Message:
    """Makes the message of a line, without its images for a policy that reads text alone."""
    return Message(
        line.role,
        line.content if shows or not line.images else line.content.replace(PLACE, ""),
        tool_calls=tuple(ToolCall(*call) for call in line.calls),
        name=line.name,
        tool_call_id=line.tool_call_id,
        images=line.images if shows else (),
    )


def _reply(
    bridge: Bridge, renderer: Renderer, before: Conversation, reply: Message
) -> tuple[str, str]:
    """Returns what a policy would write to say a reply, and what the template writes behind it."""
    prompt = renderer.render(before, prompts=True)
    answered = renderer.render(before.with_reply(reply), prompts=False)
    said = answered[len(prompt) :]
    closing = bridge.closing(before, said) if answered.startswith(prompt) else None
    if closing is None:
        raise ValueError(
            "The chat template asks for a reply in other words than it writes one, so the tokens to"
            " imitate cannot be told: use a template whose replies begin as its prompt ends."
        )
    written, content = said.removesuffix(closing), renderer.cover(reply.content)
    # A policy draws its thoughts, also if the template leaves them out of earlier replies.
    loses = not reply.tool_calls and not keeps(written, content)
    return content if loses else written, closing
