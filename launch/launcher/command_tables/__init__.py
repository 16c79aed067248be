"""The entries of the table of commands, by what they are for."""
