"""`tune`: predicted schedules in a table and in pictures, and the chosen one as a config."""
