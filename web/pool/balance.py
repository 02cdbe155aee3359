"""Balance: the past runs and their steps, bytes written per byte moved, the estimates, and on request the next steps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from flask import Blueprint, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from btrkeep.catalogue import Balance, Catalogue
from btrkeep.units import seconds_between
from web.access import needs_all_hosts
from web.pool.page import filesystem
from web.running import is_alive
from web.same_names import of_row
from web.service_client import answers
from web.source import source

LAST = 200


@dataclass(frozen=True, slots=True)
class BalanceRun:
    """A run of `btrfs-balancer run`. Bytes, seconds; `state` is its outcome, or running, or killed."""

    id: int
    state: str
    why: str | None
    started: datetime
    finished: datetime | None
    seconds: float | None
    policy: str
    budget: int | None
    block_groups: int
    moved: int
    written: int | None
    amplification: float | None
    """Bytes written to the devices meanwhile, by everybody, for each byte that moved. None: nothing moved, or not known."""
    gained: float
    failed: int
    current: int | None
    score_before: float | None
    score_after: float | None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One block group of a run. Bytes and seconds are given twice: estimated, and measured."""

    number: int
    vaddr: int
    length: int
    used: int
    extents: int | None
    refs: int | None
    fragments: int
    score: float
    started: datetime
    seconds: float
    estimate_seconds: float | None
    moved: int
    written: int | None
    estimate_written: int | None
    amplification: float | None
    gained: float
    outcome: str
    error: str | None


@dataclass(frozen=True, slots=True)
class BalanceSums:
    """Totals of several runs. `amplification` covers the runs for which the bytes written are known."""

    runs: int
    block_groups: int
    moved: int
    written: int
    gained: float
    amplification: float | None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The ratio of measured to estimated values over all steps that have both; 1 is exact."""

    steps: int
    written: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class OneBalance:
    """A run with its steps, in their order."""

    run: BalanceRun
    steps: tuple[StepRow, ...]
    accuracy: Accuracy


def balances(catalogue: Catalogue, filesystem: str, now: datetime, limit: int = LAST) -> tuple[BalanceRun, ...]:
    """Returns the last runs, newest first."""
    return tuple(_run(balance, now) for balance in catalogue.balances(filesystem, limit))


def one_balance(catalogue: Catalogue, filesystem: str, balance_id: int, now: datetime) -> OneBalance | None:
    """Returns a run of this filesystem, None if there is none with that id."""
    balance = catalogue.one_balance(balance_id)
    if balance is None or balance.filesystem != filesystem:
        return None
    steps = tuple(of_row(StepRow, step, amplification=_share(step.written, step.moved)) for step in catalogue.steps(balance_id))
    return OneBalance(_run(balance, now), steps, accuracy(steps))


def sums(runs: Sequence[BalanceRun]) -> BalanceSums:
    """Returns the totals of the runs, including stopped ones, because the block groups that they moved stay moved."""
    balance_runs = [run for run in runs if run.written is not None]
    moved, written = (
        sum(balance_run.moved for balance_run in balance_runs),
        sum(balance_run.written or 0 for balance_run in balance_runs),
    )
    return BalanceSums(
        len(runs),
        sum(run.block_groups for run in runs),
        sum(run.moved for run in runs),
        written,
        sum(run.gained for run in runs),
        _share(written, moved),
    )


def accuracy(steps: Iterable[StepRow]) -> Accuracy:
    """Returns the accuracy over the steps that were completed."""
    done = [step for step in steps if step.outcome == "done"]
    written = [(step.written, step.estimate_written) for step in done if step.written is not None and step.estimate_written]
    seconds = [(step.seconds, step.estimate_seconds) for step in done if step.estimate_seconds]
    return Accuracy(len(done), _ratio(written), _ratio(seconds))


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    return _share(sum(measured for measured, _ in pairs), sum(estimated for _, estimated in pairs))


def _share(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None


def _run(one: Balance, now: datetime) -> BalanceRun:
    runs = one.finished is None and is_alive(one.pid, one.pid_started, one.updated, now)
    return of_row(
        BalanceRun,
        one,
        state=one.outcome or ("running" if runs else "killed"),
        seconds=seconds_between(one.started, one.finished or one.updated) or 0.0,
        amplification=_share(one.written, one.moved),
        current=one.current if runs else None,
        score_before=_number(one.before.get("score")),
        score_after=_number(one.after.get("score")),
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


blueprint = Blueprint("balance", __name__, url_prefix="/pool/balance")
_VERB = "plan"


@blueprint.get("")
@needs_all_hosts
def index() -> str:
    """Shows all runs, and the plan that was last requested."""
    here, of = source(), filesystem()
    runs = here.cached(("balances", of), lambda: balances(here.catalogue, of, here.now))
    return render_template("pool/balance.html", runs=runs, sums=sums(runs), plan=answers().last(_VERB))


@blueprint.post("/plan")
@needs_all_hosts
def plan() -> Response:
    """Makes a new plan, which takes some seconds, and shows it."""
    answers().ask(_VERB)
    return redirect(url_for(".index", _anchor="plan"), 303)


@blueprint.get("/<int:balance_id>")
@needs_all_hosts
def one(balance_id: int) -> str:
    """Shows a run with its block groups."""
    here = source()
    found = one_balance(here.catalogue, filesystem(), balance_id, here.now) if balance_id < 1 << 63 else None
    if found is None:
        abort(404, "there is no such run of balance")
    template = "pool/balance_live.html" if "X-Live" in request.headers else "pool/one_balance.html"
    return render_template(template, found=found)
