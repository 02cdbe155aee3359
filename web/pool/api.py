"""Endpoints for the pool over time, balance and expiry, with the data of their pages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from flask import abort
from pydantic import Field

from btrkeep.errors import OperatorError, UsageError
from web.api import JOBS, POOL, ApiRequest, Endpoint, IdParameter, NoParameters
from web.pool import balance, data, expiry
from web.pool.balance import BalanceRun, BalanceSums, OneBalance
from web.pool.data import DayView, Outlook, PoolNow, Trend, pool_now
from web.pool.expiry import ExpiryRun
from web.pool.scores import Scores
from web.pool.scores import scores as of_scores

Date = Annotated[str, Field(pattern=r"^[0-9]", max_length=10, json_schema_extra={"format": "date"})]


@dataclass(frozen=True, slots=True)
class Days:
    """The number of days."""

    days: Annotated[int, Field(ge=1, le=3650, description="The number of days up to now.")] = data.USUAL


@dataclass(frozen=True, slots=True)
class Day:
    """A day of the pool's zone."""

    date: Annotated[Date, Field(description="A day in the pool's time zone; if omitted, the last 24 hours.")] | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """The number of entries."""

    limit: Annotated[int, Field(ge=1, le=1000, description="The number of entries, newest first.")] = 60


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the pool is full, by the growth of the last half year."""

    allocated: Outlook
    """When the unallocated space runs out."""
    used: Outlook
    """When all space is used."""


@dataclass(frozen=True, slots=True)
class Balances:
    """The last balances."""

    balances: tuple[BalanceRun, ...]
    """Newest first."""
    sums: BalanceSums
    """Their totals."""


@dataclass(frozen=True, slots=True)
class Expiries:
    """The last expiries."""

    expiries: tuple[ExpiryRun, ...]
    """Newest first."""


def filesystem_of(asked: ApiRequest) -> str:
    """Returns the pool's UUID. Raises OperatorError as long as it is not published."""
    if asked.source.config.filesystem is None:
        raise OperatorError("the pool has no samples yet", "`backupd sample` takes a sample")
    return asked.source.config.filesystem


def pool(asked: ApiRequest) -> PoolNow:
    """Returns the present state."""
    current = pool_now(asked.source.catalogue, filesystem_of(asked))
    if current is None:
        abort(404, "there is no sample of the pool yet")
    return current


def trend(asked: ApiRequest) -> Trend:
    """Returns the space over months. Like the following functions, it shares the cache key of the page."""
    here, of, days = asked.source, filesystem_of(asked), asked.given.days
    return here.cached(("trend", of, days), lambda: data.trend(here.catalogue, of, here.now, days))


def forecast(asked: ApiRequest) -> Forecast:
    """Returns when the pool will be full."""
    here, of = asked.source, filesystem_of(asked)
    return Forecast(*here.cached(("outlooks", of), lambda: data.outlooks(here.catalogue, of, here.now)))


def scores(asked: ApiRequest) -> Scores:
    """Returns the fragmentation of the free space."""
    here, of, days = asked.source, filesystem_of(asked), asked.given.days
    return here.cached(("scores", of, days), lambda: of_scores(here.catalogue, of, here.now, days))


def day(asked: ApiRequest) -> DayView:
    """Returns one day."""
    try:
        which = data.parse_day(asked.given.date)
    except ValueError as error:
        raise UsageError(f"date: {error}", "write the day like 2026-11-20") from None
    here, of = asked.source, filesystem_of(asked)
    return here.cached(("day", of, which), lambda: data.day_view(here.catalogue, of, here.config.zone, here.now, which))


def balances(asked: ApiRequest) -> Balances:
    """Returns the list of balances."""
    balance_runs = balance.balances(asked.source.catalogue, filesystem_of(asked), asked.source.now, asked.given.limit)
    return Balances(balance_runs, balance.sums(balance_runs))


def one_balance(asked: ApiRequest) -> OneBalance:
    """Returns one balance with its steps."""
    details = balance.one_balance(asked.source.catalogue, filesystem_of(asked), int(asked.given.number), asked.source.now)
    return details or abort(404)


def expiries(asked: ApiRequest) -> Expiries:
    """Returns the list of expiries."""
    return Expiries(expiry.expiries(asked.source.catalogue, asked.source.now, asked.given.limit))


def one_expiry(asked: ApiRequest) -> ExpiryRun:
    """Returns one expiry."""
    expiry_run = expiry.one_expiry(asked.source.catalogue, int(asked.given.number), asked.source.now)
    return expiry_run or abort(404)


def _get(
    path: str, name: str, tag: str, summary: str, answer: type, act: Callable[[ApiRequest], Any], takes: type = NoParameters
) -> Endpoint:
    return Endpoint("GET", path, name, tag, summary, answer, act, takes, pool_wide=True)


ENDPOINTS = (
    _get("/pool", "pool", POOL, "The pool, from its newest sample", PoolNow, pool),
    _get("/pool/trend", "poolTrend", POOL, "Allocated and used space over time", Trend, trend, Days),
    _get("/pool/forecast", "poolForecast", POOL, "Forecast of when the pool is full", Forecast, forecast),
    _get("/pool/day", "poolDay", POOL, "Disk throughput of a day, and its phases", DayView, day, Day),
    _get("/pool/scores", "poolScores", POOL, "Fragmentation of the free space over time", Scores, scores, Days),
    _get("/balances", "balances", JOBS, "Balances", Balances, balances, Limit),
    _get("/balances/<number>", "balance", JOBS, "One balance, and its steps", OneBalance, one_balance, IdParameter),
    _get("/expiries", "expiries", JOBS, "Expiries", Expiries, expiries, Limit),
    _get("/expiries/<number>", "expiry", JOBS, "One expiry", ExpiryRun, one_expiry, IdParameter),
)
