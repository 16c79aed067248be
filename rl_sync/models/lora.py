"""Adapters apart from the parameters that they adapt, and both in one tree again."""

from __future__ import annotations

from rl_sync.types import Params

_SUFFIX = "_lora"


def split(params: Params) -> tuple[Params, Params]:
    """Takes a model's parameters apart into (adapters, base).

    Adapters are what stands under a name that ends in `_lora`, base is the rest. Each is a dict
    nested as `params` is, without the branches that would be empty.
    """
    adapters, base = {}, {}
    for name, value in params.items():
        if name.endswith(_SUFFIX):
            adapters[name] = value
        elif not isinstance(value, dict):
            base[name] = value
        else:
            for part, inner in zip((adapters, base), split(value), strict=True):
                if inner:
                    part[name] = inner
    return adapters, base


def join(adapters: Params, base: Params) -> Params:
    """Inverts `split`."""
    joined = {**base, **adapters}
    for name in adapters.keys() & base.keys():
        joined[name] = join(adapters[name], base[name])
    return joined
