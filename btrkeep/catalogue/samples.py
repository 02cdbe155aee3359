"""Rows of sample, the state of a filesystem at a moment, and the jobs that ran, read from runs, expiries and balances."""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from btrkeep.catalogue.columns import Json
from btrkeep.catalogue.model_pool import Job, Sample, SampleMark
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import JobTable, balance, expiry, run, sample

_OLDEST = 'SELECT min(taken) AS "taken [moment]" FROM sample WHERE filesystem = :filesystem AND span = :span'
_MARKS = f"""
    SELECT {sample.select(*SampleMark._fields)} FROM sample
    WHERE filesystem = :filesystem AND taken >= :since AND taken < :until ORDER BY taken, id"""


def _ran(kind: str, of: JobTable[Any], updated: str, data: str, where: str = "TRUE") -> str:
    return f"""
        SELECT '{kind}', {of.select("started", "finished")}, {updated}, {data}, {of.select("pid", "pid_started")} FROM {of.name}
        WHERE {where} AND started < :end AND (finished IS NULL OR finished > :start)"""


_QUERIES = (
    _ran("backup", run, "NULL", "literal_bytes"),
    _ran("expire", expiry, expiry.select("updated"), "0"),
    _ran("balance", balance, balance.select("updated"), "moved", "filesystem = :filesystem"),
)


class SampleStore(CatalogueSession):
    """Each method that changes rows does so in one transaction. Filesystems are named by their UUID."""

    def add_sample(self, filesystem: str, make: Callable[[Sample | None], Sample]) -> Sample:
        """Keep what `make` makes of the newest sample so far, and give it back.

        Within one transaction: of two that sample at the same time one sees the sample of the other, and no write counts twice.
        """
        with self._writing("sample written") as session:
            one = make(_newest(session, filesystem))
            sample.add(session, [one])
        return one

    def newest_sample(self, filesystem: str) -> Sample | None:
        """Returns the sample that was stored last, whatever the clock said; None if there is none."""
        return _newest(self._reader, filesystem)

    def oldest_sample(self, filesystem: str, span: str) -> datetime | None:
        """Returns the time of the oldest sample of that span, or None."""
        moment: datetime | None = self._reader.value(_OLDEST, {"filesystem": filesystem, "span": span})
        return moment

    def samples(
        self, filesystem: str, since: datetime | None = None, until: datetime | None = None, span: str | None = None
    ) -> list[Sample]:
        """Returns the samples from `since` on and before `until`, oldest first; with `span`, only those of that span."""
        wanted = ["filesystem = :filesystem"]
        wanted += ["taken >= :since"] if since else []
        wanted += ["taken < :until"] if until else []
        wanted += ["span = :span"] if span else []
        values = {"filesystem": filesystem, "since": since, "until": until, "span": span}
        return sample.find(self._reader, f"WHERE {' AND '.join(wanted)} ORDER BY taken, id", values)

    def sample_marks(self, filesystem: str, since: datetime, until: datetime) -> list[SampleMark]:
        """Returns the marks of all samples from `since` on and before `until`, oldest first."""
        when = {"filesystem": filesystem, "since": since, "until": until}
        return [SampleMark._make(row) for row in self._reader.all(_MARKS, when)]

    def samples_by_id(self, ids: Sequence[int]) -> list[Sample]:
        """Returns the samples with these ids, oldest first."""
        rest = "WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY taken, id"
        return sample.find(self._reader, rest, {"ids": Json(json.dumps(list(ids)))})

    def replace_samples(self, ids: Sequence[int], by: Iterable[Sample]) -> int:
        """Put these in the place of those, by id; how many of those there were."""
        with self._writing("samples thinned") as session:
            sample.add(session, by)
            return session.run_many("DELETE FROM sample WHERE id = :id", [{"id": id_} for id_ in ids])

    def jobs(self, filesystem: str, start: datetime, end: datetime) -> list[Job]:
        """Backups, expiries and balances that ran at any time from `start` to `end`, oldest first.

        A run that was killed and never ended counts as running.
        """
        values = {"start": start, "end": end, "filesystem": filesystem}
        found = (Job(*row) for query in _QUERIES for row in self._reader.all(query, values))
        return sorted(found, key=lambda job: job.started)


def _newest(session: Session, filesystem: str) -> Sample | None:
    # Not what was made of older ones: it was put in later than they were.
    return sample.first(
        session, "WHERE filesystem = :filesystem AND span = 'raw' ORDER BY id DESC LIMIT 1", {"filesystem": filesystem}
    )
