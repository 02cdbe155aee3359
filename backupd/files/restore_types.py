"""The request, target, plan, progress and result of a restore: plain data for the command and the dashboard."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from backupd.files.conflict_policy import CONTENT_ONLY, ENTERED, KEPT, NEW, OVERWRITTEN, REFUSED, SAME, differs_words
from backupd.files.placing import FolderVisits, Names, PlainVisits, place_path
from backupd.files.tree import Entry
from backupd.files.walking import PlainFile
from btrkeep.config import Config, HostConfig
from btrkeep.errors import OperatorError, UsageError
from btrkeep.units import counted, format_size, printable

SAMPLES = 20
STEPS = (NEW, SAME, ENTERED, OVERWRITTEN, KEPT, REFUSED)
_TARGET = re.compile(r"((?:[^@:/\s]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^:/@\s\[\]-][^:/@\s\[\]]*)):(/.*)?", re.DOTALL)
ORIGINAL = ""
"""As `to`: the host itself, each path in its original place."""


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A request to restore paths of a backup to a destination."""

    host: str
    """The host's name."""
    backup: str
    """A name that `backup_selector.find` accepts."""
    paths: tuple[bytes, ...]
    """On the host."""
    to: str
    """ORIGINAL, an absolute folder of this machine, or [USER@]HOST:DIR."""
    overwrite: str | None = None
    """None refuses to overwrite anything; otherwise one of conflict_policy.OVERWRITE."""
    parents: bool = False
    """True if whole paths are kept."""
    content: bool = True
    """True if the written data is read again and compared."""
    privileged: bool = False
    """For a folder of this machine: setuid bits, capabilities and device nodes are restored too, and the destination itself may
    get owner and mode of the backup's root. Other machines always get them."""
    anyway: bool = False
    """True if other users may control a part of the path of a folder of this machine."""
    port: int | None = None
    """The ssh port; None: as configured."""
    only_below: tuple[str, ...] = ()
    """Folders of this machine outside of which nothing is written; () for root, who may write anywhere."""


@dataclass(frozen=True, slots=True)
class Target:
    """A machine and a folder on it."""

    host: HostConfig
    """The machine."""
    folder: bytes
    """Absolute."""
    original: bool
    """True if each path is restored to its original place."""

    def __str__(self) -> str:
        machine = self.host.address or "this machine"
        return machine if self.original else f"{machine}:{printable(self.folder)}"


def target_of(config: Config, host: str, text: str, port: int | None = None) -> Target:
    """Returns the target: the configured host for "", otherwise [USER@]HOST:DIR. Raises UsageError."""
    host_config = config.hosts.get(host)
    if not text:
        if host in config.excluded:
            fault = config.excluded[host].fault
            raise UsageError(f"{host} is configured, with a mistake: {fault}", "correct that line, or give --to-host USER@HOST:DIR")
        if host_config is None:
            raise UsageError(f"{host} is not configured, so it has no address", "add --to-host USER@HOST:DIR")
        return Target(replace(host_config, port=port or host_config.port), b"/", original=True)
    match = _TARGET.fullmatch(text)
    if not match or not match[2] or "\0" in text:
        raise UsageError(
            f"--to-host {printable(text)}: expected [USER@]HOST:DIR, with a DIR that begins with /",
            "write --to-host at the end for the host itself, or name a machine, such as --to-host root@192.0.2.7:/mnt",
        )
    address, folder = match[1], match[2].encode("utf-8", "surrogateescape")
    if host_config and host_config.address and _machine(host_config.address) == _machine(address):
        return Target(replace(host_config, address=address, port=port or host_config.port), folder, original=False)
    return Target(HostConfig(host, address=address, port=port, paths=()), folder, original=False)


def _machine(address: str) -> str:
    return address.rpartition("@")[2]


@dataclass(slots=True)
class RestoreCount:
    """A number of names, with samples."""

    number: int = 0
    """Number of names."""
    size: int = 0
    """Bytes of the files among them."""
    samples: list[tuple[bytes, str]] = field(default_factory=list)
    """Up to SAMPLES of their places, each with a reason."""
    content_only: bool = False
    """True if one of them differs only in its content."""

    def add_difference(self, place: bytes, fields: Sequence[str], size: int = 0) -> None:
        """Adds a name that differs in these fields."""
        self.content_only = self.content_only or tuple(fields) == CONTENT_ONLY
        self.add(place, differs_words(fields), size)

    def add(self, place: bytes, why: str = "", size: int = 0) -> None:
        """Adds a name."""
        self.number += 1
        self.size += size
        if len(self.samples) < SAMPLES:
            self.samples.append((place, why))

    def add_at(self, to: str, place: Names, why: str = "", size: int = 0) -> None:
        """Adds a name at a place below the folder `to`."""
        self.number += 1
        self.size += size
        if len(self.samples) < SAMPLES:
            self.samples.append((place_path(to, place), why))

    def add_plain(self, to: str, plain: PlainVisits, files: Sequence[PlainFile]) -> None:
        """Adds some files of a group."""
        self.number += len(files)
        self.size += sum(file.size for file in files)
        for file in files[: SAMPLES - len(self.samples)]:
            self.samples.append((place_path(to, (*plain.place, file.name)), ""))

    def add_folders(self, to: str, visits: FolderVisits) -> None:
        """Adds folders with all that is in them."""
        totals = visits.group.totals
        number, size = self.number + totals.names, self.size + totals.size
        for folder in visits.group.folders if len(self.samples) < SAMPLES else ():
            self.add_at(to, (*visits.place, folder.name))
            self.add_plain(to, visits.files_of(folder), folder.files)
        self.number, self.size = number, size

    def take_back(self, place: bytes, size: int = 0) -> None:
        """Removes a name that was counted before an attempt that failed."""
        self.number = max(0, self.number - 1)
        self.size = max(0, self.size - size)
        self.samples = [sample for sample in self.samples if sample[0] != place]


@dataclass(slots=True)
class Withheld:
    """Privileges that are not restored unless requested: device nodes, setuid and setgid bits of files, and attributes that grant
    privileges, above all capabilities.
    """

    devices: RestoreCount = field(default_factory=RestoreCount)
    """Device nodes."""
    setuid: RestoreCount = field(default_factory=RestoreCount)
    """Files with setuid or setgid bits."""
    capabilities: RestoreCount = field(default_factory=RestoreCount)
    """Files with capabilities or other attributes that grant privileges."""

    @property
    def number(self) -> int:
        """Number of withheld device nodes and files."""
        return self.devices.number + self.setuid.number + self.capabilities.number


@dataclass(slots=True)
class RestorePreview:
    """The preview of a restore. Sizes are bytes."""

    to: str
    """The destination, in words."""
    counts: dict[str, RestoreCount] = field(default_factory=lambda: {step: RestoreCount() for step in STEPS})
    """Names by the steps of conflict_policy, including existing folders (ENTERED)."""
    files: int = 0
    """Number of plain files."""
    folders: int = 0
    """Number of folders."""
    others: int = 0
    """Number of other names."""
    size: int = 0
    """Total bytes of the files."""
    needed: int | None = None
    """The space that it needs; None: unknown, on another machine."""
    free: int | None = None
    """Free space at the destination; None: unknown, on another machine."""
    reflinks: bool = False
    """True if the files will share the backup's data."""
    withheld: Withheld = field(default_factory=Withheld)
    """Privileges that are not restored unless requested."""

    def count(self, entry: Entry) -> None:
        """Counts a name of the backup by its type."""
        self.files += entry.kind == "file"
        self.folders += entry.kind == "folder"
        self.others += entry.kind not in ("file", "folder")
        self.size += entry.size if entry.kind == "file" else 0

    def count_new_folders(self, visits: FolderVisits) -> None:
        """Counts folders that do not exist yet, with their files."""
        totals = visits.group.totals
        self.counts[NEW].add_folders(self.to, visits)
        self.folders += totals.folders
        self.files += totals.files
        self.others += totals.symlinks
        self.size += totals.size

    def count_new(self, plain: PlainVisits) -> None:
        """Counts a group of files that do not exist yet."""
        count = self.counts[NEW]
        before = count.size
        count.add_plain(self.to, plain, plain.group.files)
        symlinks = sum(file.is_symlink for file in plain.group.files)
        self.files += len(plain.group.files) - symlinks
        self.others += symlinks
        self.size += count.size - before

    @property
    def names(self) -> int:
        """Number of all names."""
        return self.files + self.folders + self.others

    @property
    def to_write(self) -> int:
        """Bytes of the files that would be written or linked."""
        return self.counts[NEW].size + self.counts[OVERWRITTEN].size

    def require_possible(self) -> None:
        """Raises OperatorError if the request would overwrite files without permission, or if there is not enough free space."""
        refused = self.counts[REFUSED]
        if refused.number:
            samples = "\n".join(f"{printable(place)}: {why}" for place, why in refused.samples[:5])
            more = f"\nand {refused.number - 5:,} more" if refused.number > 5 else ""
            exist = (
                f"{counted(refused.number, 'name')} already {'exists and differs' if refused.number == 1 else 'exist and differ'}"
            )
            raise OperatorError(
                f"{exist}, so nothing was written\n{samples}{more}",
                "--overwrite=never restores only missing files, =older and =all overwrite; move files of another kind to another "
                "folder first",
            )
        if self.needed is not None and self.free is not None and self.needed > self.free:
            raise OperatorError(
                f"{format_size(self.needed)} are needed, but {self.to} has only {format_size(self.free)}, so nothing was written",
                "restore fewer paths, or to a larger filesystem",
            )


@dataclass(slots=True)
class RestoreProgress:
    """The progress of a restore."""

    phase: str = "looking"
    """looking, writing, syncing (to disk) or comparing."""
    files: int = 0
    """Number of names that this phase has completed."""
    size: int = 0
    """Bytes that this phase has completed."""
    all_files: int = 0
    """Number of names in all."""
    all_size: int = 0
    """Bytes in all."""
    to: str = ""
    """The destination, in words."""
    names: Names = ()
    """The place that is being written or compared."""
    begun: float = field(default_factory=time.monotonic)
    """When the phase started, by time.monotonic()."""

    @property
    def place(self) -> bytes:
        """Returns the path of the name that is being processed."""
        return place_path(self.to, self.names)

    def turn_to(self, phase: str, files: int, size: int) -> None:
        """Starts the next phase, with these totals."""
        self.phase, self.all_files, self.all_size = phase, files, size
        self.files, self.size, self.begun = 0, 0, time.monotonic()


@dataclass(slots=True)
class RestoreResult:
    """The result of a restore."""

    counts: dict[str, RestoreCount] = field(default_factory=lambda: {step: RestoreCount() for step in STEPS})
    """Names by the steps of conflict_policy."""
    problems: RestoreCount = field(default_factory=RestoreCount)
    """Names that could not be written, or only partly."""
    differences: RestoreCount = field(default_factory=RestoreCount)
    """Names that differ from the backup."""
    reflinked: int = 0
    """Bytes that share the backup's data."""
    copied: int = 0
    """Bytes that were copied."""
    compared: int = 0
    """Bytes that were read on both sides."""
    seconds: float = 0.0
    """How long it took."""
    withheld: Withheld = field(default_factory=Withheld)
    """Privileges that were not restored because they were not requested."""

    def add_undeleted(self, to: str, place: Names, undeleted: Iterable[tuple[bytes, str]]) -> None:
        """Adds temporary names that could not be deleted in the folder at a place below `to`. The next restore tries again to
        delete them.
        """
        for name, why in undeleted:
            self.problems.add(place_path(to, (*place, name)), f"could not delete this temporary file of the restore: {why}")

    @property
    def good(self) -> bool:
        """Returns True if everything was restored and is equal."""
        return not self.problems.number and not self.differences.number

    @property
    def failure(self) -> str:
        """Formats the failures, with the first name and its reason; "" if there were none."""
        numbers = [
            f"{counted(count.number, 'name')} {words}"
            for count, words in ((self.problems, "could not be restored"), (self.differences, "different from the backup"))
            if count.number
        ]
        place, why = (*self.problems.samples, *self.differences.samples, (b"", ""))[0]
        return ", ".join(numbers) + (f": {printable(place)}: {why}" if place else "")


Tell = Callable[[RestoreProgress], None]
"""Called repeatedly during the work; may raise Cancelled."""
