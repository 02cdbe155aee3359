"""Excludes from a backup of this machine the pool that it is written to and the open catalogue.

rsync follows source paths that are symbolic links, but no links below them. So real locations are compared, and the result is
spelled as rsync will see it: below the source path as configured. The pool's filesystem may be mounted a second time, such as its
top subvolume or by a bind mount: the pool is excluded there, too, by the filesystem's number and the mounted folder.

Every command loads the configuration, so nothing is asked of a mount that may not answer, such as NFS or FUSE: paths on one are
taken as they are written.
"""

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from btrkeep.config.sources import literal_pattern
from btrkeep.procfs import Mount, mounts

# Filesystems whose data comes from another program: fuse and fuse.sshfs, nfs and nfs4, ...
_REMOTE = re.compile(r"(fuse|nfs|cifs|smb|ceph|9p|afs|gluster|lustre|ocfs2|gfs2|autofs|virtiofs|ncpfs|coda|beegfs|orangefs)")
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class SelfExclusion:
    """A folder of btrkeep that is excluded from backups of this machine."""

    name: str
    """Its name in a sentence."""
    path: Path | None
    """The folder; None if its configuration is invalid."""
    everywhere: bool = False
    """True if it is also excluded where its filesystem is mounted a second time."""


@dataclass(frozen=True, slots=True)
class SourceExclusion:
    """A file or folder of btrkeep inside a source path, which no backup may contain."""

    source: str
    """The source path."""
    name: str
    """The path of btrkeep."""
    pattern: str
    """The pattern that excludes it; empty if it contains the whole source path, so that nothing would remain."""


def self_exclusions(sources: Iterable[str], kept: Iterable[SelfExclusion]) -> list[SourceExclusion]:
    """Returns an exclusion for each source that contains a folder to be excluded. Reads only symbolic links."""
    table = mounts()
    unsure = _may_not_answer(table)
    real = [(each, _real(str(each.path.absolute()), unsure)) for each in kept if each.path]
    places = [(each.name, folder) for each, folder in real]
    places += [
        (f"{each.name}, mounted a second time", other)
        for each, folder in real
        if each.everywhere
        for other in other_places(folder, table)
    ]
    source_exclusions = []
    for source in sources:
        real_source = _real(source, unsure)
        for folder_name, folder in places:
            if below(real_source, folder):
                source_exclusions.append(SourceExclusion(source, folder_name, ""))
            elif below(folder, real_source):
                seen = source.rstrip("/") + folder[len(real_source.rstrip("/")) :]
                source_exclusions.append(SourceExclusion(source, folder_name, literal_pattern(seen)))
    return source_exclusions


def other_places(folder: str, table: Sequence[Mount]) -> list[str]:
    """Returns where the content of a folder is also mounted, in addition to its own path: the folder itself, or a part of it.
    `folder`: a real path.

    `table`: the mounts in the order in which they were made: at one place only the last one is visible.
    """
    seen = {str(mount.target): mount for mount in table}
    own = max((target for target in seen if below(folder, target)), key=len, default=None)
    if own is None:
        return []
    within = _moved(folder, own, seen[own].root)
    places = list[str]()
    for target, mount in seen.items():
        if mount.device != seen[own].device or target == own:
            continue
        if below(within, mount.root):
            places.append(_moved(within, mount.root, target))
        elif below(mount.root, within):
            places.append(target)
    return [place for place in places if not below(place, folder)]


def _moved(path: str, above: str, to: str) -> str:
    """Returns `path`, which is `above` or is in it, as a path below `to`."""
    return os.path.normpath(f"{to.rstrip('/')}/{path[len(above.rstrip('/')) :].lstrip('/')}")


def _may_not_answer(table: Iterable[Mount]) -> frozenset[str]:
    """Mount points of remote filesystems, whose server may not answer."""
    return frozenset(str(mount.target) for mount in table if _REMOTE.match(mount.filesystem))


def _real(path: str, unsure: Collection[str], links: int = _MOST_LINKS) -> str:
    """Resolves symbolic links, "." and ".." in `path`, except below the mounts `unsure`."""
    done, left = "/", [part for part in path.split("/") if part not in ("", ".")]
    while left and done not in unsure:
        part = left.pop(0)
        step = os.fspath(Path(done).parent) if part == ".." else f"{done.rstrip('/')}/{part}"
        target = _link(step) if step not in unsure and links else None
        if target is None:
            done = step
        else:
            links, left = links - 1, [*(part for part in target.split("/") if part not in ("", ".")), *left]
            done = "/" if target.startswith("/") else done
    return os.path.normpath(f"{done.rstrip('/')}/{'/'.join(left)}")


def _link(path: str) -> str | None:
    try:
        return os.fspath(Path(path).readlink())
    except OSError:  # not a link, or missing
        return None


def below(path: str, folder: str) -> bool:
    """True if `path` is `folder` or is in it; both are real paths."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
