"""Scrubs the pool's filesystem: starts or resumes a scrub, follows it, and cancels it cleanly.

The `btrfs` program does the work, at the lowest I/O priority, and stores its progress in /var/lib/btrfs. This module adds the
pool's filesystem, a resumable end, and errors by type.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from btrkeep.decisions.pool_health import Redundancy, redundancy
from btrkeep.decisions.scrub import UNFINISHED, DeviceScrub, UnreadDevice, begun_of, is_resumable, unread_devices
from btrkeep.errors import LockHeld, OperatorError
from btrkeep.pool.allocation import read_allocation
from btrkeep.pool.balance_ioctl import missing_devices
from btrkeep.pool.kernel_log import KernelLog, ScrubFaults, faults, filesystem_devices
from btrkeep.pool.space_by_profile import ChunkUse
from btrkeep.process.group import Group
from btrkeep.process.programs import run
from btrkeep.process.progress import Cancellation, ProgressSink

_CHECK_EVERY = 10.0
_TICK = 0.1
_ERRORS = ("read", "csum", "verify", "super", "malloc", "uncorrectable", "unverified", "corrected")
_DEVICE = re.compile(r"scrub device .*\(id (\d+)\)", re.IGNORECASE)
_UNCORRECTABLE = 3  # exit status of `btrfs scrub`: completed, with uncorrectable errors


@dataclass(frozen=True, slots=True)
class ScrubState:
    """The output of `btrfs scrub status`."""

    status: str
    """"", "running", "finished", "aborted" or "interrupted"."""
    scrubbed: int
    """Bytes that were read."""
    total: int
    """Bytes to read."""
    errors: dict[str, int]
    """Counts by kind."""
    begun: datetime | None = None
    """When it was first started, even if it was resumed; None: not reported."""


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """The result of a run. Bytes and errors are those of the whole scrub, including the part before it was resumed."""

    outcome: str
    """finished (every device was read completely), incomplete (see `unread`), stopped (by `signal`, or by `btrfs scrub cancel`) or
    failed (see `why`).
    """
    resumed: bool
    """True if it resumed an earlier scrub."""
    scrubbed: int
    """Bytes that were read."""
    errors: dict[str, int]
    """Counts by kind."""
    seconds: float
    """The duration of this run."""
    signal: int = 0
    """The signal that stopped it; 0: none."""
    why: str = ""
    """The reason of a failure; "": it did not fail."""
    faults: ScrubFaults = field(default_factory=ScrubFaults)
    """The errors of this run in the kernel's log."""
    log_problem: str = ""
    """The reason why the log could not be read; "": it could."""
    begun: datetime | None = None
    """When the scrub of a present device was first started, the oldest; None: unknown."""
    unread: tuple[UnreadDevice, ...] = ()
    """Devices that were not read completely."""
    redundancy: Redundancy | None = None
    """The number of good copies of the data; None: it could not be read."""

    @property
    def good(self) -> bool:
        """Returns True if it finished without any error; even corrected errors mean that a device needs attention."""
        return self.outcome == "finished" and not any(self.errors.values())


def command(path: Path, *, resume: bool) -> tuple[str, ...]:
    """Returns the command that scrubs: it stays in the foreground until the end, at the I/O priority `idle` by default."""
    return ("btrfs", "scrub", "resume" if resume else "start", "-B", str(path))


def parse(text: str, totals: str) -> ScrubState:
    """Parses the output of `btrfs scrub status -R`, and the output with --raw instead of -R, because only that has the total."""
    fields = _fields(text)
    numbers = {name: int(value) for name, value in fields.items() if value.isdecimal()}
    errors = {kind: numbers.get(f"{kind}_errors", 0) for kind in _ERRORS}
    scrubbed = numbers.get("data_bytes_scrubbed", 0) + numbers.get("tree_bytes_scrubbed", 0)
    total = _fields(totals).get("Total to scrub", "")
    begun = _moment(fields.get("Scrub started", ""))
    return ScrubState(fields.get("Status", ""), scrubbed, int(total) if total.isdecimal() else 0, errors, begun)


def _moment(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    except ValueError:
        return None


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def state(path: Path) -> ScrubState:
    """Returns the state of the last or running scrub. Raises ProgramFailed."""
    status, in_utc = ("btrfs", "scrub", "status"), {"TZ": "UTC"}
    counts, totals = run((*status, "-R", str(path)), extra=in_utc), run((*status, "--raw", str(path)))
    return parse(counts.stdout, totals.stdout)


def device_scrubs(path: Path) -> dict[int, DeviceScrub]:
    """Returns the last or running scrub of each device. Raises ProgramFailed."""
    return parse_devices(run(("btrfs", "scrub", "status", "-d", "-R", str(path)), extra={"TZ": "UTC"}).stdout)


def parse_devices(text: str) -> dict[int, DeviceScrub]:
    """Parses the output of `btrfs scrub status -d -R`, which has a section for each device."""
    scrubs, devid, lines = dict[int, DeviceScrub](), 0, list[str]()
    for line in (*text.splitlines(), "scrub device (id 0)"):
        if match := _DEVICE.match(line):
            if devid:
                fields = _fields("\n".join(lines))
                sizes = (fields.get(f"{kind}_bytes_scrubbed", "") for kind in ("data", "tree"))
                scrubbed = sum(int(size) for size in sizes if size.isdecimal())
                scrubs[devid] = DeviceScrub(devid, fields.get("Status", ""), scrubbed, _moment(fields.get("Scrub started", "")))
            devid, lines = int(match[1]), []
        else:
            lines.append(line)
    return scrubs


def present_devices(path: Path) -> tuple[frozenset[int], frozenset[int]]:
    """Returns the numbers of the present and of the missing devices. Raises OSError."""
    devices = read_allocation(path).devices
    away = {device.devid for device in devices if device.errors is None}  # kernels before 5.6 show no more
    missing = frozenset(away.union(missing_devices(path) or ()))
    return frozenset(device.devid for device in devices) - missing, missing


def is_unfinished(path: Path) -> bool:
    """Returns True if the next scrub resumes an earlier one, or one is running. Raises ProgramFailed and OSError."""
    return state(path).status == "running" or is_resumable(device_scrubs(path), present_devices(path)[0], datetime.now(UTC))


async def scrub(path: Path, cancellation: Cancellation, tell: ProgressSink[ScrubState]) -> ScrubResult:
    """Scrubs to the end, or until cancelled. `tell` is called with the progress every few seconds.

    Raises LockHeld, OperatorError and OSError.
    """
    if state(path).status == "running":
        raise LockHeld(f"{path}: a scrub is running", f"`btrfs scrub status {path}` shows its progress")
    present, moment = present_devices(path)[0], datetime.now(UTC)
    resume, begun, output = is_resumable(device_scrubs(path), present, moment), time.monotonic(), bytearray()
    with KernelLog() as log:
        group = Group.start(command(path, resume=resume), on_stdout=output.extend, on_stderr=output.extend)
        exit_code = await _until_ended(group, path, cancellation, tell, log)
        named = faults(log.read(), filesystem_devices(path))
    after, scrubs, seconds = state(path), device_scrubs(path), time.monotonic() - begun
    present_now, missing = present_devices(path)
    expected = present & (present_now | missing)  # others have been removed since
    uses = _read_uses(path)
    since = None if resume else moment.replace(microsecond=0) - timedelta(seconds=1)
    unread = unread_devices(scrubs, expected, missing, _used_by_device(uses), since)
    words = (output.decode("utf-8", "replace").strip().splitlines() or [f"exit status {exit_code}"])[-1]
    if exit_code in (0, _UNCORRECTABLE) and not cancellation:
        outcome, why = "incomplete" if unread else "finished", ""
    elif exit_code in (0, _UNCORRECTABLE) and not unread:
        outcome, why = "finished", ""
    elif after.status in UNFINISHED:
        outcome, why = "stopped", "" if cancellation.signal else "it was cancelled (`btrfs scrub cancel`)"
    else:
        outcome, why = "failed", words
    return ScrubResult(
        outcome,
        resume,
        after.scrubbed,
        after.errors,
        seconds,
        cancellation.signal,
        why,
        named,
        log.why,
        begun_of(scrubs, expected),
        unread if outcome != "stopped" else (),
        redundancy(uses, missing) if uses is not None else None,
    )


def _read_uses(path: Path) -> tuple[ChunkUse, ...] | None:
    from backupd.repo.chunk_uses import chunk_uses  # imports NumPy

    try:
        return chunk_uses(path)
    except OSError:
        return None


def _used_by_device(uses: tuple[ChunkUse, ...] | None) -> Mapping[int, int] | None:
    """Returns, by device, an upper limit of its used bytes; 0 if it has none."""
    if uses is None:
        return None
    used: Counter[int] = Counter()
    for chunk in uses:
        for devid in set(chunk.devids):
            used[devid] += chunk.used
    return used


async def _until_ended(group: Group, path: Path, cancellation: Cancellation, tell: ProgressSink[ScrubState], log: KernelLog) -> int:
    ended = asyncio.create_task(group.wait())
    looked, cancelled = time.monotonic(), False
    while not ended.done():
        await asyncio.wait((ended,), timeout=_TICK)
        if cancellation and not cancelled:
            cancelled = _cancel(path)
        if time.monotonic() - looked >= _CHECK_EVERY and not ended.done():
            looked = time.monotonic()
            log.read()  # before the kernel overwrites it
            tell(state(path))
    return await ended


def _cancel(path: Path) -> bool:
    """Cancels the scrub. Returns False if it cannot be cancelled yet, as in its first moment."""
    try:
        return run(("btrfs", "scrub", "cancel", str(path)), check=False).returncode == 0
    except OperatorError:
        return False
