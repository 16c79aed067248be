"""Records of simulated runs, as a real run writes them."""

import random

from rl_sync.configs import base
from rl_sync.records.json_lines import JsonLinesWriter
from rl_sync.records.spans import SpanKind
from rl_sync.records.summary import of_kind
from rl_sync.settings.config_reading import read_settings
from rl_sync.simulation.speed.prediction import simulate
from rl_sync.simulation.speed.speed_plan import plan_of
from rl_sync.simulation.speed.workload import Decoding, Samples, TransferTimes, Workload
from rl_sync.transfer import TRANSFERS
from rl_sync.workdir import Workdir
from tests.records.simulated_runs import write_spans

SLOTS, ROWS = 16, 4


def run_settings(mode="asynchronous", steps=40, **sync):
    config = base.get_config()
    config.workdir = "nowhere"
    config.sync.update({"mode": mode, **sync})
    config.trainer.update({"steps": steps, "groups_per_step": 12, "group_size": ROWS})
    config.rollout.slots = SLOTS
    config.checkpoint.every_steps = 15
    config.evaluation.every_steps = 10
    return read_settings(config.to_dict())


def true_work(shared=None, **more):
    source = random.Random(0)
    times = TransferTimes(Samples.of(0.2, 0.3), Samples.of(0.1))
    return Workload(
        lengths=tuple(
            tuple(int(min(500, 8 + source.expovariate(1 / 60))) for _ in range(ROWS))
            for _ in range(300)
        ),
        decoding=Decoding(0.002, 0.0004, 0.01),
        train=Samples(tuple(source.uniform(1.0, 2.0) for _ in range(50))),
        groups_per_step=12,
        layout=Samples.of(0.02),
        judge=Samples.of(0.1, 0.2),
        insert=Samples.of(0.003),
        transfers=dict.fromkeys(TRANSFERS, times),
        evaluate=Samples.of(2.0),
        snapshot=Samples.of(0.5),
        shared=shared,
        **more,
    )


def record(workdir, settings, work, seed=0):
    """Writes the records of a simulated run."""
    spans = simulate(plan_of(settings), work, seed)
    write_spans(workdir, spans)
    writer = JsonLinesWriter(Workdir(workdir).consumed)
    source = random.Random(seed)
    for train in of_kind(spans, SpanKind.TRAIN):
        groups = [
            {
                "lease_id": lease,
                "versions": [[[0, tokens]] for tokens in source.choice(work.lengths)],
            }
            for lease in train.leases
        ]
        writer.write({"step": train.step, "groups": groups})
    writer.close()
