from rl_sync.tasks.order import prompt_at


def _epoch(epoch, count=20, seed=3):
    return [prompt_at(epoch * count + i, count, seed) for i in range(count)]


def test_every_prompt_comes_once_an_epoch():
    assert sorted(_epoch(0)) == sorted(_epoch(4)) == list(range(20))


def test_epochs_and_seeds_have_orders_of_their_own():
    assert _epoch(0) != _epoch(1)
    assert _epoch(0) != _epoch(0, seed=4)


def test_the_place_alone_decides_whatever_was_asked_before():
    first = prompt_at(7, 20, 3)
    for ordinal in (900, 3, 55, 1234):
        prompt_at(ordinal, 20, 3)
    assert prompt_at(7, 20, 3) == first


def test_replacements_have_orders_of_their_own_which_depend_on_the_place_alone():
    orders = [[prompt_at(i, 20, 3, replacement=r) for i in range(20)] for r in range(3)]
    assert orders[0] == _epoch(0)
    assert orders[0] != orders[1] != orders[2]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert prompt_at(25, 20, 3, replacement=1) != prompt_at(5, 20, 3, replacement=1)
