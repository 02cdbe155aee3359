"""The sections of the configuration that exist once: a class each, with a key at each field.

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
from btrkeep.config.values import FileSample, Listen, Pace, SizeOrShare, Url
from btrkeep.units import format_share

_FIVE_WEEKS, _SIXTY_DAYS = 35 * 86400.0, 60 * 86400.0


# fmt: off
# Keys of several classes.
CONCURRENCY = ConfigKey((BACKUP, GROUP, REPLICA), kinds.COUNT, 4, "8",
    "How many transfers run at the same time, for a night and the dashboard together. Transfers of ``backupd run HOST`` do not "
    "count, except with ``--wait``. In a group: how many of the group's hosts, within the pool's number. In a replica: how many "
    "hosts are fetched at the same time.", False)
BANDWIDTH = ConfigKey(WITH_COPIES, kinds.RATE, None, '"16MB"',
    "Bytes per second for all transfers together, including those of replicas over ssh; in a group for the group's hosts "
    "together, in a host or a replica for it alone. All of these limits apply, but a replica from a folder of this machine has "
    "only its own. In an offsite repository: only for the data that restic sends. Without it: no limit.", False, shown=True)
WINDOW = ConfigKey(WITH_COPIES, kinds.WINDOW, None, '"22:00-06:00"',
    "When transfers run, in the pool's zone; it may span midnight. ``\"none\"`` removes an inherited window.", shown=True)
EVERY = ConfigKey(WITH_COPIES, kinds.DURATION, "1d", '"12h"',
    "How often a host is backed up, a replica fetched, or the newest backups sent to an offsite repository.", shown=True)
STALL = ConfigKey(WITH_COPIES, kinds.DURATION, "30m", '"1h"',
    "A transfer without progress for this long is stopped. The same applies to fetching or sending a host's copies, and to "
    "restic reading from its repository.", shown=True)
TIME = ConfigKey((BALANCE, DRILL), kinds.TIME_LIMIT, "2h", '"6h"',
    'The maximum duration of one run of the balancer, or of one drill. ``"none"``: no limit.')
PORT = ConfigKey((*SHARED, REPLICA, PUSH), kinds.PORT, None, "2222",
    "The port of ssh on the host, or on the other backup server. Without it: ssh's default, 22.")
SSH_OPTIONS = ConfigKey((*SHARED, REPLICA, PUSH), kinds.SSH_OPTIONS, [], '["ProxyJump=gate.example.org"]',
    "Further options of ssh for this host, as in :manpage:`ssh_config(5)`, each given to ssh with ``-o``.")
POOL_NAME = ConfigKey((REPLICA, PUSH), kinds.POOL_NAME, "main", '"office"',
    "The pool's name on the other backup server. A forced command there overrides it.", False)
MAX_AGE = ConfigKey((VERIFY, DRILL, REPLICA, PUSH, FETCHED_BY, OFFSITE), kinds.DURATION, None, '"3d"',
    "The age at which ``backupd check`` warns. In [replica.NAME], [push.NAME] and [offsite.NAME]: of the newest copy of a host's "
    "backup. A disk that is carried away may be absent for as long. Without it: twice ``every``. In [fetched_by.NAME]: of the "
    "last time that the replica NAME fetched from this pool. Without it: two days; without the section, there is no warning. In "
    "[drill]: of the newest proven restore. Without it: five weeks, and no warning before the first drill. In [verify]: of the "
    "last time that ``verify`` or a scrub read data of a host. Without it: sixty days, and no warning before the first time.",
    False)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    path: Path = field(metadata=ConfigKey((POOL,), kinds.PATH, None, '"/srv/backup"',
        "The pool: a folder on a mounted btrfs, made by ``backupd init``. Required.").metadata)
    state: Path = field(metadata=ConfigKey((POOL,), kinds.PATH, None, '"/var/lib/btrkeep/main"',
        "The folder of the catalogue and the pictures. Without it: ``/var/lib/btrkeep/`` and the pool's name.").metadata)
    zone: ZoneInfo = field(metadata=ConfigKey((POOL,), kinds.ZONE, "UTC", '"Europe/Berlin"',
        "The time zone of windows, days and weeks, and of all times that commands and messages print. ``--json`` and the names "
        "of backups use UTC.").metadata)
    min_free: SizeOrShare = entry((POOL,), kinds.SIZE_OR_SHARE, "5%", '"20GiB"',
        "Below this free space no transfer starts; below a quarter of it, transfers are stopped. A share of the filesystem or a "
        "size.")


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """Settings of the whole pool; the rest of [backup] is copied into every host. `bandwidth` is bytes per second, None no
    limit.
    """

    concurrency: int = filled_by(CONCURRENCY)
    bandwidth: int | None = filled_by(BANDWIDTH)
    confine: Literal["auto", "always", "never"] = entry((BACKUP,), kinds.CONFINE, "auto", '"always"',
        "Whether the rsync of a host is confined, so that it can write only to that host's new backup. ``auto``: confined if this "
        "machine supports it. ``always``: no transfer starts on a machine that does not support it. ``never``: unconfined. An "
        "unconfined rsync with known vulnerabilities runs only with ``never``. Copies of another pool are received unconfined "
        "only from a folder, and only with ``never``.", False)


@dataclass(frozen=True, slots=True)
class SshSettings:
    key: Path = entry((SSH,), kinds.SSH_FILE, "/etc/btrkeep/id_ed25519", '"/etc/btrkeep/id_ed25519"',
        "The private key for the connections to the hosts.")
    restore_key: Path | None = entry((SSH,), kinds.SSH_FILE, None, '"/etc/btrkeep/id_ed25519_restore"',
        "The private key for restores to hosts: ``restore --to-host``, and the dashboard. If a host does not accept it, ssh tries "
        "``key``. See :doc:`restricted-keys`. Without it: the file of ``key`` with ``_restore`` at its end, if there is one.")
    known_hosts: Path = entry((SSH,), kinds.SSH_FILE, "/etc/btrkeep/known_hosts", '"/etc/btrkeep/known_hosts"',
        "The hosts' public keys. A host without a key in it, or with another one, is not contacted.")
    command: str = entry((SSH,), kinds.COMMAND, "ssh", '"/usr/local/bin/ssh"',
        "The program for rsync's option -e, followed by btrkeep's options. Quote a word that contains spaces.")

    @property
    def key_for_restores(self) -> Path:
        """Returns the file of the restore key, which may be missing."""
        return self.restore_key or self.key.with_name(f"{self.key.name}_restore")


@dataclass(frozen=True, slots=True)
class ExpirySettings:
    """How expired backups are deleted. `mount_option` is the pool's mount option during that; "none" leaves it unchanged."""

    max_orphans: int = entry((EXPIRY,), kinds.COUNT, 100, "50",
        "How many deleted subvolumes may wait for the kernel's cleaner at any time, including those that other programs deleted.")
    pace: Pace | None = entry((EXPIRY,), kinds.PACE, "off", '"50ms"',
        'The load above which expiry pauses: the time of a small fsync, such as ``"50ms"``, or the share of time spent waiting for '
        'I/O, such as ``"10%"`` (pressure stall information). ``"off"``: no pauses.')
    mount_option: str = entry((EXPIRY,), kinds.MOUNT_OPTION, "none", '"ssd"',
        "The allocator's mount option while expired backups are deleted; afterwards the previous one is restored. ``\"none\"``: "
        "no change.")
    yield_to_backups: bool = entry((EXPIRY,), kinds.FLAG, False, "true",
        "Whether expiry pauses while backups run: for six hours at most, and not while the pool has less than ``min_free``.")


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """Who is notified of what. `silent` is seconds; None: as soon as a host is late. `digest` is a time of day in the pool's zone.
    None disables digest or ping.
    """

    urls: tuple[Url, ...] = entry((NOTIFY,), kinds.URLS, [], '["mailto://user:password@mail.example.org", "ntfy://topic"]',
        "Where notifications are sent, as URLs of the library apprise: mail, Matrix, ntfy, Slack, webhooks and many more. They "
        "contain passwords: keep the file readable only by root. Without any, alarms are recorded and shown, but not sent.",
        secret=True)
    on: tuple[str, ...] = entry((NOTIFY,), kinds.EVENTS, list(EVENT_WORDS), '["failure", "suspect", "devices"]',
        "Which events are sent at once. ``failure``: of a host, a unit, expiry or the pool. ``suspect``: a backup lost too many "
        "files. ``silent``: a host is late. ``room``: the pool is nearly full. ``devices``: errors, or missing devices. "
        "``recovery``: any of these has ended.")
    silent: float | None = entry((NOTIFY,), kinds.DURATION, None, '"2d"',
        "A late host is reported when its newest complete backup is older than this. Without it: as soon as the host is late "
        "(``late`` in [backup]).")
    used_limit: float = entry((NOTIFY,), kinds.SHARE, "90%", '"85%"',
        "The share of used space of the pool at which there is an alarm, and a warning of ``check``, ``doctor`` and ``status``.")
    digest: time | None = entry((NOTIFY,), kinds.TIME_OF_DAY, "08:00", '"07:30"',
        'When the daily summary is sent, in the pool\'s zone. ``"none"``: never.')
    ping: Url | None = entry((NOTIFY,), kinds.PING, None, '"https://hc-ping.com/00000000-0000-4000-8000-000000000000"',
        "A dead man's switch, as at healthchecks.io: this URL is requested after a night that met its goal. ``/start`` is appended "
        "when a night begins, and ``/fail`` after a night that missed the goal. Without requests, that service raises the alarm.",
        secret=True)
    ping_goal: float = entry((NOTIFY,), kinds.SHARE, "100%", '"98%"',
        "How many of the hosts must be ok after a night; those that are ``optional`` or not ``enabled`` do not count.")


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """Limits of `btrfs-balancer run` in this pool: bytes, seconds, a share; None is no limit.

    `min_unallocated` is None for the balancer's default.
    """

    budget: int | None = entry((BALANCE,), kinds.SIZE_LIMIT, "20GiB", '"100GiB"',
        'How much data one ``btrfs-balancer run --pool`` moves at most. ``"none"``: no limit.')
    time: float | None = filled_by(TIME)
    policy: str = entry((BALANCE,), kinds.POLICY, DEFAULT_POLICY, '"score"',
        "Which block groups are balanced first: those with the most gain for the written data, the most fragmented, or the least "
        "used.")
    min_unallocated: SizeOrShare | None = entry((BALANCE,), kinds.SIZE_OR_SHARE, None, '"20GiB"',
        "A run stops when less than this is unallocated: a size, or a share of the filesystem. Without it: 4 GiB, but no more "
        "than 2% of the filesystem.")
    while_backups: bool = entry((BALANCE,), kinds.FLAG, False, "true",
        "Whether balancing continues while backups run. It never does while ``backupd expire`` deletes.")
    max_pressure: float | None = entry((BALANCE,), kinds.PRESSURE, format_share(MAX_PRESSURE), '"20%"',
        "A run pauses while programs wait for the disks for more than this share of the time (pressure stall information), and "
        'stops if that lasts. ``"none"``: pressure is ignored.')


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """How many of the files that a run fetched get a checksum at once, and how many files a night compares with the host; None
    disables either. `max_age` and `after_crash`, the time before a crash whose writes are doubted, are seconds.
    """

    new_files: FileSample | None = entry((VERIFY,), kinds.SAMPLE_OR_NONE, "200", '"1%"',
        "How many of a run's fetched files get checksums at once: a number of files chosen at random, a share of them, or ``all``. "
        "Files of 64 MiB or more always get one. It takes at most 2% of the run's time. ``\"none\"``: no files.")
    against_source: FileSample | None = entry((VERIFY,), kinds.SAMPLE_OR_NONE, "none", '"1%"',
        "At the end of a night, this many files of each host's new complete backup are compared with the host, by content. "
        "With ``1%``, each night compares the next 1% of the files, so each file is compared once in a hundred nights. A number "
        'means so many files, chosen at random. The comparison takes half an hour at most, for all hosts together. ``"none"``: no '
        "files.")
    after_crash: float = entry((VERIFY,), kinds.DURATION, "10m", '"1h"',
        "After a crash of this server, data written within this time before it are read first. It is the time that the "
        "filesystem (mount option ``commit``), the disks and their controllers may need until data are on the disk.")
    max_age: float | None = filled_by(MAX_AGE)

    @property
    def oldest(self) -> float:
        """Returns the allowed age, in seconds, of each host's last verification."""
        return self.max_age or _SIXTY_DAYS


@dataclass(frozen=True, slots=True)
class DrillSettings:
    """How much of a backup a drill restores, its maximum duration in seconds, and how backups are booted and dumps are loaded."""

    time: float | None = filled_by(TIME)
    sample: FileSample = entry((DRILL,), kinds.SAMPLE, "1000", '"5%"',
        "How much of a backup a drill restores: a number of names chosen at random, a share of them, or ``all``.")
    boot_timeout: float = entry((DRILL,), kinds.DURATION, "5m", '"15m"',
        "How long a system may take to boot in ``backupd drill --boot``, including its ``boot_checks``.")
    load: Mapping[str, str] = field(default_factory=dict, metadata=ConfigKey((DRILL,), kinds.LOADS, [],
        '["postgresql /usr/local/sbin/load-postgresql"]',
        "Dumps that each drill also loads, each with a shell command: the name of a dump of ``btrkeep-source``, or the path of a "
        "file or folder in the backup. The command must exit with 0: see :doc:`drills`.").metadata)
    load_timeout: float = entry((DRILL,), kinds.DURATION, "30m", '"2h"',
        "How long such a command may take.")
    max_age: float | None = filled_by(MAX_AGE)

    @property
    def oldest(self) -> float:
        """The age in seconds at which the newest proven restore counts as late."""
        return self.max_age or _FIVE_WEEKS


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The dashboard. `names` are the host names it accepts, `behind_proxy` the addresses of trusted proxies; times are seconds."""

    listen: Listen = entry((WEB,), kinds.LISTEN, "127.0.0.1:8765", '"[::1]:8765"',
        "The address and port of the dashboard. Other machines reach it through a reverse proxy with https, see "
        ":doc:`dashboard`.")
    names: tuple[str, ...] = entry((WEB,), kinds.NAMES, [], '["backup.example.org"]',
        "The names that browsers use for it. It answers only to these, its own address and this machine's name, so that no other "
        "site can lead a browser here under its own name (DNS rebinding).")
    behind_proxy: tuple[str, ...] = entry((WEB,), kinds.ADDRESSES, [], '["127.0.0.1"]',
        "The addresses of reverse proxies whose headers for the client's address and https are trusted (``X-Forwarded-For``, "
        "``-Proto``, ``-Host``).")
    idle: float = entry((WEB,), kinds.DURATION, "12h", '"30m"',
        "How long a user may be inactive before they have to log in again.")
    longest: float = entry((WEB,), kinds.DURATION, "7d", '"1d"',
        "After this time users have to log in again, even if they were active.")
    red_night: float = entry((WEB,), kinds.SHARE, "10%", '"25%"',
        "The share of hosts without a complete backup from which a finished night is red; with fewer such hosts it is amber.")
    apply: bool = entry((WEB,), kinds.FLAG, False, "true",
        "true: an admin may apply a proposed change in the dashboard, with the password typed again. Otherwise only root may, with "
        "``backupd apply``. The root service also needs a drop-in: see :doc:`dashboard`.")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The root service. `rates` are requests a minute of one user, `at_once` requests of all users, both by verb.

    `run_distance`: seconds between two requested backups of a host; `runs_a_day`: such backups within 24 hours.
    """

    no_downloads: bool = entry((SERVE,), kinds.FLAG, False, "true",
        "true: the root service sends no content of files: no downloads, previews of text or differing lines. Names, sizes and "
        "times are still shown.")
    no_restores: bool = entry((SERVE,), kinds.FLAG, False, "true",
        "true: the root service restores nothing for users of the dashboard; ``backupd restore`` still works.")
    rates: Mapping[str, int] = field(default_factory=dict, metadata=ConfigKey((SERVE,), kinds.VERB_COUNTS, [], '["download 60"]',
        "How many requests a minute each user may send to the root service, by verb. :doc:`serve` has the defaults.").metadata)
    at_once: Mapping[str, int] = field(default_factory=dict, metadata=ConfigKey((SERVE,), kinds.VERB_COUNTS, [], '["download 4"]',
        "How many requests of a verb are answered at the same time, within the limits in :doc:`serve`; one user has half of "
        "them.").metadata)
    run_distance: float = entry((SERVE,), kinds.DURATION, "5m", '"1h"',
        "The minimum time between two backups of a host that users of the dashboard request; at most a minute after a failed "
        "one. Manual backups on the server count, but are not limited.")
    runs_a_day: int = entry((SERVE,), kinds.COUNT, 24, "6",
        "How many backups of a host users of the dashboard may request within 24 hours. Manual backups on the server count, but "
        "are not limited.")
