"""The configuration for the programs: frozen, parsed, complete, with all inherited values.

Sizes are bytes, durations seconds, shares fractions of one. Each field with a key declares it. The periods of a Retention are the
base of the keys of [retention], of the backups that decisions/retention keeps, of its words, and of the letters of the calendars.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

from btrkeep.config import settings
from btrkeep.config import value_types as kinds
from btrkeep.config.config_key import EVERY_HOST, HOST, OFFSITE, PUSH, REPLICA, RETENTION, SHARED, ConfigKey, entry, filled_by
from btrkeep.config.values import SizeOrShare, Window
from btrkeep.errors import ConfigError, UsageError, did_you_mean, quoted


@dataclass(frozen=True, slots=True)
class RetentionPeriod:
    """A period. `name`: the key of the configuration, the code of the reason in JSON, and the word in messages.

    `number`: returns the number of the period that contains a local day, higher for later ones. `days`: its usual length. `letter`,
    `colour` (one of xterm's 256) and `style` (a class of the style sheet): its look on calendars.
    """

    name: str
    number: Callable[[date], int]
    days: int
    letter: str
    colour: int
    style: str


def _week(day: date) -> int:
    year, week, _ = day.isocalendar()
    return year * 100 + week


def _period(number: Callable[[date], int], days: int, letter: str, colour: int, style: str, example: str, meaning: str) -> Any:
    declared = ConfigKey((RETENTION,), kinds.NUMBER, 0, example, meaning)
    return field(default=declared.value, metadata={**declared.metadata, "period": (number, days, letter, colour, style)})


# fmt: off
@dataclass(frozen=True, slots=True)
class Retention:
    """For each length of period, how many periods keep a backup. The newest `min_keep` complete backups are always kept. `grace` is
    seconds.

    Each period has a field; the shortest comes first.
    """

    daily: int = _period(lambda day: day.toordinal(), 1, "d", 28, "good", "14",
        "How many days keep a backup: the first complete backup of each of the newest days that have one is kept.")
    weekly: int = _period(_week, 7, "W", 31, "busy", "13", "The same for ISO weeks, which begin on Monday.")
    monthly: int = _period(lambda day: day.year * 100 + day.month, 30, "M", 133, "odd", "12", "The same for months.")
    yearly: int = _period(lambda day: day.year, 365, "Y", 166, "odd", "3", "The same for years.")
    min_keep: int = entry((RETENTION,), kinds.COUNT, 3, "5",
        "How many of the newest complete backups of a host are kept, regardless of the rules.")
    grace: float = entry((RETENTION,), kinds.DURATION, "1d", '"3d"',
        "How long an expired backup can still be restored, or kept again with ``backupd unexpire``, before it is deleted.")

    @property
    def missing(self) -> bool:
        """Returns True if there is no rule at all, so that everything is kept."""
        return not any(getattr(self, name) for name in PERIOD_NAMES)
# fmt: on


PERIODS = tuple(RetentionPeriod(key.name, *key.metadata["period"]) for key in fields(Retention) if "period" in key.metadata)
PERIOD_NAMES = tuple(period.name for period in PERIODS)


# fmt: off
@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A group of hosts."""

    name: str
    """Its name."""
    concurrency: int | None = None
    """Its own limit, in addition to the pool's; None: no limit."""
    bandwidth: int | None = None
    """Its own limit in bytes per second, in addition to the pool's; None: no limit."""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """The parsed values that it sets for its hosts, by key, without `retention`."""
    retention: Retention = field(default_factory=Retention)
    """The retention of its hosts that set none."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """One host."""

    name: str
    """Its name."""
    group: str | None = entry((HOST,), kinds.GROUP, None, '"debian"',
        "The group whose settings the host inherits. Without it: none.", False, shown=True)
    address: str | None = entry((HOST,), kinds.ADDRESS, None, '"root@web1.example.org"',
        "How ssh reaches the host; an IPv6 address in brackets. Without it: this machine.", False, shown=True)
    share_with: str | None = entry(SHARED, kinds.HOST_NAME, None, '"web1"',
        "A similar host, such as one with the same distribution. After a run, files that are identical to the file of the same "
        "path in that host's newest complete backup share its data: see :doc:`sharing`. In a group, the named host itself is "
        "skipped. Without it: nothing is shared between hosts.")
    share_across_groups: bool = entry(SHARED, kinds.FLAG, False, "true",
        "Whether ``share_with`` may name a host of another group. Users who may see one of the two hosts can then find out whether "
        "the other host has a certain file.")
    paths: tuple[str, ...] = field(default=(), metadata=ConfigKey(SHARED, kinds.SOURCES, None, '["/etc", "/srv"]',
        "The source paths: absolute, none inside another. Required, in the host or in its group.", shown=True).metadata)
    enabled: bool = entry(SHARED, kinds.FLAG, True, "false",
        "false: the host is backed up only if a command names it. Its backups are kept.", shown=True)
    optional: bool = entry(SHARED, kinds.FLAG, False, "true",
        "true: an absent host, such as a laptop, is not a failure. It is absent if there is no route to it, it does not answer, "
        "refuses the connection, or its name does not resolve. A refused key or another host key is a failure.", shown=True)
    max_absence: float | None = entry(SHARED, kinds.TIME_LIMIT, "14d", '"30d"',
        'The age of the newest complete backup at which an ``optional`` host is late. ``"none"``: it is never late.', shown=True)
    calls: bool = entry(SHARED, kinds.FLAG, False, "true",
        "true: the host cannot be reached, and calls this server with ``btrkeep-source call``, which starts its backup: see "
        ":doc:`many-hosts`. Needs ``address``; its name is not resolved, but finds the host's key in the file of known hosts.",
        shown=True)
    port: int | None = filled_by(settings.PORT)
    rsync_path: str | None = entry(SHARED, kinds.COMMAND, None, '"sudo rsync"',
        "The command for rsync on the host. The rsync of macOS and OpenBSD is openrsync, which lacks necessary options: install "
        "rsync there; Homebrew's is ``/opt/homebrew/bin/rsync``.")
    snapshots: str = entry(SHARED, kinds.SNAPSHOTS, "off", '"auto"',
        "Whether the files are read from snapshots that ``btrkeep-source`` makes on the host, so that they are all of the same "
        "moment: see :doc:`sources`. auto: a path without a snapshot is read live. required: a backup with such a path is suspect, "
        "and the run fails if the host makes no snapshots at all. Needs ``address``, and excludes ``rsync_path``.", shown=True)
    engine: str = entry(SHARED, kinds.ENGINE, "rsync", '"send"',
        "How the files come here. send: the host's btrfs sends what changed since the previous backup, by ``btrkeep-source``: see "
        ":doc:`sources`. Each source path must be a subvolume there. Needs ``address``, and excludes ``rsync_path`` and "
        "``exclude``.")
    keep_on_host: str | None = entry(EVERY_HOST, kinds.HISTORY, None, '"daily=7, weekly=4"',
        'With ``engine = "send"``: which of the snapshots that were sent stay on the host as local history, in addition to those '
        "that the next stream needs. Of each of the newest days, weeks, months or years with one, the first is kept. The host's "
        'administrator allows it with ``history``: see :doc:`sources`. Without it, or with ``"none"``: no others.')
    ssh_options: tuple[str, ...] = filled_by(settings.SSH_OPTIONS)
    before: tuple[str, ...] = entry(SHARED, kinds.WORDS, [], '["/usr/local/bin/dump-databases", "{address}"]',
        "A command, run on this machine without a shell before the host's transfers; ``{host}`` and ``{address}`` are replaced "
        "by the host's name and address. Exit status 75 skips the host in this run; with any other status than 0 the host fails.")
    after: tuple[str, ...] = entry(SHARED, kinds.WORDS, [], '["/usr/local/bin/thaw", "{address}"]',
        "The same, after the host's transfers.")
    boot_checks: tuple[str, ...] = entry(SHARED, kinds.WORDS, [], '["pg_isready", "test -s /var/www/index.html"]',
        "Shell commands that ``backupd drill --boot`` runs in the booted system; each must exit with 0.")
    bandwidth: int | None = filled_by(settings.BANDWIDTH)
    window: Window | None = filled_by(settings.WINDOW)
    every: float = filled_by(settings.EVERY)
    late: float | None = entry(EVERY_HOST, kinds.DURATION, None, '"2d"',
        "The age of a host's newest complete backup at which the host is late. Without it: 1.5 times ``every``, and at least one "
        "missed window. For ``optional`` hosts see ``max_absence``.", shown=True)
    attempts: int = entry(EVERY_HOST, kinds.COUNT, 3, "5",
        "How many times a failed transfer is attempted in one run.", shown=True)
    stall: float = filled_by(settings.STALL)
    deadline: float = entry(EVERY_HOST, kinds.DURATION, "6h", '"12h"',
        "A host that takes longer than this in one run is stopped, and continued in the next.", shown=True)
    max_files: int | None = entry(EVERY_HOST, kinds.COUNT_LIMIT, None, "1000000",
        "How many files, folders and links may be new in a backup; each hard link and each replaced file counts. A host with "
        'more is stopped. Without it, or with ``"none"``: no limit.', shown=True)
    max_new_bytes: int | None = entry(EVERY_HOST, kinds.SIZE_LIMIT, None, '"200GiB"',
        "How much new data a backup may have, in its files and their attributes. A host with more is stopped. Without it, or "
        'with ``"none"``: no limit.', shown=True)
    max_memory: SizeOrShare = entry(EVERY_HOST, kinds.SIZE_OR_SHARE, "50%", '"4GiB"',
        "How much memory a host's rsync may use on this machine: a share of the machine's or a size. If it uses more, it is "
        "stopped.")
    quota: int | None = entry(EVERY_HOST, kinds.SIZE_LIMIT, None, '"500GiB"',
        "The space on the disks for all backups of a host together: see :doc:`quotas`. It needs simple quotas (``backupd quota "
        'enable``). Without it, or with ``"none"``: no limit.', shown=True)
    inplace: str = entry(EVERY_HOST, kinds.IN_PLACE, "always", '"large"',
        "Which changed files are written in place, so that unchanged blocks stay shared with earlier backups: "
        "all, large ones or none.", shown=True)
    shrink_limit: float = entry(EVERY_HOST, kinds.SHARE, "50%", '"20%"',
        "How much of a source path, in files or in bytes, may be missing compared with the previous backup. If more is missing, "
        "the backup is suspect. Paths excluded since then, without wildcards, do not count.", shown=True)
    unreadable_limit: float = entry(EVERY_HOST, kinds.SHARE, "1%", '"5%"',
        "How many of a source path's files may be unreadable; a folder counts with all its files in the previous backup. The "
        "backup is suspect if more are unreadable, if nothing could be read, or if a missing mount hides a larger share of its "
        "files or bytes.", shown=True)
    exclude: tuple[str, ...] = entry(EVERY_HOST, kinds.PATTERNS,
        ["/proc/*", "/sys/*", "/dev/*", "/run/*", "/tmp/*", "/var/tmp/*", "lost+found"], '["/var/cache/apt/archives/*", "*.iso"]',
        "Files that are not backed up, see `Exclude patterns`_. In [backup] it replaces the default; in a group or a host it "
        "adds to the inherited patterns.", shown=True,
        beside=ConfigKey(EVERY_HOST, kinds.PATTERNS, None, '["/proc/*", "/sys/*", "/dev/*"]',
        "Replaces all inherited patterns; an ``exclude`` in the same section adds to it.", name="exclude_only"))
    one_file_system: bool = entry(EVERY_HOST, kinds.FLAG, False, "true",
        "Do not back up filesystems mounted below a source path, nor nested btrfs subvolumes such as ``/home`` of many "
        "distributions. Each backup lists these folders in a warning. Files hidden under a mount cannot be read, with or "
        "without this key; with it, backups keep their earlier versions.",
        shown=True)
    retention: Retention = field(default_factory=Retention)
    """The rules for its backups."""
    self_excluded: tuple[str, ...] = ()
    """Exclude patterns for the pool and the state folder, if the host is this machine."""
    fault: str = ""
    """The mistake that prevents its backup, FILE:LINE and the reason; "": none. The other settings are then those of its
    last valid configuration, or the defaults, and are for reports only."""

    def hook_words(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the words of a hook with {host} and {address} replaced. Replaces nothing else, and uses no shell."""
        return tuple(word.replace("{host}", self.name).replace("{address}", self.address or "") for word in words)


@dataclass(frozen=True, slots=True)
class CopySettings:
    """The common settings of all copies. `kind`: the name of the section. Times are seconds."""

    name: str
    hosts: tuple[str, ...] = entry((REPLICA, PUSH, OFFSITE), kinds.HOST_PATTERNS, ["*"], '["web*", "db1"]',
        "The hosts that are fetched, or sent: names, or patterns as in the shell.", False)
    bandwidth: int | None = filled_by(settings.BANDWIDTH)
    window: Window | None = filled_by(settings.WINDOW)
    every: float = filled_by(settings.EVERY)
    max_age: float | None = filled_by(settings.MAX_AGE)
    stall: float = filled_by(settings.STALL)

    kind: ClassVar[str]

    @property
    def oldest(self) -> float:
        """The age in seconds at which a copy counts as late."""
        return self.max_age or 2 * self.every

    @property
    def comes_and_goes(self) -> bool:
        """Returns False: if the other server cannot be reached, that is always reported."""
        return False

    @property
    def source(self) -> str:
        """Returns the other server as the configuration writes it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ReplicaSettings(CopySettings):
    """Another pool's backups, fetched into this one: from a `folder` of this machine, from `address`, or, without both, over a
    connection that the other server starts. `retention`: this pool's own rules for them. Times are seconds.
    """

    address: str | None = entry((REPLICA,), kinds.COPY_SOURCE, None, '"ssh://root@backup1.example.org"',
        "The source of the backups: another backup server, or the folder of a pool on this machine, such as on an external disk. "
        '``"push"``: the other server sends them, because it cannot be reached from here. Required.',
        False, name="from")
    folder: Path | None = None
    """The folder of a pool on this machine; None: the backups come over a connection."""
    pool_name: str = filled_by(settings.POOL_NAME)
    port: int | None = filled_by(settings.PORT)
    ssh_options: tuple[str, ...] = filled_by(settings.SSH_OPTIONS)
    concurrency: int = filled_by(settings.CONCURRENCY)
    newest_only: bool = entry((REPLICA,), kinds.FLAG, False, "true",
        "true: only the newest backup of each host is fetched. false: all that this pool's retention keeps.", False)
    take_holds: bool = entry((REPLICA,), kinds.FLAG, True, "false",
        "Whether a hold in the other pool also holds the copy here. false: an attacker on the other server cannot fill this pool "
        "with backups that are never deleted.", False)
    longest_hold: float | None = entry((REPLICA,), kinds.TIME_LIMIT, "none", '"90d"',
        "How long a hold of a fetched copy lasts here at most, from the time of the fetch.", False)
    retention: Retention = field(default_factory=Retention)
    """This pool's own rules for the fetched backups."""

    kind: ClassVar[str] = "replica"

    @property
    def comes_and_goes(self) -> bool:
        """Returns True if its pool is on a disk of this machine that may be absent."""
        return self.folder is not None

    @property
    def source(self) -> str:
        """Returns the source as the configuration writes it."""
        return f"ssh://{self.address}" if self.address else str(self.folder or "push")

    @property
    def is_pushed(self) -> bool:
        """Returns True if the other server connects to this one."""
        return not self.address and not self.folder


@dataclass(frozen=True, slots=True)
class PushSettings(CopySettings):
    """Another backup server to which this pool's backups are sent. That server decides what it accepts and keeps. Times are
    seconds.
    """

    address: str = field(default="", metadata=ConfigKey((PUSH,), kinds.COPY_TARGET, None, '"ssh://root@backup2.example.org"',
        "The backup server that receives this pool's backups, because it cannot reach this one. Required.",
        False, name="to").metadata)
    pool_name: str = filled_by(settings.POOL_NAME)
    port: int | None = filled_by(settings.PORT)
    ssh_options: tuple[str, ...] = filled_by(settings.SSH_OPTIONS)

    kind: ClassVar[str] = "push"

    @property
    def source(self) -> str:
        """Returns the destination as the configuration writes it."""
        return f"ssh://{self.address}"


@dataclass(frozen=True, slots=True)
class FetchedBySettings(CopySettings):
    """A pool that fetches from this one, as the copy `name`. Nothing is done for it here: there is an alarm if it stops
    fetching.
    """

    kind: ClassVar[str] = "fetched_by"

    @property
    def source(self) -> str:
        """Returns "": only the other server knows its address."""
        return ""


@dataclass(frozen=True, slots=True)
class OffsiteSettings(CopySettings):
    """A repository of restic to which the newest backups of hosts are sent. Without `retention` nothing is ever removed there.

    `repository` and the password are set here or in `environment_file`. Times are seconds.
    """

    repository: str | None = entry((OFFSITE,), kinds.RESTIC_REPOSITORY, None, '"rest:https://copies.example.org/main"',
        "The repository, as in :manpage:`restic(1)`: a folder, ``sftp:``, ``rest:``, ``s3:``, ``rclone:`` and others. Put an "
        "address with a password into ``environment_file``, as ``RESTIC_REPOSITORY=``.", False)
    password_file: Path | None = entry((OFFSITE,), kinds.PATH, None, '"/etc/btrkeep/offsite.password"',
        "The file with the password of the repository, readable only by root. Without it ``environment_file`` has "
        "``RESTIC_PASSWORD=`` or ``RESTIC_PASSWORD_COMMAND=``.", False)
    environment_file: Path | None = entry((OFFSITE,), kinds.PATH, None, '"/etc/btrkeep/offsite.env"',
        "A file of variables for restic, readable only by root, with lines ``NAME=value``, such as ``AWS_ACCESS_KEY_ID=``.",
        False)
    retention: Retention | None = None
    """The rules for the backups in the repository; None: nothing is ever removed there."""

    kind: ClassVar[str] = "offsite"

    @property
    def source(self) -> str:
        """Returns the location, if the configuration has it."""
        return self.repository or f"set in {self.environment_file}"


# fmt: on
@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of one pool."""

    file: Path
    """The configuration's main file."""
    name: str
    """The pool's name."""
    pool: settings.PoolSettings
    """[pool]."""
    backup: settings.BackupSettings = field(default_factory=settings.BackupSettings)
    """[backup], without the settings of single hosts."""
    ssh: settings.SshSettings = field(default_factory=settings.SshSettings)
    """[ssh]."""
    retention: Retention = field(default_factory=Retention)
    """[retention]."""
    expiry: settings.ExpirySettings = field(default_factory=settings.ExpirySettings)
    """[expiry]."""
    balance: settings.BalanceSettings = field(default_factory=settings.BalanceSettings)
    """[balance]."""
    verify: settings.VerifySettings = field(default_factory=settings.VerifySettings)
    """[verify]."""
    drill: settings.DrillSettings = field(default_factory=settings.DrillSettings)
    """[drill]."""
    notify: settings.NotifySettings = field(default_factory=settings.NotifySettings)
    """[notify]."""
    web: settings.WebSettings = field(default_factory=settings.WebSettings)
    """[web]."""
    serve: settings.ServeSettings = field(default_factory=settings.ServeSettings)
    """[serve]."""
    groups: Mapping[str, GroupSettings] = field(default_factory=dict)
    """[group.NAME] by name."""
    hosts: Mapping[str, HostConfig] = field(default_factory=dict)
    """[host.NAME] by name, without the `excluded` ones."""
    replicas: Mapping[str, ReplicaSettings] = field(default_factory=dict)
    """[replica.NAME] by name."""
    pushes: Mapping[str, PushSettings] = field(default_factory=dict)
    """[push.NAME] by name."""
    fetched_by: Mapping[str, FetchedBySettings] = field(default_factory=dict)
    """[fetched_by.NAME] by name."""
    offsites: Mapping[str, OffsiteSettings] = field(default_factory=dict)
    """[offsite.NAME] by name."""
    notices: tuple[str, ...] = ()
    """Remarks that are not errors."""
    faults: tuple[str, ...] = ()
    """Mistakes, FILE:LINE and why, that concern only `excluded` hosts and copies, or sections without effect on backups."""
    excluded: Mapping[str, HostConfig] = field(default_factory=dict)
    """Hosts with a mistake, which are not backed up, by name."""
    excluded_copies: Mapping[str, str] = field(default_factory=dict)
    """The mistakes of copies that are not used, by the copy's name."""
    faulty_sections: frozenset[str] = frozenset()
    """Sections with a mistake."""
    unread: tuple[str, ...] = ()
    """Files that could not be read and may contain other sections; then nothing is deleted."""
    faulty_files: tuple[Path, ...] = ()
    """Files with a mistake."""
    texts: Mapping[Path, str] = field(default_factory=dict, repr=False, compare=False)
    """The content of each file."""

    @property
    def every_host(self) -> Mapping[str, HostConfig]:
        """Returns the configured hosts, including the excluded ones. For reports, and to protect their backups and names."""
        if not self.excluded:
            return self.hosts
        return {**self.hosts, **self.excluded}

    def require_section(self, section: str) -> None:
        """Raises ConfigError if this section, which has no effect on backups, has a mistake: for the command that uses it."""
        if section in self.faulty_sections:
            raise ConfigError(self.faults, "correct that line")

    @property
    def are_rights_known(self) -> bool:
        """Returns False if a mistake makes it unclear who may do what: then the dashboard and the root service do not work."""
        return not (self.unread or self.faulty_sections & {"web", "serve"})

    def require_rights(self) -> None:
        """Raises ConfigError if it is unknown who may do what."""
        if not self.are_rights_known:
            raise ConfigError(self.faults, "correct that line")

    def host_named(self, name: str) -> HostConfig:
        """Returns a configured host, which may be an excluded one. Raises KeyError."""
        return self.hosts[name] if name in self.hosts else self.excluded[name]

    @property
    def copies(self) -> Mapping[str, CopySettings]:
        """Returns replicas, servers to which this pool is sent, pools that fetch, and offsite repositories by name; all names are
        different.
        """
        return {**self.replicas, **self.pushes, **self.fetched_by, **self.offsites}


def not_configured(name: str, hosts: Iterable[str]) -> UsageError:
    """Returns the error for a host that is not among the configured ones."""
    hint = did_you_mean(name, hosts, "`backupd host list` shows the configured hosts")
    return UsageError(f"no host {quoted(name)} is configured", hint)
