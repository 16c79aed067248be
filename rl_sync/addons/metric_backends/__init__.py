"""Systems that get a run's metrics; `rl_sync.records.backends.backend_catalog` has their names."""
