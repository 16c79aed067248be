"""Each language that is installed says hello in each sandbox."""

import shutil

import pytest

from rl_sync.sandbox.greeting import greet
from rl_sync.sandbox.languages import LANGUAGES
from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.program_limits import MIB, ProgramLimits
from rl_sync.sandbox.sandbox import Sandbox
from rl_sync.sandbox.sandbox_choice import choose

LIMITS = ProgramLimits(memory_bytes=1024 * MIB)


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(request):
    try:
        return Sandbox(choose(request.param), LIMITS)
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.mark.gate
@pytest.mark.parametrize("name", LANGUAGES)
def test_a_language_says_hello(sandbox, name):
    language = LANGUAGES[name]
    command = language.build[0] if language.build else (language.run or ["sh"])[0]
    if shutil.which(command, path="/usr/local/bin:/usr/bin:/bin") is None:
        with pytest.raises(SandboxError, match=f"{name} does not work .*there is no .* {command}"):
            greet(sandbox, name)
        return
    greet(sandbox, name)


def test_a_limit_that_is_too_low_for_a_language_is_the_cause(sandbox):
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    with pytest.raises(SandboxError, match="java does not work"):
        greet(sandbox.within(ProgramLimits(memory_bytes=64 * MIB)), "java")
