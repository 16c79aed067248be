"""The program in a completion."""

import textwrap

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


IN_LISTS = [
    "1. Do this:\n   ```python\n   def f():\n       return 1\n   ```\n2. Done",
    "- ```python\n  def f():\n      return 1\n  ```",
    "* Then:\n\n    ```python\n    def f():\n        return 1\n    ```\n",
    "10. ~~~python\n    def f():\n        return 1\n    ~~~",
    "- - ```python\n    def f():\n        return 1\n    ```",
    "\t```python\n\tdef f():\n\t    return 1\n\t```",
    "> ```python\n> def f():\n>     return 1\n> ```",
    "> - ```python\n>   def f():\n>       return 1\n>   ```",
    "1. Do:\n   ```python\ndef f():\n    return 1\n   ```",
    " ```python\n def f():\n     return 1\n```",
]


def test_blocks_in_lists_and_quotations_lose_their_indentation(subtests):
    for text in IN_LISTS:
        with subtests.test(text):
            program = program_text(text, NAMES, whole=False)
            assert program is not None
            assert textwrap.dedent(program).strip() == "def f():\n    return 1"
            compile(program.strip("\n") + "\n", "program", "exec")


def test_a_fence_in_a_docstring_does_not_end_its_block():
    text = '```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n```'
    program = program_text(text, NAMES, whole=False)
    assert program is not None
    assert program.count("```") == 2


def test_a_text_without_blocks_is_a_program_if_wanted():
    assert program_text("    return 1", NAMES, whole=True) == "    return 1"
    assert program_text("    return 1", NAMES, whole=False) is None
