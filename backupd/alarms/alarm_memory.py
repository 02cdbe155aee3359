"""Remembers which alarms were sent: in the catalogue, and in a file beside it for when the catalogue cannot be used.

An alarm must not be sent again because of the same fault that it reported. So the file has the same rows as the catalogue.
While the catalogue cannot be written, the file is ahead of it, and the catalogue follows once it can. The file is in the state
folder, or in memory (/dev/shm) if that folder is full or read-only, does not answer, or can be written by other users: these could
have alarms count as sent.
"""

import hashlib
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from btrkeep.catalogue import Catalogue, StoredAlarm
from btrkeep.catalogue.model_alarm import SERVICE
from btrkeep.config import Config
from btrkeep.errors import LockHeld, OperatorError
from btrkeep.hung_storage import answers
from btrkeep.pool.locks import take_lock
from btrkeep.trusted_path import untrusted_state
from btrkeep.units import format_time

log = logging.getLogger(__name__)

FILE = "alarms.json"
_LOCK = "notify.lock"
_LOCK_SECONDS = 120.0  # wait for other senders: each service may take half a minute
_DIGEST = "notify_digest"
_FORMAT = 1
_LONGEST = 64 << 20  # bytes
_TIMES = ("since", "told", "recovered", "cleared")
_MEMORY = Path("/dev/shm")  # noqa: S108  a folder of our own in it, for its owner notify_lock


@dataclass(frozen=True, slots=True)
class _FileContent:
    """The content of the file."""

    rows: tuple[StoredAlarm, ...] = ()
    """The alarms."""
    ahead: bool = False
    """True if the rows have changes that the catalogue does not have."""
    digest: str | None = None
    """When the last digest was sent; None: never."""


@dataclass(slots=True)
class AlarmMemory:
    """The stored alarms of a pool."""

    config: Config
    """The configuration."""
    catalogue: Catalogue | None
    """The catalogue; None if it cannot be used."""
    problem: OperatorError | None = None
    """The reason for that; None if it can be used."""
    _file_content: _FileContent = field(init=False)

    def __post_init__(self) -> None:
        self._file_content = _read(self.config)

    @property
    def writable(self) -> Catalogue | None:
        """Returns the catalogue if it can be written."""
        return None if self.problem else self.catalogue

    def write(self, change: Callable[[Catalogue], object]) -> None:
        """Does `change` if the catalogue can be written. A failure is `problem` from then on: alarms were sent, and the file has to
        record them anyway.
        """
        if self.catalogue and not self.problem:
            try:
                change(self.catalogue)
            except OperatorError as error:
                self.problem = error

    def rows(self) -> list[StoredAlarm]:
        """Returns all rows, including those about services that do not work. Raises OperatorError if the catalogue is damaged."""
        if self.catalogue is None or self.problem or self._file_content.ahead:
            services = [row for row in self.catalogue.alarms() if row.what == SERVICE] if self.catalogue else []
            return [*self._file_content.rows, *services]
        return self.catalogue.alarms()

    def last_digest(self) -> str | None:
        """Returns when the last digest was sent."""
        if self.catalogue is None or self._file_content.ahead:
            return self._file_content.digest
        return self.catalogue.get_fact(_DIGEST)

    def keep(self, rows: Sequence[StoredAlarm], digest: str | None) -> None:
        """Replaces all stored alarms by `rows`, and the time of the last digest."""

        def change(catalogue: Catalogue) -> None:
            before = {row.key: row for row in catalogue.alarms() if row.what != SERVICE}
            gone = before.keys() - {row.key for row in rows}
            catalogue.put_alarms([row for row in rows if before.get(row.key) != row], gone)
            if digest and digest != catalogue.get_fact(_DIGEST):
                catalogue.set_fact(_DIGEST, digest)

        self.write(change)
        _write(self.config, _FileContent(tuple(rows), self.problem is not None or self.catalogue is None, digest))


@contextmanager
def notify_lock(config: Config, now: datetime) -> Iterator[None]:
    """Lets only one process find and send alarms at a time, because two would send the same ones. Raises LockHeld if another one
    takes minutes.

    If no lock can be made, in the state folder or in memory, it continues without one: a message too many is better than none.
    """
    deadline = time.monotonic() + _LOCK_SECONDS
    for folder in _folders(config, make=True):
        while True:
            try:
                lock = take_lock(folder / _LOCK, "backupd notify", format_time(now))
                break
            except LockHeld:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            except OperatorError as error:
                log.info("%s", error.message)
                lock = None
                break
        if lock:
            with lock:
                yield
            return
    yield


def _folders(config: Config, *, make: bool) -> Iterator[Path]:
    """Yields the state folder if it can be used, then the folder in memory if it exists; with `make` it is created."""
    if _is_usable(config.pool.state):
        yield config.pool.state
    name = hashlib.sha256(os.fsencode(config.file)).hexdigest()[:16]
    with suppress(OSError):
        if folder := _folder_in_memory(f"btrkeep-alarms-{os.geteuid()}-{name}", make=make):
            yield folder


def _is_usable(state: Path) -> bool:
    with suppress(OSError):
        return answers(state) and state.is_dir() and untrusted_state(state) is None
    return False


def _folder_in_memory(name: str, *, make: bool) -> Path | None:
    """Returns the program's folder of that name. If another user has made it first, random characters are added to the name. Raises
    OSError.

    Its parent folder is sticky, so other users cannot replace it.
    """
    usual = _MEMORY / name
    for folder in (usual, *sorted(_MEMORY.glob(f"{name}-*"))):
        with suppress(FileNotFoundError):
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                return folder
    if not make:
        return None
    try:
        usual.mkdir(mode=0o700)
    except FileExistsError:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_MEMORY))
    return usual


def _read(config: Config) -> _FileContent:
    """Returns the content of the newest readable file. A file in memory exists only while it is newer than the one in the state
    folder.
    """
    for folder in reversed(list(_folders(config, make=False))):
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            return _parsed(_text(folder / FILE))
    return _FileContent()


def _text(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, encoding="utf-8") as stream:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LONGEST:
            raise ValueError(path)
        return stream.read()


def _parsed(text: str) -> _FileContent:
    kept: Any = json.loads(text)
    if kept["format"] != _FORMAT:
        raise ValueError(kept["format"])
    rows = tuple(StoredAlarm(**{**row, **{name: _moment(row[name]) for name in _TIMES}}) for row in kept["rows"])
    return _FileContent(rows, bool(kept["ahead"]), kept["digest"])


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _as_text(kept: _FileContent) -> str:
    rows = [asdict(row) for row in kept.rows]
    for row in rows:
        row.update({name: row[name].isoformat() if row[name] else None for name in _TIMES})
    return json.dumps({"format": _FORMAT, "ahead": kept.ahead, "digest": kept.digest, "rows": rows})


def _write(config: Config, kept: _FileContent) -> None:
    """Writes the file into the first folder where that succeeds, and removes it from the others after it. Never fails."""
    text = _as_text(kept)
    for folder in _folders(config, make=True):
        path = folder / FILE
        try:
            if not path.exists() or _text(path) != text:
                _replace(path, text)
        except (OSError, ValueError) as error:
            log.info("%s: %s", path, error)
            continue
        if folder == config.pool.state:
            _clear_memory(config)
        return
    log.warning("could not record which alarms were sent, so they may be sent again")


def _clear_memory(config: Config) -> None:
    for folder in _folders(config, make=False):
        if folder != config.pool.state:
            with suppress(OSError):
                (folder / FILE).unlink(missing_ok=True)
                (folder / _LOCK).unlink(missing_ok=True)
                folder.rmdir()


def _replace(path: Path, text: str) -> None:
    """Writes the file readable only by its owner, whatever the umask."""
    beside = path.with_name(f".{FILE}.{os.getpid()}")
    with suppress(FileNotFoundError):
        beside.unlink()
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            os.fchmod(fd, 0o600)
            stream.write(text)
            stream.flush()
            os.fsync(fd)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
