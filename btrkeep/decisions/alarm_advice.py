"""Decides when an alarm about a host or copy without a complete backup is due, and what to do about each alarm. Pure."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from btrkeep.catalogue import model_alarm as kinds
from btrkeep.catalogue.model_alarm import SILENT, StoredAlarm
from btrkeep.config import Config, HostConfig
from btrkeep.config.published import Published
from btrkeep.decisions.due import DAY, host_late_from

_NEVER = datetime.max.replace(tzinfo=UTC)
_TWO_DAYS = 2 * DAY  # for a copy that is no longer configured


def message_from(since: datetime, host: HostConfig, zone: ZoneInfo, silent: float | None) -> datetime:
    """Returns when the message about a host is due whose newest complete backup started at `since`, or that waits since then for
    its first. `silent`: the age that [notify] sets.
    """
    late = host_late_from(host, since, zone)
    if host.optional:
        return late or _NEVER
    assert late is not None
    return max(late, since + timedelta(seconds=silent)) if silent is not None else late


@dataclass(frozen=True, slots=True)
class AlarmPatience:
    """How long an alarm waits about a host or a copy that has never been complete."""

    hosts: Mapping[str, HostConfig]
    """The configured hosts by name."""
    zone: ZoneInfo
    """The pool's time zone."""
    silent: float | None
    """Seconds, as in [notify]; None: at the time when the host is late."""
    copies: Mapping[str, float]
    """The allowed age of each copy by name, in seconds."""

    @classmethod
    def of(cls, config: Config) -> "AlarmPatience":
        """Returns that of a configuration."""
        copies = {copy.name: copy.oldest for copy in config.copies.values()}
        return cls(config.every_host, config.pool.zone, config.notify.silent, copies)

    @classmethod
    def of_published(cls, config: Published) -> "AlarmPatience":
        """Returns that of the published configuration."""
        return cls(config.hosts, config.zone, config.silent, {name: copy.oldest for name, copy in config.copies.items()})

    def is_active(self, alarm: StoredAlarm, now: datetime) -> bool:
        """Returns True if this is an alarm now."""
        if alarm.recovered is not None:
            return False
        if alarm.what != SILENT or alarm.told is not None:
            return True
        name = alarm.about.name
        if alarm.host is not None:
            host = self.hosts.get(name) or HostConfig(name)
            return now > message_from(alarm.since, host, self.zone, self.silent)
        return now > alarm.since + timedelta(seconds=self.copies.get(name, _TWO_DAYS))


_UNIT_NAME = re.compile(r"[A-Za-z0-9@:_.\\-]+", re.ASCII)
ANY = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for an alarm."""

    words: str
    """What to do."""
    command: str = ""
    """A command that shows more; "": none."""
    page: str = ""
    """A page of the dashboard; "": none."""


_REPLICA = Advice(
    "Check why it cannot be updated; the other pool may be unreachable or full.", "backupd replicate {name} --dry-run", "copies"
)
TABLE: Mapping[tuple[str, str], Advice] = {
    (kinds.FAILURE, kinds.HOST): Advice(
        "Check the log of its last run. Fix the cause, then run it again.",
        "backupd log {name}"),
    (kinds.SUSPECT, kinds.HOST): Advice(
        "Check the reason: which files are missing, or which dump or snapshot failed on the host. If nothing that you need is "
        "missing, accept the backup.",
        "backupd list {name}"),
    (kinds.SILENT, kinds.HOST): Advice(
        "Check the reason. If none is shown, check that the machine is switched on and its window is long enough.",
        "backupd run {name}"),
    (kinds.FAILURE, kinds.POOL): Advice(
        "Check that the pool is mounted and writable, and that it is the right filesystem.",
        "backupd doctor", "doctor"),
    (kinds.FAILURE, kinds.EXPIRY): Advice(
        "Check why it failed. Until then nothing is deleted, and the pool grows.",
        "backupd expire --dry-run", "jobs"),
    (kinds.FAILURE, kinds.BALANCE): Advice(
        "Check why it failed. Until then free space stays fragmented.",
        "btrfs-balancer plan --pool {pool}", "jobs"),
    (kinds.FAILURE, kinds.DRILL): Advice(
        "A restored backup differed, a dump could not be loaded, or none was restored for a long time: check why, and try again.",
        "backupd drill"),
    (kinds.FAILURE, kinds.VERIFICATION): Advice(
        "Check that the timer btrkeep-verify@ or btrkeep-scrub@ is enabled. Damage is found only by reading.",
        "backupd verify"),
    (kinds.FAILURE, kinds.READ_ONLY): Advice(
        "Check the kernel's messages (dmesg) for the cause before you mount it read-write again.",
        "backupd doctor", "doctor"),
    (kinds.FAILURE, kinds.CONFIGURATION): Advice(
        "Correct the lines that the command shows. Until then some hosts, or all, are not backed up.",
        "backupd check"),
    (kinds.FAILURE, kinds.CATALOGUE): Advice(
        "The command prints the remedy: another `state` for this pool, a `chmod`, or a rebuild of the catalogue from the pool.",
        "backupd check"),
    (kinds.FAILURE, kinds.STATE_FULL): Advice(
        "Free space on the filesystem of the state folder, or enlarge it. Backups continue, and are recorded afterwards.",
        "df -h {name}; df -i {name}"),
    (kinds.FAILURE, kinds.CLOCK): Advice(
        "Compare the clock with another machine's, and set it if it is wrong. Until then nothing expires.",
        "timedatectl"),
    (kinds.FAILURE, kinds.ALTERED_BACKUPS): Advice(
        "A backup was made writable and changed: check which files. Then accept it, delete it, or fetch a copy again.",
        "backupd verify"),
    (kinds.ROOM, kinds.MIN_FREE): Advice(
        "No backup starts until there is free space: keep fewer backups, balance, or add a device.",
        "backupd check", "pool"),
    (kinds.ROOM, kinds.UNALLOCATED): Advice(
        "Metadata needs unallocated space: the command shows how to free some.",
        "backupd doctor", "doctor"),
    (kinds.FAILURE, kinds.SCHEDULE): Advice(
        "Runs do not start often enough: enable the timer btrkeep-backup@, or check why it does not run.",
        "backupd check", "doctor"),
    (kinds.ROOM, kinds.USED): Advice("Keep fewer backups, or add a device.", "backupd usage", "pool"),
    (ANY, kinds.UNIT): Advice("Read its last messages, fix the cause, and start it again.", "journalctl -u {name} -n 50", "log"),
    (kinds.SILENT, kinds.OFFSITE): Advice(
        "No backup was sent yet: create the repository, then send backups to it.",
        "backupd offsite init {name}", "copies"),
    (ANY, kinds.OFFSITE): Advice(
        "Check why it cannot be updated; the repository may be unreachable or full.",
        "backupd offsite run {name} --dry-run", "copies"),
    (ANY, kinds.REPLICA): _REPLICA,
    # The other server chooses the backups, so a dry run does not even connect.
    (ANY, kinds.PUSH): replace(_REPLICA, command="backupd replicate {name}"),
    (ANY, kinds.FETCHED_BY): Advice(
        "The other server, or the disk, has not fetched from this pool: check why.",
        "backupd status", "copies"),
    (ANY, kinds.DAMAGED): Advice("Other backups of the host, or a copy elsewhere, may have these files.", "backupd list {name}"),
    (kinds.DEVICES, ANY): Advice(
        "Check the device's health (smartctl) and scrub the pool. Replace the device before another device fails.",
        "backupd doctor", "doctor"),
    (ANY, kinds.CONDITION): Advice(
        "This has lasted for several nights. A path: let root read it on the host, or exclude it; files deleted there may still "
        "be in the backups. A dump or a snapshot: correct it on the host.",
        "backupd status {name}"),
    (ANY, kinds.HOST_KEY): Advice(
        "Compare the key with the host's own before you remove the recorded one: another machine may answer there.",
        "backupd host test {name}"),
    (ANY, kinds.STEP): Advice(
        "This step failed several times in a row. The alarm has the command; check its log.",
        "", "log"),
    (kinds.SERVICE, ANY): Advice("This service does not deliver alarms: check its URL in [notify].", "backupd notify --test"),
}  # fmt: skip
"""By event and kind of subject; ANY if one of them does not matter. scripts.make_lists writes docs/what-to-do.rst."""
ELSE = Advice("Check the findings of the doctor.", "backupd doctor", "doctor")


def advice(row: StoredAlarm, pool: str = "main", call: str = "") -> Advice:
    """Returns the advice for an alarm of that kind and subject, with the names filled in.

    `pool`: the name of the pool; `call`: how `backupd` is called for it, if that is not by the name.
    """
    kind, name = row.about.kind, row.about.name
    keys = ((row.what, kind), (ANY, kind), (row.what, ANY))
    entry = next((TABLE[key] for key in keys if key in TABLE), ELSE)
    if kind == kinds.UNIT and not _UNIT_NAME.fullmatch(name):
        name = "UNIT"
    if kind == kinds.STATE_FULL:
        name = shlex.quote(name)
    return Advice(entry.words, command_for(entry.command.format(name=name, pool=pool), pool, call), entry.page)


def command_for(command: str, pool: str, call: str = "") -> str:
    """Returns a command of backupd or btrfs-balancer for that pool; `call` as for `advice`."""
    call = call or ("backupd" if pool == "main" else f"backupd --pool {pool}")
    if command.startswith("backupd "):
        return command.replace("backupd", call, 1)
    if " --config " in call and command.startswith("btrfs-balancer "):
        return command.replace(f"--pool {pool}", call.removeprefix("backupd "), 1)
    return command
