"""Rows of the pool's history: samples, scores, the runs of expiry, dedupe and balance; and the other jobs."""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from btrkeep.catalogue.model_backup import Dedupe, Expiry
from btrkeep.catalogue.model_pool import Balance, BalanceStep, FreeSpaceScore, Job, Sample, SampleMark
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.sqlite import Json, Session
from btrkeep.catalogue.tables import JobTable, balance, balance_step, dedupe, expiry, run, sample, score


class DedupeStore(CatalogueSession):
    """Each method that changes rows does so in one transaction."""

    def start_dedupe(self, started: datetime, pid: int, pid_started: str | None) -> int:
        """Records the start of a run; returns its id. All counts are 0. Ends the row of a killed run."""
        with self._writing("dedupe begun in the catalogue") as session:
            for row in dedupe.unfinished(session):  # this process holds the lock `verify`, so none of them is running
                dedupe.change(session, row.id, {"finished": row.updated, "outcome": "killed"})
            return dedupe.start(session, started=started, pid=pid, pid_started=pid_started)

    def update_dedupe(self, dedupe_id: int, /, **fields: Any) -> None:
        """Changes fields of a run; `finished` and `outcome` end it. Raises KeyError if no run has this id."""
        with self._writing("dedupe ended in the catalogue" if fields.get("finished") else "dedupe row written") as session:
            dedupe.change(session, dedupe_id, fields)

    def dedupes(self, limit: int) -> list[Dedupe]:
        """Returns the last runs, newest first."""
        return dedupe.find(self._reader, "ORDER BY id DESC LIMIT :most", {"most": limit})


class ExpiryStore(CatalogueSession):
    """Each method that changes rows does so in one transaction."""

    def start_expiry(self, started: datetime, pid: int, pid_started: str | None, **fields: Any) -> int:
        """Records the start of a run of `expire`; returns its id. All counts are 0, and other values that are not given are
        unknown.
        """
        with self._writing("expiry begun in the catalogue") as session:
            return expiry.start(session, started=started, pid=pid, pid_started=pid_started, **fields)

    def update_expiry(self, expiry_id: int, /, **fields: Any) -> None:
        """Changes fields of a run of `expire`; `finished` and `outcome` end it. Raises KeyError if no run has this id."""
        with self._writing("expiry ended in the catalogue" if fields.get("finished") else "expiry row written") as session:
            expiry.change(session, expiry_id, fields)

    def expiries(self, limit: int = 20, *, of_all: bool = False) -> list[Expiry]:
        """Returns the last runs of `expire`, newest first; with `of_all` without those of named hosts."""
        where = "WHERE hosts IS NULL" if of_all else ""
        return expiry.find(self._reader, f"{where} ORDER BY id DESC LIMIT :most", {"most": limit})

    def unfinished_expiries(self) -> list[Expiry]:
        """Returns the runs of `expire` without an end, oldest first: they are running, or were killed; `pid` and `pid_started` show
        which.
        """
        return expiry.unfinished(self._reader)

    def one_expiry(self, expiry_id: int) -> Expiry | None:
        """Returns the run of `expire` with this id, or None."""
        return expiry.first(self._reader, "WHERE id = :id", {"id": expiry_id})


_STEPS = f"""
    SELECT {balance_step.select()} FROM balance_step JOIN balance ON balance.id = balance_step.balance
    WHERE balance.filesystem = :filesystem AND balance_step.%s
    ORDER BY balance.id DESC, balance_step.number DESC LIMIT :most"""
_MEASURED = _STEPS % "outcome = 'done'"
_OF_BLOCK_GROUP = _STEPS % "vaddr = :vaddr"
_ALL = 1 << 62
_MOST_MOVES = 20


class BalanceStore(CatalogueSession):
    """The scores and balances of each filesystem, by its UUID. Each change is one transaction."""

    def add_score(self, free_space_score: FreeSpaceScore) -> int:
        """Stores one score of the free space; returns its id."""
        with self._writing("score written") as session:
            return session.run(score.insert(), score.values(free_space_score)).lastrowid or 0

    def scores(self, filesystem: str, since: datetime | None = None) -> list[FreeSpaceScore]:
        """Returns the scores of a filesystem, oldest first: all of them, or those taken at `since` or later."""
        rest = "WHERE filesystem = :filesystem AND (:since IS NULL OR taken >= :since) ORDER BY taken, id"
        return score.find(self._reader, rest, {"filesystem": filesystem, "since": since})

    def newest_score(self, filesystem: str) -> FreeSpaceScore | None:
        """Returns the score that was stored last, whatever its time; None if there is none."""
        return score.first(self._reader, "WHERE filesystem = :filesystem ORDER BY id DESC LIMIT 1", {"filesystem": filesystem})

    def start_balance(
        self, filesystem: str, mountpoint: str, started: datetime, pid: int, pid_started: str | None, **fields: Any
    ) -> int:
        """Records the start of a run of balances; returns its id. `policy` is required. All counts are 0, and other values that are
        not given are unknown.
        """
        given = {"filesystem": filesystem, "mountpoint": mountpoint, "started": started, "pid": pid, "pid_started": pid_started}
        with self._writing("balance begun in the catalogue") as session:
            return balance.start(session, **given, **fields)

    def update_balance(self, balance_id: int, /, **fields: Any) -> None:
        """Changes fields of a run. Raises KeyError if no run has this id."""
        with self._writing("balance row written") as session:
            balance.change(session, balance_id, fields)

    def finish_balance(self, balance_id: int, /, **fields: Any) -> None:
        """Ends a run: `finished` and `outcome` are required, and `current` is cleared. Raises KeyError if no run has this id."""
        balance.require_end(fields)
        self.update_balance(balance_id, **fields, current=None)

    def add_step(self, step: BalanceStep, /, **fields: Any) -> None:
        """Stores one block group of a run, and changes the run's fields (for example its sums) in the same transaction."""
        with self._writing("balance step written") as session:
            balance_step.add(session, [step])
            balance.change(session, step.balance, fields)

    def balances(self, filesystem: str, limit: int | None = 20, since: datetime | None = None) -> list[Balance]:
        """Returns the last `limit` runs on a filesystem, newest first; None: all. With `since`, those that started then
        or later.
        """
        rest = "WHERE filesystem = :filesystem AND (:since IS NULL OR started >= :since) ORDER BY id DESC LIMIT :most"
        most = _ALL if limit is None else limit
        return balance.find(self._reader, rest, {"filesystem": filesystem, "since": since, "most": most})

    def unfinished_balances(self) -> list[Balance]:
        """Returns the runs on any filesystem without an end, oldest first: they are running, or were killed; `pid` and
        `pid_started` show which.
        """
        return balance.unfinished(self._reader)

    def one_balance(self, balance_id: int) -> Balance | None:
        """Returns the run of balance with this id, or None."""
        return balance.first(self._reader, "WHERE id = :id", {"id": balance_id})

    def steps(self, balance_id: int) -> list[BalanceStep]:
        """Returns the block groups of a run, in order."""
        return balance_step.find(self._reader, "WHERE balance = :id ORDER BY number", {"id": balance_id})

    def measured(self, filesystem: str, limit: int = 200) -> list[BalanceStep]:
        """Returns the last block groups that were relocated on a filesystem, newest first, as data for an estimate."""
        return [BalanceStep(*row) for row in self._reader.all(_MEASURED, {"filesystem": filesystem, "most": limit})]

    def moves_of(self, filesystem: str, vaddr: int) -> list[BalanceStep]:
        """Returns the last steps of balances for the block group at this address, newest first."""
        if vaddr >= 1 << 63:  # the limit of SQLite's numbers, far above any address
            return []
        values = {"filesystem": filesystem, "vaddr": vaddr, "most": _MOST_MOVES}
        return [BalanceStep(*row) for row in self._reader.all(_OF_BLOCK_GROUP, values)]


_OLDEST = 'SELECT min(taken) AS "taken [moment]" FROM sample WHERE filesystem = :filesystem AND span = :span'
_SAMPLE_MARKS = f"""
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
    """The samples of each filesystem, by its UUID. Each change is one transaction."""

    def add_sample(self, filesystem: str, make: Callable[[Sample | None], Sample]) -> Sample:
        """Stores the sample that `make` makes from the newest one, and returns it.

        In one transaction: if two programs sample at the same time, one sees the sample of the other, and no write counts twice.
        """
        with self._writing("sample written") as session:
            new_sample = make(_newest(session, filesystem))
            sample.add(session, [new_sample])
        return new_sample

    def newest_sample(self, filesystem: str) -> Sample | None:
        """Returns the sample that was stored last, whatever its time; None if there is none."""
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
        return [SampleMark._make(row) for row in self._reader.all(_SAMPLE_MARKS, when)]

    def samples_by_id(self, ids: Sequence[int]) -> list[Sample]:
        """Returns the samples with these ids, oldest first."""
        rest = "WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY taken, id"
        return sample.find(self._reader, rest, {"ids": Json(json.dumps(list(ids)))})

    def replace_samples(self, ids: Sequence[int], by: Iterable[Sample]) -> int:
        """Replaces samples, given by id, by these; returns how many of the old ones existed."""
        with self._writing("samples thinned") as session:
            sample.add(session, by)
            return session.run_many("DELETE FROM sample WHERE id = :id", [{"id": id_} for id_ in ids])

    def jobs(self, filesystem: str, start: datetime, end: datetime) -> list[Job]:
        """Returns the backups, expiries and balances that ran at any time from `start` to `end`, oldest first.

        A run that was killed without an end counts as running.
        """
        values = {"start": start, "end": end, "filesystem": filesystem}
        all_jobs = (Job(*row) for query in _QUERIES for row in self._reader.all(query, values))
        return sorted(all_jobs, key=lambda job: job.started)


def _newest(session: Session, filesystem: str) -> Sample | None:
    # Not the merged samples, which are inserted later than the others.
    return sample.first(
        session, "WHERE filesystem = :filesystem AND span = 'raw' ORDER BY id DESC LIMIT 1", {"filesystem": filesystem}
    )
