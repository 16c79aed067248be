from rl_sync.observe.accuracy import describe_parts, measure


def test_accuracy_is_the_share_of_problems_that_are_solved():
    values = measure([True, False, True, True], [False] * 4)
    assert values == {"accuracy": 0.75, "problems": 4}
    assert describe_parts(values) == ""


def test_problems_whose_prompts_are_trained_on_are_measured_apart():
    values = measure([True, False, True, False, False], [True, False, True, False, True])
    assert values == {
        "accuracy": 0.4,
        "problems": 5,
        "accuracy_seen": 2 / 3,
        "problems_seen": 3,
        "accuracy_unseen": 0.0,
        "problems_unseen": 2,
    }
    assert describe_parts(values) == (
        " (66.7% of 3 whose prompts are trained on too, 0.0% of 2 others)"
    )


def test_there_are_no_others_where_every_prompt_is_trained_on():
    values = measure([True, False], [True, True])
    assert "accuracy_unseen" not in values
    assert describe_parts(values) == " (50.0% of 2 whose prompts are trained on too)"
