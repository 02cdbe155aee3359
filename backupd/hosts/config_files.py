"""Changes the configuration's files: the whole result is checked first, then each file is replaced atomically."""

import fcntl
import os
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backupd.hosts.assigning import AddedValues
from btrkeep.config import Config, load, load_usable
from btrkeep.config.config_model import not_configured
from btrkeep.config.documents import documents
from btrkeep.config.problems import Problems
from btrkeep.config.sources import require_host_name
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import ConfigError, LockHeld, OperatorError, UsageError
from btrkeep.process.proc import flock_holders
from btrkeep.procfs import privilege_hint
from btrkeep.units import printable

LOCK_PATIENCE = 10.0
"""Seconds to wait for another process that changes the configuration, which takes far less than a second."""

EXCLUDE = "exclude"
"""The key whose items are added to the inherited ones."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of the configuration of the pool `name`: the main file and the folder of its drop-ins."""

    name: str
    main: Path

    @classmethod
    def of(cls, pool: str, config: str | None) -> "Files":
        """Returns the files of the pool with that name, or with that main file."""
        main = Path(config or f"/etc/btrkeep/{pool}.toml")
        return cls(main.stem, main if main.is_absolute() else Path.cwd() / main)

    @property
    def folder(self) -> Path:
        return self.main.with_suffix(".d")

    def own_file(self, host: str) -> Path:
        """Returns the separate file of a host with that name."""
        return self.folder / f"{host}.toml"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Prevents other processes of btrkeep from changing the files until the end of the context, because each replaces what it
        has read. The lock is a file of mode 0600 beside them, because a user who may only read a file or a folder can also lock it.
        Raises LockHeld after LOCK_PATIENCE seconds, OperatorError.
        """
        path = self.main.with_name(f".{self.main.stem}.lock")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OperatorError(
                f"could not lock {self.main} with {path}: {error.strerror}", privilege_hint("CAP_DAC_OVERRIDE")
            ) from None
        with ClosingFd(fd):
            _lock(fd, self.main)
            yield

    def load(self, changes: Mapping[Path, str | None] | None = None) -> Config:
        """Returns the configuration with the changes. Raises ConfigError with all problems."""
        return load(self.name, self.main, instead=changes)

    def load_usable(self) -> Config:
        """Returns the configuration that runs use, without sections that have mistakes. Raises ConfigError for a mistake that stops
        everything.
        """
        return load_usable(self.name, self.main)

    def judge(self, changes: Mapping[Path, str | None], hosts: Iterable[str] = ()) -> Config:
        """Returns the configuration with the changes, which concern `hosts`.

        Raises ConfigError for any mistake, except those about something else that existed before.
        """
        for text in changes.values():
            _require_utf_8(text or "")
        after = load_usable(self.name, self.main, instead=changes)
        if after.faults:
            excluded_before: set[tuple[str, str]] = set()
            with suppress(ConfigError):
                excluded_before = _excluded(self.load_usable())
            if not _excluded(after) <= excluded_before or any(name in after.excluded for name in hosts):
                return self.load(changes)  # raises; without line numbers, because the file with these lines is not written
        return after

    def hosts(self) -> dict[str, Path]:
        """Returns the file that declares each [host.NAME]. Raises ConfigError if there is no configuration."""
        read = documents(self.main, Problems())
        return {name: document.file for document in read for name in document.tables.get("host", {})}

    def change(self, changes: Mapping[Path, str | None], hosts: Iterable[str] = (), *, keep_old: bool = False) -> Config:
        """Applies the changes: a text replaces a file, None removes it. Returns the resulting configuration.

        `keep_old`: the previous file stays beside it, as `old_file` names it. Raises ConfigError as `judge` does, then nothing is
        changed; OperatorError if a file cannot be written.
        """
        config = self.judge(changes, hosts)
        for path, text in changes.items():
            try:
                if keep_old and path.exists():
                    _keep_old(path.resolve())
                _put(path, text)
            except OSError as error:
                raise OperatorError(f"{path} cannot be changed: {error.strerror}", privilege_hint("CAP_DAC_OVERRIDE")) from None
        return config


def _excluded(config: Config) -> set[tuple[str, str]]:
    """Returns what is skipped because of a mistake: hosts, copies, sections without effect on backups, unreadable files."""
    faulty = {"host": config.excluded, "copy": config.excluded_copies, "section": config.faulty_sections, "file": config.unread}
    return {(kind, name) for kind, names in faulty.items() for name in names}


def _lock(fd: int, main: Path) -> None:
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            pids = ", ".join(map(str, flock_holders(os.fstat(fd)))) or "unknown"
            raise LockHeld(
                f"{main} is being changed by another process ({pids})", "wait until it has ended; `ps -fp PID` shows that process"
            ) from None
        return


def add_host(files: Files, name: str, keys: Mapping[str, Any]) -> Path:
    """Creates a file for the host and returns its path. Raises UsageError if the host exists, ConfigError if a key is wrong."""
    return add_hosts(files, {name: keys})[name]


def add_hosts(files: Files, hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """Creates a file for each host; returns the path of each. Adds all hosts or none. Raises UsageError for an existing host,
    ConfigError.
    """
    with files.alone():
        texts = new_files(files, hosts)
        files.change(texts, hosts)
    return dict(zip(hosts, texts, strict=True))


def new_files(files: Files, hosts: Mapping[str, Mapping[str, Any]]) -> dict[Path, str]:
    """Returns the file of each new host with its text, in their order. Raises UsageError for an existing host or file."""
    from backupd.hosts.edit import new_host

    for name in hosts:
        require_host_name(name)
    places, texts = files.hosts(), dict[Path, str]()
    for name, keys in hosts.items():
        if path := places.get(name):
            raise UsageError(f"the host {name} is in {path} already", f"`backupd host set {name} KEY=VALUE` changes it")
        own = files.own_file(name)
        if own.exists():  # it is empty, or contains something else
            hint = "move it away, or add the host to it with an editor"
            raise UsageError(f"{own} exists already, without the host {name}", hint)
        texts[own] = new_host(name, keys)
    return texts


def remove_hosts(files: Files, names: Iterable[str]) -> dict[str, Path]:
    """Removes the sections of the hosts, and drop-ins that become empty; returns the file of each. All are removed, or none.

    Raises UsageError if a host is not configured, ConfigError.
    """
    from backupd.hosts.edit import without_host

    with files.alone():
        places, paths, texts = files.hosts(), dict[str, Path](), dict[Path, str]()
        for name in names:
            path = paths[name] = _file_of(files, name, places)
            texts[path] = without_host(texts[path] if path in texts else _text(path), name)
        _change(files, {path: text if text.strip() or path == files.main else None for path, text in texts.items()}, ())
    return paths


@dataclass(frozen=True, slots=True)
class HostChange:
    """The change of a host's configuration."""

    path: Path
    """The file that declares the host."""
    text: str
    """Its content before."""
    text_after: str
    """Its content after."""
    keys: Mapping[str, tuple[Any, Any]]
    """The value of each changed key, before and after; None: missing."""


@dataclass(frozen=True, slots=True)
class ChangedHosts:
    """The changes of several hosts."""

    hosts: Mapping[str, HostChange]
    """By name."""
    notices: tuple[str, ...]
    """New remarks about the configuration."""
    config: Config
    """The configuration after them."""


def set_hosts(files: Files, names: Sequence[str], keys: Mapping[str, Any], *, write: bool) -> ChangedHosts:
    """Sets these keys of each host, in the file that declares it; None removes a key. Without a difference nothing is written.

    All hosts are changed, or none. Raises UsageError for an unknown host, ConfigError if the configuration would be invalid,
    OperatorError for a file that cannot be changed.
    """
    with files.alone() if write else nullcontext():
        return _set_hosts(files, names, keys, write=write)


def _set_hosts(files: Files, names: Sequence[str], keys: Mapping[str, Any], *, write: bool) -> ChangedHosts:
    from backupd.hosts.edit import with_host_keys  # here: listing hosts does not need tomlkit

    places = files.hosts()
    texts: dict[Path, str] = {}
    hosts: dict[str, HostChange] = {}
    for name in names:
        path = _file_of(files, name, places)
        text = texts[path] if path in texts else _text(path)
        before = _flat(tomllib.loads(text)["host"][name])
        values = {
            key: _with_added(name, key, before, value) if isinstance(value, AddedValues) else value for key, value in keys.items()
        }
        changes = {key: (before.get(key), value) for key, value in values.items() if before.get(key) != value}
        try:
            after = with_host_keys(text, name, {key: value for key, (_, value) in changes.items()})
        except ValueError as error:
            raise OperatorError(f"the host {name} cannot be changed in {path}: {error}", "edit that file") from None
        if changes:
            texts[path] = after
        hosts[name] = HostChange(path, text, after, changes)
    notices: tuple[str, ...] = ()
    with suppress(ConfigError):  # this change may be the correction
        notices = files.load_usable().notices
    config = _change(files, texts, names, write=write)
    return ChangedHosts(hosts, tuple(notice for notice in config.notices if notice not in notices), config)


def _with_added(name: str, key: str, before: Mapping[str, Any], added: AddedValues) -> list[Any]:
    """Returns the list with the new items. Raises UsageError if it would replace an inherited list: only `exclude` adds to its
    inherited value.
    """
    if key not in before and key != EXCLUDE:
        raise UsageError(f"{key} is not set for the host {name} itself, so nothing can be added", f"{key}=VALUE sets it")
    return added.to(before.get(key))


def _text(path: Path) -> str:
    """Returns the text with its original line ends."""
    return path.read_bytes().decode("utf-8-sig")


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Keys of sections within as "retention.daily"."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _file_of(files: Files, name: str, places: Mapping[str, Path] | None = None) -> Path:
    """Returns the file that declares the host. `places`: the file of each host. Raises UsageError."""
    hosts = files.hosts() if places is None else places
    if name not in hosts:
        _require_declared(files, name)
        raise not_configured(name, hosts)
    return hosts[name]


def _require_declared(files: Files, name: str) -> None:
    """Raises ConfigError if the host is, or may be, in a file that could not be read."""
    config = files.load_usable()
    if name in config.excluded or config.unread:
        raise ConfigError(config.faults, "correct that line")


def _change(files: Files, changes: Mapping[Path, str | None], hosts: Iterable[str], *, write: bool = True) -> Config:
    """Returns the configuration after the change of `hosts`. Raises ConfigError, with the remark that nothing was changed."""
    try:
        return files.change(changes, hosts) if write else files.judge(changes, hosts)
    except ConfigError as error:
        raise ConfigError(error.problems, "correct this first; nothing was changed") from None


def _require_utf_8(text: str) -> None:
    """Raises UsageError for typed bytes that TOML cannot represent."""
    for line in text.splitlines():
        try:
            line.encode()
        except UnicodeEncodeError:
            hint = "rename it, or name the folder above it"
            raise UsageError(f"{printable(line)}: this is not valid UTF-8, which the configuration requires", hint) from None


def _put(path: Path, text: str | None) -> None:
    """Replaces, creates or removes a file and syncs it. A link to a file is kept."""
    place = path.resolve() if path.exists() else path
    if text is None:
        place.unlink()
    else:
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _write(place, text)
    with ClosingFd(os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)) as folder:
        os.fsync(folder)


def old_file(path: Path) -> Path:
    """Returns the name of the previous file, which is not read as a drop-in."""
    return path.with_name(f".{path.name}.old")


def _keep_old(place: Path) -> None:
    """Gives the present file a second name, which needs no space. Raises OSError."""
    old_file(place).unlink(missing_ok=True)
    os.link(place, old_file(place))


def _write(place: Path, text: str) -> None:
    """Writes a file completely or not at all. The name of the temporary file is not read as a drop-in."""
    unfinished = place.with_name(f".{place.name}.new")
    unfinished.unlink(missing_ok=True)
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # a configuration may hold passwords
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        if place.exists():
            status, new = place.stat(), os.fstat(fd)
            if (status.st_uid, status.st_gid) != (new.st_uid, new.st_gid):  # the root service may not call it
                os.fchown(fd, status.st_uid, status.st_gid)
            os.fchmod(fd, status.st_mode & 0o7777)
        file.write(text)
        file.flush()
        os.fsync(fd)
    unfinished.replace(place)
