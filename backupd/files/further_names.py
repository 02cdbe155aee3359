"""Further names of files that were copied in batches (hard links), many of one folder at a time."""

import os
import stat
from collections.abc import Sequence

from backupd.files.conflict_policy import LinkPlacer
from backupd.files.destination import Destination
from backupd.files.placing import Names
from backupd.files.tree import identity
from backupd.files.walking import PlainFile
from btrkeep.descriptors import ClosingFd

_HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def link_names(to: Destination, place: Names, files: Sequence[PlainFile], links: LinkPlacer) -> list[PlainFile]:
    """Makes further names in the folder at `place`, where nothing has them. Returns those that were not made.

    The first name is opened and looked at, and that very file linked: another may have its name by then.
    """
    left_over = list[PlainFile]()
    held, held_inode = -1, 0
    try:
        opened = os.dup(to.folder(place))
    except OSError:  # another user may have moved it away since
        return list(files)
    with ClosingFd(opened) as folder:
        try:
            for file in files:
                first = links.first_of(file.inode)
                if first is None or not first[1]:
                    left_over.append(file)
                    continue
                try:
                    if file.inode != held_inode:
                        if held >= 0:
                            os.close(held)
                        held, held_inode = -1, 0
                        above = folder if first[0][:-1] == place else to.folder(first[0][:-1])
                        held = os.open(first[0][-1], _HELD, dir_fd=above)
                        if _is_copy(os.fstat(held), file, first[1]):
                            held_inode = file.inode
                    if file.inode != held_inode:
                        left_over.append(file)
                        continue
                    os.link(b"/proc/self/fd/%d" % held, file.name, dst_dir_fd=folder, follow_symlinks=True)
                except OSError:  # whoever does it by itself meets the same, and names it
                    left_over.append(file)
                else:
                    links.place(file.inode, file.links, (*place, file.name), first[1])
        finally:
            if held >= 0:
                os.close(held)
    return left_over


def _is_copy(status: os.stat_result, file: PlainFile, copied: int) -> bool:
    """Returns True if an open inode is the copy of a file that got this identity. Inode numbers are used again, so owner and kind
    count.
    """
    kind = stat.S_ISLNK if file.is_symlink else stat.S_ISREG
    is_alike = (identity(status), status.st_uid, status.st_gid) == (copied, file.uid, file.gid) and kind(status.st_mode)
    return is_alike and (file.is_symlink or (stat.S_IMODE(status.st_mode), status.st_size) == (file.mode, file.size))
