"""Programs of the second battery neither score, nor escape, nor hang, nor choose to be unknown."""

import concurrent.futures
import shutil
import time

import pytest

from rl_sync.rewards.code import Code
from rl_sync.rewards.judgement import Completion
from rl_sync.sandbox.languages import LANGUAGES
from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.sandbox_choice import LAYERS, choose
from tests.sandbox.hostile import battery, facts, filled

PROGRAMS = {program.name: program for program in battery()}
QUICK = [
    name
    for name, program in PROGRAMS.items()
    if program.kind == "forgery" or (program.kind == "escape" and program.language == "python")
]
LIMITS = {
    "test_secs": 4.0,
    "total_secs": 16.0,
    "memory_mib": 512,
    "output_kib": 256,
    "processes": 64,
}


def require(layer):
    try:
        return choose(layer)
    except SandboxError as error:
        pytest.skip(str(error))


def judged(names, layer):
    """Judges programs, two at a time; returns judgements and seconds by name."""
    reward, values = Code(layer=layer, **LIMITS), facts()

    def one(name):
        program, started = PROGRAMS[name], time.monotonic()
        block = f"````{program.language}\n{filled(program, values)}\n````"
        return name, reward(program.row, Completion(block)), time.monotonic() - started

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return {name: (judgement, secs) for name, judgement, secs in pool.map(one, names)}


def require_held(judgement, secs):
    assert judgement.is_known, judgement.why
    assert judgement.score == 0.0
    assert secs < 60.0, judgement.why


def test_a_hostile_program_is_held(subtests):
    require("auto")
    for name, (judgement, secs) in judged(QUICK, "auto").items():
        with subtests.test(name):
            require_held(judgement, secs)


@pytest.mark.nightly
@pytest.mark.parametrize("layer", LAYERS)
def test_every_hostile_program_is_held(subtests, layer):
    runs = require(layer).languages or set(LANGUAGES)
    commands = {name: (one.build or one.run or ("sh",))[0] for name, one in LANGUAGES.items()}
    names = [
        name
        for name, program in PROGRAMS.items()
        if program.language in runs and shutil.which(commands[program.language])
    ]
    assert len(names) >= 60
    for name, (judgement, secs) in judged(names, layer).items():
        with subtests.test(name):
            require_held(judgement, secs)
