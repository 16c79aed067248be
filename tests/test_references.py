import json
import sys

import pytest

from rl_sync.references import is_reference, reference_of, resolve


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a:b", True), ("a/b.py:C.d", True), ("exact", False), ("a:", False), (":b", False)],
)
def test_references_are_told_from_names(name, expected):
    assert is_reference(name) is expected


def test_a_module_and_a_file_are_imported(tmp_path, monkeypatch):
    assert resolve("json:dumps") is json.dumps
    (tmp_path / "neighbor_of_mine.py").write_text("VALUE = 3")
    file = tmp_path / "json.py"  # It hides no module.
    file.write_text(
        "import neighbor_of_mine\nclass A:\n    def f():\n        return neighbor_of_mine.VALUE"
    )
    assert resolve(f"{file}:A.f")() == 3
    assert resolve(f"{file}:A") is resolve(f"{file}:A")
    assert sys.modules["json"] is json
    monkeypatch.chdir(tmp_path)
    assert resolve("json.py:A") is resolve(f"{file}:A")


def test_a_reference_of_a_function_finds_it_again():
    assert resolve(reference_of(is_reference))("a:b")
    with pytest.raises(ValueError, match="define it with a name at the top level"):
        reference_of(lambda: None)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "no_such_module:f",
            "'no_such_module:f': no_such_module cannot be imported: ModuleNotFound",
        ),
        ("no/file.py:f", "there is no file no/file.py .the current directory is"),
        ("json:dump_s", "json has no 'dump_s'; did you mean 'dumps'"),
        ("string:digits", "is a str, not a function or a class"),
        ("{tmp}/broken.py:f", r"cannot be imported: ZeroDivisionError: .*broken.py, line 2\)"),
    ],
)
def test_what_cannot_be_found_is_said(reference, message, tmp_path):
    (tmp_path / "broken.py").write_text("a = 0\nb = 1 / a\n")
    with pytest.raises(ValueError, match=message):
        resolve(reference.format(tmp=tmp_path))
