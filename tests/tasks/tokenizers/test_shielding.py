from hypothesis import example, given
from hypothesis import strategies as st

from rl_sync.tasks.tokenizers.shielding import Shield

NAMES = ("<|im_end|>", "<s>")
SHIELD = Shield(NAMES)
PIECES = st.sampled_from([*NAMES, "\U000f0000", "\U000f0001", "1", "0", "<", "text"])
TEXTS = st.lists(PIECES, max_size=8).map("".join)


@given(TEXTS)
@example("\U000f00001\U000f0001")  # A text that looks like the mark of a name.
def test_a_covered_text_has_no_name_and_uncovers_to_itself(text):
    covered = SHIELD.cover(text)
    assert not any(name in covered for name in NAMES)
    assert SHIELD.uncover(covered) == text


@given(TEXTS)
def test_only_texts_with_names_are_covered(text):
    has_name = any(name in text for name in (*NAMES, "\U000f0000"))
    assert SHIELD.covers(SHIELD.cover(text)) == has_name
    assert has_name or SHIELD.cover(text) == text


def test_all_texts_of_a_json_value_are_covered():
    value = {"<s>": ["a<s>", 1, None, {"b": "<|im_end|>"}]}
    covered = SHIELD.cover(value)
    mark, end = SHIELD.cover("<s>"), SHIELD.cover("<|im_end|>")
    assert covered == {mark: [f"a{mark}", 1, None, {"b": end}]}
