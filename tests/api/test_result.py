"""What `Result` reads of a run's records."""

import pytest

import rl_sync
from rl_sync.api.result import Result
from tests.page.small_run import write_run


@pytest.fixture(name="result", scope="module")
def _result(tmp_path_factory):
    return rl_sync.open_run(write_run(tmp_path_factory.mktemp("result") / "run"))


def test_the_summary_has_the_steps_and_the_age_of_their_data(result):
    summary = result.summary
    assert summary.trainer_steps == 4
    assert summary.max_staleness <= 2
    assert 0 <= summary.trainer_idle_share < 1


def _window(figure):
    low, high = figure.axes[0].get_xlim()
    return high - low


def test_the_timeline_shows_steps_or_as_many_seconds_as_asked_for(result):
    all_steps, one = result.timeline(), result.timeline(2, 2)
    assert 0 < _window(one) < _window(all_steps)
    assert _window(result.timeline(2, secs=1.5)) == pytest.approx(1.5)
    start = result.timeline(2, secs=1.5).axes[0].get_xlim()[0]
    assert start == pytest.approx(one.axes[0].get_xlim()[0], abs=0.1)
    assert "Mine" in [text.get_text() for text in result.timeline(title="Mine").texts]


def test_steps_that_the_run_does_not_have_are_refused_with_those_that_it_has(result):
    with pytest.raises(rl_sync.ConfigError, match="no trainer steps 9 to 4: it has 1 to 4"):
        result.timeline(9)


def test_rollouts_are_those_of_the_steps_and_the_pattern(result):
    assert {one.step for one in result.rollouts()} == {1, 2, 3, 4}
    assert {one.step for one in result.rollouts(2, 3)} == {2, 3}
    some = result.rollouts()[0]
    found = result.rollouts(pattern=f"^{some.prompt[:-3]}\\+")
    assert found
    assert all(one.prompt == some.prompt for one in found)


def test_a_run_without_spans_or_snapshots_says_so(tmp_path):
    empty = Result(tmp_path)
    for read in (lambda: empty.summary, empty.timeline, lambda: empty.export(tmp_path / "to")):
        with pytest.raises(rl_sync.ConfigError):
            read()
    assert empty.rollouts() == []
