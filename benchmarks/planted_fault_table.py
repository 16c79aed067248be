"""Forty faults that a tired colleague could commit; `planted_faults.py` plants one at a time.

They were chosen by reading the code alone, one in each main module, and not by looking at tests. Do
not change a fault because tests miss it: write the test.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A change of a few words, in the body of a function.

    Attributes:
      name: a few words.
      path: the file.
      old: text that occurs once in the file.
      new: text that takes its place.
      why: what is wrong then, as one sentence.
    """

    name: str
    path: str
    old: str
    new: str
    why: str


FAULTS: tuple[Fault, ...] = (
    Fault(
        "schedule-rounds-down",
        "rl_sync/schedule.py",
        "else 1 + -(-self.offset // self.interval)",
        "else 1 + self.offset // self.interval",
        "Versions in use are rounded down where the interval does not divide the offset.",
    ),
    Fault(
        "losses-gradient-of-weight",
        "rl_sync/algorithms/losses.py",
        "return -jax.lax.stop_gradient(weight) * advantages * logprobs",
        "return -weight * advantages * logprobs",
        "A gradient flows through the weight of CISPO, which is meant as a constant.",
    ),
    Fault(
        "returns-first-token-of-turn",
        "rl_sync/algorithms/returns.py",
        "return mask & ~jnp.pad(mask[:, 1:], ((0, 0), (0, 1)))",
        "return mask & ~jnp.pad(mask[:, :-1], ((0, 0), (1, 0)))",
        "The discount between turns is at the first token of a reply, in place of the last.",
    ),
    Fault(
        "corrections-without-mask",
        "rl_sync/algorithms/corrections.py",
        "ordered = jnp.sort(jnp.where(mask, squares, jnp.inf), axis=None)",
        "ordered = jnp.sort(squares, axis=None)",
        "The limit of the second moment is also taken over prompts and padding.",
    ),
    Fault(
        "objective-sign-of-entropy",
        "rl_sync/learning/objective.py",
        "loss = loss - algorithm.entropy_coefficient * reduced(entropy * known.weights)",
        "loss = loss + algorithm.entropy_coefficient * reduced(entropy * known.weights)",
        "The entropy is punished in place of rewarded.",
    ),
    Fault(
        "prompts-token-before",
        "rl_sync/learning/rows/shared_prompts.py",
        "            self._before[row, at] = prompt_end - 1\n            at = there.stop",
        "            at = there.stop",
        "The first token of a second completion follows the first completion, not the prompt.",
    ),
    Fault(
        "credit-counts-turns-twice",
        "rl_sync/learning/credit.py",
        "rest = rewards - returns.of_turns(turns, mask, 1.0, rewards.size, rows.sequences)",
        "rest = rewards",
        "Rewards of turns count once more at the end of the trajectory.",
    ),
    Fault(
        "reference-refreshed-late",
        "rl_sync/learning/reference.py",
        "due = (before.step + 1) % every_steps == 0",
        "due = before.step % every_steps == 0",
        "The reference model is refreshed one step off, and already after the first step.",
    ),
    Fault(
        "attention-window-too-long",
        "rl_sync/models/attention.py",
        "return (behind >= 0) & (behind < window)",
        "return (behind >= 0) & (behind <= window)",
        "With a cache a token attends to one token more than its window has.",
    ),
    Fault(
        "checkpoint-head-half-compared",
        "rl_sync/models/huggingface/reading.py",
        "    return not all(\n        np.array_equal(tensors.read(embedding",
        "    return not any(\n        np.array_equal(tensors.read(embedding",
        "An unembedding counts as tied if any part of it equals the embedding.",
    ),
    Fault(
        "sampling-mass-of-excluded",
        "rl_sync/rollout/sampling.py",
        "    mass = jnp.where(kept, mass, 0.0)\n    p = ",
        "    p = ",
        "top_p is a share of all tokens, also of those that top_k excludes.",
    ),
    Fault(
        "stop-string-too-early",
        "rl_sync/rollout/sequence.py",
        "passed_over = self.tokens[start : max(0, sampling.min_new_tokens - 1)]",
        "passed_over = self.tokens[start:start]",
        "A stop string ends a completion that has not its minimum number of tokens yet.",
    ),
    Fault(
        "pages-dropped-in-order",
        "rl_sync/rollout/paging/page_pool.py",
        "        for page in reversed(pages):\n            self._users[page] -= 1",
        "        for page in pages:\n            self._users[page] -= 1",
        "The first page of a prefix is forgotten first, so that the rest cannot be found.",
    ),
    Fault(
        "explorer-takes-newer-weights",
        "rl_sync/roles/explorer/life.py",
        "(version > grant.version and not grant.exactly)",
        "version > grant.version",
        "An explorer generates with newer weights where exactly one version is asked for.",
    ),
    Fault(
        "trainer-publishes-before-log",
        "rl_sync/roles/trainer/life.py",
        "                yield AwaitLog()  # Before anybody sees what the batch has made.\n"
        "                yield PublishVersion(step)",
        "                yield PublishVersion(step)\n                yield AwaitLog()",
        "Weights are published before the batch that made them is logged.",
    ),
    Fault(
        "reader-keeps-too-long",
        "rl_sync/roles/trainer/batch_reader.py",
        "is_fresh = self._schedule.accepts(step + 1, group.oldest_version)",
        "is_fresh = self._schedule.accepts(step, group.oldest_version)",
        "A group is kept for the next step although it will be too stale then.",
    ),
    Fault(
        "master-grants-what-ended",
        "rl_sync/roles/master/transition.py",
        "alive = tuple(lease for lease in last.leases.leases if lease.lease_id in state.live)",
        "alive = last.leases.leases",
        "A request that comes again gets leases that have ended since.",
    ),
    Fault(
        "journal-writes-twice",
        "rl_sync/roles/master/journal.py",
        "self._waiting, self._durable = [], self._appended",
        "self._durable = self._appended",
        "Lines that the state of a new file has already are written behind it again.",
    ),
    Fault(
        "limiter-forgets-deletions",
        "rl_sync/replay/store.py",
        "if self._inserts + 1 - self._deletes <= self.spec.min_size_to_sample:",
        "if self._inserts + 1 <= self.spec.min_size_to_sample:",
        "The rate limiter takes a table that was emptied for one that is filled.",
    ),
    Fault(
        "digest-without-shape",
        "rl_sync/weights/digest.py",
        "content = repr((path, tuple(leaf.shape), leaf.dtype.name)).encode()",
        "content = repr((path, leaf.dtype.name)).encode()",
        "Arrays of another shape with the same content have the same digest.",
    ),
    Fault(
        "delta-gap-at-escape",
        "rl_sync/weights/deltas/encoding.py",
        "if gaps.max() < _ESCAPE:",
        "if gaps.max() <= _ESCAPE:",
        "A gap of exactly the escape's length is written as an escape without an end.",
    ),
    Fault(
        "server-digest-not-compared",
        "rl_sync/transfers/server.py",
        "if self._check_digest and received != published[0]:",
        "if self._check_digest and not received:",
        "Weights that arrived are used whatever their digest is.",
    ),
    Fault(
        "collective-grant-lost",
        "rl_sync/transfers/collective.py",
        "            grant = grant or call(Withdraw(ticket))\n",
        "            if not grant:\n                call(Withdraw(ticket))\n",
        "An explorer does not follow a grant that came just before it withdrew.",
    ),
    Fault(
        "snapshots-one-too-many",
        "rl_sync/checkpoints/snapshots.py",
        "return others[: max(0, len(others) - (self.keep - 1))]",
        "return others[: max(0, len(others) - self.keep)]",
        "One snapshot more than `keep` stays on the disk.",
    ),
    Fault(
        "ledger-forgets-last-step",
        "rl_sync/checkpoints/ledger.py",
        'return line["event"] == "trained" and _step(line) > mark[RESUMED_AT]',
        'return line["event"] == "trained" and _step(line) >= mark[RESUMED_AT]',
        "The step that a run resumes from counts as lost.",
    ),
    Fault(
        "rpc-empty-secret",
        "rl_sync/cluster/rpc.py",
        "if hmac.compare_digest(presented.encode(), self._secret):",
        "if not presented or hmac.compare_digest(presented.encode(), self._secret):",
        "A call without any secret is answered.",
    ),
    Fault(
        "answers-paired-twice",
        "rl_sync/rewards/answers/answer_comparison.py",
        "                left.remove(a)\n                right.remove(match)\n",
        "                left.remove(a)\n",
        "A value of one answer may be the partner of several values of the other.",
    ),
    Fault(
        "scoring-withdrawn-work",
        "rl_sync/scoring/remote_servers.py",
        "                    if not (one := self._slices.popleft()).judged.cancelled():\n"
        "                        return one\n",
        "                    return self._slices.popleft()\n",
        "Reward servers judge completions that were withdrawn.",
    ),
    Fault(
        "dialogue-masks-not-shifted",
        "rl_sync/environments/dialogue/trajectory.py",
        "more = dataclasses.replace(more, masks=shifted(more.masks, len(before)))",
        "more = dataclasses.replace(more, masks=more.masks)",
        "Sampling masks of a later reply are placed at the beginning of the segment.",
    ),
    Fault(
        "host-keeps-worn-worker",
        "rl_sync/environments/hosts/process_host.py",
        "self._release(worker, is_lost=is_lost or is_worn)",
        "self._release(worker, is_lost=is_lost)",
        "A worker whose environment left something behind gets the next episode.",
    ),
    Fault(
        "sandbox-forgets-why",
        "rl_sync/sandbox/program_process.py",
        "self.stopped = self.stopped or why",
        "self.stopped = why",
        "The limit that ended a program is forgotten once its process is closed.",
    ),
    Fault(
        "pool-does-not-wake",
        "rl_sync/isolation/worker_pool.py",
        "            self._drop(worker)\n        self._hand_out()\n",
        "            self._drop(worker)\n",
        "Requests that wait get no new worker when one is retired.",
    ),
    Fault(
        "dataset-images-ignored",
        "rl_sync/tasks/tokenizers/prompt_messages.py",
        "return (text, None if asked is None else asked.key, *images_of(row or {}))",
        "return (text, None if asked is None else asked.key)",
        "Rows with the same text and other images count as the same prompt.",
    ),
    Fault(
        "rules-microbatch-too-large",
        "rl_sync/settings/rules/batch_rules.py",
        "group_size // s.optimizer.updates_per_batch\n    require(\n        rows <= most",
        "group_size\n    require(\n        rows <= most",
        "Microbatches larger than an optimizer update are allowed.",
    ),
    Fault(
        "prediction-later-level",
        "rl_sync/simulation/speed/prediction.py",
        "level.groups * (after.secs - level.secs)",
        "after.groups * (after.secs - level.secs)",
        "The buffer's mean level is that after each change, over the time before it.",
    ),
    Fault(
        "plan-rows-of-whole-batch",
        "rl_sync/plan/memory/trainer_memory.py",
        "settings.trainer.microbatch_rows or batch_rows // settings.optimizer.updates_per_batch",
        "settings.trainer.microbatch_rows or batch_rows",
        "Memory is estimated as if a step computed its whole batch at once.",
    ),
    Fault(
        "summary-counts-overlap-twice",
        "rl_sync/records/summary.py",
        "sync_secs = union_secs(work + syncs) - busy_secs",
        "sync_secs = union_secs(syncs)",
        "Time in which a role works and moves weights counts twice.",
    ),
    Fault(
        "page-loses-troughs",
        "rl_sync/page/charts.py",
        "ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}",
        "ends = {max(part, key=lambda p: p[1])}",
        "A curve of many points loses its least values.",
    ),
    Fault(
        "supervisor-misses-server",
        "launch/launcher/processes/supervisor.py",
        'if status != 0 or name in ("master", "replay"):',
        "if status != 0:",
        "A master or a replay server that ends with status 0 is not missed.",
    ),
    Fault(
        "api-same-seed",
        "rl_sync/api/loaded_policy.py",
        "ids, sampling, completions=completions, seed=(seed, number), images=pictures",
        "ids, sampling, completions=completions, seed=(seed, 0), images=pictures",
        "All prompts of a call are completed with the same random numbers.",
    ),
)
