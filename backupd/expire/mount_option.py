"""The allocator's mount option while expired backups are deleted: recorded first, switched, and always restored.

The option belongs to the filesystem: if it has another value than the one set by the expiry, another program set it, and it stays.
The previous value is in POOL/.btrkeep/mount-option.json before anything is switched, so that the next start, or `backupd expire
--restore-mount-option` in a service's ExecStopPost, restores it after a kill.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from btrkeep.checkpoints import Checkpoint
from btrkeep.pool.atomic import write_atomically
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.pool.mounts import allocator, mount_of, set_allocator
from btrkeep.pool.reserve import with_reserve
from btrkeep.procfs import boot_id
from btrkeep.units import printable

RECORD = "mount-option.json"
NONE = "none"


@dataclass(frozen=True, slots=True)
class SwitchedOption:
    """The record: the previous option, the option of the expiry, and the boot to which it applies."""

    was: str
    """The option before."""
    set: str
    """The option that the expiry set."""
    boot: str
    """The id of the boot: after another boot the record is not valid."""


def record_path(pool: Pool) -> Path:
    """Returns the path of the record."""
    return pool.path / MARKER / RECORD


def read_record(pool: Pool) -> SwitchedOption | None:
    """Returns the record of a run, None if nothing is switched. Raises ValueError if it cannot be parsed."""
    try:
        return SwitchedOption(**json.loads(record_path(pool).read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{record_path(pool)} cannot be read: {error}") from None


class MountOption:
    """Switches the pool to `wanted` and back. `say` receives notices, `complain` problems that an operator must check."""

    def __init__(self, pool: Pool, wanted: str, say: Callable[[str], None], complain: Callable[[str], None]) -> None:
        self.pool = pool
        self.wanted = wanted
        self.say = say
        self.complain = complain
        self.switched = False

    def switch(self) -> None:
        """Switches to the wanted option, unless it is set already. A failure is reported, and the expiry continues without it."""
        if self.wanted == NONE or self.switched:
            return
        try:
            was = self._now()
            if was == self.wanted:
                return
            self._write(SwitchedOption(was, self.wanted, boot_id()))
            self.switched = True
            set_allocator(self.pool.path, self.wanted)
            current = self._now()
        except OSError as error:
            self.complain(f"mount_option: {self.pool.path} could not be switched to {self.wanted}: {error.strerror}")
            self.put_back()
            return
        if current != self.wanted:
            self.complain(f"mount_option: {self.pool.path} was set to {self.wanted}, but has {current}")

    def put_back(self) -> str:
        """Restores the previous option, if the expiry's is still set, also after a killed run. Returns a message, or "".

        Never raises OSError, because it is called after other failures.
        """
        self.switched = False
        try:
            return self._put_back()
        except ValueError as error:
            text = f"{error}; check the mount options and remove this file"
        except OSError as error:
            text = f"mount_option: it could not be restored: {error.strerror}; the next `backupd expire` tries again"
        self.complain(text)
        return ""

    def _put_back(self) -> str:
        record = read_record(self.pool)
        if record is None:
            return ""
        current = self._now()
        done = ""
        if record.boot != boot_id():
            done = f"mount_option: the machine was restarted since {record.set} was set, so {current} is from the new mount"
        elif current == record.set:
            set_allocator(self.pool.path, record.was)
            if (current := self._now()) != record.was:
                self.complain(f"mount_option: {self.pool.path} was set back to {printable(record.was)}, but has {current}")
            done = f"mount_option: {record.was} is restored"
        elif current != record.was:
            self.say(
                f"mount_option: it was {record.was}, btrkeep set {record.set}, now it is {current}: changed by another "
                "program, so it is kept"
            )
        try:
            with Checkpoint("mount-option.json removed"):
                record_path(self.pool).unlink(missing_ok=True)
        except OSError as error:  # the pool has become read-only; the option can still be set
            self.complain(f"mount_option: {record_path(self.pool)}: {error.strerror}; the next `backupd expire` removes it")
        return done

    def _now(self) -> str:
        return allocator(mount_of(self.pool.path))

    def _write(self, record: SwitchedOption) -> None:
        text = json.dumps(asdict(record)) + "\n"
        with_reserve(self.pool.path, lambda: write_atomically(record_path(self.pool), text))
