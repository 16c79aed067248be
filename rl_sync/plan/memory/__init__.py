"""Estimates of a run's memory, and what they say about devices."""
