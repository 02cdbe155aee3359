"""Gathers all facts about a pool at one moment: its filesystem, its configuration, and the machine.

The last scrub of a filesystem is read from a file that btrfs-progs keeps: /var/lib/btrfs/scrub.status.UUID. It has a
line for each device: UUID:DEVID|name:number|... (scrub_read_file in cmds/scrub.c). Scrubs that another machine did are not there.
"""

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from backupd.actions.discard import all_unfinished
from backupd.doctor.facts import DoctorFacts, Machine, Scrub
from backupd.doctor.filesystem import read_filesystem
from backupd.doctor.site import read_site
from backupd.expire.clocks import clock_synchronised
from backupd.health.callers import is_own_service
from backupd.rsync.command import rsync_version
from btrkeep.config import Config
from btrkeep.decisions.findings import ROOM, UNALLOCATED, USED
from btrkeep.errors import PoolUnusable
from btrkeep.pool.activity import read_activity
from btrkeep.pool.allocation import read_allocation
from btrkeep.pool.balance import missing_devices
from btrkeep.pool.marker import Pool
from btrkeep.process.programs import ProgramFailed
from btrkeep.procfs import privilege_hint, read_capabilities

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
    by_devid = {}
    for line in text.splitlines():
        head, *fields = line.split("|")
        name, _, devid = head.partition(":")
        if name == uuid and devid.isdigit():
            pairs = (field.partition(":") for field in fields)
            by_devid[int(devid)] = {key: int(value) for key, _, value in pairs if value.isdigit()}
    return by_devid


def of_devices(by_devid: Mapping[int, Mapping[str, int]], devids: frozenset[int], *, running: bool) -> Scrub:
    """The scrubs of all devices as one, which is as old as the oldest of them."""
    complete = {devid: fields for devid, fields in by_devid.items() if fields.get("finished") and not fields.get("canceled")}
    all_complete = bool(devids) and devids <= set(complete)
    return Scrub(
        finished=datetime.fromtimestamp(min(fields.get("t_start", 0) for fields in complete.values()), UTC)
        if all_complete
        else None,
        unfinished=not running and bool(set(by_devid) - set(complete)),
        running=running,
        corrected=sum(fields.get(_CORRECTED, 0) for fields in by_devid.values()),
        uncorrectable=sum(fields.get(_UNCORRECTABLE, 0) for fields in by_devid.values()),
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
