"""Resolves what a scrub could not correct to files, and to every backup that shares them, without walking the pool.

The kernel names an address, and since Linux 6.4 only the 64 KiB in which it lies. Each block there is asked for its references, and
one of those is read: what reads well is not damaged, whatever the log says. References lead to inodes, these to names, both by
searches in trees.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from backupd.actions.damage_resolver import FilePlace, Resolver
from backupd.actions.damaged_places import BLOCK, backups_by_id, is_bad, merged
from backupd.actions.read_errors import look_at_read_errors
from backupd.actions.scrub import Scrubbed
from backupd.repo.context import PoolContext
from backupd.repo.damages import enter_damages
from backupd.repo.listing import hosts_of
from btrkeep.catalogue import Damage
from btrkeep.decisions.device_errors import forget_unnamed
from btrkeep.decisions.verification import FinishedScrub, note_scrub, read_begin
from btrkeep.pool.kernel_log import SPAN, TreeBlock
from btrkeep.pool.subvolume import opened

_COUNTED = ("read", "csum", "verify")
"""Errors of a scrub that a device counts as errors of reading."""


@dataclass(frozen=True, slots=True)
class ScrubDamage:
    """What became known by a scrub. `rows` are what the catalogue has now of it."""

    rows: tuple[Damage, ...] = ()
    trees: tuple[TreeBlock, ...] = ()
    """Metadata: no file's name leads there."""
    elsewhere: tuple[int, ...] = ()
    """Addresses of data that no backup has: of an unfinished one, or of somebody's own subvolume."""
    unnamed: int = 0
    """Errors that could not be put right, and that the kernel did not name, or whose files cannot be known."""
    why: str = ""
    """Why the kernel's log could not be read."""


def record(context: PoolContext, done: Scrubbed, now: datetime) -> ScrubDamage:
    """Resolves what a scrub left unrepaired, and writes it down.

    One that was done as a whole, that compared everything, and whose errors all have a name, replaces what scrubs found before; any
    other adds to it. What another reader met after it began stays: it may have read that place before. Raises OSError and
    OperatorError.
    """
    begin = read_begin(context.catalogue)
    begun = begin.at if begin.at and begin.at <= now else None  # or the clock was put back since
    look_at_read_errors(context, now)  # what the scrub counted, and what others met while it ran
    bad = done.errors.get("uncorrectable", 0)
    unnamed = max(0, bad - done.faults.lines)
    unread = done.errors.get("unverified", 0) + done.errors.get("malloc", 0)
    with opened(context.pool.path.resolve()) as fd:
        resolver = Resolver(fd, backups_by_id(context))
        rows, elsewhere = _read_all(context, resolver, done.faults.vaddrs, {one.vaddr for one in done.faults.trees}, now)
    unnamed += resolver.lost
    there = set(backups_by_id(context).values())  # one may have been deleted meanwhile
    rows = [one for one in rows if (one.host, one.name) in there]
    has_named_all = done.outcome == "finished" and not (unnamed or unread)
    hosts = {*hosts_of(context.pool), *(one.host for one in context.catalogue.damages())}
    enter_damages(context.pool, context.catalogue, hosts, rows, lambda one: has_named_all and _is_outdated(one, begun))
    if done.outcome == "finished" and done.begun:
        is_whole = not (unnamed or unread or done.faults.trees)
        note_scrub(context.catalogue, FinishedScrub(done.begun, now, is_whole, begin.newest))
    errors = look_at_read_errors(context, now, were_met=bool(done.faults.vaddrs))  # what was read here
    if has_named_all:
        forget_unnamed(context.catalogue, errors.seen, begun, sum(done.errors.get(kind, 0) for kind in _COUNTED))
    return ScrubDamage(tuple(rows), done.faults.trees, tuple(elsewhere), unnamed, done.log_trouble)


def _is_outdated(one: Damage, begun: datetime | None) -> bool:
    """Whether a scrub that began then, and has named everything, has looked at that place since."""
    return one.found_by == "scrub" or (one.found_by == "device" and begun is not None and one.found_at <= begun)


def _read_all(
    context: PoolContext, resolver: Resolver, vaddrs: Iterable[int], trees: set[int], now: datetime
) -> tuple[list[Damage], list[int]]:
    """Returns the damages, and the addresses of damaged data that no backup has."""
    found, elsewhere, checked = set[FilePlace](), list[int](), dict[tuple[FilePlace, ...], bool]()
    asked = [vaddr for vaddr in vaddrs if vaddr not in trees]
    answers = resolver.resolve(block for vaddr in asked for block in _blocks(vaddr))
    for vaddr in asked:
        nobodys = is_found = False
        for _, places in islice(answers, len(_blocks(vaddr))):
            if places is None:
                continue
            nobodys = nobodys or not places
            key = tuple(places)  # each block of a compressed extent has the same
            if places and key not in checked:
                checked[key] = is_bad(context, places)
                found |= set(places) if checked[key] else set()
            is_found = is_found or checked.get(key, False)
        if nobodys and not is_found:
            elsewhere.append(vaddr)
    return list(merged(found, "scrub", now)), elsewhere


def _blocks(vaddr: int) -> range:
    """The blocks in which an error may lie that the kernel names by this address."""
    return range(vaddr, vaddr - vaddr % SPAN + SPAN, BLOCK)
