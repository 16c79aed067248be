"""Modules are imported without a look for garbage, which is looked for again afterwards."""

from __future__ import annotations

import gc

import pytest

from rl_sync.cluster.parallel_imports import loading, settle


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    gc.enable()


def test_garbage_is_looked_for_again_afterwards_even_if_an_import_fails():
    with loading():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), loading():
        import rl_sync.no_such_module  # noqa: F401
    assert gc.isenabled()


def test_who_never_looks_for_garbage_does_not_begin_to():
    gc.disable()
    with loading():
        pass
    assert not gc.isenabled()


def test_what_was_made_is_never_looked_at_again():
    before = gc.get_freeze_count()
    with loading():
        made = [[] for _ in range(1000)]
    assert gc.get_freeze_count() - before >= len(made)


def test_what_there_is_once_a_role_has_settled_is_never_looked_at_again():
    made = [[] for _ in range(1000)]
    settle()
    assert not any(one is made[0] for one in gc.get_objects())
    assert gc.isenabled()
