import pytest

from rl_sync.page.activity import roles_now
from rl_sync.records.run_records import open_runs
from rl_sync.workdir import Workdir
from tests.page.small_run import append


def test_a_role_tells_whom_it_waits_for(tmp_path):
    span = {"role": "explorer1", "start": 100.0, "end": 106.0, "kind": "rollout"}
    wait = {"reason": "synchronization", "for_whom": "the trainer"}
    append(
        Workdir(tmp_path).spans_of("explorer1"),
        span | {"attributes": {"version": 3}},
        span | {"start": 105.0, "end": 110.0, "kind": "wait", "attributes": wait},
        {"resumed_at": 1, "began": 5.0},
        {"kind": "no such kind", "start": 1, "end": 2},
    )
    (run,) = open_runs([tmp_path])
    run.refresh()
    (role,) = roles_now(run)
    assert role.busy == pytest.approx(0.6)
    assert role.waits == (("synchronization", "the trainer", pytest.approx(0.4)),)
