"""Finds the trees of a history, with host and time of each: rsnapshot, dirvish, dated folders, btrbk, snapper. It changes nothing
there, and reads only names, times and small text files.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from pathlib import Path

from backupd.run.importing.rsnapshot_conf import read_conf, read_lines
from btrkeep.config.sources import name_fault
from btrkeep.errors import UsageError
from btrkeep.fs.openat import FOLDER
from btrkeep.pool.subvolume import ROOT_FOLDER

_FIRST_YEAR, _LAST_YEAR = 1970, 9998
_NO_TIME = "its time is invalid"
_INTERVAL = re.compile(r"([A-Za-z][\w-]*)\.(\d{1,5})")
_DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)(?:[T_ .-]?(\d\d)[:.h-]?(\d\d)(?:[:.m-]?(\d\d))?)?(?!\d)")
_BTRBK = re.compile(r"(.+)\.(\d{8})(?:T(\d{4})(?:(\d\d)([+-]\d{4}))?)?(?:_\d+)?")
_SNAPPER_DATE = re.compile(r"<date>([^<]*)</date>")


@dataclass(frozen=True, slots=True)
class OldTree:
    """A tree to import."""

    host: str
    """The host's name in this pool."""
    started: datetime
    """The time of the tree, with zone."""
    folder: Path
    """The folder of the host's data."""
    path: str = "/"
    """The path of that data on the host."""
    identity: tuple[int, int, int] = (0, 0, 0)
    """Identifies the tree after any renaming: device and inode of the folder when its time was read, and the change time in
    nanoseconds of the folder above it if that is the tree's time.
    """


@dataclass(frozen=True, slots=True)
class OldHistory:
    """The history of another program."""

    trees: tuple[OldTree, ...]
    """All trees, by host and time; no two trees of a host have the same second."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Folders that are not trees, with the reason."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The names of hosts in this pool, by their names in the history."""

    @property
    def hosts(self) -> list[str]:
        return sorted({tree.host for tree in self.trees})

    def of(self, host: str) -> list[OldTree]:
        """Returns the trees of one host, oldest first."""
        return [tree for tree in self.trees if tree.host == host]


@dataclass(frozen=True, slots=True)
class HostNames:
    """The chosen hosts."""

    given: Mapping[str, str] = field(default_factory=dict)
    """The names in this pool, by the names in the history (--host NAME=OLDNAME)."""
    plain: tuple[str, ...] = ()
    """Names that were given alone (--host NAME)."""

    @classmethod
    def parse(cls, texts: tuple[str, ...]) -> "HostNames":
        """Parses NAME and NAME=OLDNAME. Raises UsageError."""
        given, plain = dict[str, str](), list[str]()
        for text in texts:
            name, equals, own = text.partition("=")
            if fault := name_fault(name):
                raise UsageError(f"--host {text}: {fault}")
            own = own.strip("/") if equals else name
            if own in given or own in plain:
                raise UsageError(f"--host {text}: {own} was already given")
            if equals:
                given[own] = name
            else:
                plain.append(name)
        return cls(given, tuple(plain))

    @property
    def are_chosen(self) -> bool:
        """Returns True if not all hosts are chosen."""
        return bool(self.given or self.plain)

    def alone(self, question: str) -> str:
        """Returns the name of the host of all trees. Raises UsageError if it is not given."""
        if not self.are_chosen:
            raise UsageError(question, "give --host NAME")
        if self.given or len(self.plain) > 1:
            raise UsageError("all trees belong to one host, so only one name is possible", "give --host NAME, once")
        return self.plain[0]

    def of(self, owns: Set[str]) -> dict[str, str]:
        """Returns the new name of each chosen host of the history. A plain name means the host of that name in the history, or the
        only host in the history. Raises UsageError for a name that could mean several hosts.
        """
        if not self.are_chosen:
            return {own: own for own in owns}
        chosen = {own: name for own, name in self.given.items() if own in owns} | {
            name: name for name in self.plain if name in owns
        }
        for name in self.plain:
            if name in owns:
                continue
            if len(owns) > 1 or self.given or len(self.plain) > 1:
                host_names = ", ".join(sorted(owns))
                raise UsageError(
                    f"--host {name}: no host in the history has this name",
                    f"use --host {name}=OLDNAME, with an old name from: {host_names}",
                )
            chosen |= dict.fromkeys(owns, name)
        return chosen

    def require_found(self, history: "OldHistory", place: Path) -> None:
        """Raises UsageError if a chosen host has no tree in the history, and no folder was left out that could be one."""
        missing = [own for own, name in self.given.items() if name not in history.hosts]
        if missing and not history.skipped:
            raise UsageError(
                f"{place} has no tree of a host {missing[0]}", "use --host NAME=OLDNAME: OLDNAME is the name in the history"
            )


def read_rsnapshot(root: Path, names: HostNames) -> OldHistory:
    """Reads a snapshot root, or the rsnapshot.conf that names it. The time of a tree is that of its interval's folder: rsnapshot
    sets it when it makes interval.0, and afterwards only renames the folder.

    An interval contains a folder for each host.
    """
    root = _root_of(root) if root.is_file() else root
    intervals = [folder for folder in _folders(root) if _INTERVAL.fullmatch(folder.name)]
    if not intervals:
        raise UsageError(f"{root} has no folder such as daily.0", "give the folder snapshot_root of rsnapshot, or rsnapshot.conf")
    old_trees, skipped = list[OldTree](), dict[str, str]()
    for interval in intervals:
        fd = os.open(interval, FOLDER)  # by descriptor, so that it stays the same folder if it is renamed
        try:
            stamp = os.fstat(fd)
            started = _stamped(stamp)
            if started is None:
                skipped[str(interval)] = _NO_TIME
                continue
            for name in sorted(os.listdir(fd)):  # noqa: PTH208  a Path knows no descriptor
                point = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISDIR(point.st_mode):
                    identity = point.st_dev, point.st_ino, stamp.st_mtime_ns
                    old_trees.append(OldTree(name, started, interval / name, identity=identity))
        finally:
            os.close(fd)
    return _history(old_trees, skipped, names)


def _root_of(conf: Path) -> Path:
    if root := read_conf(conf).root:
        return root
    raise UsageError(f"{conf} has no snapshot_root", "give the folder of the snapshots instead: `backupd import rsnapshot FOLDER`")


def read_dirvish(vault: Path, names: HostNames) -> OldHistory:
    """Reads a vault, or a bank of several. Leaves out images whose summary does not report success.

    A host gets the name of the client. If a client has several vaults or branches, one for each path, then each becomes a host with
    the name of the vault, or VAULT-BRANCH: as successive backups of one host, each would have other files than the one before.
    """
    vaults = [vault] if (vault / "dirvish").is_dir() else [folder for folder in _folders(vault) if (folder / "dirvish").is_dir()]
    if not vaults:
        raise UsageError(f"{vault} is neither a vault nor a bank of dirvish: there is no folder `dirvish` in it")
    images, skipped = list[tuple[str, str, OldTree]](), dict[str, str]()
    for vault_folder in vaults:
        for image in _folders(vault_folder):
            summary = image / "summary"
            if not summary.is_file():
                continue
            fields = dict(_pairs(summary))
            started = _time(fields.get("backup-begin") or fields.get("image-now") or "")
            if not fields.get("status", "").startswith("success"):
                skipped[str(image)] = f"its summary has the status: {fields.get('status') or 'none'}"
            elif not (image / "tree").is_dir():
                skipped[str(image)] = "there is no folder `tree` in it"
            elif started is None:
                skipped[str(image)] = "its summary does not contain its start time"
            elif (path := _path_of(fields.get("tree", "/"))) is None:
                skipped[str(image)] = "its summary does not name an absolute path as its tree"
            else:
                tree = OldTree(fields.get("client") or vault_folder.name, started, image / "tree", path, _identity(image / "tree"))
                images.append((vault_folder.name, fields.get("branch", ""), tree))
    return _history(_apart(images), skipped, names)


def _apart(trees: list[tuple[str, str, OldTree]]) -> list[OldTree]:
    """Makes each vault or branch of a client a separate host: see `read_dirvish`."""
    series = {(tree.host, vault, branch) for vault, branch, tree in trees}
    of_client, of_vault = Counter(client for client, _, _ in series), Counter((client, vault) for client, vault, _ in series)
    old_trees = []
    for vault, branch, tree in trees:
        own = f"{vault}-{branch}" if of_vault[tree.host, vault] > 1 else vault
        old_trees.append(replace(tree, host=own) if of_client[tree.host] > 1 else tree)
    return old_trees


def read_dated(root: Path, names: HostNames) -> OldHistory:
    """Reads folders such as 2026-11-20 or 2026-11-20T2200, and backup.0, whose time is that of its folder. All belong to one
    host.
    """
    host = names.alone("the host of these trees is unknown")
    old_trees, skipped = list[OldTree](), dict[str, str]()
    for folder in _folders(root):
        stamp, is_interval = _stamped(folder.stat()), _INTERVAL.fullmatch(folder.name)
        started = stamp if is_interval else _dated(folder.name, stamp)
        if started is None:
            skipped[str(folder)] = _NO_TIME if is_interval else "its name is neither a date nor like backup.0"
        else:
            old_trees.append(OldTree(host, started, folder, identity=_identity(folder)))
    if not old_trees:
        raise UsageError(f"{root} has no folder with a date in its name, such as 2026-11-20")
    return _history(old_trees, skipped, names)


def read_btrbk(folder: Path, names: HostNames) -> OldHistory:
    """Reads snapshots of btrbk: NAME.YYYYMMDD, optionally followed by THHMM, or THHMMSS and a zone, and then by _N. Each NAME is a
    host.
    """
    old_trees, skipped = list[OldTree](), dict[str, str]()
    for snapshot in _folders(folder):
        match = _BTRBK.fullmatch(snapshot.name)
        started = _btrbk_time(match) if match else None
        if match is None or started is None:
            skipped[str(snapshot)] = "its name is not that of a btrbk snapshot, such as home.20261120T2200"
        else:
            _take_snapshot(old_trees, skipped, OldTree(match[1], started, snapshot))
    return _snapshots(folder, names, old_trees, skipped)


def _btrbk_time(match: "re.Match[str]") -> datetime | None:
    """Returns the time in the name; it is local time if the name has no zone."""
    _, day, minute, second, zone = match.groups()
    try:
        text = f"{day}{minute or '0000'}{second or '00'}"
        if zone:
            return _plausible_time(datetime.strptime(text + zone, "%Y%m%d%H%M%S%z"))
        return _plausible_time(datetime.strptime(text, "%Y%m%d%H%M%S").astimezone())
    except (ValueError, OverflowError):
        return None


def read_snapper(folder: Path, names: HostNames) -> OldHistory:
    """Reads a `.snapshots` of snapper, or the subvolume that contains it: N/info.xml with the time, in UTC, and N/snapshot."""
    host = names.alone("the host of these snapshots is unknown")
    inner = folder / ".snapshots"
    folder = inner if inner.is_dir() and not inner.is_symlink() else folder
    old_trees, skipped = list[OldTree](), dict[str, str]()
    for snapshot in _folders(folder):
        if not (snapshot / "snapshot").is_dir() or (snapshot / "snapshot").is_symlink():
            skipped[str(snapshot)] = "there is no folder `snapshot` in it"
            continue
        match = _SNAPPER_DATE.search(" ".join(read_lines(snapshot / "info.xml")) if (snapshot / "info.xml").is_file() else "")
        try:
            started = _plausible_time(datetime.strptime(match[1] if match else "", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC))
        except ValueError:
            started = None
        if started is None:
            skipped[str(snapshot)] = "its info.xml has no date"
            continue
        _take_snapshot(old_trees, skipped, OldTree(host, started, snapshot / "snapshot"))
    return _snapshots(folder, names, old_trees, skipped)


def _take_snapshot(old_trees: list[OldTree], skipped: dict[str, str], tree: OldTree) -> None:
    identity = _identity(tree.folder)
    if identity[1] != ROOT_FOLDER:
        skipped[str(tree.folder)] = "it is not a subvolume"
    else:
        old_trees.append(replace(tree, identity=identity))


def _snapshots(folder: Path, names: HostNames, old_trees: list[OldTree], skipped: dict[str, str]) -> OldHistory:
    if not old_trees and not skipped and not names.given:
        raise UsageError(f"there are no snapshots in {folder}")
    return _history(old_trees, skipped, names)


TAKEN_OVER = ("btrbk", "snapper")
"""Formats whose trees are snapshots on the pool's filesystem, which need not be copied (takeover.py)."""
READERS: Mapping[str, Callable[[Path, HostNames], OldHistory]] = {
    "rsnapshot": read_rsnapshot,
    "dirvish": read_dirvish,
    "tree": read_dated,
    "btrbk": read_btrbk,
    "snapper": read_snapper,
}
"""The readers by the format's name. Each raises UsageError if the folder has another format, OSError."""


def _history(all_trees: list[OldTree], skipped: dict[str, str], names: HostNames) -> OldHistory:
    """Returns the trees of the chosen hosts, in order. The name of a backup has whole seconds, so of two trees in one second the
    second one gets the next second. Raises UsageError if two hosts with trees of the same period would become one.
    """
    chosen, trees = names.of({old_tree.host for old_tree in all_trees}), list[OldTree]()
    all_trees = [old_tree for old_tree in all_trees if old_tree.host in chosen]
    all_trees.sort(key=lambda old_tree: (chosen[old_tree.host], old_tree.started, old_tree.folder))
    for name, of_one in groupby(all_trees, key=lambda old_tree: chosen[old_tree.host]):
        old_trees = list(of_one)
        if fault := name_fault(name):
            skipped |= {str(old_tree.folder): f"{name!r} {fault}: give --host NAME={old_tree.host}" for old_tree in old_trees}
            continue
        _require_successors(name, old_trees)
        last = None
        for old_tree in old_trees:
            started = old_tree.started.replace(microsecond=0)
            if last is not None and started <= last:
                started = last + timedelta(seconds=1)
            last = started
            trees.append(replace(old_tree, host=name, started=started))
    return OldHistory(tuple(trees), skipped, chosen)


def _require_successors(name: str, trees: list[OldTree]) -> None:
    """Raises UsageError if the trees are of several hosts, unless the trees of one end before those of the next start: then that
    host was renamed in the history.
    """
    owns = [(own, [old_tree.started for old_tree in old_trees]) for own, old_trees in groupby(trees, key=lambda tree: tree.host)]
    if len(owns) > len(dict(owns)) or any(times[-1] == other[0] for (_, times), (_, other) in pairwise(owns)):
        first, other = sorted(dict(owns))[:2]
        raise UsageError(f"{first} and {other} are two hosts in the history, at the same time: only one of them can be {name}")


def _dated(name: str, stamp: datetime | None) -> datetime | None:
    """Parses the time in a name that starts with a date. Without an hour it is the folder's own time, if that is on the
    same day.
    """
    match = _DATE.match(name)
    if match is None:
        return None
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups())
        parsed = _plausible_time(datetime(year, month, day, hour, minute, second).astimezone())
    except (ValueError, OverflowError):
        return None
    return stamp if parsed and stamp and match[4] is None and stamp.date() == parsed.date() else parsed


def _plausible_time(moment: datetime) -> datetime | None:
    """Returns the time; None for years in which no backup can be; computing with some of them would fail."""
    return moment if _FIRST_YEAR <= moment.year <= _LAST_YEAR else None


def _stamped(status: os.stat_result) -> datetime | None:
    """Returns a folder's time, which a host may have chosen; None if it is not a date of the calendar."""
    try:
        return _plausible_time(datetime.fromtimestamp(status.st_mtime).astimezone())
    except (ValueError, OverflowError, OSError):
        return None


def _path_of(text: str) -> str | None:
    """Returns the path of a host in a summary; None if it is not a plain absolute path."""
    path = (text.split() or ["/"])[0]
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return "/" + "/".join(parts) if path.startswith("/") and ".." not in parts and "\0" not in path else None


def _identity(folder: Path) -> tuple[int, int, int]:
    status = folder.lstat()
    return status.st_dev, status.st_ino, 0


def _time(text: str) -> datetime | None:
    try:
        return _plausible_time(datetime.strptime(text.strip()[:19], "%Y-%m-%d %H:%M:%S").astimezone())
    except (ValueError, OverflowError):
        return None


def _folders(folder: Path) -> list[Path]:
    """Returns the folders, without symlinks, which lead to other data."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    for line in read_lines(file):
        key, colon, value = line.partition(":")
        if colon and not line.startswith((" ", "\t")):
            yield key.strip().lower(), value.strip()
