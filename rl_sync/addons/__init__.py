"""Add-ons: parts that a run can do without, each reached by its name in a table.

The core imports none of them. Its tables have a reference for each name that a user writes, such as
`rl_sync.addons.games.nim:Nim`, which is imported when it is used. An add-on imports public names of
the modules that the core offers; `tests/test_imports.py` has the tables and the modules.
"""
