"""Finds what is wrong or slow with a pool, and how to repair it.

Facts are gathered (`gather`), rules judge them (`rules.judge`, pure), and `fix` applies a repair requested by name; nothing else
changes anything. `checks` are those of `backupd check`, which begin with the configuration.

This module imports nothing: `backupd check` needs none of the facts.
"""
