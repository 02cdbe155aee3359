"""The shared bandwidth budget on the side of the programs that start rsync: bucket files, and the command that rsync gets as its
remote shell. rsync's --bwlimit cannot be changed while it runs, so the remote shell of every transfer is wrapped by throttle.py,
whose relays take from the bucket files made here, also from those of another backupd process. docs/decisions/0002-bandwidth.rst has
the reasons.
"""

import fcntl
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from backupd.rsync import throttle
from btrkeep.config import Config, HostConfig
from btrkeep.descriptors import ClosingFd
from btrkeep.pool.marker import Pool
from btrkeep.procfs import boot_id

_FRESH = b"", b"", 0, 0
_TO_QUOTE = re.compile("[ '\"]")


@dataclass(frozen=True, slots=True)
class Bucket:
    """One budget."""

    path: Path
    """Its file."""
    rate: int
    """Bytes per second."""


def buckets_of(config: Config, pool: Pool, host: HostConfig) -> list[Bucket]:
    """Returns the names of the budgets that apply to a host, without reading their files."""
    group = config.groups.get(host.group or "")
    limits = (
        ("pool", config.backup.bandwidth),
        (f"group-{host.group}", group.bandwidth if group else None),
        (f"host-{host.name}", host.bandwidth),
    )
    return [Bucket(pool.bandwidth / name, rate) for name, rate in limits if rate]


def make_buckets(config: Config, pool: Pool, host: HostConfig) -> list[Bucket]:
    """Makes the missing buckets of a host, and returns all of them."""
    return [prepare(pool.bandwidth, bucket.path.name, bucket.rate) for bucket in buckets_of(config, pool, host)]


def prepare(folder: Path, name: str, rate: int) -> Bucket:
    """Returns the bucket of that name in `folder`, made or set to `rate` bytes per second; running transfers use the new rate at
    once.

    What transfers have already taken from a bucket in use stays taken. The file is changed in place, under its lock: a new file
    would be a second budget beside the one that running transfers have open. Raises ValueError for a rate below 1, OSError.
    """
    if rate < 1:
        raise ValueError(f"{rate} bytes per second is not a rate: without a limit no bucket is needed")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    with ClosingFd(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)) as file:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError(f"{path} is not a regular file")
        fcntl.flock(file, fcntl.LOCK_EX)
        old = os.pread(file, throttle.RECORD.size, 0)
        new = brought_to(old, rate, boot=bytes.fromhex(boot_id().replace("-", "")), now=time.monotonic_ns())
        if new != old:
            os.pwrite(file, new, 0)
    return Bucket(path, rate)


def brought_to(record: bytes, rate: int, *, boot: bytes, now: int) -> bytes:
    """Returns a bucket's `record` with `rate`: a current one keeps its debt (in bytes); one of another boot or an invalid one
    starts again without debt.
    """
    magic, its_boot, its_rate, arrival = throttle.RECORD.unpack(record) if len(record) == throttle.RECORD.size else _FRESH
    if magic != throttle.MAGIC or its_boot != boot or arrival > now + throttle.ABSURD:
        arrival = 0
    elif arrival > now:
        arrival = now + (arrival - now) * its_rate // rate
    return throttle.RECORD.pack(throttle.MAGIC, boot, rate, arrival)


class BudgetPace:
    """Uses bandwidth budgets in this process, without a relay. `sleep` takes seconds and may return early; `is_over` ends all
    waiting.
    """

    def __init__(self, buckets: Sequence[Bucket], sleep: Callable[[float], object], is_over: Callable[[], bool]) -> None:
        self._buckets = [throttle.OpenBucket(str(bucket.path)) for bucket in buckets]
        self._sleep, self._is_over = sleep, is_over

    def __call__(self, size: int) -> None:
        """Returns when `size` more bytes are within all budgets. They are shared evenly with the relays that take from them."""
        until = max((bucket.draw(size) for bucket in self._buckets), default=0) if size else 0
        while (left := until - time.monotonic_ns()) > 0 and not self._is_over():
            self._sleep(left / throttle.SECOND)


def relay_command(buckets: Sequence[Bucket], shell: Sequence[str]) -> tuple[str, ...]:
    """Returns the remote shell for rsync's -e (see `shell_words`): `shell` limited by `buckets`, or a local one if `shell` is
    empty.

    Without buckets it is `shell` itself; if that is empty, rsync reads the local path without any -e.
    """
    if not buckets:
        return tuple(shell)
    paths = [str(bucket.path.absolute()) for bucket in buckets]
    # -I -S: without the environment and site-packages, which also halves the time to start.
    python = sys.executable or "/usr/bin/python3"
    return (python, "-I", "-S", str(Path(throttle.__file__).absolute()), *paths, "--", *(shell or ("--local",)))


def shell_words(command: Sequence[str]) -> str:
    """Returns `command` as the one string that rsync's -e and RSYNC_RSH split again.

    Raises ValueError if a word contains a NUL. rsync has its own rules (main.c, do_cmd): only spaces end words; quotes of both
    kinds keep spaces in a word; two equal quotes within quotes are one quote; a backslash has no special meaning.
    """
    if not command:
        raise ValueError("the remote shell is empty: rsync would use ssh")
    return _joined(tuple(command))


@lru_cache(16)
def _joined(command: tuple[str, ...]) -> str:
    """Cached, because all source paths of a host have the same remote shell: a dry run needs it 12,000 times."""
    return " ".join(_quoted(word) for word in command)


def _quoted(word: str) -> str:
    if "\0" in word:
        raise ValueError(f"{word!r} cannot be passed to a program")
    if word and not _TO_QUOTE.search(word):
        return word
    return "'" + word.replace("'", "''") + "'"
