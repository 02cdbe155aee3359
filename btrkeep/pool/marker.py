"""The marker of a pool: `.btrkeep/pool.json` on the filesystem whose UUID it contains.

If the pool is not mounted, backups must not fill the root disk instead. So every command except `init` opens the pool through
`open_pool`.
"""

import json
import os
import shlex
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path

import btrfs

from btrkeep.errors import DAMAGED, PoolUnusable, UsageError
from btrkeep.hung_storage import HINT, PATIENCE, answers
from btrkeep.pool import subvolume
from btrkeep.pool.atomic import write_atomically
from btrkeep.pool.mounts import mount_pool_words, statfs_type
from btrkeep.procfs import privilege_hint
from btrkeep.units import backup_name, format_time

SYSFS = Path("/sys/fs/btrfs")
"""Has a folder for each mounted filesystem, by its UUID."""
FORMAT = 1
MARKER = ".btrkeep"
HOSTS = "hosts"
WORKING = ".working"


class PoolMissing(PoolUnusable):
    """The folder has no marker of a pool."""


@dataclass(frozen=True, slots=True)
class Pool:
    """An opened pool."""

    path: Path
    """Its folder."""
    id: str
    """Its id."""
    filesystem: str
    """The UUID of its filesystem."""
    rehearsal: bool
    """True for a rehearsal pool, in which commands accept another time as `now`."""
    zone: tzinfo = UTC
    """Its time zone."""

    @property
    def locks(self) -> Path:
        """The folder of the lock files."""
        return self.path / MARKER / "locks"

    @property
    def bandwidth(self) -> Path:
        """The folder of the bandwidth budget."""
        return self.path / MARKER / "bandwidth"

    @property
    def hosts(self) -> Path:
        """The folder of the hosts."""
        return self.path / HOSTS

    def host_lock(self, name: str) -> Path:
        """The lock file of a host."""
        return self.locks / f"host-{name}"

    def host(self, name: str) -> Path:
        """The folder of one host's backups."""
        return self.path / HOSTS / name

    def working(self, name: str) -> Path:
        """The work subvolume of a host."""
        return self.path / HOSTS / name / WORKING

    def staged(self, name: str) -> Path:
        """Returns where a host's `.working` is made before it has a record and its name. Everything found here was made by btrkeep.

        Each host has its own folder, because the kernel creates only one subvolume at a time in a folder; this way hosts that start
        together share a commit.
        """
        return self.path / MARKER / "new" / name / WORKING

    def backup(self, host: str, started: datetime) -> Path:
        """Returns the path of the backup with that start time."""
        return self.path / HOSTS / host / backup_name(started)


def filesystem_uuid(path: Path) -> str:
    """Returns the UUID of the btrfs that contains `path` (which may be a symlink). Raises OSError."""
    with subvolume.opened(path.resolve()) as fd:
        return str(btrfs.ioctl.fs_info(fd).fsid)


def filesystem_of(fd: int) -> str | int:
    """Identifies the filesystem of a descriptor: on btrfs by UUID, because each of its subvolumes has a separate device number."""
    try:
        return str(btrfs.ioctl.fs_info(fd).fsid)
    except OSError:  # not btrfs
        return os.fstat(fd).st_dev


def is_on(path: Path, filesystem: str) -> bool:
    """Returns True if `path` is on the btrfs of that UUID."""
    return statfs_type(path) == "btrfs" and filesystem_uuid(path) == filesystem


def open_pool(path: Path, zone: tzinfo = UTC) -> Pool:
    """Returns the pool at `path`. Raises PoolUnusable if it has no marker, or is on another filesystem than the one in the marker;
    and, after some seconds, if the filesystem does not answer, for example because a disk was removed.

    `zone`: as configured.
    """
    marker = path / MARKER / "pool.json"
    if not answers(marker):
        raise PoolUnusable(f"{path} does not answer: {marker} could not be read within {PATIENCE:.0f} s", HINT)
    try:
        fields = json.loads(marker.read_text())
        newer = fields["format"] > FORMAT  # other keys may have other names in a newer format
        pool = None if newer else Pool(path, fields["id"], fields["filesystem"], bool(fields["rehearsal"]), zone)
    except FileNotFoundError:
        raise PoolMissing(f"{path} is not a pool: {marker} is missing", _hint_for_missing(path)) from None
    except PermissionError:
        raise PoolUnusable(f"{marker} may not be read", privilege_hint("CAP_DAC_READ_SEARCH")) from None
    except OSError as error:
        remedy = "check the kernel's messages (dmesg) and the disks" if error.errno in DAMAGED else "restore it from a copy"
        hint = f"{remedy}; do not create a new pool over the backups"
        raise PoolUnusable(f"{marker} cannot be read: {error.strerror}", hint) from None
    except (ValueError, KeyError, TypeError) as error:
        hint = "restore it from a copy; do not create a new pool over the backups"
        raise PoolUnusable(f"{marker} is damaged: {error!r}", hint) from None
    if pool is None:
        raise PoolUnusable(
            f"{path} has format {fields['format']}, this program reads {FORMAT}", "use the version of btrkeep that made it"
        )
    mounted = filesystem_uuid(path) if statfs_type(path) == "btrfs" else ""
    if mounted != pool.filesystem:
        place = f"on filesystem {mounted}" if mounted else "not on a btrfs"
        raise PoolUnusable(
            f"{path} is {place}, but its marker names filesystem {pool.filesystem}",
            "mount the right filesystem; a copied .btrkeep folder is not a pool",
        )
    return pool


def _hint_for_missing(path: Path) -> str:
    """A pool can be made only on a btrfs: elsewhere it would be one that is not mounted."""
    standing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if statfs_type(standing) != "btrfs":
        return f"{mount_pool_words(path)}; no btrfs is mounted at {path}"
    return f"{mount_pool_words(path)}; if there never was a pool, `backupd init {shlex.quote(str(path))}` creates one"


def create_pool(path: Path, *, rehearsal: bool, now: datetime) -> Pool:
    """Makes the pool: a new subvolume, or an empty folder on a btrfs. Raises UsageError or PoolUnusable."""
    require_place_for_pool(path)
    if not path.exists():
        subvolume.create(path.parent.resolve() / path.name)
    path.chmod(0o700)
    pool = Pool(path, str(uuid.uuid4()), filesystem_uuid(path), rehearsal)
    for folder in (path / MARKER, pool.locks, pool.hosts):
        folder.mkdir(mode=0o700, exist_ok=True)
    text = {"format": FORMAT, "id": pool.id, "filesystem": pool.filesystem, "rehearsal": rehearsal, "created": format_time(now)}
    write_atomically(path / MARKER / "pool.json", json.dumps(text, indent=2) + "\n")
    subvolume.commit(path.resolve())
    return pool


def require_place_for_pool(path: Path) -> None:
    """Raises UsageError or PoolUnusable with the reason if no pool can be made there."""
    standing = path if path.exists() else path.parent
    if (path / MARKER / "pool.json").exists():
        raise UsageError(f"{path} is a pool already", "nothing to do; `backupd check` examines it")
    if not standing.is_dir():
        raise UsageError(f"{standing} is not a folder", "name a folder on a mounted btrfs")
    if statfs_type(standing) != "btrfs":
        raise PoolUnusable(f"{standing} is not on a btrfs", "mount a btrfs there, or name a folder on one")
    if os.statvfs(standing).f_flag & os.ST_RDONLY:
        raise PoolUnusable(f"{standing} is mounted read-only", "mount it read-write, or name a folder on another btrfs")
    if path.exists() and any(entry.name not in (MARKER, HOSTS, "lost+found") for entry in os.scandir(path)):
        raise UsageError(f"{path} is not empty", f"name a folder that does not exist yet, such as {path / 'pool'}")
