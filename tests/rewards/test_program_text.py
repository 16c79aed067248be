"""The program in a completion."""

from rl_sync.rewards.program_text import program_text

NAMES = ("python", "py")


def test_the_last_block_of_the_language_is_taken():
    text = "A:\n```python\na = 1\n```\nB:\n```PY title\nb = 2\n```\nRun:\n```bash\npython b.py\n```"
    assert program_text(text, NAMES, whole=True) == "b = 2\n"


def test_a_block_without_a_name_serves_where_none_has_one():
    assert program_text("```\na = 1\n```", NAMES, whole=False) == "a = 1\n"
    assert program_text("```js\na\n```", NAMES, whole=True) is None


def test_a_block_that_is_cut_off_counts():
    assert program_text("```python\na = 1", NAMES, whole=False) == "a = 1"


def test_a_longer_fence_holds_shorter_ones():
    assert program_text("````python\n'''\n```\n'''\n````", NAMES, whole=False) == "'''\n```\n'''\n"


def test_a_text_without_blocks_is_a_program_if_wanted():
    assert program_text("    return 1", NAMES, whole=True) == "    return 1"
    assert program_text("    return 1", NAMES, whole=False) is None
