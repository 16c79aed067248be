"""Tables of the metrics of a run, by subject."""
