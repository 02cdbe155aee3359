"""The configuration as the programs see it: frozen, parsed, complete, with every inherited value in its place.

Sizes are bytes, durations seconds, shares fractions of one. Defaults are those of the table of keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time
from pathlib import Path
from typing import Any, ClassVar, Literal
from zoneinfo import ZoneInfo

from btrkeep.config.keys import DEFAULTS
from btrkeep.config.periods import PERIOD_NAMES
from btrkeep.config.secret import Url
from btrkeep.config.values import FileSample, Listen, MinFree, Pace, Window
from btrkeep.errors import ConfigError

_FIVE_WEEKS, _SIXTY_DAYS = 35 * 86400.0, 60 * 86400.0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    path: Path
    state: Path
    zone: ZoneInfo
    min_free: MinFree = DEFAULTS["min_free"]


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """Settings of the pool as a whole; the rest of [backup] is copied into every host. `bandwidth` is bytes per second, None no
    limit.
    """

    concurrency: int = DEFAULTS["concurrency"]
    bandwidth: int | None = DEFAULTS["bandwidth"]
    confine: Literal["auto", "always", "never"] = DEFAULTS["confine"]


@dataclass(frozen=True, slots=True)
class SshSettings:
    key: Path = DEFAULTS["key"]
    known_hosts: Path = DEFAULTS["known_hosts"]
    command: str = DEFAULTS["command"]


@dataclass(frozen=True, slots=True)
class Retention:
    """How many periods of each length keep a backup. The newest `min_keep` complete backups always stay. `grace` is seconds."""

    daily: int = DEFAULTS["daily"]
    weekly: int = DEFAULTS["weekly"]
    monthly: int = DEFAULTS["monthly"]
    yearly: int = DEFAULTS["yearly"]
    min_keep: int = DEFAULTS["min_keep"]
    grace: float = DEFAULTS["grace"]

    @property
    def missing(self) -> bool:
        """Returns True if there is no rule at all, so that everything is kept."""
        return not any(getattr(self, name) for name in PERIOD_NAMES)


@dataclass(frozen=True, slots=True)
class ExpirySettings:
    """How expired backups are deleted. `mount_option` is the pool's mount option meanwhile; "none" leaves it unchanged."""

    max_orphans: int = DEFAULTS["max_orphans"]
    pace: Pace | None = DEFAULTS["pace"]
    mount_option: str = DEFAULTS["mount_option"]
    yield_to_backups: bool = DEFAULTS["yield_to_backups"]


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """Who is notified of what. `silent` is seconds; None: as soon as a host is late. `digest` is a time of day in the pool's zone.
    None disables digest or ping.
    """

    urls: tuple[Url, ...] = DEFAULTS["urls"]
    on: tuple[str, ...] = DEFAULTS["on"]
    silent: float | None = DEFAULTS["silent"]
    used_limit: float = DEFAULTS["used_limit"]
    digest: time | None = DEFAULTS["digest"]
    ping: Url | None = DEFAULTS["ping"]
    ping_goal: float = DEFAULTS["ping_goal"]


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """Limits of `btrfs-balancer run` in this pool: bytes, seconds, a share; None is no limit.

    `min_unallocated` is None for the balancer's default.
    """

    budget: int | None = DEFAULTS["budget"]
    time: float | None = DEFAULTS["time"]
    policy: str = DEFAULTS["policy"]
    min_unallocated: MinFree | None = DEFAULTS["min_unallocated"]
    while_backups: bool = DEFAULTS["while_backups"]
    max_pressure: float | None = DEFAULTS["max_pressure"]


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """How many of the files that a run fetched get a checksum at once, and how many files a night compares with the host; None
    disables either. `max_age` and `after_crash`, the time before a crash whose writes are in doubt, are seconds.
    """

    new_files: FileSample | None = DEFAULTS["new_files"]
    against_source: FileSample | None = DEFAULTS["against_source"]
    after_crash: float = DEFAULTS["after_crash"]
    max_age: float | None = DEFAULTS["max_age"]

    @property
    def oldest(self) -> float:
        """Returns the allowed age, in seconds, of each host's last verification."""
        return self.max_age or _SIXTY_DAYS


@dataclass(frozen=True, slots=True)
class DrillSettings:
    """How much of a backup a drill restores, how long it may take in seconds, and how backups are booted."""

    time: float | None = DEFAULTS["time"]
    sample: FileSample = DEFAULTS["sample"]
    boot_timeout: float = DEFAULTS["boot_timeout"]
    max_age: float | None = DEFAULTS["max_age"]

    @property
    def oldest(self) -> float:
        """The age in seconds from which on the newest proven restore is old."""
        return self.max_age or _FIVE_WEEKS


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The dashboard. `names` are the host names it accepts, `behind_proxy` the addresses of trusted proxies; times are seconds."""

    listen: Listen = DEFAULTS["listen"]
    names: tuple[str, ...] = DEFAULTS["names"]
    behind_proxy: tuple[str, ...] = DEFAULTS["behind_proxy"]
    idle: float = DEFAULTS["idle"]
    longest: float = DEFAULTS["longest"]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The root service. `rates` are requests a minute of one user, `at_once` requests of all users, both by verb.

    `run_distance`: seconds between two requested backups of a host; `runs_a_day`: such backups within 24 hours.
    """

    no_downloads: bool = DEFAULTS["no_downloads"]
    no_restores: bool = DEFAULTS["no_restores"]
    rates: Mapping[str, int] = field(default_factory=dict)
    at_once: Mapping[str, int] = field(default_factory=dict)
    run_distance: float = DEFAULTS["run_distance"]
    runs_a_day: int = DEFAULTS["runs_a_day"]


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A group's own limits, in addition to the pool's, and in `shared` the parsed values that it sets for its hosts, by key.

    `retention` applies to hosts that set none; it is not part of `shared`.
    """

    name: str
    concurrency: int | None = None
    bandwidth: int | None = None
    shared: Mapping[str, Any] = field(default_factory=dict)
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True, slots=True)
class HostConfig:
    """One host. Without `address` it is this machine; then `left_out` has exclude patterns for the pool and the state folder.

    `fault`: the mistake, FILE:LINE and why, for which it is not backed up. Then the other settings are those of its last valid
    configuration, or the defaults, and are for reports only.
    """

    name: str
    group: str | None = None
    address: str | None = None
    port: int | None = DEFAULTS["port"]
    rsync_path: str | None = DEFAULTS["rsync_path"]
    ssh_options: tuple[str, ...] = DEFAULTS["ssh_options"]
    paths: tuple[str, ...] = ()
    enabled: bool = DEFAULTS["enabled"]
    optional: bool = DEFAULTS["optional"]
    max_absence: float | None = DEFAULTS["max_absence"]
    bandwidth: int | None = None
    window: Window | None = DEFAULTS["window"]
    every: float = DEFAULTS["every"]
    late: float | None = DEFAULTS["late"]
    attempts: int = DEFAULTS["attempts"]
    stall: float = DEFAULTS["stall"]
    deadline: float = DEFAULTS["deadline"]
    max_files: int | None = DEFAULTS["max_files"]
    max_new_bytes: int | None = DEFAULTS["max_new_bytes"]
    quota: int | None = DEFAULTS["quota"]
    max_memory: MinFree = DEFAULTS["max_memory"]
    inplace: str = DEFAULTS["inplace"]
    shrink_limit: float = DEFAULTS["shrink_limit"]
    unreadable_limit: float = DEFAULTS["unreadable_limit"]
    exclude: tuple[str, ...] = DEFAULTS["exclude"]
    share_with: str | None = DEFAULTS["share_with"]
    share_across_groups: bool = DEFAULTS["share_across_groups"]
    one_file_system: bool = DEFAULTS["one_file_system"]
    before: tuple[str, ...] = DEFAULTS["before"]
    boot_checks: tuple[str, ...] = DEFAULTS["boot_checks"]
    after: tuple[str, ...] = DEFAULTS["after"]
    retention: Retention = field(default_factory=Retention)
    left_out: tuple[str, ...] = ()
    fault: str = ""

    def hook_words(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the words of a hook with {host} and {address} filled in. Expands nothing else, and uses no shell."""
        return tuple(word.replace("{host}", self.name).replace("{address}", self.address or "") for word in words)


@dataclass(frozen=True, slots=True)
class CopySettings:
    """What the settings of all copies have in common. `kind`: the name of the section. Times are seconds."""

    name: str
    hosts: tuple[str, ...] = DEFAULTS["hosts"]
    bandwidth: int | None = None
    window: Window | None = DEFAULTS["window"]
    every: float = DEFAULTS["every"]
    max_age: float | None = DEFAULTS["max_age"]
    stall: float = DEFAULTS["stall"]

    kind: ClassVar[str]

    @property
    def oldest(self) -> float:
        """The age in seconds from which on a copy needs a look."""
        return self.max_age or 2 * self.every

    @property
    def comes_and_goes(self) -> bool:
        """Returns False: if the other side cannot be reached, that is always reported."""
        return False

    @property
    def source(self) -> str:
        """Returns the other side as the configuration writes it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ReplicaSettings(CopySettings):
    """Another pool's backups, fetched into this one: from a `folder` of this machine, from `address`, or, without both, over a
    connection that the other server begins. `retention` is this pool's own for them. Times are seconds.
    """

    address: str | None = None
    folder: Path | None = None
    pool_name: str = DEFAULTS["pool_name"]
    port: int | None = DEFAULTS["port"]
    ssh_options: tuple[str, ...] = DEFAULTS["ssh_options"]
    concurrency: int = DEFAULTS["concurrency"]
    newest_only: bool = DEFAULTS["newest_only"]
    take_holds: bool = DEFAULTS["take_holds"]
    longest_hold: float | None = DEFAULTS["longest_hold"]
    retention: Retention = field(default_factory=Retention)

    kind: ClassVar[str] = "replica"

    @property
    def comes_and_goes(self) -> bool:
        """Returns True if its pool is on a disk of this machine, which may be away."""
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
    """Another backup server that this pool's backups are sent to. That server decides what it accepts and keeps. Times are
    seconds.
    """

    address: str = ""
    pool_name: str = DEFAULTS["pool_name"]
    port: int | None = DEFAULTS["port"]
    ssh_options: tuple[str, ...] = DEFAULTS["ssh_options"]

    kind: ClassVar[str] = "push"

    @property
    def source(self) -> str:
        """Returns the destination as the configuration writes it."""
        return f"ssh://{self.address}"


@dataclass(frozen=True, slots=True)
class FetchedBySettings(CopySettings):
    """A pool that fetches from this one, as the copy `name`. Nothing is done for it here: it is to be missed when it stays away."""

    kind: ClassVar[str] = "fetched_by"

    @property
    def source(self) -> str:
        """Returns "": only the other side knows where it is."""
        return ""


@dataclass(frozen=True, slots=True)
class OffsiteSettings(CopySettings):
    """A repository of restic that the newest backups of hosts are sent to. Without `retention` nothing is ever removed there.

    `repository` and the password are named here or in `environment_file`. Times are seconds.
    """

    repository: str | None = None
    password_file: Path | None = None
    environment_file: Path | None = None
    retention: Retention | None = None

    kind: ClassVar[str] = "offsite"

    @property
    def source(self) -> str:
        """Returns the location, as far as the configuration has it."""
        return self.repository or f"as {self.environment_file} has it"


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of one pool. `name` is the pool's; `notices` are remarks that are not errors.

    `faults` are mistakes, FILE:LINE and why, that concern only the `excluded` hosts, which are not in `hosts`, the
    `excluded_copies`, each with its mistake, or sections without effect on backups; `faulty_files` and `faulty_sections` have
    them. `unread`: files that could not be read and may have had other sections; nothing is deleted then. `texts`: the content of
    each file.
    """

    file: Path
    name: str
    pool: PoolSettings
    backup: BackupSettings = field(default_factory=BackupSettings)
    ssh: SshSettings = field(default_factory=SshSettings)
    retention: Retention = field(default_factory=Retention)
    expiry: ExpirySettings = field(default_factory=ExpirySettings)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    verify: VerifySettings = field(default_factory=VerifySettings)
    drill: DrillSettings = field(default_factory=DrillSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    web: WebSettings = field(default_factory=WebSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    groups: Mapping[str, GroupSettings] = field(default_factory=dict)
    hosts: Mapping[str, HostConfig] = field(default_factory=dict)
    replicas: Mapping[str, ReplicaSettings] = field(default_factory=dict)
    pushes: Mapping[str, PushSettings] = field(default_factory=dict)
    fetched_by: Mapping[str, FetchedBySettings] = field(default_factory=dict)
    offsites: Mapping[str, OffsiteSettings] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    excluded: Mapping[str, HostConfig] = field(default_factory=dict)
    excluded_copies: Mapping[str, str] = field(default_factory=dict)
    faulty_sections: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()
    faulty_files: tuple[Path, ...] = ()
    texts: Mapping[Path, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def every_host(self) -> Mapping[str, HostConfig]:
        """Returns the configured hosts, the excluded ones included. For reports, and to protect their backups and names."""
        if not self.excluded:
            return self.hosts
        return {**self.hosts, **self.excluded}

    def require_section(self, section: str) -> None:
        """Raises ConfigError if this section, which has no effect on backups, has a mistake: for the command that it is for."""
        if section in self.faulty_sections:
            raise ConfigError(self.faults, "mend that line")

    @property
    def are_rights_known(self) -> bool:
        """Returns False if a mistake leaves open who may do what: the dashboard and the root service do not work then."""
        return not (self.unread or self.faulty_sections & {"web", "serve"})

    def require_rights(self) -> None:
        """Raises ConfigError if it is unknown who may do what."""
        if not self.are_rights_known:
            raise ConfigError(self.faults, "mend that line")

    def host_named(self, name: str) -> HostConfig:
        """Returns a configured host, which may be an excluded one. Raises KeyError."""
        return self.hosts[name] if name in self.hosts else self.excluded[name]

    @property
    def copies(self) -> Mapping[str, CopySettings]:
        """Replicas, servers that are sent to, pools that fetch and offsite repositories by name; no two have the same."""
        return {**self.replicas, **self.pushes, **self.fetched_by, **self.offsites}
