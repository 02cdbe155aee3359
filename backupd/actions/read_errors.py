"""Errors that anybody met who read from the pool, resolved to files and to every backup that shares them.

Whoever read (a restore, a drill, `btrfs send`, a backup from its base) was told EIO and went on or did not; btrfs counted the
error, and wrote subvolume, inode and place into the kernel's log. So it is found whoever met it, without a hook in each reader.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime

from backupd.actions.damage_resolver import FilePlace, Resolver
from backupd.actions.damaged_places import backups_by_id, is_bad, merged
from backupd.repo.context import PoolContext
from backupd.repo.damages import enter_damages
from btrkeep.catalogue import Damage
from btrkeep.decisions.device_errors import SeenErrors, grown, note_seen, read_seen, seen_now
from btrkeep.pool.allocation import read_allocation
from btrkeep.pool.kernel_log import KernelLog, ReadFailure, filesystem_devices, read_failures
from btrkeep.pool.model import DEVICE_ERRORS
from btrkeep.pool.subvolume import opened
from btrkeep.procfs import boot_id

_OF_READING = ("read", "corruption", "generation")


@dataclass(frozen=True, slots=True)
class ReadErrors:
    """`rows`: what became known to be damaged; `lines`: of the log, that name an error; `seen`: what is counted and not named;
    `why` the log could not be read.
    """

    rows: tuple[Damage, ...] = ()
    lines: int = 0
    seen: SeenErrors = field(default_factory=SeenErrors)
    why: str = ""


def look_at_read_errors(context: PoolContext, now: datetime, *, were_met: bool = False) -> ReadErrors:
    """Looks, if the devices have counted errors since the last look, and writes down what they damaged. Raises OSError.

    `were_met`: the caller has met what was counted since its own look a moment before, and has named the files, which the log may
    have left out. Where the log cannot be read nothing is written down: the next look may.
    """
    seen = read_seen(context.catalogue)
    if not grown(seen, counters := read_counters(context)):
        return ReadErrors(seen=seen)
    boot, devices = boot_id(), filesystem_devices(context.pool.path)
    with KernelLog(after=seen.message if seen.boot == boot else 0) as log:
        failures = read_failures(log.read(), devices)
        bad = _bad(context, set(failures))
        bad |= _bad(context, set(read_failures(log.read(), devices)) - set(failures))  # what these reads met, and others meanwhile
        log.read()
    named = grown(seen, counters) if were_met else len(failures)
    after = replace(seen_now(seen, counters, named, boot, log.last, now), counters=read_counters(context))
    if log.why:
        return ReadErrors((), len(failures), after, log.why)
    known, every = {(one.host, one.name, one.path) for one in context.catalogue.damages()}, list(merged(bad, "device", now))
    found = [one for one in every if (one.host, one.name, one.path) not in known]
    enter_damages(context.pool, context.catalogue, (one.host for one in every), found)
    note_seen(context.catalogue, after)
    return ReadErrors(tuple(found), len(failures), after)


def read_counters(context: PoolContext) -> dict[int, int]:
    """Returns how many errors of reading each device has counted, by its id. Raises OSError."""
    found = {}
    for device in read_allocation(context.pool.path).devices:
        pairs = zip(DEVICE_ERRORS, device.errors or (), strict=False)
        found[device.devid] = sum(count for name, count in pairs if name in _OF_READING)
    return found


def _bad(context: PoolContext, failures: set[ReadFailure]) -> set[FilePlace]:
    """Returns the blocks that still cannot be read: another copy may have repaired one, or a line is of another filesystem."""
    bad = set[FilePlace]()
    with opened(context.pool.path.resolve()) as fd:
        resolver = Resolver(fd, backups_by_id(context))
        for failure in sorted(failures):
            places = resolver.sharing(failure, context.pool)
            if places and not bad.issuperset(places) and is_bad(context, places):
                bad.update(places)
    return bad
