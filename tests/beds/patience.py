"""The waiting times of the programs and of tests: the only list of these constants.

A command in a test need not wait for the whole of any of `PAUSES`: the result is the same, only sooner. tests.beds.cli shortens
them for commands that it runs to their end. With less `PATIENCE` a command stops waiting sooner; impatient.py has both. A test of a
whole pause, or of the real patience, starts `python -m backupd` as a process of its own.
"""

import sys
from collections.abc import Iterable
from importlib import import_module

Wait = tuple[str, str, float]
"""The module, the name of its constant, and its value in tests, in seconds unless the name has another unit."""

_SOON = 0.1
PAUSES: tuple[Wait, ...] = (
    ("backupd.actions.discard", "_CHECK_EVERY", _SOON),
    ("backupd.offsite.offsite_run", "_PAUSE", _SOON),
    ("backupd.replicate.push", "_PAUSE", _SOON),
    ("backupd.replicate.fetch_hosts", "_LOOK_AROUND", _SOON),
    ("backupd.replicate.fetch_hosts", "_PAUSE", _SOON),
    ("backupd.proof.against_source", "_PAUSE", 0.2),
    ("backupd.run.night", "_LOOK", _SOON),
    ("backupd.proof.after_crash", "_PAUSE", _SOON),
    ("balancer.balancing", "_LOOK_AGAIN", 0.5),
    ("balancer.balancing", "_SHORTEST_QUIET", 0.05),
)
_LITTLE = 0.5
PATIENCE: tuple[Wait, ...] = (
    ("backupd.cli.command_context", "WORK_PATIENCE", _LITTLE),
    ("backupd.alarms.cli", "_PATIENCE", _LITTLE),
    ("backupd.rsync.process", "PATIENCE", _LITTLE),
    ("backupd.run.interrupted", "_LOOKS", 5),
    ("backupd.serve.start_job", "_AGAIN", _LITTLE),
    ("backupd.serve.start_job", "_PATIENCE", _LITTLE),
    ("btrkeep.catalogue.sqlite", "BUSY_TIMEOUT", _LITTLE),
    ("btrkeep.hung_storage", "PATIENCE", _LITTLE),
    ("btrkeep.hung_storage", "_SILENT_FOR", _LITTLE),
    ("btrkeep.process.group", "PATIENCE", _LITTLE),
    ("btrkeep.process.group", "UNENDING", _LITTLE),
    ("btrkeep.process.outliving", "LOOK", _LITTLE),
    ("btrkeep.process.programs", "UNENDING", _LITTLE),
)


def shorten(waits: Iterable[Wait], package: str) -> None:
    """Sets them in this process, for one of our packages and the shared code."""
    for module, name, value in waits:
        if module.startswith((f"{package}.", "btrkeep.")):
            import_module(module)
            assert hasattr(sys.modules[module], name), f"{module} has no {name}"
            setattr(sys.modules[module], name, value)
