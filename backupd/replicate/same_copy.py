"""Whether what comes in the place of a damaged copy is the same backup: the other server may have been taken over since.

What is damaged here, or was changed by hand after the copy was final, is compared with nothing, for nobody knows it any more. All
else has to be as it is in the copy: name, kind,
size, mode, owner, time and attribute, and the content, which is read only where the two do not share it.
"""

import errno
import os
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import chain
from pathlib import Path

from backupd.files.comparing import compare
from backupd.files.sameness import Pulse, equal_data, steady
from backupd.files.tree import Tree
from backupd.files.walking import walk
from backupd.proof.damaged_files import recorded_damage
from backupd.repo.backup_json import DATA, RECORD, UnreadableRecord, read
from backupd.repo.damages import forgotten_damages
from backupd.repo.notes_json import read_notes
from backupd.repo.seals import altered_paths
from btrkeep.errors import DAMAGED
from btrkeep.pool.marker import Pool
from btrkeep.pool.subvolume import describe
from btrkeep.units import printable

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def changed_since(pool: Pool, host: str, copy: Path, came: Path, pulse: Pulse = steady) -> str:
    """Returns the first thing that is not damaged in a host's copy and differs in what came, "" if nothing does.

    Raises what `pulse` raises, and OSError when what came cannot be read.
    """
    changed = _changed_by_hand(pool, host, copy)
    with suppress(OSError, UnreadableRecord):  # of the copy: it may be all that is damaged
        if RECORD.encode() not in changed and read(copy) != read(came):
            return "its record"
    damaged = {os.fsencode(one.path) for one in forgotten_damages(pool, host, {copy.name}, (), recorded_damage)}
    by_hand = {b"/" + path.partition(b"/")[2] for path in changed if path.partition(b"/")[0] == DATA.encode()}
    with Tree(came) as new:
        try:
            old = Tree(copy)
        except OSError as error:
            return "" if error.errno in DAMAGED else str(error)
        with old:
            names, contents = _names(old, new, damaged, pulse), _contents(old, new, damaged | by_hand, pulse)
            left = (path for path in chain(names, contents) if not _is_by_hand(path, by_hand, old, new))
            return next(map(printable, left), "")


def _changed_by_hand(pool: Pool, host: str, copy: Path) -> list[bytes]:
    """Returns the paths in the subvolume that were changed after the copy was final; none of one that is not altered."""
    notes, subvolume = read_notes(pool.host(host)), describe(copy)
    if subvolume is None or not notes.is_altered(copy.name):
        return []
    return altered_paths(copy, subvolume)


def _is_by_hand(path: bytes, changed: AbstractSet[bytes], old: Tree, new: Tree) -> bool:
    """Returns True if the path is one of these, or lies in only one of the two, below a folder whose names were changed."""
    if path in changed:
        return True
    while path != b"/":
        above = path.rpartition(b"/")[0] or b"/"
        if above in changed and not (_has(old, path) and _has(new, path)):
            return True
        path = above
    return False


def _has(tree: Tree, path: bytes) -> bool:
    """Returns True if the tree has it, or if that is not known."""
    try:
        tree.stat(path)
    except OSError as error:
        return error.errno not in _ABSENT
    return True


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
            if error.errno not in (*DAMAGED, *_ABSENT):
                raise
            is_same = error.errno in DAMAGED
        if not is_same:
            yield entry.path
