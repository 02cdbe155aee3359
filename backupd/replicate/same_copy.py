"""Whether what comes in the place of a damaged copy is the same backup: the other server may have been taken over since.

What is damaged here is compared with nothing, for nobody knows it any more. All else has to be as it is in the copy: name, kind,
size, mode, owner, time and attribute, and the content, which is read only where the two do not share it.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from backupd.actions.shared_damage import recorded_damage
from backupd.files.comparing import compare
from backupd.files.sameness import Pulse, equal_data, steady
from backupd.files.tree import Tree
from backupd.files.walking import walk
from backupd.repo.backup_json import UnreadableRecord, read
from backupd.repo.recorded_rows import forgotten_damages
from btrkeep.errors import DAMAGED
from btrkeep.pool.marker import Pool
from btrkeep.units import printable


def changed_since(pool: Pool, host: str, copy: Path, came: Path, pulse: Pulse = steady) -> str:
    """Returns the first thing that is not damaged in a host's copy and differs in what came, "" if nothing does.

    Raises what `pulse` raises, and OSError when what came cannot be read.
    """
    with suppress(OSError, UnreadableRecord):  # of the copy: it may be all that is damaged
        if read(copy) != read(came):
            return "its record"
    damaged = {os.fsencode(one.path) for one in forgotten_damages(pool, host, {copy.name}, (), recorded_damage)}
    with Tree(came) as new:
        try:
            old = Tree(copy)
        except OSError as error:
            return "" if error.errno in DAMAGED else str(error)
        with old:
            names, contents = _names(old, new, damaged, pulse), _contents(old, new, damaged, pulse)
            return next((printable(path) for path in chain(names, contents)), "")


def _names(old: Tree, new: Tree, damaged: set[bytes], pulse: Pulse) -> Iterator[bytes]:
    """Yields names that differ in anything but content. What cannot be read ends it: a folder that is lost hides what is in it."""
    try:
        for one in compare(old, new, b"/", pulse=pulse):
            if one.path not in damaged:
                yield one.path
    except OSError as error:
        if error.errno not in DAMAGED:
            raise


def _contents(old: Tree, new: Tree, damaged: set[bytes], pulse: Pulse) -> Iterator[bytes]:
    """Yields files with another content."""
    for one in walk(old, b"/", lambda _path, _error: None):
        entry = one.entry
        if one.left or entry.kind != "file" or entry.path in damaged:
            continue
        pulse()
        try:
            is_same = equal_data(old, entry, new, new.stat(entry.path), pulse)
        except OSError as error:
            if error.errno not in DAMAGED:
                raise
            continue
        if not is_same:
            yield entry.path
