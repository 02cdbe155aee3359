"""Compares two recorded states of one filesystem: block groups that filled, emptied, appeared, disappeared or moved.

Block groups are identified by virtual address and length: btrfs gives new ones higher addresses, so data rewritten by balance
disappears at one address and appears at another. Moved are the device extents of a block group that still exists (device replace
does not show, because the new device has the old one's number).
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np

from btrkeep.errors import OperatorError
from btrkeep.units import counted, format_duration, format_size, format_time, local_time, printable
from heatmap.filesystem_state import Array, FilesystemState

FULLER, EMPTIER, NEW, GONE = KINDS = ("fuller", "emptier", "new", "gone")


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """The n block groups that changed, by address; u64[n] each, except for `kind`."""

    vaddr: Array
    length: Array
    flags: Array
    before: Array
    """Used bytes in the earlier state; 0 for a new block group."""
    after: Array
    """Used bytes in the later state; 0 for a deleted block group."""
    kind: Array
    """str[n]."""


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Device extents that exist in only one of the states, of chunks that exist in both; u64[n] each, except for `came`."""

    vaddr: Array
    devid: Array
    paddr: Array
    length: Array
    came: Array
    """bool[n]: True if the device extent exists in the later state."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of one state, in bytes."""

    taken: datetime
    """When."""
    total: int
    """Size of the devices."""
    allocated: int
    """Bytes of the devices that belong to block groups."""
    length: int
    """Bytes of the block groups."""
    used: int
    """Bytes in use."""
    block_groups: int
    """Their number."""


@dataclass(frozen=True, slots=True, eq=False)
class StateDifference:
    """All changes between two states."""

    fsid: str
    """The UUID."""
    label: str
    """The filesystem's label."""
    before: Totals
    """Totals of the earlier state."""
    after: Totals
    """Totals of the later state."""
    changes: Changes
    """The changes of block groups."""
    moves: Moves
    """The moves of chunks."""
    devices: list[tuple[int, int, int]]
    """Devices that appeared, disappeared or changed their size: id, bytes before and bytes after (0: none)."""


def difference(before: FilesystemState, after: FilesystemState) -> StateDifference:
    """Compares two states. Raises OperatorError if they are of two filesystems."""
    if before.fsid != after.fsid:
        raise OperatorError(
            f"these are states of two filesystems: {printable(before.fsid)} and {printable(after.fsid)}",
            "give two states of the same filesystem",
        )
    return StateDifference(
        after.fsid,
        after.label,
        totals(before),
        totals(after),
        changes_between(before, after),
        _moves(before, after),
        _devices(before, after),
    )


def totals(state: FilesystemState) -> Totals:
    """The numbers of one state."""
    total, allocated, length, used = (
        int(column.sum()) for column in (state.total_bytes, state.de_length, state.bg_length, state.bg_used)
    )
    return Totals(state.taken, total, allocated, length, used, len(state.bg_vaddr))


def _rows(**columns: Array) -> Array:
    """Returns columns of one length as one array of rows, which can be compared completely."""
    rows = np.empty(len(next(iter(columns.values()))), [(name, np.uint64) for name in columns])
    for name, column in columns.items():
        rows[name] = column
    return rows


def changes_between(before: FilesystemState, after: FilesystemState) -> Changes:
    """Returns the block groups that changed."""
    old, new = (_rows(vaddr=state.bg_vaddr, length=state.bg_length) for state in (before, after))
    both, at_old, at_new = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    gone, came = (np.setdiff1d(np.arange(len(keys)), at) for keys, at in ((old, at_old), (new, at_new)))
    was, now = before.bg_used[at_old], after.bg_used[at_new]
    nothing = (np.zeros(len(came), np.uint64), np.zeros(len(gone), np.uint64))
    columns = (
        np.concatenate((both["vaddr"], after.bg_vaddr[came], before.bg_vaddr[gone])),
        np.concatenate((both["length"], after.bg_length[came], before.bg_length[gone])),
        np.concatenate((after.bg_flags[at_new], after.bg_flags[came], before.bg_flags[gone])),
        np.concatenate((was, nothing[0], before.bg_used[gone])),
        np.concatenate((now, after.bg_used[came], nothing[1])),
        np.concatenate((np.where(now > was, FULLER, EMPTIER), np.full(len(came), NEW), np.full(len(gone), GONE))),
    )
    changed = np.concatenate((now != was, np.ones(len(came) + len(gone), bool)))
    order = np.flatnonzero(changed)[np.argsort(columns[0][changed], kind="stable")]
    return Changes(*(column[order] for column in columns))


def _moves(before: FilesystemState, after: FilesystemState) -> Moves:
    stayed = np.intersect1d(before.ch_vaddr, after.ch_vaddr)
    old, new = (
        _rows(vaddr=state.de_vaddr, devid=state.de_devid, paddr=state.de_paddr, length=state.de_length) for state in (before, after)
    )
    left, came = np.setdiff1d(old, new, assume_unique=True), np.setdiff1d(new, old, assume_unique=True)
    both = np.concatenate((left, came))
    is_new = np.repeat([False, True], [len(left), len(came)])
    of_those = np.isin(both["vaddr"], stayed)
    both, is_new = both[of_those], is_new[of_those]
    order = np.lexsort((is_new, both["vaddr"]))
    both = both[order]
    return Moves(both["vaddr"], both["devid"], both["paddr"], both["length"], is_new[order])


def _devices(before: FilesystemState, after: FilesystemState) -> list[tuple[int, int, int]]:
    old, new = (dict(zip(state.devid.tolist(), state.total_bytes.tolist(), strict=True)) for state in (before, after))
    both = ((devid, old.get(devid, 0), new.get(devid, 0)) for devid in sorted({*old, *new}))
    return [(devid, was, now) for devid, was, now in both if was != now]


def lines(compared: StateDifference, top: int) -> Iterator[str]:
    """Yields the difference in words: totals, then the `top` block groups that changed by most bytes."""
    was, now = compared.before, compared.after
    name = f"{printable(compared.label)}  " if compared.label else ""
    apart = format_duration(abs((now.taken - was.taken).total_seconds()))
    yield f"{name}{compared.fsid}"
    yield f"{local_time(was.taken)} to {local_time(now.taken)}, {apart}{' back' if now.taken < was.taken else ''}"
    for label, old, two in (
        ("used", was.used, now.used),
        ("allocated", was.allocated, now.allocated),
        ("devices", was.total, now.total),
    ):
        yield f"{label:<10} {format_size(old):>9} -> {format_size(two):>9}   {_signed(two - old)}"
    yield ""
    for kind, count, size in summary(compared):
        yield f"{kind:<10} {counted(count, 'block group'):<20} {_signed(size)} used"
    if len(compared.moves.vaddr):
        yield f"{'moved':<10} {counted(int(compared.moves.came.sum()), 'device extent')}"
    for devid, old, two in compared.devices:
        yield (
            f"device {devid}: {format_size(old)} -> {format_size(two)}"
            if old and two
            else f"device {devid}: {_change_of(old, two)}"
        )
    yield from _worst(compared.changes, top)


def _change_of(old: int, two: int) -> str:
    return f"new, {format_size(two)}" if two else f"gone, {format_size(old)}"


def _signed(size: int) -> str:
    return ("-" if size < 0 else "+") + format_size(abs(size))


def more_used(changes: Changes) -> Array:
    """i64[n]: increase or decrease of used bytes."""
    return changes.after.astype(np.int64) - changes.before.astype(np.int64)


def summary(compared: StateDifference) -> list[tuple[str, int, int]]:
    """Returns for each kind of change the number of block groups and the change of used bytes."""
    by = more_used(compared.changes)
    return [(kind, int(which.sum()), int(by[which].sum())) for kind in KINDS if len(which := compared.changes.kind == kind)]


def _worst(changes: Changes, top: int) -> Iterator[str]:
    by = more_used(changes)
    order = np.argsort(-np.abs(by), kind="stable")[:top]
    if not len(order):
        return
    yield ""
    yield f"{'VADDR':>16}  {'LENGTH':>9}  {'BEFORE':>9}  {'AFTER':>9}  {'CHANGE':>10}"
    rows = zip(
        *(column[order].tolist() for column in (changes.vaddr, changes.length, changes.before, changes.after, by, changes.kind)),
        strict=True,
    )
    for vaddr, length, was, now, change, kind in rows:
        sizes = f"{format_size(length):>9}  {format_size(was):>9}  {format_size(now):>9}  {_signed(change):>10}"
        yield f"{vaddr:>16}  {sizes}  {kind if kind in (NEW, GONE) else ''}".rstrip()


def as_json(compared: StateDifference) -> dict[str, Any]:
    """Returns the whole difference for JSON: sizes are bytes."""
    changes, moves = compared.changes, compared.moves
    columns = zip(
        *(
            column.tolist()
            for column in (changes.kind, changes.vaddr, changes.length, changes.flags, changes.before, changes.after)
        ),
        strict=True,
    )
    moved = zip(*(column.tolist() for column in (moves.vaddr, moves.devid, moves.paddr, moves.length, moves.came)), strict=True)
    return {
        "filesystem": compared.fsid,
        "label": compared.label,
        "before": asdict(compared.before) | {"taken": format_time(compared.before.taken)},
        "after": asdict(compared.after) | {"taken": format_time(compared.after.taken)},
        "summary": {kind: {"block_groups": count, "used": size} for kind, count, size in summary(compared)},
        "block_groups": [
            {"change": kind, "vaddr": vaddr, "length": length, "flags": flags, "used_before": was, "used_after": now}
            for kind, vaddr, length, flags, was, now in columns
        ],
        "device_extents": [
            {"vaddr": vaddr, "devid": devid, "paddr": paddr, "length": length, "change": "came" if came else "left"}
            for vaddr, devid, paddr, length, came in moved
        ],
        "devices": [{"devid": devid, "size_before": was, "size_after": now} for devid, was, now in compared.devices],
    }
