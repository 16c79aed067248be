import time

import pytest

from rl_sync.thoughts import KNOWN, ThoughtMarks, begun_by, marks_of, split

CHANNEL, FINAL = "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"
CODE = '```python\nhead, tail = text.split("</think>")\nprint("<think>")\n```\nThat is all.'
FENCED = "Write:\n```xml\n<think>\nplan\n</think>\n```\nThe answer is 4."

# kind: (what the prompt has begun, reply, thoughts, answer)
SPLIT = {
    "a block": ("", "<think>\nTwo.\n</think>\n\nThe answer is 4.", "Two.", "The answer is 4."),
    "a block on one line": ("", "<think>3?</think>4", "3?", "4"),
    "white space before": ("", " \n<think>3?</think> 4", "3?", " 4"),
    "empty thoughts": ("", "<think>\n\n</think>\n\n4\n", "", "4\n"),
    "only the closing mark": ("", "3? No.\n</think>\n\n4", "3? No.", "4"),
    "begun by the prompt": ("<think>\n", "3? No.\n</think>\n\n4", "3? No.", "4"),
    "begun, and begun again": ("<think>\n", "<think>\n3?\n</think>\n4", "3?", "4"),
    "begun by a message": ("<think>\nThree times", " three is 9.</think>9", " three is 9.", "9"),
    "begun within a line": ("Let me solve it. <think>", "3?</think>4", "3?", "4"),
    "ended by the prompt": ("</think>", "4", "", "4"),
    "begun after thoughts": ("<think>\n3?\n</think>\nIt is", " 4", "", " 4"),
    "begun without thoughts": ("The answer is", " 4", "", " 4"),
    "cut inside": ("", "<think>maybe \\boxed{42}? Let me", "maybe \\boxed{42}? Let me", ""),
    "cut inside begun thoughts": ("<think>\n", "maybe 42? Let me", "maybe 42? Let me", ""),
    "cut before anything": ("<think>\n", "", "", ""),
    "cut inside the closing mark": ("", "<think>42</thin", "42</thin", ""),
    "cut inside a second block": ("", "<think>a</think>4\n<think>or 5", "a\nor 5", "4"),
    "two blocks": ("", "<think>a</think>\n4\n<think>b</think>\n5", "a\nb", "4\n5"),
    "two blocks and digits": ("", "<think>a</think>4<think>b</think>5", "a\nb", "4\n5"),
    "thoughts after the answer": ("", "It is 4.\n<think>sure</think>\n", "sure", "It is 4."),
    "a mark in thoughts": ("", '<think>close with `</think>` and "</think>"\n</think>4',
        'close with `</think>` and "</think>"', "4"),
    "a second closing mark": ("", "<think>a</think>b</think>c", "a", "b</think>c"),
    "code in thoughts": ("", "<think>\n```python\nx = 1\n</think>\n4", "```python\nx = 1", "4"),
    "marks in an answer's code": ("", f"<think>a</think>\n{CODE}", "a", CODE),
    "a template in an answer's code": ("", f"<think>a</think>\n{FENCED}", "a", FENCED),
    "quoted marks": ("", "Put it between `<think>` and `</think>`, as in `<think>a</think>`.", "",
        "Put it between `<think>` and `</think>`, as in `<think>a</think>`."),
    "a mark in prose": ("", "A <think> begins thoughts. It is 4.", "",
        "A <think> begins thoughts. It is 4."),
    "JSON of a call": ("", '{"text": "<think>a</think>"}', "", '{"text": "<think>a</think>"}'),
    "no thoughts": ("", "\n The answer is 4. \n", "", "\n The answer is 4. \n"),
    "letters in capitals": ("", "<THINK>3?</THINK>4", "3?", "4"),
    "Magistral": ("", "[THINK]3? No.[/THINK]The answer is 4.", "3? No.", "The answer is 4."),
    "Magistral, cut": ("", "[THINK]3? No.", "3? No.", ""),
    "Seed-OSS": ("", "<seed:think>3?</seed:think>4", "3?", "4"),
    "Kimi": ("", "◁think▷3?◁/think▷4", "3?", "4"),
    "Gemma 4": ("", "<|channel>thought\n3?<channel|>4", "3?", "4"),
    "Command A": ("", "<|START_THINKING|>3?<|END_THINKING|><|START_RESPONSE|>4<|END_RESPONSE|>",
        "3?", "4"),
    "channels": ("", f"{CHANNEL}3? No.<|end|>{FINAL}The answer is 4.", "3? No.",
        "The answer is 4."),
    "channels, cut": ("", f"{CHANNEL}3? No.", "3? No.", ""),
    "channels, begun": (CHANNEL, f"3? No.<|end|>{FINAL}4", "3? No.", "4"),
    "two analyses": ("", f"{CHANNEL}a<|end|><|start|>assistant{CHANNEL}b<|end|>{FINAL}4",
        "a\nb", "4"),
    "the final channel alone": ("", "<|channel|>final<|message|>4", "", "4"),
    "an end that closes no thoughts": ("", "4<|end|>", "", "4<|end|>"),
}  # fmt: skip


def test_a_reply_is_split_into_thoughts_and_answer(subtests):
    for kind, (begun, reply, thoughts, answer) in SPLIT.items():
        with subtests.test(kind):
            found = split(reply, begun)
            assert (found.thoughts, found.answer) == (thoughts, answer)
            if not thoughts and answer == reply:
                assert found.answer is reply


@pytest.mark.parametrize(
    ("begun", "reply", "is_thinking", "rest"),
    [
        ("", "<think>3?", True, ""),
        ("<think>", "3?", True, ""),
        ("", "<think>3?</think>\n4", False, "\n4"),
        ("", "3?</think>4", False, "4"),
        ("", "<think>a</think>4<think>b</think>5", False, "5"),
        ("", "4", False, "4"),
    ],
)
def test_what_follows_the_last_thoughts_is_told(begun, reply, is_thinking, rest):
    found = split(reply, begun)
    assert (found.is_thinking, reply[found.end :]) == (is_thinking, rest)


def test_thoughts_at_the_beginning_stay_the_same_while_a_reply_grows():
    reply = "<think>a</think>4\n<think>b</think>5"
    parts = [split(reply[:size], leading_only=True) for size in range(16, len(reply) + 1)]
    assert {part.thoughts for part in parts} == {"a"}
    assert all(reply[16:].startswith(part.answer) for part in parts)


def test_a_prompt_that_ends_with_an_opening_mark_begins_thoughts():
    begun = {
        "<|im_start|>assistant\n<think>\n": "<think>\n",
        "Assistant: Let me think.\n<think>": "<think>",
        "<|im_start|>assistant\n<think>\n\n</think>\n\n": "",
        "Use <think> and </think>.<|im_start|>assistant\n": "",
        "[/INST][THINK]": "[THINK]",
        "<｜User｜>What is 2+2?<｜Assistant｜></think>": "",
        "Let me solve it. <think>": "<think>",
        f"<|start|>assistant{CHANNEL}": CHANNEL,
        "": "",
    }
    assert {prompt: begun_by(prompt) for prompt in begun} == begun


def test_the_setting_adds_marks_or_takes_them_away():
    marks = marks_of("<reasoning> </reasoning>")
    assert marks == (ThoughtMarks("<reasoning>", "</reasoning>"), *KNOWN)
    assert split("<reasoning>3?</reasoning>4", marks=marks)[:2] == ("3?", "4")
    assert split("<think>3?</think>4", marks=marks)[:2] == ("3?", "4")
    assert begun_by("Assistant:<reasoning>\n", marks) == "<reasoning>\n"
    assert marks_of(None) == KNOWN
    assert split("<think>3?</think>4", "<think>", marks_of("none")).answer == "<think>3?</think>4"
    assert begun_by("<think>", marks_of("none")) == ""
    for wrong in ("<reasoning>", "a b c", "", "<x> <X>"):
        with pytest.raises(ValueError, match="two different marks"):
            marks_of(wrong)


def test_splitting_takes_little_time_for_replies_full_of_marks():
    for part in (
        "<think> ",
        "x <think> ",
        "</think>`",
        "`</think>`",
        "```\n<think>\n",
        "a</think>",
    ):
        before = time.process_time()
        split(part * 4000)
        assert time.process_time() - before < 2.0, part
