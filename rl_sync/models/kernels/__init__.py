"""Kernels of attention, which GPUs and TPUs run in place of XLA's operations."""
