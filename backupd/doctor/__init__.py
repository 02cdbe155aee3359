"""Finds problems and slow settings of a pool, and how to repair them. Facts are gathered (`gather`), rules judge them
(`rules.judge`, pure), and `fix` applies a repair requested by name; nothing else changes anything. `checks` has the checks of
`backupd check`, which begin with the configuration.

This module imports nothing, because `backupd check` needs none of the facts.
"""
