"""What `one_file_system` leaves out, in words, and where each system has something mounted that no backup needs."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from btrkeep.units import counted, printable

_NAMED = 3
_KERNEL = ("/proc", "/sys", "/dev", "/run", "/snap")
_TRANSIENT = (
    "/tmp",  # noqa: S108  a path of the host
    "/var/lib/lxcfs",
    "/var/lib/docker/overlay2/*/merged",
    "/var/lib/docker/containers/*/mounts/shm",
    "/var/lib/containers/storage/overlay/*/merged",
    "/var/lib/containers/storage/overlay-containers/*/userdata/shm",
)


def is_expected(folder: str, path: str) -> bool:
    """Returns True for a place where each system mounts what no backup is expected to have: devices, processes, containers.

    `path` is the source path: what lies in such a place by its configuration is wanted.
    """
    return _is_of_the_system(folder) and not _is_of_the_system(path)


def _is_of_the_system(folder: str) -> bool:
    return folder.startswith(tuple(f"{top}/" for top in _KERNEL)) or any(
        fnmatchcase(folder, pattern) for pattern in (*_KERNEL, *_TRANSIENT)
    )


def left_out_words(path: str, folders: Sequence[str], old: int) -> str:
    """Formats the warning. `old`: so many of the folders have files of an earlier backup."""
    names = ", ".join(printable(folder) for folder in folders[:_NAMED])
    more = f" and {counted(len(folders) - _NAMED, 'more folder')}" if len(folders) > _NAMED else ""
    stale = "; files of an earlier backup stay there, unchanged" if old else ""
    return (
        f"{path}: `one_file_system` leaves out what is in {names}{more}: another filesystem or subvolume{stale} "
        "(`exclude` it, or fetch it as a host of its own)"
    )
