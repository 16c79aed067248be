"""`config.rollout` as a frozen, validated record."""

from __future__ import annotations

import dataclasses
from typing import get_args

from rl_sync.rollout.engine_options import CachePolicy
from rl_sync.rollout.speculation.draft_pace import Speculation
from rl_sync.setting import check, setting


@dataclasses.dataclass(frozen=True)
class RolloutSettings:
    """`config.rollout`: see `Sampling` and `Engine`."""

    temperature: float = setting(
        1.0,
        "Number that explorers divide logits by before they draw a token; evaluations take the"
        " likeliest token anyway.",
        above=0,
    )
    top_k: int = setting(0, "Draws only the k likeliest tokens; 0 for all.", least=0)
    top_p: float = setting(
        1.0,
        "Draws only the fewest likeliest tokens whose probability reaches p; 1 for all.",
        above=0,
        greatest=1,
    )
    min_p: float = setting(
        0.0,
        "Draws only tokens at least p times as likely as the likeliest; 0 for all.",
        least=0,
        below=1,
    )
    repetition_penalty: float = setting(
        1.0,
        "Makes tokens less likely that the prompt or the completion has already: divides their"
        " positive logits, multiplies negative ones; 1 for no penalty.",
        above=0,
    )
    min_new_tokens: int = setting(
        0,
        "The fewest tokens of a completion, its stop token included.",
        unit="tokens",
        least=0,
    )
    keep_sampling_mask: bool = setting(
        True,
        "Keeps the set that each token was drawn from, where `top_k`, `top_p`, `min_p` or"
        " `min_new_tokens` exclude tokens, and trains on probabilities over the same set. Without"
        " it, probabilities are over the whole vocabulary for explorers and trainer: that takes"
        " less memory, and corrects nothing for tokens that could not be drawn.",
    )
    routing_replay: bool = setting(
        False,
        "Records the experts of every token and layer in the explorer, and sends the tokens of the"
        " batch to the same experts in the trainer, with the weights of the present router. It is"
        " for mixtures of experts, whose explorer and trainer otherwise choose different experts"
        " for some tokens. It takes a byte for each layer and expert of a token.",
    )
    score: str = setting(
        "explorer",
        "Program whose log-probabilities of the drawn tokens the loss takes: `explorer` for those"
        " that they were drawn with, or `trainer` for those that the trainer computes with the same"
        " weights, so that a ratio shows the change of the policy alone. The trainer then keeps the"
        " versions that may have drawn a batch, and needs a forward pass for each that did, but"
        " none if data are never stale and a step has one update.",
        choices=("explorer", "trainer"),
    )
    stop_ids: str = setting(
        "",
        "Token ids that end a completion besides the tokenizer's, separated by commas. Their text"
        " is not part of what rewards and environments read.",
    )
    stop_strings: str = setting("", "Texts that end a completion, separated by `|`.")
    slots: int | None = setting(
        None,
        "Maximum number of sequences that an explorer decodes at once.",
        least=1,
        implied="all of a lease",
        free="always",
    )
    chunk_tokens: int = setting(
        16,
        "Maximum number of tokens that a sequence decodes before the host checks again.",
        unit="tokens",
        least=1,
        free="always",
    )
    speculation: str = setting(
        "off",
        "Decoding of several tokens in one step: `always` drafts tokens by looking up what followed"
        " the last ones before, in the sequence and in other completions of its prompt, and keeps"
        " those that are drawn; `auto` does so while it is faster by the clock. Tokens are the same"
        " as without, up to rounding.",
        choices=get_args(Speculation),
        free="always",
    )
    draft_tokens: int = setting(
        4,
        "Maximum number of tokens that a step drafts for a sequence (`rollout.speculation`).",
        unit="tokens",
        least=1,
        greatest=64,
        free="always",
    )
    draft_bytes: int = setting(
        64 << 20,
        "Host memory of an explorer for finished completions, from which later ones of the same"
        " prompt take drafts, as they do from those in flight. With 0 a sequence has its own tokens"
        " alone.",
        unit="bytes",
        least=0,
        free="always",
    )
    swap: str = setting(
        "between",
        "Time at which an explorer takes newer weights: `between` two rollouts (streaming, when it"
        " takes prompts), or also"
        " `in_flight`, so that completions under way go on with them; that needs latest pulls and"
        " no collective transfer between processes.",
        choices=("between", "in_flight"),
    )
    cache: str = setting(
        "keep",
        "Treatment of the keys and values of completions under way when newer weights arrive:"
        " `keep` them, or `recompute` them with the new weights.",
        choices=get_args(CachePolicy),
    )
    cache_bytes: int | None = setting(
        None,
        "Memory on each device of an explorer for keys and values, as a pool of pages of 32 tokens."
        " Completions start as far as pages suffice; those of a prompt share its pages, and so do"
        " later prompts that begin alike. If pages lack, the youngest completions are put aside"
        " and continue later, with the same tokens. It must hold the longest sequence. 0 takes what"
        " the run leaves of this machine's GPUs, by estimates.",
        unit="bytes",
        least=0,
        implied="a row of the longest sequence for each slot",
        free="always",
    )
    image_cache_bytes: int = setting(
        256 << 20,
        "Host memory of an explorer for features of images, which a frozen vision tower computes"
        " once for all completions and steps. The least recently used are dropped.",
        unit="bytes",
        least=0,
        free="always",
    )
    budget_tokens: int = setting(
        0,
        "Tokens after which a rollout ends: whole groups go on to be judged, the next rollout"
        " finishes the others, with the weights it has then; 0 for no budget. It needs latest"
        " pulls.",
        unit="tokens",
        least=0,
    )
    progress_tokens: int = setting(
        0,
        "Tokens of a sequence after which an explorer tells the master the new tokens of its"
        " completions and episodes. If it dies, or is asked to end (SIGTERM), it or another"
        " explorer goes on from them, with the same tokens up to rounding; episodes are played"
        " again up to there, as far as their environments do the same. With 0, groups in flight are"
        " generated again.",
        unit="tokens",
        least=0,
        free="always",
    )
    progress_bytes: int = setting(
        1 << 30,
        "The master's memory for tokens of unfinished groups (`rollout.progress_tokens`), 12 bytes"
        " each without sampling masks, and 64 for each reply of an episode. What does not fit is"
        " generated again.",
        unit="bytes",
        least=1,
        free="always",
    )
    streaming: bool = setting(
        False,
        "Keeps the slots of explorers full: whenever some are free, an explorer takes prompts for"
        " them, between two chunks of tokens. Each group is judged and inserted when it is whole,"
        " while others are in flight. These go on with newer weights as soon as they come. It needs"
        " latest pulls. It pays from sync.max_staleness=4 on, if a decode step of many rows takes"
        " about as long as one of few.",
    )

    def __post_init__(self) -> None:
        check(self, "rollout")

    @property
    def step_tokens(self) -> int:
        """Maximum number of tokens that a decode step feeds for a sequence."""
        return 1 if self.speculation == "off" else 1 + self.draft_tokens

    @property
    def more_stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a completion, in addition to the tokenizer's own."""
        return tuple(map(int, self.stop_parts))

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end a completion."""
        return tuple(part for part in self.stop_strings.split("|") if part)

    @property
    def stop_parts(self) -> list[str]:
        """Returns the parts of `stop_ids`, which a rule requires to be token ids."""
        return [part.strip() for part in self.stop_ids.split(",") if part.strip()]
