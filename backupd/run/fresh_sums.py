"""Computes checksums of some of the files that a run has fetched, while they are still in memory as received.

A scrub proves only that the disk returns what btrfs received. Data that was damaged earlier, between rsync and the checksum of
btrfs, passes a scrub but not a comparison with these checksums.
"""

import errno
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random, SystemRandom

from backupd.files.tree import Tree, joined, open_plain
from backupd.repo.backup_json import DATA
from backupd.repo.checksums import LONGEST_HOLE, write_sums
from btrkeep.config.values import FileSample
from btrkeep.descriptors import ClosingFd
from btrkeep.fs.openat import FOLDER
from btrkeep.pool.subvolume import describe
from btrkeep.treescan.changed import written_sizes
from btrkeep.treescan.links import FolderPaths

_log = logging.getLogger(__name__)

LARGE = 64 << 20
"""Bytes fetched of a file: larger files are taken in addition to the random sample."""
_MOST = 100_000  # files of a run
_MOST_LARGE = 100
_ALWAYS, _SMALL = 3, 1 << 20  # files, bytes: cheap enough even for the shortest run
_PIECE = 1 << 20
_BLOCK = 512
_WAITING = 10  # times the budget, when it waits for a processor or a disk


@dataclass(frozen=True, slots=True)
class SumLimits:
    """How many fetched files get a checksum."""

    sample: FileSample | None
    """The size of the random sample; None: no file gets a checksum."""
    seconds: float
    """Maximum processor time for the checksums."""


NO_SUMS = SumLimits(None, 0)


class _Budget:
    """Processor time of this thread, which is the cost while the data is in memory; if it comes from a disk, elapsed time."""

    def __init__(self, seconds: float) -> None:
        self._processor, self._clock = time.thread_time() + seconds, time.monotonic() + _WAITING * seconds

    @property
    def is_spent(self) -> bool:
        return time.thread_time() >= self._processor or time.monotonic() >= self._clock


def sum_fetched(subvolume: Path, limits: SumLimits) -> None:
    """Writes SHA256SUMS of a subvolume whose data is on the disk and that is still writable, instead of the file of its base.

    No error here affects the backup: then there are no checksums. Raises OSError if the file of the base cannot be removed, because
    it would be wrong.
    """
    try:
        sums = dict(_sums(subvolume, limits))
    except OSError as error:
        _log.warning("%s: no checksums were made: %s", subvolume, error)
        sums = {}
    try:
        write_sums(subvolume, sums)
    except OSError as error:
        _log.warning("%s: no checksums were stored: %s", subvolume, error)
        write_sums(subvolume, {})


def _sums(subvolume: Path, limits: SumLimits) -> Iterator[tuple[bytes, bytes]]:
    budget, subvolume_now = _Budget(limits.seconds), describe(subvolume)
    if limits.sample is None or subvolume_now is None:
        return
    chance = Random(SystemRandom().getrandbits(256))  # noqa: S311  seeded with what a host cannot guess
    with ClosingFd(os.open(subvolume, FOLDER)) as root:
        paths = FolderPaths(root)
        with Tree(subvolume) as tree:
            for count, ino in enumerate(_chosen(root, subvolume_now.created - 1, limits.sample, chance)):
                if budget.is_spent and count >= _ALWAYS:
                    break
                try:
                    top, *names = paths.of(ino)
                    if top == DATA.encode() and (digest := _digest(tree, names, budget)):
                        yield joined(names), digest
                except OSError as error:
                    if error.errno != errno.ENOENT:  # deleted, but still open
                        _log.warning("%s: inode %d was just written and cannot be read: %s", subvolume, ino, error)


def _chosen(root: int, since: int, sample: FileSample, chance: Random) -> Iterator[int]:
    """Yields inode numbers of files that were written since that generation: first a random sample, then the large ones."""
    small, large, count = list[int](), list[int](), 0
    number = _MOST if sample.number is None else sample.number
    for ino, size in written_sizes(root, since, compressed=True):
        if size >= LARGE:
            large.append(ino)
        if sample.share is not None and chance.random() >= sample.share:
            continue
        if len(small) < number:
            small.append(ino)
        elif (place := int(chance.random() * (count + 1))) < number:
            small[place] = ino
        count += 1
    chance.shuffle(small)
    yield from small
    chosen = set(small)
    yield from islice((ino for ino in large if ino not in chosen), _MOST_LARGE)


def _digest(tree: Tree, names: list[bytes], budget: _Budget) -> bytes | None:
    """Returns the SHA-256 of a file; None for a file with long holes, and if the budget is used up before its end."""
    digest, done = sha256(), 0
    with tree.folder(joined(names[:-1])) as folder:
        fd = open_plain(names[-1], folder)
    with ClosingFd(fd):
        status = os.fstat(fd)
        if status.st_size - status.st_blocks * _BLOCK > LONGEST_HOLE:
            return None
        while data := os.read(fd, min(_PIECE, max(1, status.st_size - done))):
            digest.update(data)
            done += len(data)
            if done > _SMALL and budget.is_spent:
                return None
    return digest.digest()
