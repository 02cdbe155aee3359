"""Finds what is wrong or slow with a pool, and how to mend it.

Facts are gathered (`gather`), rules judge them (`rules.judge`, pure), and `fix` does what was asked for by name; nothing else
changes anything. `checks` are those of `backupd check`, which look at the configuration first.

Nothing is imported here: `backupd check` needs none of the facts.
"""
