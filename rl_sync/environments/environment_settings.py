"""Settings of environments and of episodes."""

from __future__ import annotations

import dataclasses

from rl_sync.environments.dialogue.tool_call_text import CALL_FORMATS
from rl_sync.environments.environment_catalog import ENVIRONMENTS
from rl_sync.environments.opponents import (
    OLDER,
    SCRIPTS,
    SELF,
    is_scripted,
    older_versions,
)
from rl_sync.setting import check, setting

SEGMENT, REFUSE = "segment", "refuse"
CUT, FAIL = "cut", "fail"
CHARACTERS_A_TOKEN = 32
"""Characters for each token of an episode beyond which no turn is tokenized: it would not fit."""


@dataclasses.dataclass(frozen=True)
class EnvironmentSettings:
    """`config.environment`: see `rl_sync.environments`."""

    name: str | None = setting(
        None,
        f"Environment that answers the policy: {', '.join(ENVIRONMENTS)}, or one of your own,"
        " `module:Class` or `path/to/file.py:Class`, with options as in `file.py:Class(level=3)`."
        " It gets the rows of `task.name`; `task.reward` is then `environment` if it is left out,"
        " except with `python`, which gives no rewards.",
        implied="the policy answers each prompt once, and the task's reward judges it",
    )
    max_turns: int = setting(
        8, "Maximum replies of the policy in an episode.", unit="replies", least=1, greatest=4096
    )
    max_tokens: int = setting(
        512,
        "Maximum tokens of an episode: its first prompt, all replies, and the environment's turns."
        " `task.max_completion_tokens` limits one reply.",
        unit="tokens",
        least=2,
    )
    observation_chars: int | None = setting(
        None,
        "Maximum characters of a message of the environment or of an agent, counted before it is"
        " tokenized.",
        unit="characters",
        least=1,
        implied="no message is cut; a turn that cannot fit, with more than"
        f" {CHARACTERS_A_TOKEN} characters for each of `max_tokens`, ends the episode as `context`",
    )
    long_observations: str = setting(
        CUT,
        f"What becomes of a message with more than `observation_chars`: `{CUT}` leaves out its"
        f" middle, and says so there; `{FAIL}` fails the episode, and refuses an agent's request.",
        choices=(CUT, FAIL),
    )
    calls: str = setting(
        "auto",
        "Form in which the policy writes calls of tools: that of a family of models, or `none`;"
        " `auto` takes it from the chat template.",
        choices=("auto", "none", *CALL_FORMATS),
    )
    rewrites: str = setting(
        SEGMENT,
        "What becomes of an episode whose chat template rewrites what was said before (some drop"
        f" earlier thoughts): a new `{SEGMENT}` begins with the rewritten text, or the run is"
        f" stopped (`{REFUSE}`).",
        choices=(SEGMENT, REFUSE),
    )
    attempts: int = setting(
        2,
        "Times that an episode begins, if its environment fails, before it counts as one that"
        " cannot be judged.",
        least=1,
    )
    max_leases: int = setting(
        3,
        "Most leases of a prompt whose episodes still fail after `environment.attempts`: its group"
        " is dropped, and the prompt is leased again. The last one's group is trained on without"
        " these episodes. Under exact pulls a prompt is never leased again for that.",
        least=1,
    )
    limit_secs: float = setting(
        30.0,
        "Longest time that an environment may take for one answer. The clock starts when a worker"
        " starts on it.",
        unit="seconds",
        above=0,
        greatest=86400,
    )
    workers: int = setting(
        64,
        "Most processes of each explorer that environments run in, one episode at a time each;"
        " environments that say so run inside the explorer.",
        least=1,
        greatest=4096,
        free="always",
    )
    memory_bytes: int = setting(
        2 << 30,
        "Address space of such a process; 0 for no limit.",
        unit="bytes",
        least=0,
    )

    opponent: str = setting(
        SELF,
        "In games of several players, who plays against the policy in training: the policy"
        f" itself (`{SELF}`), older versions of it (`{OLDER}`, or `{OLDER}(versions=8)` for one"
        " drawn from the last 8), a scripted player"
        f" ({', '.join(f'`{name}`' for name in SCRIPTS)}), or one of your own,"
        " `path/to/file.py:function`, with options as in `file.py:function(level=3)`.",
    )
    evaluation_opponent: str = setting(
        "random",
        "The same in evaluations: a scripted player, as only the success against one that stays"
        " the same can be compared.",
    )
    seat: int | None = setting(
        None,
        "In games of several players, the one that the policy learns as, from 0.",
        least=0,
        implied="each by turns, group after group",
    )
    requests: int = setting(
        16,
        "Maximum requests of an agent that are answered at once; others wait for their turn.",
        least=1,
        greatest=4096,
        free="always",
    )
    connections: int = setting(
        1024,
        "Maximum connections at once to the agents' endpoint of each explorer, but at most half of"
        " the files that a process may open; others wait. Those without a request make room, the"
        " longest silent first.",
        least=1,
        greatest=16384,
        free="always",
    )

    kv_offload_bytes: int = setting(
        0,
        "Host memory of each explorer, for keys and values of episodes whose slots others need"
        " while their environment works. What was used longest ago makes room for others, and is"
        " computed again when its episode goes on; with 0, so is all.",
        unit="bytes",
        least=0,
        free="always",
    )

    def __post_init__(self) -> None:
        check(self, "environment")

    @property
    def opponents(self) -> tuple[str, ...]:
        """The scripted opponents in training and evaluations."""
        both = dict.fromkeys((self.opponent, self.evaluation_opponent))
        return tuple(name for name in both if is_scripted(name))

    @property
    def older_versions(self) -> int:
        """Maximum number of older policy versions that opponents are drawn from; 0 for none."""
        return older_versions(self.opponent)
