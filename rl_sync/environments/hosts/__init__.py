"""Hosts of environments: they run many episodes, in this process or in worker processes."""
