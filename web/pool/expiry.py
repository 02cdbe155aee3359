"""Expiry: its runs, and the number of deleted subvolumes that waited for the kernel's cleaner."""

from dataclasses import dataclass
from datetime import datetime

from flask import Blueprint, render_template

from btrkeep.catalogue import Catalogue, Expiry
from btrkeep.units import seconds_between
from web.mapping import from_row
from web.pool.page import trend_values
from web.running import is_alive
from web.source import needs_all_hosts, source

LAST = 60


@dataclass(frozen=True, slots=True)
class ExpiryRun:
    """A run of `backupd expire`. Counts are backups, except `left_out`."""

    id: int
    """A run that started later has a higher id."""
    state: str
    """Its outcome, or running, or killed."""
    started: datetime
    """When it started."""
    finished: datetime | None
    """When it ended; null: it has not."""
    seconds: float
    """How long it took."""
    planned: int
    """Number of backups to delete."""
    marked: int
    """Number of backups that it marked for deletion."""
    revived: int
    """Number of backups that were marked, and are kept again."""
    deleted: int
    """Deleted so far."""
    left_out: int
    """Number of hosts that it skipped."""
    waiting: int | None
    """Deleted subvolumes that wait for the cleaner, as last measured; null: unknown."""
    most_waiting: int | None
    """The highest `waiting`; null: unknown."""
    rate: float | None
    """Deleted subvolumes per second; null: unknown."""
    eta: float | None
    """Seconds left; null: it is not running."""
    written: int | None
    """Bytes that all programs wrote to the devices while it ran; null: unknown."""
    written_each: float | None
    """Bytes written for each deleted backup; null: unknown."""
    mount_option: str | None
    """The mount option while it ran; null: not changed."""
    paused: str | None
    """Why it pauses now; null: it does not."""
    error: str | None
    """What ended it early; null: nothing did."""


def expiries(catalogue: Catalogue, now: datetime, limit: int = LAST) -> tuple[ExpiryRun, ...]:
    """Returns the last runs, newest first."""
    return tuple(_run(expiry, now) for expiry in catalogue.expiries(limit))


def one_expiry(catalogue: Catalogue, expiry_id: int, now: datetime) -> ExpiryRun | None:
    """Returns the run with that id, None if there is none."""
    expiry = catalogue.one_expiry(expiry_id)
    return _run(expiry, now) if expiry else None


def _run(expiry: Expiry, now: datetime) -> ExpiryRun:
    runs = expiry.finished is None and is_alive(expiry.pid, expiry.pid_started, expiry.updated, now)
    written = expiry.written_bytes
    return from_row(
        ExpiryRun,
        expiry,
        state=expiry.outcome or ("running" if runs else "killed"),
        seconds=seconds_between(expiry.started, expiry.finished or expiry.updated) or 0.0,
        eta=expiry.eta if runs else None,
        written=written,
        written_each=written / expiry.deleted if written is not None and expiry.deleted else None,
        paused=expiry.paused if runs else None,
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
        **trend_values(),
    )
