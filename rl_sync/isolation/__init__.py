"""Isolation: users' code runs in worker processes, with limits and a defined way to end them."""
