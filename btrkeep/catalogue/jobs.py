"""Which job ran when, out of the tables of runs, expiries and balances."""

from datetime import datetime

from sqlalchemy import Connection, bindparam, literal, null, or_, select, type_coerce

from btrkeep.catalogue.columns import Moment
from btrkeep.catalogue.model_sample import Job
from btrkeep.catalogue.tables import balance, expiry, run

_NOBODY_SAYS = type_coerce(null(), Moment)
_RUNS = select(
    literal("backup"), run.c.started, run.c.finished, _NOBODY_SAYS, run.c.literal_bytes, run.c.pid, run.c.pid_started
).where(
    run.c.started < bindparam("the_end", type_=Moment),
    or_(run.c.finished.is_(None), run.c.finished > bindparam("the_start", type_=Moment)),
)
_EXPIRIES = select(
    literal("expire"), expiry.c.started, expiry.c.finished, expiry.c.updated, literal(0), expiry.c.pid, expiry.c.pid_started
).where(
    expiry.c.started < bindparam("the_end", type_=Moment),
    or_(expiry.c.finished.is_(None), expiry.c.finished > bindparam("the_start", type_=Moment)),
)
_BALANCES = select(
    literal("balance"),
    balance.c.started,
    balance.c.finished,
    balance.c.updated,
    balance.c.moved,
    balance.c.pid,
    balance.c.pid_started,
).where(
    balance.c.filesystem == bindparam("the_filesystem"),
    balance.c.started < bindparam("the_end", type_=Moment),
    or_(balance.c.finished.is_(None), balance.c.finished > bindparam("the_start", type_=Moment)),
)


def between(connection: Connection, filesystem: str, start: datetime, end: datetime) -> list[Job]:
    """Those that ran at any time from `start` to `end`, oldest first. A run that was killed and never ended counts as running."""
    when = {"the_start": start, "the_end": end}
    found = [Job(*row) for query in (_RUNS, _EXPIRIES) for row in connection.execute(query, when)]
    found += [Job(*row) for row in connection.execute(_BALANCES, {**when, "the_filesystem": filesystem})]
    return sorted(found, key=lambda job: job.started)
