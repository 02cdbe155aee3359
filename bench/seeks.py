"""How scattered the writes to a device were, from the kernel's trace of its requests (block_rq_issue).

Requests are taken 64 at a time, sorted by position, as the queue of a disk may sort them; one that does not begin at the end of
the one before it is a seek. On memory and flash that costs little; on rotating disks and storage with parity it is the main cost of
writing.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.beds import session, work

QUEUE = 64
_BUFFER_KB = 100_000  # of each CPU: a request takes about a hundred bytes
_INSTANCE = "btrkeep-bench-"
_REQUEST = re.compile(r"block_rq_issue: \d+,\d+ (\S+) \d+ \(.*?\) (\d+) \+ (\d+) ")

Request = tuple[int, int]  # first sector, number of sectors


@dataclass(slots=True)
class Traced:
    """`places`: the number of places that the writes went to; None until it is known, and without such a trace in the kernel."""

    places: int | None = None


@contextmanager
def traced(device: str, folder: Path) -> Iterator[Traced]:
    """Traces the requests of a block device while the block runs. `folder`: for the mount of the trace."""
    requests = Traced()
    with ExitStack() as stack:
        try:
            tracing = stack.enter_context(_tracing(folder))
            instance = stack.enter_context(_instance(tracing, device))
        except OSError:
            yield requests
            return
        yield requests
        (instance / "tracing_on").write_text("0")
        if not _lost(instance):
            with (instance / "trace").open(encoding="utf-8", errors="replace") as lines:
                requests.places = places(_writes(lines))


def places(requests: Iterable[Request]) -> int:
    """Returns the number of places that a disk visits if its queue sorts that many requests at a time."""
    count, queue = 0, []
    for request in requests:
        queue.append(request)
        if len(queue) == QUEUE:
            count += _runs(queue)
            queue = []
    return count + _runs(queue)


def _runs(queue: list[Request]) -> int:
    end, count = -1, 0
    for first, length in sorted(queue):
        count += first != end
        end = first + length
    return count


def _writes(lines: Iterable[str]) -> Iterator[Request]:
    for line in lines:
        match = _REQUEST.search(line)
        if match and "W" in match[1] and int(match[3]):  # a bare flush has no sectors
            yield int(match[2]), int(match[3])


def _lost(instance: Path) -> bool:
    """Returns True if the buffer was too small."""
    per_cpu = (instance / "per_cpu").glob("cpu*/stats")
    return any(re.search(r"^overrun: [1-9]", stats.read_text(), re.MULTILINE) for stats in per_cpu)


@contextmanager
def _tracing(folder: Path) -> Iterator[Path]:
    point = folder / "tracing"
    point.mkdir()
    try:
        if work("mount", "-t", "tracefs", "none", point, check=False).returncode:
            raise OSError("no tracefs")
        yield point
    finally:
        session.remove(point)


@contextmanager
def _instance(tracing: Path, device: str) -> Iterator[Path]:
    """Yields a separate trace, independent of other traces."""
    _clear_dead(tracing)
    instance = tracing / "instances" / f"{_INSTANCE}{os.getpid()}"
    instance.mkdir()
    try:
        number = Path(device).stat().st_rdev
        (instance / "buffer_size_kb").write_text(str(_BUFFER_KB))
        event = instance / "events" / "block" / "block_rq_issue"
        (event / "filter").write_text(f"dev == {os.major(number) << 20 | os.minor(number)}")
        (event / "enable").write_text("1")
        yield instance
    finally:
        instance.rmdir()


def _clear_dead(tracing: Path) -> None:
    """Removes the traces of killed benches, which otherwise never end."""
    for left in (tracing / "instances").glob(f"{_INSTANCE}*"):
        if not Path("/proc", left.name.removeprefix(_INSTANCE)).exists():
            with suppress(OSError):
                left.rmdir()
