"""Games and other environments, ours and those of other packages."""
