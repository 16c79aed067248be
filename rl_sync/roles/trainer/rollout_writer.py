"""Records of groups' trajectories, as lines of JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import orjson
from jaxtyping import Bool, Float, Int

from rl_sync.image_files import Size
from rl_sync.images import images_of
from rl_sync.learning.credit import TOKEN_ADVANTAGES
from rl_sync.learning.objective import TOKEN_ENTROPIES, TOKEN_RATIOS
from rl_sync.learning.rows.row_layout import Source, taken_back
from rl_sync.messages.scoring_calls import Judgements
from rl_sync.records.rollouts.recorded_images import ImageFiles
from rl_sync.records.rollouts.rollout_records import ENVIRONMENT, POLICY, Rollout
from rl_sync.sequence_images import TEXT
from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer
from rl_sync.types import Group

_DIGITS = 4
FIELDS = {
    TOKEN_RATIOS: "ratios",
    TOKEN_ENTROPIES: "entropies",
    TOKEN_ADVANTAGES: "token_advantages",
}
"""Per-token metrics of a step, and the record fields that hold them."""


class Chosen(NamedTuple):
    """Groups of a step to record.

    Attributes:
      groups: groups, each with its index in the batch.
      judgements: scores of the groups; None if they are not known.
    """

    groups: list[tuple[int, Group]]
    judgements: Judgements | None


class Figures(NamedTuple):
    """Values of a step's batch for its records.

    Attributes:
      advantages: advantages of all trajectories of the batch, group after group; None if the loss
        has none.
      of_tokens: per-token values by their names in the metrics, in the batch's rows; NaN if not
        known.
      source: positions of the trajectories' tokens in the rows; see `Placed`.
      row_tokens: number of positions of each trajectory in `source`; 0 for the length of the
        groups' rows.
    """

    advantages: Float[np.ndarray, " trajectories"] | None = None
    of_tokens: Mapping[str, Float[np.ndarray, "B T"]] = MappingProxyType({})
    source: Source = None
    row_tokens: int = 0


NO_FIGURES = Figures()


class RolloutWriter:
    """Makes records of groups.

    Args:
      task: the problems and their tokenizer.
      images: stores the images of prompts; None without images.
    """

    def __init__(self, task: Task, images: ImageFiles | None = None):
        self._task, self._images = task, images
        self._texts = _Texts(task.tokenizer)

    def lines(
        self,
        step: int,
        chosen: Chosen,
        figures: Figures = NO_FIGURES,
    ) -> list[bytes]:
        """Returns a line of JSON for each trajectory; see `rollouts`."""
        groups = [group for _, group in chosen.groups]
        judged = _of_groups(chosen.judgements, groups)
        found = _figures(figures, chosen.groups)
        return [
            _encoded(one)
            for group, told, some in zip(groups, judged, found, strict=True)
            for one in self.rollouts(step, group, told, some)
        ]

    def rollouts(
        self,
        step: int,
        group: Group,
        judged: Sequence[dict[str, Any]],
        figures: Figures = NO_FIGURES,
    ) -> Iterator[Rollout]:
        """Makes the record of each trajectory of a group.

        Args:
          judged: fields of each trajectory that come from its score; empty if they are not known.
          figures: values of only this group, in rows of one trajectory each.
        """
        rows = _rows(group)
        advantages = None if figures.advantages is None else figures.advantages.tolist()
        of_tokens: dict[str, Any] = {
            FIELDS[name]: _of_learned(values, group, rows)
            for name, values in figures.of_tokens.items()
        }
        tokenizer = self._task.tokenizer
        expected = self._task.train[group.prompt_id].answer
        prompts: dict[tuple[int, ...], str] = {}
        images = self._stored(group)
        names = self._names(group, images)
        for sample, row in enumerate(rows):
            prompt_ids, ids = row.tokens[: row.first], row.tokens[row.first : row.end]
            key = tuple(prompt_ids)
            if key not in prompts:
                prompts[key] = self._text(prompt_ids, self._at(group, sample, 0, row.first), names)
            fields = judged[sample] if judged else {}
            if group.turn_rewards is None:
                fields["completion"] = tokenizer.decode(ids)
            else:
                fields |= self._turns(group, sample, row, names)
            yield Rollout(
                step=step,
                lease=group.lease_id,
                ordinal=group.ordinal,
                prompt_id=group.prompt_id,
                explorer=group.explorer,
                sample=sample,
                prompt=prompts[key],
                images=images,
                expected=expected,
                reward=fields.pop("reward", row.reward),
                baseline=row.baseline,
                advantage=None if advantages is None else advantages[sample],
                **{name: values[sample] for name, values in of_tokens.items()},
                staleness=step - 1 - row.oldest if row.drawn else 0,
                truncated=group.truncated is not None and bool(group.truncated[sample]),
                prompt_ids=prompt_ids,
                ids=ids,
                tokens=[*map(self._texts.__getitem__, ids)],
                logprobs=row.logprobs,
                versions=row.versions,
                mask=row.mask,
                **fields,
            )

    def _stored(self, group: Group) -> list[dict[str, Any]]:
        """Stores the images of a group's prompt; returns their descriptions."""
        if group.image_at is None or self._images is None:
            return []
        return self._images.store(images_of(self._task.train[group.prompt_id].row or {}))

    def _names(self, group: Group, images: Sequence[dict[str, Any]]) -> list[str]:
        """Returns the text that stands for each tile of a prompt's images."""
        if group.image_at is None:
            return []
        processor, names = self._task.processor, list[str]()
        assert processor is not None, "the policy sees"
        for number, one in enumerate(images, start=1):
            if "error" in one:
                return names  # Its number of tiles is not known, and so those of the next images.
            size = Size(one["width"], one["height"])
            name = f"image {number}: {size.width}x{size.height}"
            tiles = processor.layout(size).tiles
            numbered = [f"⟨{name}, tile {tile + 1} of {tiles}⟩" for tile in range(tiles)]
            names += numbered if tiles > 1 else [f"⟨{name}⟩"]
        return names

    def _at(self, group: Group, sample: int, start: int, stop: int) -> list[int]:
        """Returns the tile of each of a row's tokens, -1 at text; nothing without images."""
        if group.image_at is None:
            return []
        assert self._task.processor is not None, "the policy sees"
        at = group.image_at[sample, start:stop]
        return np.where(at >= 0, at // self._task.processor.tile_tokens, TEXT).tolist()

    def _text(self, ids: list[int], at: list[int], names: Sequence[str]) -> str:
        """Decodes tokens, with one text in place of the tokens of a tile.

        Args:
          at: tile of each token, -1 at text; empty without images.
          names: text of each tile of the prompt.
        """
        decode = self._task.tokenizer.decode_all
        if not any(tile >= 0 for tile in at):
            return decode(ids)
        texts = []
        for tile, run in itertools.groupby(range(len(ids)), at.__getitem__):
            if tile < 0:
                texts.append(decode([ids[i] for i in run]))
            else:
                texts.append(names[tile] if tile < len(names) else f"⟨image tile {tile + 1}⟩")
        return "".join(texts)

    def _turns(self, group: Group, sample: int, row: _Row, names: Sequence[str]) -> dict[str, Any]:
        """Returns the last reply of an episode, and its turns."""
        tokenizer, part = self._task.tokenizer, slice(row.first, row.end)
        ids, mine = row.tokens[part], (group.policy_versions[sample, part] >= 0).tolist()
        segments = [0] * len(ids)
        if group.segments is not None:
            segments = group.segments[sample, part].tolist()
        at = self._at(group, sample, row.first, row.end)
        turns: list[dict[str, Any]] = []
        completion = ""
        for (segment, is_mine), run in itertools.groupby(
            range(len(ids)), lambda i: (segments[i], mine[i])
        ):
            places = list(run)
            some, tiles = [ids[i] for i in places], [at[i] for i in places] if at else []
            by, text = (POLICY if is_mine else ENVIRONMENT), self._text(some, tiles, names)
            turns.append({"by": by, "text": text, "segment": segment})
            completion = tokenizer.decode(some) if is_mine else completion
        return {"completion": completion, "turns": turns}


class _Texts(dict[int, str]):
    """Maps a token id to its text as it appears after another token; filled on demand."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        decode = self._tokenizer.decode_all
        try:
            before = self._tokenizer.encode("a")
        except Exception:  # The tokenizer lacks this character; libraries raise various classes.
            before = []
        alone, both = decode(before), decode([*before, token])
        # Some tokenizers omit a space at the beginning of a text.
        text = both[len(alone) :] if both.startswith(alone) else decode([token])
        self[token] = text
        return text


class _Row(NamedTuple):
    """A trajectory as plain lists.

    Attributes:
      tokens: all tokens of the row.
      first, end: position of the first token that the policy sampled, and the end of the row.
      drawn: number of tokens that the policy sampled.
      oldest: oldest version of these tokens.
      logprobs, versions, mask: see `Rollout`.
      reward, baseline: reward and baseline of the trajectory.
    """

    tokens: list[int]
    first: int
    end: int
    drawn: int
    oldest: int
    logprobs: list[float | None]
    versions: list[list[int]]
    mask: list[list[int]]
    reward: float
    baseline: float | None


def _rows(group: Group) -> list[_Row]:
    """Returns the rows of a group. Slow operations are done for all rows at once."""
    versions, mask = group.policy_versions, group.completion_mask
    drawn = versions >= 0
    counts, learned = drawn.sum(axis=1).tolist(), mask.sum(axis=1).tolist()
    ends = np.where(drawn.any(axis=1), drawn.shape[1] - drawn[:, ::-1].argmax(axis=1), 0)
    if group.segments is not None:
        ends = np.maximum(ends, (group.segments >= 0).sum(axis=1))
    firsts = np.where(drawn.any(axis=1), drawn.argmax(axis=1), ends).tolist()
    oldest = np.where(drawn, versions, np.iinfo(np.int32).max).min(axis=1).tolist()
    newest = versions.max(axis=1).tolist()
    logprobs = np.round(group.behavior_logprobs.astype(np.float64), _DIGITS).tolist()
    baselines = [None] * len(counts) if group.baselines is None else group.baselines.tolist()
    tokens, rewards = group.tokens.tolist(), group.rewards.tolist()
    rows = []
    for i, (first, end) in enumerate(zip(firsts, ends.tolist(), strict=True)):
        part, length = slice(first, end), end - first
        is_plain = counts[i] == length and oldest[i] == newest[i]
        rows.append(
            _Row(
                tokens=tokens[i],
                first=first,
                end=end,
                drawn=counts[i],
                oldest=oldest[i],
                logprobs=logprobs[i][part]
                if counts[i] == length
                else _where(drawn[i, part], logprobs[i][part]),
                versions=[[oldest[i], length]] * bool(length)
                if is_plain
                else _runs(versions[i, part]),
                mask=[[1, length]] * bool(length)
                if learned[i] == length
                else _runs(mask[i, part].astype(int)),
                reward=rewards[i],
                baseline=baselines[i],
            )
        )
    return rows


def _of_groups(
    judgements: Judgements | None, groups: Sequence[Group]
) -> Iterator[list[dict[str, Any]]]:
    """Yields, for each trajectory of each group, the fields that come from its score."""
    start = 0
    for at, group in enumerate(groups):
        count = 0 if judgements is None else judgements.counts[at]
        if judgements is None or count < len(group.tokens):
            yield []
        else:
            yield [_judged(judgements, i) for i in range(start, start + len(group.tokens))]
        start += count


def _judged(judgements: Judgements, i: int) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "components": judgements.components[i],
        "why": judgements.whys[i],
        "answer": judgements.answers[i],
    }
    if judgements.scores[i] is None:
        fields["reward"] = None
    if (ending := judgements.endings[i]) is not None:
        told = ("reason", "why", "turns", "rewards", "metrics")
        fields["episode"] = {name: getattr(ending, name) for name in told}
        if ending.seat is not None:
            moves = [move._asdict() for move in ending.moves]
            fields["episode"] |= {"seat": ending.seat, "moves": moves}
    return fields


def _figures(figures: Figures, chosen: Sequence[tuple[int, Group]]) -> Iterator[Figures]:
    """Yields the values of each group, in rows of one trajectory each."""
    of_tokens = {}
    if figures.advantages is not None:
        width = figures.row_tokens or chosen[0][1].tokens.shape[1]
        shape = len(figures.advantages), width
        of_tokens = {
            name: taken_back(values, figures.source, shape)
            for name, values in figures.of_tokens.items()
        }
    for at, group in chosen:
        size = len(group.tokens)
        share = slice(at * size, (at + 1) * size)
        yield Figures(
            None if figures.advantages is None else figures.advantages[share],
            {name: values[share, : group.tokens.shape[1]] for name, values in of_tokens.items()},
        )


def _of_learned(
    values: Float[np.ndarray, "G T"], group: Group, rows: Sequence[_Row]
) -> list[list[float | None]]:
    """Returns the values of each trajectory's tokens, with None for tokens without training.

    A trajectory without known values has an empty list.
    """
    known = group.completion_mask & np.isfinite(values)
    counts = known.sum(axis=1).tolist()
    rounded = np.round(values.astype(np.float64), _DIGITS).tolist()
    found: list[list[float | None]] = []
    for i, row in enumerate(rows):
        part = slice(row.first, row.end)
        if not counts[i]:
            found.append([])
        elif counts[i] == row.end - row.first:
            found.append(rounded[i][part])
        else:
            found.append(_where(known[i, part], rounded[i][part]))
    return found


def _runs(values: Int[np.ndarray, " T"]) -> list[list[int]]:
    """Returns the runs of equal values, as [value, length]."""
    if not values.size:
        return []
    starts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [[int(values[a]), b - a] for a, b in itertools.pairwise(starts)]


def _where(mine: Bool[np.ndarray, " T"], values: list[float]) -> list[float | None]:
    """Replaces the values of tokens that are not in the mask with None."""
    return [value if own else None for value, own in zip(values, mine.tolist(), strict=True)]


def _encoded(one: Rollout) -> bytes:
    try:
        return orjson.dumps(one)
    except TypeError:  # A text with an unpaired surrogate, which UTF-8 cannot encode.
        fields = {name: getattr(one, name) for name in Rollout.__dataclass_fields__}
        return json.dumps(fields, separators=(",", ":")).encode()
