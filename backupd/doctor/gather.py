"""Gathers all facts about a pool at one moment: its filesystem, its configuration, its schedule, and the machine.

The last scrub of a filesystem is read from a file that btrfs-progs keeps: /var/lib/btrfs/scrub.status.UUID. It has a
line for each device: UUID:DEVID|name:number|... (scrub_read_file in cmds/scrub.c). Scrubs that another machine did are not there.
Timers and lines of cron are read from files: systemd need not run.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from backupd.actions.discard import all_unfinished
from backupd.actions.quota import programs
from backupd.doctor.copies import check_copies, check_steps
from backupd.doctor.facts import DoctorFacts, KeyFile, Machine, Scrub, SiteFacts
from backupd.doctor.filesystem import read_filesystem
from backupd.expire.clocks import clock_doubt, clock_synchronised
from backupd.expire.report import expiry_words
from backupd.health.callers import is_own_service
from backupd.health.pool_facts import read_catalogue, read_pool_schedule
from backupd.repo.backup_json import read
from backupd.repo.listing import hosts_of, names_of
from backupd.rsync.version import rsync_version
from btrkeep.catalogue import Catalogue
from btrkeep.config import Config
from btrkeep.decisions.findings import ROOM, UNALLOCATED, USED
from btrkeep.decisions.pool_health import HealthLimits
from btrkeep.decisions.schedule import NOTHING_MISSED
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.hung_storage import answers
from btrkeep.pool import quota
from btrkeep.pool.activity import read_activity
from btrkeep.pool.allocation import read_allocation
from btrkeep.pool.balance import missing_devices
from btrkeep.pool.locks import EXPIRE_LOCK, read_holder
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.pool.mounts import is_machines
from btrkeep.pool.temporary_devices import left_devices
from btrkeep.process.programs import ProgramFailed
from btrkeep.procfs import privilege_hint, read_capabilities
from btrkeep.trusted_path import UntrustedStep, untrusted_state
from btrkeep.units import parse_time

FOLDER = Path("/var/lib/btrfs")
_CORRECTED, _UNCORRECTABLE = "corrected_errors", "uncorrectable_errors"


def read_scrub(uuid: str, devids: frozenset[int], *, running: bool, folder: Path = FOLDER) -> Scrub:
    """Reads the scrubs of these devices. Without a file, none was ever done on this machine."""
    try:
        text = (folder / f"scrub.status.{uuid}").read_text(errors="replace")
    except FileNotFoundError:
        return Scrub(running=running)
    except OSError:
        return Scrub(running=running, known=False)
    return of_devices({devid: fields for devid, fields in parse(text, uuid).items() if devid in devids}, devids, running=running)


def parse(text: str, uuid: str) -> Mapping[int, Mapping[str, int]]:
    """The numbers by devid; lines of other filesystems, other formats and other files are passed over."""
    found = {}
    for line in text.splitlines():
        head, *fields = line.split("|")
        name, _, devid = head.partition(":")
        if name == uuid and devid.isdigit():
            pairs = (field.partition(":") for field in fields)
            found[int(devid)] = {key: int(value) for key, _, value in pairs if value.isdigit()}
    return found


def of_devices(found: Mapping[int, Mapping[str, int]], devids: frozenset[int], *, running: bool) -> Scrub:
    """The scrubs of all devices as one, which is as old as the oldest of them."""
    complete = {devid: fields for devid, fields in found.items() if fields.get("finished") and not fields.get("canceled")}
    all_complete = bool(devids) and devids <= set(complete)
    return Scrub(
        finished=datetime.fromtimestamp(min(fields.get("t_start", 0) for fields in complete.values()), UTC)
        if all_complete
        else None,
        unfinished=not running and bool(set(found) - set(complete)),
        running=running,
        corrected=sum(fields.get(_CORRECTED, 0) for fields in found.values()),
        uncorrectable=sum(fields.get(_UNCORRECTABLE, 0) for fields in found.values()),
    )


def gather(config: Config, pool: Pool, now: datetime) -> DoctorFacts:
    """Returns all facts about a pool. Raises PoolUnusable."""
    try:
        filesystem = read_filesystem(pool.path)
        facts = DoctorFacts(now, filesystem, _scrub(pool, filesystem.uuid), _machine(), read_site(config, pool, now))
    except OSError as error:
        is_privilege = error.errno in (errno.EPERM, errno.EACCES)
        hint = privilege_hint() if is_privilege else "look at the kernel's messages (dmesg)"
        raise PoolUnusable(f"{pool.path}: {error.strerror}", hint) from error
    if any(facts.verdict.of(check) for check in (ROOM, UNALLOCATED, USED)) and (unfinished := all_unfinished(pool)):
        return replace(facts, site=replace(facts.site, unfinished=unfinished[0].host))
    return facts


def _scrub(pool: Pool, uuid: str) -> Scrub:
    devids = [device.devid for device in read_allocation(pool.path).devices]
    present = frozenset(devids).difference(missing_devices(pool.path) or ())  # of a missing one nothing can be read
    return read_scrub(uuid, present, running="scrub" in read_activity(pool.path, devids))


def _machine() -> Machine:
    try:
        numbers: tuple[int, ...] | None = rsync_version().numbers or None  # a version that says no number
    except ProgramFailed:
        numbers = ()
    # The root service asks for the dashboard. It lacks capabilities on purpose, and backups are not made in it.
    capabilities = None if is_own_service() else read_capabilities()
    return Machine(numbers, clock_synchronised(), processor_flags(), capabilities, is_root=os.geteuid() == 0)


def processor_flags() -> frozenset[str]:
    """x86 calls them flags, arm Features."""
    try:
        match = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(match[1].split()) if match else frozenset()


def read_site(config: Config, pool: Pool, now: datetime) -> SiteFacts:
    """Reads the facts about this pool. Raises OSError."""
    enabled = [host for host in config.hosts.values() if host.enabled]
    limited = [host for host in enabled if host.quota is not None]
    by_ssh = any(host.address for host in enabled)
    names = {host: names_of(pool, host) for host in hosts_of(pool)}
    expiring = read_holder(pool.locks / EXPIRE_LOCK)
    catalogue = read_catalogue(config.pool.state, pool)
    return SiteFacts(
        limits=HealthLimits.of(config),
        name=config.name,
        file=config.file,
        created=_created(pool),
        hosts=len(enabled),
        unruled=tuple(host.name for host in enabled if host.retention.missing),
        key=read_key_file(config.ssh.key) if by_ssh else None,
        known_hosts=read_key_file(config.ssh.known_hosts) if by_ssh else None,
        schedule=NOTHING_MISSED if pool.rehearsal else read_pool_schedule(config),
        own_balance=any(True for _ in scheduled_by("btrfs-balancer", "run")),
        mount_option=config.expiry.mount_option,
        expiring=expiring is not None and expiring.is_alive,
        most_backups=max(((host, len(found)) for host, found in names.items()), key=lambda item: item[1], default=None),
        catalogue=catalogue,
        quotas=len(limited),
        quota_since=quota.since(pool),
        programs=programs() if limited or quota.was_ever_on(pool.filesystem) else ("", True),
        clock_doubt=_clock_doubt(config.pool.state, pool, now) if catalogue.foreign == "" else None,
        confine=config.backup.confine,
        copies=tuple(check_copies(config, now)) if catalogue.foreign == "" else (),
        steps=tuple(check_steps(config, now)) if catalogue.foreign == "" else (),
        left_devices=left_devices(config.pool.state),
        untrusted_state=_untrusted_state(config.pool.state),
        unconfined=_unconfined(pool, {host.name: max(names.get(host.name, ()), default="") for host in enabled if host.address}),
    )


def _unconfined(pool: Pool, newest: Mapping[str, str]) -> str:
    """The trial that decides is made once for all hosts of a run, so one of the last run tells of all."""
    host = max(newest, key=newest.__getitem__, default="")
    if not host or not newest[host]:
        return ""
    try:
        found = read(pool.hosts / host / newest[host])
    except OSError:
        return ""
    return f"{host}/{newest[host]}" if found and found.confined is False else ""


def _untrusted_state(state: Path) -> UntrustedStep | None:
    """None as well where the state folder cannot be read: of that the rule about the catalogue reports."""
    if not answers(state):
        return None
    with suppress(OSError):
        return untrusted_state(state)
    return None


def _clock_doubt(state: Path, pool: Pool, now: datetime) -> str | None:
    try:
        with Catalogue.open_readonly(state) as catalogue:
            found = clock_doubt(catalogue, now, rehearsal=pool.rehearsal)
            return expiry_words(found) if found else None
    except OperatorError:  # of which the rule about the catalogue tells
        return None


def _created(pool: Pool) -> datetime | None:
    try:
        return parse_time(json.loads((pool.path / MARKER / "pool.json").read_text())["created"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_key_file(path: Path) -> KeyFile:
    """Reads the facts about a file that ssh uses."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        with path.open("rb") as file:
            empty = not any(line.strip() and not line.startswith(b"#") for line in file)
    except FileNotFoundError:
        there = next(folder for folder in path.absolute().parents if folder.exists())
        hidden = "" if is_machines(there) else f"this process does not see what the machine has in {there}"
        return KeyFile(path, None, hidden=hidden)
    except OSError as error:
        return KeyFile(path, None, hidden=f"{path}: {error.strerror}")
    return KeyFile(path, mode, empty)


_UNITS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_CRON = ("etc/crontab", "etc/cron.d", "var/spool/cron/crontabs", "etc/cron.hourly", "etc/cron.daily")


def scheduled_by(program: str, verb: str, root: Path = Path("/")) -> Iterator[str]:
    """Names of enabled timers and of files of cron that run `program ... verb`, which may be any pool's."""
    said = re.compile(rf"\b{re.escape(program)}\b[^\n]*\b{re.escape(verb)}\b")
    for timer in sorted(_enabled(root)):
        if any(said.search(line) for line in _lines(_service_of(timer, root))):
            yield timer
    for folder in _CRON:
        for file in sorted(_files(root / folder)):
            if any(said.search(line) for line in _lines(file)):
                yield str(file)


def _enabled(root: Path) -> set[str]:
    """Timers that a target wants: what `systemctl enable` makes of [Install]."""
    return {timer.name for folder in _UNITS for timer in (root / folder).glob("*.wants/*.timer")}


def _service_of(timer: str, root: Path) -> Path | None:
    """The file of the service that a timer of the same name starts; that of the template for an instance (a@b.timer)."""
    name = timer.removesuffix(".timer")
    template = name.partition("@")[0] + "@" if "@" in name else name
    candidates = (root / folder / f"{one}.service" for one in dict.fromkeys((name, template)) for folder in _UNITS)
    return next((file for file in candidates if file.exists()), None)


def _files(place: Path) -> list[Path]:
    with suppress(OSError):
        if place.is_dir():
            return [file for file in place.iterdir() if not file.name.startswith(".")]
    return [place]


def _lines(file: Path | None) -> list[str]:
    """Returns the lines of a file that are no comments."""
    try:
        text = file.read_text(errors="replace") if file else ""
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
