"""Reinforcement learning of language models in JAX, with a choice of weight synchronization."""

__version__ = "0.1.0"
