"""Hosts of environments: many episodes under way, in this process or in worker processes."""
