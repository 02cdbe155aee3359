"""A run of `backupd dedupe`: the hosts that may share data, and its row in the catalogue: its progress, and then what it saved.

Hosts of one group may share data, because the space that a host uses reveals which files others have.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

from backupd.dedupe.work import SharedBackup
from btrkeep.catalogue import Catalogue
from btrkeep.config import HostConfig
from btrkeep.process.proc import start_time

_EVERY = 5.0  # seconds between two writes

Used = tuple[int, int]
"""Bytes of data and of metadata in use."""


class DedupeJob:
    """A run that has begun. Whoever makes one has the lock `dedupe` of the pool."""

    def __init__(self, catalogue: Catalogue, now: datetime) -> None:
        self._catalogue, self._now, self._begun, self._written = catalogue, now, time.monotonic(), time.monotonic()
        self._counts = dict.fromkeys(("backups", "files", "shared_bytes", "read_bytes", "left_out"), 0)
        self._id = catalogue.start_dedupe(now, os.getpid(), start_time(os.getpid()))

    @property
    def _moment(self) -> datetime:
        return self._now + timedelta(seconds=time.monotonic() - self._begun)

    def add(self, one: SharedBackup) -> None:
        """Counts what came of one backup."""
        found = {"backups": 1, "files": one.files, "shared_bytes": one.shared, "read_bytes": one.read, "left_out": bool(one.left)}
        for name, number in found.items():
            self._counts[name] += number

    def beat(self) -> None:
        """Is called often; writes how far it is from time to time."""
        if time.monotonic() - self._written >= _EVERY:
            self._written = time.monotonic()
            self._catalogue.update_dedupe(self._id, updated=self._moment, **self._counts)

    def end(self, outcome: str, before: Used | None = None, after: Used | None = None) -> None:
        """Ends it; what the pool used before and after, if it came to its end."""
        saved = {"data_saved": before[0] - after[0], "metadata_added": after[1] - before[1]} if before and after else {}
        moment = self._moment
        self._catalogue.update_dedupe(self._id, finished=moment, updated=moment, outcome=outcome, **self._counts, **saved)


@contextmanager
def noted(catalogue: Catalogue, now: datetime) -> Iterator[DedupeJob]:
    """Yields the job, for `end` to be called; an error ends it as failed."""
    job = DedupeJob(catalogue, now)
    try:
        yield job
    except BaseException:
        job.end("failed")
        raise


_ACROSS = ("across", "")


def domains(hosts: Iterable[str], configured: Mapping[str, HostConfig]) -> list[list[str]]:
    """The hosts, in lists of those that may share: one for each group, one for all with `share_across_groups`.

    A host without a group, or one that is not configured any more, shares among its own backups.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        found.setdefault(_domain(host, configured.get(host)), []).append(host)
    return list(found.values())


def _domain(host: str, config: HostConfig | None) -> tuple[str, str]:
    if config and config.share_across_groups:
        return _ACROSS
    return ("group", config.group) if config and config.group else ("host", host)
