"""Tasks that generate their problems, or take them from a package, to try and to test with."""
