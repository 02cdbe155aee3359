"""backupd with more patience: ten minutes, not ten seconds, for a program that it has signalled to end, and between two attempts.

A test of a command that must not wait needs no tight limit of time: its command ends within a minute or two, or waits for ten.
"""

import sys

PATIENT = (sys.executable, "-P", __file__)
"""How its command line begins."""
_LONG = 600.0

if __name__ == "__main__":
    from btrkeep.process import group

    group.PATIENCE = _LONG  # before others import it
    from backupd.run.run_context import RunContext

    first, *others = RunContext.__init__.__defaults__  # type: ignore[misc]
    assert first == 10.0, "no longer the pause between attempts"
    RunContext.__init__.__defaults__ = (_LONG, *others)
    from backupd.cli import main

    main()
