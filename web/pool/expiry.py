"""Expiry: its runs, and how many deleted subvolumes waited for the kernel's cleaner."""

from dataclasses import dataclass
from datetime import datetime

from flask import Blueprint, render_template

from btrkeep.catalogue import Catalogue, Expiry
from btrkeep.charts.trend import has, words
from btrkeep.units import seconds_between
from web.access import needs_all_hosts
from web.pool.data import SPANS
from web.pool.page import requested_days, trend_of
from web.running import is_alive
from web.same_names import of_row
from web.source import source

LAST = 60


@dataclass(frozen=True, slots=True)
class ExpiryRun:
    """A run of `backupd expire`. Counts are backups, but `left_out` counts hosts. `state` is its outcome, or running, or killed."""

    id: int
    state: str
    started: datetime
    finished: datetime | None
    seconds: float
    planned: int
    marked: int
    revived: int
    deleted: int
    left_out: int
    waiting: int | None
    """Deleted subvolumes that wait for the cleaner, as it was heard of last; None: not known, as for all that follow."""
    most_waiting: int | None
    rate: float | None
    """Subvolumes a second."""
    eta: float | None
    """Seconds left, for a running one."""
    written: int | None
    """Bytes that the devices wrote meanwhile, for all programs."""
    written_each: float | None
    """The same for each deleted backup."""
    mount_option: str | None
    paused: str | None
    error: str | None


def expiries(catalogue: Catalogue, now: datetime, limit: int = LAST) -> tuple[ExpiryRun, ...]:
    """Returns the last runs, newest first."""
    return tuple(_run(expiry, now) for expiry in catalogue.expiries(limit))


def one_expiry(catalogue: Catalogue, expiry_id: int, now: datetime) -> ExpiryRun | None:
    """Returns the run with that id, None if there is none."""
    expiry = catalogue.one_expiry(expiry_id)
    return _run(expiry, now) if expiry else None


def _run(one: Expiry, now: datetime) -> ExpiryRun:
    runs = one.finished is None and is_alive(one.pid, one.pid_started, one.updated, now)
    written = one.written_bytes
    return of_row(
        ExpiryRun,
        one,
        state=one.outcome or ("running" if runs else "killed"),
        seconds=seconds_between(one.started, one.finished or one.updated) or 0.0,
        eta=one.eta if runs else None,
        written=written,
        written_each=written / one.deleted if written is not None and one.deleted else None,
        paused=one.paused if runs else None,
    )


blueprint = Blueprint("expiry", __name__, url_prefix="/pool/expiry")


@blueprint.get("")
@needs_all_hosts
def index() -> str:
    """Shows all runs, and a chart of waiting subvolumes."""
    here = source()
    return render_template(
        "pool/expiry.html",
        runs=here.cached("expiries", lambda: expiries(here.catalogue, here.now)),
        trend=trend_of(requested_days()),
        spans=SPANS,
        words=words,
        has=has,
    )
