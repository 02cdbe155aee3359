"""The sections of the configuration of which there is one: a class each, with a key at each field.

Sizes are bytes, durations seconds, shares fractions of one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

from btrkeep.choices import DEFAULT_POLICY, MAX_PRESSURE
from btrkeep.config import value_types as kinds
from btrkeep.config.config_key import (
    BACKUP,
    BALANCE,
    DRILL,
    EXPIRY,
    FETCHED_BY,
    GROUP,
    NOTIFY,
    OFFSITE,
    POOL,
    PUSH,
    REPLICA,
    SERVE,
    SHARED,
    SSH,
    VERIFY,
    WEB,
    WITH_COPIES,
    ConfigKey,
    entry,
    filled_by,
)
from btrkeep.config.value_types import EVENT_WORDS
from btrkeep.config.values import FileSample, Listen, MinFree, Pace, Url
from btrkeep.units import format_share

_FIVE_WEEKS, _SIXTY_DAYS = 35 * 86400.0, 60 * 86400.0


# fmt: off
# Keys of several classes.
CONCURRENCY = ConfigKey((BACKUP, GROUP, REPLICA), kinds.COUNT, 4, "8",
    "How many transfers run at the same time, for a night and the dashboard together; a host that ``backupd run`` names "
    "is not counted, unless with ``--wait``. In a group: how many of the group's hosts, within the pool's number. "
    "In a replica: how many hosts are fetched at the same time.", False)
BANDWIDTH = ConfigKey(WITH_COPIES, kinds.RATE, None, '"16MB"',
    "Bytes per second for all transfers together, those of replicas over ssh included; in a group for the group's hosts "
    "together, in a host for that host, in a replica for that replica. "
    "All of these limits apply; to a replica from a folder of this machine its own alone. "
    "In an offsite repository: what restic sends, which is not counted among them. "
    "Without it: no limit.", False, shown=True)
WINDOW = ConfigKey(WITH_COPIES, kinds.WINDOW, None, '"22:00-06:00"',
    'When transfers run, in the pool\'s zone; it may span midnight. ``"none"`` lifts an inherited one.', shown=True)
EVERY = ConfigKey(WITH_COPIES, kinds.DURATION, "1d", '"12h"',
    "How often a host is backed up, a replica fetched, or the newest backups sent to an offsite repository.", shown=True)
STALL = ConfigKey(WITH_COPIES, kinds.DURATION, "30m", '"1h"',
    "A transfer without progress for this long is ended; so is the fetching or sending of one host's copies, "
    "and a restic that has read nothing from its repository meanwhile.", shown=True)
TIME = ConfigKey((BALANCE, DRILL), kinds.TIME_LIMIT, "2h", '"6h"',
    'How long one run of the balancer, or one drill, takes at most. ``"none"``: no limit.')
PORT = ConfigKey((*SHARED, REPLICA, PUSH), kinds.PORT, None, "2222",
    "The port of the host's ssh, or of the other backup server's. Without it: ssh's own choice, 22.")
SSH_OPTIONS = ConfigKey((*SHARED, REPLICA, PUSH), kinds.SSH_OPTIONS, [], '["ProxyJump=gate.example.org"]',
    "Further options of ssh for this host, as in :manpage:`ssh_config(5)`, each given to ssh with ``-o``.")
POOL_NAME = ConfigKey((REPLICA, PUSH), kinds.POOL_NAME, "main", '"office"',
    "The name that the pool has on the other backup server. A forced command there decides by itself.", False)
MAX_AGE = ConfigKey((VERIFY, DRILL, REPLICA, PUSH, FETCHED_BY, OFFSITE), kinds.DURATION, None, '"3d"',
    "How old the newest copy of a host's backup may be before that needs a look, and how long a disk may be away. Without it: "
    "twice ``every``. In [fetched_by.NAME]: for how long no pool may have fetched from this one as the copy NAME, such as that "
    "of a disk which is kept elsewhere. Without it: two days; without the section, there is no warning. "
    "In [drill]: how long ago the newest proven restore may be. Without it: five weeks, once there is one. "
    "In [verify]: how long ago data of each host may have been read, by ``verify`` or a scrub. Without it: sixty days, once "
    "some was.",
    False)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    path: Path = field(metadata=ConfigKey((POOL,), kinds.PATH, None, '"/srv/backup"',
        "The pool: a folder on a mounted btrfs, made by ``backupd init``. Required.").metadata)
    state: Path = field(metadata=ConfigKey((POOL,), kinds.PATH, None, '"/var/lib/btrkeep/main"',
        "The folder of the catalogue and the pictures. Without it: ``/var/lib/btrkeep/`` and the pool's name.").metadata)
    zone: ZoneInfo = field(metadata=ConfigKey((POOL,), kinds.ZONE, "UTC", '"Europe/Berlin"',
        "The time zone of windows, days and weeks, and of all times that commands and messages print. ``--json`` and the names of "
        "backups are in UTC.").metadata)
    min_free: MinFree = entry((POOL,), kinds.FLOOR, "5%", '"20GiB"',
        "The free space below which no new transfer starts, and below a quarter of which one is stopped: a share of the filesystem "
        "or a size.")


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """Settings of the pool as a whole; the rest of [backup] is copied into every host. `bandwidth` is bytes per second, None no
    limit.
    """

    concurrency: int = filled_by(CONCURRENCY)
    bandwidth: int | None = filled_by(BANDWIDTH)
    confine: Literal["auto", "always", "never"] = entry((BACKUP,), kinds.CONFINE, "auto", '"always"',
        "Whether the rsync that talks to a host is confined, so that it can write nothing but that host's new backup: where this "
        "machine can do it, always (otherwise nothing runs), or never. An rsync with known holes that cannot be confined runs only "
        "with never. What another pool has is received without a cell only from a folder, and only with never.", False)


@dataclass(frozen=True, slots=True)
class SshSettings:
    key: Path = entry((SSH,), kinds.SSH_FILE, "/etc/btrkeep/id_ed25519", '"/etc/btrkeep/id_ed25519"',
        "The private key for the connections to the hosts.")
    known_hosts: Path = entry((SSH,), kinds.SSH_FILE, "/etc/btrkeep/known_hosts", '"/etc/btrkeep/known_hosts"',
        "The hosts' public keys. A host that is not in it, or answers with another key, is not contacted.")
    command: str = entry((SSH,), kinds.COMMAND, "ssh", '"/usr/local/bin/ssh"',
        "The program that rsync gets as -e, followed by btrkeep's options. Quote a word that contains spaces.")


@dataclass(frozen=True, slots=True)
class ExpirySettings:
    """How expired backups are deleted. `mount_option` is the pool's mount option meanwhile; "none" leaves it unchanged."""

    max_orphans: int = entry((EXPIRY,), kinds.COUNT, 100, "50",
        "How many deleted subvolumes may wait for the kernel's cleaner at any time, including those that other programs deleted.")
    pace: Pace | None = entry((EXPIRY,), kinds.PACE, "off", '"50ms"',
        'The load above which expiry pauses: how long a small fsync may take, such as ``"50ms"``, or the share of time that '
        'processes may wait for I/O, such as ``"10%"`` (pressure stall information). ``"off"``: no pauses.')
    mount_option: str = entry((EXPIRY,), kinds.MOUNT_OPTION, "none", '"ssd"',
        "The allocator's mount option while expired backups are deleted; afterwards the previous one is restored. "
        '``"none"``: it is not changed.')
    yield_to_backups: bool = entry((EXPIRY,), kinds.FLAG, False, "true",
        "Whether expiry pauses while backups run: for six hours at most, and not while the pool has less than ``min_free``.")


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """Who is notified of what. `silent` is seconds; None: as soon as a host is late. `digest` is a time of day in the pool's zone.
    None disables digest or ping.
    """

    urls: tuple[Url, ...] = entry((NOTIFY,), kinds.URLS, [], '["mailto://user:password@mail.example.org", "ntfy://topic"]',
        "Where notifications are sent, as URLs of the library apprise: mail, Matrix, ntfy, Slack, webhooks and many more. They "
        "contain passwords: keep the file readable only by root. Without any, alarms are recorded and shown, and not sent.",
        secret=True)
    on: tuple[str, ...] = entry((NOTIFY,), kinds.EVENTS, list(EVENT_WORDS), '["failure", "suspect", "devices"]',
        "Which events are sent at once: ``failure`` (a host, a unit, expiry, the pool), ``suspect`` (a backup that lost too much), "
        "``silent`` (a host that is late), ``room`` (the pool is nearly full), ``devices`` (errors, "
        "missing devices), and ``recovery`` of any of these.")
    silent: float | None = entry((NOTIFY,), kinds.DURATION, None, '"2d"',
        "The message about a late host waits until its newest complete backup is older than this. Without it: sent as soon as the "
        "host is late (``late`` in [backup]).")
    used_limit: float = entry((NOTIFY,), kinds.SHARE, "90%", '"85%"',
        "How much of the pool may be used before that is an alarm, and a warning of ``check``, ``doctor`` and ``status``.")
    digest: time | None = entry((NOTIFY,), kinds.TIME_OF_DAY, "08:00", '"07:30"',
        'When the daily summary is sent, in the pool\'s zone. ``"none"``: never.')
    ping: Url | None = entry((NOTIFY,), kinds.PING, None, '"https://hc-ping.com/00000000-0000-4000-8000-000000000000"',
        "A dead man's switch, as at healthchecks.io: this URL is requested after a night that met its goal, with ``/start`` when a "
        "night begins and with ``/fail`` after one that missed the goal. Without requests, that service raises the alarm.",
        secret=True)
    ping_goal: float = entry((NOTIFY,), kinds.SHARE, "100%", '"98%"',
        "How many of the hosts must be ok after a night; those that are ``optional`` or not ``enabled`` are not counted.")


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """Limits of `btrfs-balancer run` in this pool: bytes, seconds, a share; None is no limit.

    `min_unallocated` is None for the balancer's default.
    """

    budget: int | None = entry((BALANCE,), kinds.SIZE_LIMIT, "20GiB", '"100GiB"',
        'How much data ``btrfs-balancer run --pool`` moves at most in one run. ``"none"``: no limit.')
    time: float | None = filled_by(TIME)
    policy: str = entry((BALANCE,), kinds.POLICY, DEFAULT_POLICY, '"score"',
        "Which block groups are balanced first: those that gain most for what must be written, the most fragmented, or the "
        "least used.")
    min_unallocated: MinFree | None = entry((BALANCE,), kinds.FLOOR, None, '"20GiB"',
        "A run ends when less than this is unallocated: a size, or a share of the filesystem. Without it: 4 GiB, but no more than "
        "2% of the filesystem.")
    while_backups: bool = entry((BALANCE,), kinds.FLAG, False, "true",
        "Whether balancing goes on while backups run. It never does while ``backupd expire`` deletes.")
    max_pressure: float | None = entry((BALANCE,), kinds.PRESSURE, format_share(MAX_PRESSURE), '"20%"',
        "A run waits while programs wait for the disks more of the time than this (pressure stall information), and ends when that "
        'lasts. ``"none"``: pressure is ignored.')


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """How many of the files that a run fetched get a checksum at once, and how many files a night compares with the host; None
    disables either. `max_age` and `after_crash`, the time before a crash whose writes are in doubt, are seconds.
    """

    new_files: FileSample | None = entry((VERIFY,), kinds.SAMPLE_OR_NONE, "200", '"1%"',
        "Of how many of the files that a run has fetched their checksums are made at once, while they are as they came: so many, "
        'chosen at random, a share of them, or ``all``; and of files of 64 MiB or more. It takes at most 2% of the run\'s time. '
        '``"none"``: of none.')
    against_source: FileSample | None = entry((VERIFY,), kinds.SAMPLE_OR_NONE, "none", '"1%"',
        "How many files of each host that became complete a night compares with the host at its end, by content: a share, of which "
        "each night takes the next slice, so with ``1%`` each file's turn comes once in a hundred nights; or so many, chosen at "
        'random, or ``all``. For half an hour at the most. ``"none"``: none.')
    after_crash: float = entry((VERIFY,), kinds.DURATION, "10m", '"1h"',
        "After a crash of this server what was written so long before it is read first: as long as the disks, their controllers "
        "and the filesystem (mount option ``commit``) may take until data is on the disk.")
    max_age: float | None = filled_by(MAX_AGE)

    @property
    def oldest(self) -> float:
        """Returns the allowed age, in seconds, of each host's last verification."""
        return self.max_age or _SIXTY_DAYS


@dataclass(frozen=True, slots=True)
class DrillSettings:
    """How much of a backup a drill restores, how long it may take in seconds, and how backups are booted."""

    time: float | None = filled_by(TIME)
    sample: FileSample = entry((DRILL,), kinds.SAMPLE, "1000", '"5%"',
        "How much of a backup a drill restores: so many names, chosen at random, a share of them, or ``all``.")
    boot_timeout: float = entry((DRILL,), kinds.DURATION, "5m", '"15m"',
        "How long a system that ``backupd drill --boot`` boots may take to be up, its ``boot_checks`` included.")
    max_age: float | None = filled_by(MAX_AGE)

    @property
    def oldest(self) -> float:
        """The age in seconds at which the newest proven restore counts as late."""
        return self.max_age or _FIVE_WEEKS


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The dashboard. `names` are the host names it accepts, `behind_proxy` the addresses of trusted proxies; times are seconds."""

    listen: Listen = entry((WEB,), kinds.LISTEN, "127.0.0.1:8765", '"[::1]:8765"',
        "The address and port that the dashboard listens on. Other machines reach it through a reverse proxy with https, see "
        ":doc:`dashboard`.")
    names: tuple[str, ...] = entry((WEB,), kinds.NAMES, [], '["backup.example.org"]',
        "The names that browsers reach it by. It answers only to these, to its own address and to this machine's name, so that no "
        "other site can lead a browser here under its own name (DNS rebinding).")
    behind_proxy: tuple[str, ...] = entry((WEB,), kinds.ADDRESSES, [], '["127.0.0.1"]',
        "The addresses of reverse proxies whose headers for the client's address and https are trusted (``X-Forwarded-For``, "
        "``-Proto``, ``-Host``).")
    idle: float = entry((WEB,), kinds.DURATION, "12h", '"30m"',
        "How long a user may be inactive before they have to log in again.")
    longest: float = entry((WEB,), kinds.DURATION, "7d", '"1d"',
        "After this time users have to log in again, even if they were active.")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The root service. `rates` are requests a minute of one user, `at_once` requests of all users, both by verb.

    `run_distance`: seconds between two requested backups of a host; `runs_a_day`: such backups within 24 hours.
    """

    no_downloads: bool = entry((SERVE,), kinds.FLAG, False, "true",
        "Whether the root service gives out no content of files: no downloads, no previews of text, no differing lines. Names, "
        "sizes and times are still shown.")
    no_restores: bool = entry((SERVE,), kinds.FLAG, False, "true",
        "Whether the root service restores nothing for users of the dashboard; ``backupd restore`` still does.")
    rates: Mapping[str, int] = field(default_factory=dict, metadata=ConfigKey((SERVE,), kinds.VERB_COUNTS, [], '["download 60"]',
        "How many requests a minute each user may make of the root service, by verb: see :doc:`serve`, which has the "
        "defaults.").metadata)
    at_once: Mapping[str, int] = field(default_factory=dict, metadata=ConfigKey((SERVE,), kinds.VERB_COUNTS, [], '["download 4"]',
        "How many requests of a verb are answered at the same time, of which one user has half, within the limits in "
        ":doc:`serve`.").metadata)
    run_distance: float = entry((SERVE,), kinds.DURATION, "5m", '"1h"',
        "The least time between two backups of a host that users of the dashboard request; a minute at most after one that "
        "failed. Backups by hand on the server count, but are not limited.")
    runs_a_day: int = entry((SERVE,), kinds.COUNT, 24, "6",
        "How many backups of a host users of the dashboard may request within 24 hours. Backups by hand on the server count, but "
        "are not limited.")
