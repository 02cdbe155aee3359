"""Every configuration key: its sections, type, default and meaning.

Reading, the models' defaults, docs/configuration.rst and man/btrkeep.toml.5 are all made from this table. Defaults are written as
in TOML and parsed like an operator's values; None means that there is no default.
"""

from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from btrkeep.choices import DEFAULT_POLICY, MAX_PRESSURE
from btrkeep.config import value_types as kinds
from btrkeep.config.periods import PERIODS
from btrkeep.config.value_types import EVENT_WORDS, ValueKind
from btrkeep.units import format_share

POOL, BACKUP, RETENTION, EXPIRY, NOTIFY = "pool", "backup", "retention", "expiry", "notify"
BALANCE, VERIFY, DRILL, WEB, SERVE = "balance", "verify", "drill", "web", "serve"
SSH, GROUP, HOST, REPLICA, PUSH, OFFSITE = "ssh", "group", "host", "replica", "push", "offsite"
FETCHED_BY = "fetched_by"
SINGLE = (POOL, BACKUP, RETENTION, EXPIRY, BALANCE, VERIFY, DRILL, NOTIFY, WEB, SERVE, SSH)  # sections of which there is one
NAMED = (GROUP, HOST, REPLICA, PUSH, FETCHED_BY, OFFSITE)  # sections of which each has a name: [host.web1]
SECTIONS = SINGLE + NAMED
WITHIN = dict.fromkeys(
    (GROUP, HOST, REPLICA, OFFSITE), (RETENTION,)
)  # sections that may stand in a named one too: [host.web1.retention]
_ALL, _SHARED = (BACKUP, GROUP, HOST), (GROUP, HOST)
_WITH_COPIES = (*_ALL, REPLICA, PUSH, OFFSITE)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A row of the table. `sections` are the sections that may contain the key, the widest first; `example` is TOML."""

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
        "The folder of the catalogue and the pictures. Without it: ``/var/lib/btrkeep/`` and the pool's name."),
    ConfigKey("zone", (POOL,), kinds.ZONE, "UTC", '"Europe/Berlin"',
        "The time zone of windows, days and weeks, and of all times that commands and messages print. ``--json`` and the names of "
        "backups are in UTC."),
    ConfigKey("min_free", (POOL,), kinds.FLOOR, "5%", '"20GiB"',
        "The free space below which no new transfer starts, and below a quarter of which one is stopped: a share of the filesystem "
        "or a size."),

    ConfigKey("concurrency", (BACKUP, GROUP, REPLICA), kinds.COUNT, 4, "8",
        "How many transfers run at the same time, for a night and the dashboard together; a host that ``backupd run`` names "
        "is not counted, unless with ``--wait``. In a group: how many of the group's hosts, within the pool's number. "
        "In a replica: how many hosts are fetched at the same time.", False),
    ConfigKey("bandwidth", _WITH_COPIES, kinds.RATE, None, '"16MB"',
        "Bytes per second for all transfers together, those of replicas over ssh included; in a group for the group's hosts "
        "together, in a host for that host, in a replica for that replica. "
        "All of these limits apply; to a replica from a folder of this machine its own alone. "
        "In an offsite repository: what restic sends, which is not counted among them. "
        "Without it: no limit.", False),
    ConfigKey("confine", (BACKUP,), kinds.CONFINE, "auto", '"always"',
        "Whether the rsync that talks to a host is confined, so that it can write nothing but that host's new backup: where this "
        "machine can do it, always (otherwise nothing runs), or never. An rsync with known holes that cannot be confined runs only "
        "with never. What another pool has is received without a cell only from a folder, and only with never.", False),
    ConfigKey("window", _WITH_COPIES, kinds.WINDOW, None, '"22:00-06:00"',
        'When transfers run, in the pool\'s zone; it may span midnight. ``"none"`` lifts an inherited one.'),
    ConfigKey("every", _WITH_COPIES, kinds.DURATION, "1d", '"12h"',
        "How often a host is backed up, a replica fetched, or the newest backups sent to an offsite repository."),
    ConfigKey("late", _ALL, kinds.DURATION, None, '"2d"',
        "How old a host's newest complete backup may be before the host is late, which is a state and a message. Without it: "
        "1.5 times ``every``, and at least one missed window. For hosts that are ``optional`` see ``max_absence``."),
    ConfigKey("attempts", _ALL, kinds.COUNT, 3, "5",
        "How often a broken transfer is tried in one run."),
    ConfigKey("stall", _WITH_COPIES, kinds.DURATION, "30m", '"1h"',
        "A transfer without progress for this long is ended; so is the fetching or sending of one host's copies, "
        "and a restic that has read nothing from its repository meanwhile."),
    ConfigKey("deadline", _ALL, kinds.DURATION, "6h", '"12h"',
        "A host that takes longer than this in one run is ended and continued in the next."),
    ConfigKey("max_files", _ALL, kinds.COUNT_LIMIT, None, "1000000",
        "How many files, folders and links may be new in a backup; hard links, and what is replaced, count each time. A host that "
        'brings more is stopped. Without it, or with ``"none"``: no limit.'),
    ConfigKey("max_new_bytes", _ALL, kinds.SIZE_LIMIT, None, '"200GiB"',
        "How much new data a backup may have, in its files and their attributes. A host that brings more is stopped. Without it, "
        'or with ``"none"``: no limit.'),
    ConfigKey("max_memory", _ALL, kinds.FLOOR, "50%", '"4GiB"',
        "How much memory a host's rsync may take here: a share of this machine's or a size. If it takes more, it is stopped."),
    ConfigKey("quota", _ALL, kinds.SIZE_LIMIT, None, '"500GiB"',
        "How much of what is on the disks a host may have written, for all of its backups together: see :doc:`quotas`. It holds "
        'once simple quotas are switched on (``backupd quota enable``). Without it, or with ``"none"``: no limit.'),
    ConfigKey("inplace", _ALL, kinds.IN_PLACE, "always", '"large"',
        "Which changed files are written in place, so that unchanged blocks stay shared with earlier backups: "
        "all, large ones or none."),
    ConfigKey("shrink_limit", _ALL, kinds.SHARE, "50%", '"20%"',
        "How much of a source path, in files or in bytes, may be missing compared with the previous backup. If more is missing, "
        "the backup is suspect. What was excluded since by a plain path is no loss."),
    ConfigKey("unreadable_limit", _ALL, kinds.SHARE, "1%", '"5%"',
        "How many of a source path's files may be unreadable; a folder counts as everything that the previous backup has below it. "
        "If more are, or if nothing could be read, the backup is suspect. So it is if more of its files, or of its bytes, are "
        "missing because something is not mounted."),
    ConfigKey("exclude", _ALL, kinds.PATTERNS,
        ["/proc/*", "/sys/*", "/dev/*", "/run/*", "/tmp/*", "/var/tmp/*", "lost+found"], '["/var/cache/apt/archives/*", "*.iso"]',
        "Files that are not backed up, see `Exclude patterns`_. In [backup] it replaces the default; in a group or a host it is "
        "added to the inherited patterns."),
    ConfigKey("exclude_only", _ALL, kinds.PATTERNS, None, '["/proc/*", "/sys/*", "/dev/*"]',
        "Replaces all inherited patterns; an ``exclude`` in the same section is added to it."),
    ConfigKey("share_with", _SHARED, kinds.HOST_NAME, None, '"web1"',
        "A host like this one, such as with the same distribution. What a run has written shares the data of that host's newest "
        "complete backup where both have the same bytes under the same path: see :doc:`sharing`. Set in a group, it "
        "does nothing for that host itself. Without it: nothing is shared between hosts."),
    ConfigKey("share_across_groups", _SHARED, kinds.FLAG, False, "true",
        "Whether ``share_with`` may name a host of another group. Who sees the one host can find out then whether the other has a "
        "certain file."),
    ConfigKey("one_file_system", _ALL, kinds.FLAG, False, "true",
        "Do not back up filesystems that are mounted below a source path, nor nested btrfs subvolumes such as ``/home`` of many "
        "distributions. Each backup names these folders in a warning. What such a mount hides stays in the backups as it was. With "
        "and without this key, files that lie in a folder below a mount cannot be seen from outside, and no backup has them."),

    *(ConfigKey(period.name, (RETENTION,), kinds.NUMBER, 0, period.example, period.meaning) for period in PERIODS),
    ConfigKey("min_keep", (RETENTION,), kinds.COUNT, 3, "5",
        "How many complete backups of a host, the newest ones, are kept whatever the rules say."),
    ConfigKey("grace", (RETENTION,), kinds.DURATION, "1d", '"3d"',
        "How long an expired backup can still be restored, or taken back with ``backupd unexpire``, before it is deleted."),

    ConfigKey("max_orphans", (EXPIRY,), kinds.COUNT, 100, "50",
        "How many deleted subvolumes may wait for the kernel's cleaner at any time, including those that other programs deleted."),
    ConfigKey("pace", (EXPIRY,), kinds.PACE, "off", '"50ms"',
        'The load above which expiry pauses: how long a small fsync may take, such as ``"50ms"``, or the share of time that '
        'processes may wait for I/O, such as ``"10%"`` (pressure stall information). ``"off"``: no pauses.'),
    ConfigKey("mount_option", (EXPIRY,), kinds.MOUNT_OPTION, "none", '"ssd"',
        "The allocator's mount option while expired backups are deleted; afterwards the previous one is restored. "
        '``"none"``: it is not changed.'),
    ConfigKey("yield_to_backups", (EXPIRY,), kinds.FLAG, False, "true",
        "Whether expiry pauses while backups run: for six hours at most, and not while the pool has less than ``min_free``."),

    ConfigKey("budget", (BALANCE,), kinds.SIZE_LIMIT, "20GiB", '"100GiB"',
        'How much data ``btrfs-balancer run --pool`` moves at most in one run. ``"none"``: no limit.'),
    ConfigKey("time", (BALANCE, DRILL), kinds.TIME_LIMIT, "2h", '"6h"',
        'How long one run of the balancer, or one drill, takes at most. ``"none"``: no limit.'),
    ConfigKey("policy", (BALANCE,), kinds.POLICY, DEFAULT_POLICY, '"score"',
        "Which block groups are balanced first: those that gain most for what must be written, the most fragmented, or the "
        "least used."),
    ConfigKey("min_unallocated", (BALANCE,), kinds.FLOOR, None, '"20GiB"',
        "A run ends when less than this is unallocated: a size, or a share of the filesystem. Without it: 4 GiB, but no more than "
        "2% of the filesystem."),
    ConfigKey("while_backups", (BALANCE,), kinds.FLAG, False, "true",
        "Whether balancing goes on while backups run. It never does while ``backupd expire`` deletes."),
    ConfigKey("max_pressure", (BALANCE,), kinds.PRESSURE, format_share(MAX_PRESSURE), '"20%"',
        "A run waits while programs wait for the disks more of the time than this (pressure stall information), and ends when that "
        'lasts. ``"none"``: pressure is ignored.'),

    ConfigKey("new_files", (VERIFY,), kinds.SAMPLE_OR_NONE, "200", '"1%"',
        "Of how many of the files that a run has fetched their checksums are made at once, while they are as they came: so many, "
        'chosen at random, a share of them, or ``all``; and of files of 64 MiB or more. It takes at most 2% of the run\'s time. '
        '``"none"``: of none.'),

    ConfigKey("against_source", (VERIFY,), kinds.SAMPLE_OR_NONE, "none", '"1%"',
        "How many files of each host that became complete a night compares with the host at its end, by content: a share, of which "
        "each night takes the next slice, so with ``1%`` each file's turn comes once in a hundred nights; or so many, chosen at "
        'random, or ``all``. For half an hour at the most. ``"none"``: none.'),

    ConfigKey("after_crash", (VERIFY,), kinds.DURATION, "10m", '"1h"',
        "After a crash of this server what was written so long before it is read first: as long as the disks, their controllers "
        "and the filesystem (mount option ``commit``) may take until data is on the disk."),

    ConfigKey("sample", (DRILL,), kinds.SAMPLE, "1000", '"5%"',
        "How much of a backup a drill restores: so many names, chosen at random, a share of them, or ``all``."),
    ConfigKey("boot_timeout", (DRILL,), kinds.DURATION, "5m", '"15m"',
        "How long a system that ``backupd drill --boot`` boots may take to be up, its ``boot_checks`` included."),

    ConfigKey("urls", (NOTIFY,), kinds.URLS, [], '["mailto://user:password@mail.example.org", "ntfy://topic"]',
        "Where notifications are sent, as URLs of the library apprise: mail, Matrix, ntfy, Slack, webhooks and many more. They "
        "contain passwords: keep the file readable only by root. Without any, alarms are recorded and shown, and not sent.",
        secret=True),
    ConfigKey("on", (NOTIFY,), kinds.EVENTS, list(EVENT_WORDS), '["failure", "suspect", "devices"]',
        "Which events are sent at once: ``failure`` (a host, a unit, expiry, the pool), ``suspect`` (a backup that lost too much), "
        "``silent`` (a host that is late), ``room`` (the pool is nearly full), ``devices`` (errors, "
        "missing devices), and ``recovery`` of any of these."),
    ConfigKey("silent", (NOTIFY,), kinds.DURATION, None, '"2d"',
        "The message about a late host waits until its newest complete backup is older than this. Without it: sent as soon as the "
        "host is late (``late`` in [backup])."),
    ConfigKey("used_limit", (NOTIFY,), kinds.SHARE, "90%", '"85%"',
        "How much of the pool may be used before that is an alarm, and a warning of ``check``, ``doctor`` and ``status``."),
    ConfigKey("digest", (NOTIFY,), kinds.TIME_OF_DAY, "08:00", '"07:30"',
        'When the daily summary is sent, in the pool\'s zone. ``"none"``: never.'),
    ConfigKey("ping", (NOTIFY,), kinds.PING, None, '"https://hc-ping.com/00000000-0000-4000-8000-000000000000"',
        "A dead man's switch, as at healthchecks.io: this URL is requested after a night that met its goal, with ``/start`` when a "
        "night begins and with ``/fail`` after one that missed the goal. Without requests, that service raises the alarm.",
        secret=True),
    ConfigKey("ping_goal", (NOTIFY,), kinds.SHARE, "100%", '"98%"',
        "How many of the hosts must be ok after a night; those that are ``optional`` or not ``enabled`` are not counted."),

    ConfigKey("listen", (WEB,), kinds.LISTEN, "127.0.0.1:8765", '"[::1]:8765"',
        "The address and port that the dashboard listens on. Other machines reach it through a reverse proxy with https, see "
        ":doc:`dashboard`."),
    ConfigKey("names", (WEB,), kinds.NAMES, [], '["backup.example.org"]',
        "The names that browsers reach it by. It answers only to these, to its own address and to this machine's name, so that no "
        "other site can lead a browser here under its own name (DNS rebinding)."),
    ConfigKey("behind_proxy", (WEB,), kinds.ADDRESSES, [], '["127.0.0.1"]',
        "The addresses of reverse proxies whose headers for the client's address and https are trusted (``X-Forwarded-For``, "
        "``-Proto``, ``-Host``)."),
    ConfigKey("idle", (WEB,), kinds.DURATION, "12h", '"30m"',
        "How long a user may be inactive before they have to log in again."),
    ConfigKey("longest", (WEB,), kinds.DURATION, "7d", '"1d"',
        "After this time users have to log in again, even if they were active."),

    ConfigKey("no_downloads", (SERVE,), kinds.FLAG, False, "true",
        "Whether the root service gives out no content of files: no downloads, no previews of text, no differing lines. Names, "
        "sizes and times are still shown."),
    ConfigKey("no_restores", (SERVE,), kinds.FLAG, False, "true",
        "Whether the root service restores nothing for users of the dashboard; ``backupd restore`` still does."),
    ConfigKey("rates", (SERVE,), kinds.VERB_COUNTS, [], '["download 60"]',
        "How many requests a minute each user may make of the root service, by verb: see :doc:`serve`, which has the defaults."),
    ConfigKey("at_once", (SERVE,), kinds.VERB_COUNTS, [], '["download 4"]',
        "How many requests of a verb are answered at the same time, of which one user has half, within the limits in "
        ":doc:`serve`."),
    ConfigKey("run_distance", (SERVE,), kinds.DURATION, "5m", '"1h"',
        "The least time between two backups of a host that users of the dashboard request; a minute at most after one that "
        "failed. Backups by hand on the server count, but are not limited."),
    ConfigKey("runs_a_day", (SERVE,), kinds.COUNT, 24, "6",
        "How many backups of a host users of the dashboard may request within 24 hours. Backups by hand on the server count, but "
        "are not limited."),

    ConfigKey("key", (SSH,), kinds.SSH_FILE, "/etc/btrkeep/id_ed25519", '"/etc/btrkeep/id_ed25519"',
        "The private key for the connections to the hosts."),
    ConfigKey("known_hosts", (SSH,), kinds.SSH_FILE, "/etc/btrkeep/known_hosts", '"/etc/btrkeep/known_hosts"',
        "The hosts' public keys. A host that is not in it, or answers with another key, is not contacted."),
    ConfigKey("command", (SSH,), kinds.COMMAND, "ssh", '"/usr/local/bin/ssh"',
        "The program that rsync gets as -e, followed by btrkeep's options. Quote a word that contains spaces."),

    ConfigKey("paths", _SHARED, kinds.SOURCES, None, '["/etc", "/srv"]',
        "The source paths: absolute, none inside another. Required, in the host or in its group."),
    ConfigKey("enabled", _SHARED, kinds.FLAG, True, "false",
        "false: backed up only when it is named; its backups stay."),
    ConfigKey("optional", _SHARED, kinds.FLAG, False, "true",
        "true: for laptops and the like; if the host is not there, that is no failure. It is not there if there is no route to it, "
        "it does not answer, the connection is refused, or its name does not resolve any more. A refused key or another host key "
        "is a failure."),
    ConfigKey("max_absence", _SHARED, kinds.TIME_LIMIT, "14d", '"30d"',
        "How old the newest complete backup of an ``optional`` host may be before the host is late, which is a state and a "
        'message. ``"none"``: it may stay away for ever.'),
    ConfigKey("port", (*_SHARED, REPLICA, PUSH), kinds.PORT, None, "2222",
        "The port of the host's ssh, or of the other backup server's. Without it: ssh's own choice, 22."),
    ConfigKey("rsync_path", _SHARED, kinds.COMMAND, None, '"sudo rsync"',
        "How rsync is called on the host. What macOS and OpenBSD call rsync is openrsync, which lacks options that are needed: "
        "install rsync there; Homebrew's is ``/opt/homebrew/bin/rsync``."),
    ConfigKey("ssh_options", (*_SHARED, REPLICA, PUSH), kinds.SSH_OPTIONS, [], '["ProxyJump=gate.example.org"]',
        "Further options of ssh for this host, as in :manpage:`ssh_config(5)`, each given to ssh with ``-o``."),
    ConfigKey("before", _SHARED, kinds.WORDS, [], '["/usr/local/bin/dump-databases", "{address}"]',
        "A command, run on this machine without a shell before the host's transfers; ``{host}`` and ``{address}`` are replaced by "
        "the host's name and address. "
        "Exit status 75 skips the host in this run, any other failure fails it."),
    ConfigKey("after", _SHARED, kinds.WORDS, [], '["/usr/local/bin/thaw", "{address}"]',
        "The same, after the host's transfers."),
    ConfigKey("boot_checks", _SHARED, kinds.WORDS, [], '["pg_isready", "test -s /var/www/index.html"]',
        "Lines of the shell that ``backupd drill --boot`` runs in the host's system when it is up; each has to end with 0."),

    ConfigKey("group", (HOST,), kinds.GROUP, None, '"debian"',
        "The group whose settings the host takes. Without it: none.", False),
    ConfigKey("address", (HOST,), kinds.ADDRESS, None, '"root@web1.example.org"',
        "How ssh reaches the host; an IPv6 address in brackets. Without it: this machine.", False),

    ConfigKey("from", (REPLICA,), kinds.COPY_SOURCE, None, '"ssh://root@backup1.example.org"',
        "Where the backups are fetched from: another backup server, or the folder of a pool on this machine, such as that of a "
        "disk which comes and goes. ``\"push\"``: the other server sends them, because it cannot be reached from here. Required.",
        False),
    ConfigKey("to", (PUSH,), kinds.COPY_TARGET, None, '"ssh://root@backup2.example.org"',
        "The backup server that this pool's backups are sent to, because it cannot reach this one. Required.", False),
    ConfigKey("pool_name", (REPLICA, PUSH), kinds.POOL_NAME, "main", '"office"',
        "The name that the pool has on the other backup server. A forced command there decides by itself.", False),
    ConfigKey("hosts", (REPLICA, PUSH, OFFSITE), kinds.HOST_PATTERNS, ["*"], '["web*", "db1"]',
        "The hosts that are fetched, or sent: names, or patterns as the shell has them.", False),
    ConfigKey("newest_only", (REPLICA,), kinds.FLAG, False, "true",
        "true: of each host only the newest backup is fetched. false: all that this pool's retention keeps.", False),
    ConfigKey("take_holds", (REPLICA,), kinds.FLAG, True, "false",
        "Whether a hold in the other pool also holds the copy here. false: whoever controls the other server cannot fill this pool "
        "with backups that are never deleted.", False),
    ConfigKey("longest_hold", (REPLICA,), kinds.TIME_LIMIT, "none", '"90d"',
        "How long a hold that comes with a copy holds it here at most, from the time when it is fetched.", False),
    ConfigKey("max_age", (VERIFY, DRILL, REPLICA, PUSH, FETCHED_BY, OFFSITE), kinds.DURATION, None, '"3d"',
        "How old the newest copy of a host's backup may be before that needs a look, and how long a disk may be away. Without it: "
        "twice ``every``. In [fetched_by.NAME]: for how long no pool may have fetched from this one as the copy NAME, such as that "
        "of a disk which is kept elsewhere. Without it: two days; without the section, nobody is missed. "
        "In [drill]: how long ago the newest proven restore may be. Without it: five weeks, once there is one. "
        "In [verify]: how long ago data of each host may have been read, by ``verify`` or a scrub. Without it: sixty days, once "
        "some was.",
        False),

    ConfigKey("repository", (OFFSITE,), kinds.RESTIC_REPOSITORY, None, '"rest:https://copies.example.org/main"',
        "Where restic keeps it, as :manpage:`restic(1)` names it: a folder, ``sftp:``, ``rest:``, ``s3:``, ``rclone:`` and others. "
        "One with a password in it belongs into ``environment_file``, as ``RESTIC_REPOSITORY=``.", False),
    ConfigKey("password_file", (OFFSITE,), kinds.PATH, None, '"/etc/btrkeep/offsite.password"',
        "The file with the password of the repository, readable by root alone. Without it ``environment_file`` has "
        "``RESTIC_PASSWORD=`` or ``RESTIC_PASSWORD_COMMAND=``.", False),
    ConfigKey("environment_file", (OFFSITE,), kinds.PATH, None, '"/etc/btrkeep/offsite.env"',
        "A file of variables for restic, readable by root alone, one ``NAME=value`` on a line, such as ``AWS_ACCESS_KEY_ID=``.",
        False),
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
