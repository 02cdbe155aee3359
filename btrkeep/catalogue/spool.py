"""Collects backups in an unnamed temporary file until all of them have been found.

A rebuild reads every backup.json of the pool, which takes minutes. Nothing may wait that long for the catalogue, and 96,000 backups
with their details are hundreds of megabytes.
"""

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import islice
from operator import attrgetter
from pathlib import Path

from btrkeep.catalogue.model import Backup
from btrkeep.checkpoints import Checkpoint

_AT_A_TIME = 500
_VALUES = attrgetter(*(field.name for field in fields(Backup)))  # tuples pickle in half the time


@contextmanager
def spooled(backups: Iterable[Backup], folder: Path) -> Iterator[Iterator[list[Backup]]]:
    """All of `backups` read to their end; then given back in lists, in the same order."""
    with tempfile.TemporaryFile(dir=folder) as file:
        source = iter(backups)
        with Checkpoint("backups listed"):
            while some := list(islice(source, _AT_A_TIME)):
                pickle.dump([_VALUES(one) for one in some], file, pickle.HIGHEST_PROTOCOL)
        end = file.tell()
        file.seek(0)

        def lists() -> Iterator[list[Backup]]:
            while file.tell() < end:
                yield [Backup(*values) for values in pickle.load(file)]  # noqa: S301  written above, to a file without a name

        yield lists()
