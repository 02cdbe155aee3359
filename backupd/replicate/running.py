"""How far a replication is, kept in the catalogue for `status` and the dashboard."""

import os
import time
from dataclasses import replace
from datetime import datetime, timedelta

from backupd.replicate.outcome import ReplicationEvent, ReplicationPlan, ReplicationProgress
from btrkeep.catalogue import Catalogue, CatalogueBusy
from btrkeep.decisions.copies import RunningFetch, note_running
from btrkeep.process.proc import start_time
from btrkeep.process.progress import Notice

_EVERY = 2.0  # seconds


class RunningRecord:
    """Takes what happens, and keeps how far it is. What the catalogue has no time for is kept the next time."""

    def __init__(self, catalogue: Catalogue, replica: str, now: datetime) -> None:
        self._catalogue, self._replica = catalogue, replica
        self._begun, self._said = time.monotonic(), -_EVERY
        self._is = RunningFetch(os.getpid(), start_time(os.getpid()), now, now, 0)

    def __call__(self, event: ReplicationEvent | Notice) -> None:
        match event:
            case ReplicationPlan():
                self._is = replace(self._is, planned=event.count)
            case ReplicationProgress():
                self._is = replace(self._is, done=event.done, bytes=event.bytes, hosts=event.hosts, announced=event.announced)
        if self._is.planned and time.monotonic() - self._said >= _EVERY:
            self._said = time.monotonic()
            self._is = replace(self._is, updated=self._is.began + timedelta(seconds=self._said - self._begun))
            self._keep(self._is)

    def end(self) -> None:
        """Notes that it runs no more."""
        if self._is.planned:
            self._keep(None)

    def _keep(self, found: RunningFetch | None) -> None:
        try:
            note_running(self._catalogue, self._replica, found)
        except CatalogueBusy:
            return
