"""Limits of an engine. They are apart from its code, so that settings are read without JAX."""

from __future__ import annotations

from typing import Literal

CachePolicy = Literal["keep", "recompute"]
