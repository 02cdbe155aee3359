"""Every key there is: where it may stand, what it takes, its default and its meaning.

The one table that reading, the models' defaults, docs/configuration.rst and man/btrkeep.toml.5 are made from. Defaults are written
as in TOML and read by the same kinds as an operator's values; None means that there is none.
"""

from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from btrkeep.config import value_types as kinds
from btrkeep.config.value_types import EVENT_WORDS, ValueKind

POOL, BACKUP, RETENTION, EXPIRY, NOTIFY = "pool", "backup", "retention", "expiry", "notify"
BALANCE, WEB = "balance", "web"
SSH, GROUP, HOST = "ssh", "group", "host"
SINGLE = (POOL, BACKUP, RETENTION, EXPIRY, BALANCE, NOTIFY, WEB, SSH)  # sections of which there is one
NAMED = (GROUP, HOST)  # sections of which each has a name: [host.web1]
SECTIONS = SINGLE + NAMED
WITHIN = {GROUP: (RETENTION,), HOST: (RETENTION,)}  # sections that may stand in a named one too: [host.web1.retention]
_ALL, _SHARED = (BACKUP, GROUP, HOST), (GROUP, HOST)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One row. `sections` are those where it is legal, the widest first; `example` is TOML."""

    name: str
    sections: tuple[str, ...]
    kind: ValueKind
    default: Any
    example: str
    meaning: str
    inherited: bool = True  # whether a host takes it from its group, and a group from the section for all hosts
    secret: bool = False  # never shown, not even when it is wrong


TABLE = (
    ConfigKey("path", (POOL,), kinds.PATH, None, '"/srv/backup"',
        "The pool: a folder on a mounted btrfs, made by ``backupd init``. Required."),
    ConfigKey("state", (POOL,), kinds.PATH, None, '"/var/lib/btrkeep/main"',
        "Where the catalogue and the pictures live. Without it: ``/var/lib/btrkeep/`` and the pool's name."),
    ConfigKey("zone", (POOL,), kinds.ZONE, "UTC", '"Europe/Berlin"',
        "The time zone in which windows, days and weeks are counted."),
    ConfigKey("min_free", (POOL,), kinds.FLOOR, "5%", '"20GiB"',
        "Below this no new transfer starts, below a quarter of it one is stopped: a share of the filesystem or a size."),

    ConfigKey("concurrency", (BACKUP, GROUP), kinds.COUNT, 4, "8",
        "How many transfers run at the same time, of a night and of the dashboard together; a host that ``backupd run`` names runs "
        "beside them, unless with ``--wait``. In a group: how many of the group's hosts, within the pool's number.", False),
    ConfigKey("bandwidth", _ALL, kinds.RATE, None, '"16MB"',
        "Bytes per second for all transfers together; in a group for the group's hosts together, in a host for that host. "
        "The caps apply on top of each other. Without it: no limit.", False),
    ConfigKey("window", _ALL, kinds.WINDOW, None, '"22:00-06:00"',
        'When transfers run, in the pool\'s zone; it may span midnight. ``"none"`` lifts an inherited one.'),
    ConfigKey("every", _ALL, kinds.DURATION, "1d", '"12h"',
        "How often a host is backed up."),
    ConfigKey("attempts", _ALL, kinds.COUNT, 3, "5",
        "How often a transfer that broke is tried in one run."),
    ConfigKey("stall", _ALL, kinds.DURATION, "30m", '"1h"',
        "A transfer without progress for this long is ended."),
    ConfigKey("deadline", _ALL, kinds.DURATION, "6h", '"12h"',
        "A host that takes longer than this in one run is ended and continued in the next."),
    ConfigKey("inplace", _ALL, kinds.IN_PLACE, "always", '"large"',
        "Which changed files are written in place, so that unchanged blocks stay shared with earlier backups: "
        "all, large ones or none."),
    ConfigKey("shrink_limit", _ALL, kinds.SHARE, "50%", '"20%"',
        "How much of a source path, in files or in bytes, may be gone since the backup before. Beyond it the backup is suspect."),
    ConfigKey("unreadable_limit", _ALL, kinds.SHARE, "1%", '"5%"',
        "How many of a source path's files may be unreadable; a folder counts for all that the backup before has below it. "
        "Beyond it, or when nothing could be read, the backup is suspect."),
    ConfigKey("exclude", _ALL, kinds.PATTERNS,
        ["/proc/*", "/sys/*", "/dev/*", "/run/*", "/tmp/*", "/var/tmp/*", "lost+found"], '["/var/cache/apt/archives/*", "*.iso"]',
        "What is left out, see `Exclude patterns`_. In [backup] it takes the place of the default; in a group or a host it is "
        "added to what is inherited."),
    ConfigKey("exclude_only", _ALL, kinds.PATTERNS, None, '["/proc/*", "/sys/*", "/dev/*"]',
        "Takes the place of everything inherited; an ``exclude`` beside it is added to it."),
    ConfigKey("one_file_system", _ALL, kinds.FLAG, False, "true",
        "Do not go into filesystems that are mounted below a source path."),

    ConfigKey("daily", (RETENTION,), kinds.NUMBER, 0, "14",
        "Of how many days, the newest that have one, the first complete backup is kept."),
    ConfigKey("weekly", (RETENTION,), kinds.NUMBER, 0, "13",
        "The same for ISO weeks, which begin on Monday."),
    ConfigKey("monthly", (RETENTION,), kinds.NUMBER, 0, "12",
        "The same for months."),
    ConfigKey("yearly", (RETENTION,), kinds.NUMBER, 0, "3",
        "The same for years."),
    ConfigKey("min_keep", (RETENTION,), kinds.COUNT, 3, "5",
        "So many complete backups of a host stay, the newest, whatever the rules say."),
    ConfigKey("grace", (RETENTION,), kinds.DURATION, "1d", '"3d"',
        "How long an expired backup can still be restored, and be kept with ``backupd unexpire``, before it is deleted."),

    ConfigKey("max_orphans", (EXPIRY,), kinds.COUNT, 100, "50",
        "How many deleted subvolumes may wait for the kernel's cleaner at any time, those that others deleted included."),
    ConfigKey("pace", (EXPIRY,), kinds.PACE, "off", '"50ms"',
        'What expiry must not push the pool beyond, by pausing: how long a small fsync may take, such as ``"50ms"``, or the share '
        'of time that processes wait for I/O, such as ``"10%"`` (pressure stall information). ``"off"``: no pauses.'),
    ConfigKey("mount_option", (EXPIRY,), kinds.MOUNT_OPTION, "none", '"ssd"',
        "The allocator's mount option while expired backups are deleted; afterwards the one that was there before comes back. "
        '``"none"``: it is left alone.'),
    ConfigKey("yield_to_backups", (EXPIRY,), kinds.FLAG, False, "true",
        "Whether expiry pauses while backups run."),

    ConfigKey("budget", (BALANCE,), kinds.SIZE_LIMIT, "20GiB", '"100GiB"',
        'How much data ``btrfs-balancer run --pool`` moves at the most in one run. ``"none"``: no limit.'),
    ConfigKey("time", (BALANCE,), kinds.TIME_LIMIT, "2h", '"6h"',
        'How long one run takes at the most. ``"none"``: no limit.'),
    ConfigKey("policy", (BALANCE,), kinds.POLICY, "benefit", '"score"',
        "What is balanced first: what gains most for what has to be written, what is most fragmented, or what is used least."),
    ConfigKey("min_unallocated", (BALANCE,), kinds.FLOOR, None, '"20GiB"',
        "A run ends when less than this is unallocated: a size, or a share of the filesystem. Without it: 4 GiB, but no more than "
        "2% of the filesystem."),
    ConfigKey("while_backups", (BALANCE,), kinds.FLAG, False, "true",
        "Whether balancing goes on while backups run. It never does while ``backupd expire`` deletes."),
    ConfigKey("max_pressure", (BALANCE,), kinds.PRESSURE, "40%", '"20%"',
        "A run waits while programs wait for the disks more of the time than this (pressure stall information), and ends when that "
        'lasts. ``"none"``: it is not looked at.'),

    ConfigKey("urls", (NOTIFY,), kinds.URLS, [], '["mailto://user:password@mail.example.org", "ntfy://topic"]',
        "Who is told, as URLs of the library apprise: mail, Matrix, ntfy, Slack, webhooks and many more. They hold passwords: keep "
        "the file that they stand in readable by root alone. Without any, alarms are kept and shown, and nobody is told.",
        secret=True),
    ConfigKey("on", (NOTIFY,), kinds.EVENTS, list(EVENT_WORDS), '["failure", "suspect", "devices"]',
        "What is told at once: ``failure`` (a host, a unit, expiry, the pool), ``suspect`` (a backup that lost too much), "
        "``silent`` (a host without a complete backup for too long), ``room`` (the pool is nearly full), ``devices`` (errors, "
        "missing devices), and ``recovery`` of any of these."),
    ConfigKey("silent", (NOTIFY,), kinds.DURATION, "3d", '"2d"',
        "A host whose newest complete backup is older than this is silent. Hosts that are ``optional`` never are."),
    ConfigKey("used_limit", (NOTIFY,), kinds.SHARE, "90%", '"85%"',
        "How much of the pool's room may be used before that is an alarm, and a warning of ``check``, ``doctor`` and ``status``."),
    ConfigKey("digest", (NOTIFY,), kinds.TIME_OF_DAY, "08:00", '"07:30"',
        'When the summary of the day is sent, in the pool\'s zone. ``"none"``: never.'),
    ConfigKey("ping", (NOTIFY,), kinds.PING, None, '"https://hc-ping.com/00000000-0000-4000-8000-000000000000"',
        "A dead man's switch, as healthchecks.io and others keep it: this URL is told of a night that met its goal, the same with "
        "``/start`` when one begins and with ``/fail`` when one missed it. Silence makes that service raise the alarm.",
        secret=True),
    ConfigKey("ping_goal", (NOTIFY,), kinds.SHARE, "100%", '"98%"',
        "How many of the hosts must be well after a night, those left out that are ``optional`` or not ``enabled``."),

    ConfigKey("listen", (WEB,), kinds.LISTEN, "127.0.0.1:8765", '"[::1]:8765"',
        "Where the dashboard listens: an address and a port. Other machines reach it through a reverse proxy with https, see "
        ":doc:`dashboard`."),
    ConfigKey("names", (WEB,), kinds.NAMES, [], '["backup.example.org"]',
        "The names that browsers reach it by. It answers to these, to its own address and to this machine's name, and to no other: "
        "a page elsewhere must not lead a browser here under a name of its own."),
    ConfigKey("behind_proxy", (WEB,), kinds.ADDRESSES, [], '["127.0.0.1"]',
        "The addresses of reverse proxies: only what these say of who asks, and whether by https, is believed "
        "(``X-Forwarded-For``, ``-Proto``, ``-Host``)."),
    ConfigKey("idle", (WEB,), kinds.DURATION, "12h", '"30m"',
        "Who did nothing for this long has to log in again."),
    ConfigKey("longest", (WEB,), kinds.DURATION, "7d", '"1d"',
        "Who logged in this long ago has to log in again, whatever was done since."),

    ConfigKey("key", (SSH,), kinds.SSH_FILE, "/etc/btrkeep/id_ed25519", '"/etc/btrkeep/id_ed25519"',
        "The private key that hosts are reached with."),
    ConfigKey("known_hosts", (SSH,), kinds.SSH_FILE, "/etc/btrkeep/known_hosts", '"/etc/btrkeep/known_hosts"',
        "The hosts' public keys. A host that is not in it, or answers with another key, is not contacted."),
    ConfigKey("command", (SSH,), kinds.COMMAND, "ssh", '"/usr/local/bin/ssh"',
        "The program that rsync gets as -e, followed by btrkeep's options. Quotes hold a word with blanks together."),

    ConfigKey("paths", _SHARED, kinds.SOURCES, None, '["/etc", "/srv"]',
        "The source paths: absolute, none inside another. Required, in the host or in its group."),
    ConfigKey("enabled", _SHARED, kinds.FLAG, True, "false",
        "false: never backed up, its backups stay."),
    ConfigKey("optional", _SHARED, kinds.FLAG, False, "true",
        "true: a laptop; its absence is no failure."),
    ConfigKey("port", _SHARED, kinds.PORT, None, "2222",
        "The port of the host's ssh. Without it: ssh's own choice, 22."),
    ConfigKey("rsync_path", _SHARED, kinds.COMMAND, None, '"sudo rsync"',
        "How rsync is called on the host."),
    ConfigKey("ssh_options", _SHARED, kinds.SSH_OPTIONS, [], '["ProxyJump=gate.example.org"]',
        "Further options of ssh for this host, as in :manpage:`ssh_config(5)`, each given to ssh with ``-o``."),
    ConfigKey("before", _SHARED, kinds.WORDS, [], '["/usr/local/bin/dump-databases", "{address}"]',
        "A command, run on this machine without a shell before the host's transfers; ``{host}`` and ``{address}`` stand for the "
        "host's name and address. "
        "Exit status 75 skips the host in this run, any other failure fails it."),
    ConfigKey("after", _SHARED, kinds.WORDS, [], '["/usr/local/bin/thaw", "{address}"]',
        "The same, after the host's transfers."),

    ConfigKey("group", (HOST,), kinds.GROUP, None, '"debian"',
        "The group whose settings the host takes. Without it: none.", False),
    ConfigKey("address", (HOST,), kinds.ADDRESS, None, '"root@web1.example.org"',
        "How ssh reaches the host; an IPv6 address in brackets. Without it: this machine.", False),
)  # fmt: skip

WRITTEN = {
    section: (
        f"[{section}.NAME]" if section in NAMED else f"[{section}]",
        *(f"[{outer}.NAME.{section}]" for outer, inner in WITHIN.items() if section in inner),
    )
    for section in SECTIONS
}
"""How each section's head is written, in all places where it may stand."""

SECRET = frozenset(key.name for key in TABLE if key.secret)

LEGAL = {section: {key.name: key for key in TABLE if section in key.sections} for section in SECTIONS}


# Parsed, by name: names are unique in the table. The zone is not among them, for a machine may have no time zones at all.
DEFAULTS: dict[str, Any] = {
    key.name: None if key.default is None else key.kind(key.default) for key in TABLE if key.kind is not kinds.ZONE
}


def default_zone() -> ZoneInfo:
    """Raises Refused on a machine without time zones."""
    zone: ZoneInfo = kinds.ZONE(LEGAL[POOL]["zone"].default)
    return zone
