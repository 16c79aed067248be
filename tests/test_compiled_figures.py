"""The table of figures of compiled programs."""

import json

import pytest

LINE = {"case": "?", "planned_gb": 10.0, "peak_gb": 10.0, "link_gb": 2.0, "cache_copies": 0}


@pytest.fixture
def figures(benchmarks):
    return benchmarks("compiled_cases")


def test_each_line_of_the_table_is_of_one_case(figures):
    names = [str(case) for case in figures.CASES]
    assert len(set(names)) == len(names)
    lines = [json.loads(line) for line in figures.TABLE.read_text().splitlines()]
    known = [line["case"] for line in lines]
    assert known == [name for name in names if name in known], "in the order of the cases"
    for line in lines:
        assert line["peak_gb"] > 0
        assert line["versions"]["jax"]
        decodes = " decode, " in line["case"]
        assert ("cache_copies" in line) == decodes
        assert ("least_secs" in line) == (decodes or " step, " in line["case"])


@pytest.mark.gate
def test_each_case_is_a_run_that_its_target_has_devices_for(figures):
    for case in figures.CASES:
        settings, _ = figures.run_of(case)
        role = settings.trainer if case.program == "step" else settings.explorer
        assert role.mesh.shape.devices <= figures.target(case.target).count, case
        assert case.rows % (case.mesh[0] * case.mesh[1]) == 0, case


@pytest.mark.parametrize(
    "worse",
    [
        {"peak_gb": 10.6},
        {"link_gb": 2.11},
        {"cache_copies": 1},
        {"planned_gb": 8.9},
        {"planned_gb": 11.1},
    ],
)
def test_a_worse_figure_is_named(figures, worse):
    (found,) = figures.regressions(LINE | worse, LINE)
    assert next(iter(worse)).removesuffix("ned_gb") in found


@pytest.mark.parametrize(
    "fine",
    [
        {},
        {"peak_gb": 10.4},
        {"peak_gb": 9.2},
        {"link_gb": 2.09},
        {"link_gb": 0.0},
        {"planned_gb": 9.1},
    ],
)
def test_a_better_figure_and_one_within_the_bounds_are_fine(figures, fine):
    assert not figures.regressions(LINE | fine, LINE)


def test_a_plan_that_was_far_from_the_compiler_may_stay_there(figures):
    before = LINE | {"planned_gb": 8.0}
    assert not figures.regressions(before, before)


def test_links_of_a_program_without_any_may_not_grow(figures):
    before = LINE | {"link_gb": 0.0}
    assert figures.regressions(before | {"link_gb": 0.5}, before)


def test_a_case_is_renewed_in_its_place(figures, tmp_path):
    path = tmp_path / "table.jsonl"
    first, second = map(str, figures.CASES[:2])
    for name, peak in ((second, 1.0), (first, 2.0), (second, 3.0)):
        figures.renew(LINE | {"case": name, "peak_gb": peak, "parts_gb": {}}, path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["case"], line["peak_gb"]) for line in lines] == [(first, 2.0), (second, 3.0)]
    assert "parts_gb" not in lines[0]
