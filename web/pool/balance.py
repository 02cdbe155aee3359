"""Balance: the past runs and their steps, bytes written per byte moved, the estimates, and on request the next steps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from flask import Blueprint, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from btrkeep.catalogue import Balance, Catalogue
from btrkeep.units import seconds_between
from web.mapping import from_row
from web.pool.page import filesystem
from web.running import is_alive
from web.service_client import answers
from web.source import needs_all_hosts, source

LAST = 200


@dataclass(frozen=True, slots=True)
class BalanceRun:
    """A run of `btrfs-balancer run`. Sizes are bytes."""

    id: int
    """A run that started later has a higher id."""
    state: str
    """Its outcome, or running, or killed."""
    why: str | None
    """Why it ended; null: it is running."""
    started: datetime
    """When it started."""
    finished: datetime | None
    """When it ended; null: it has not."""
    seconds: float | None
    """How long it took; null: it has not ended."""
    policy: str
    """The order of block groups."""
    budget: int | None
    """How much it may move; null: no limit."""
    block_groups: int
    """Number of relocated block groups."""
    moved: int
    """Data that it moved."""
    written: int | None
    """What all programs wrote to the devices while it ran; null: unknown."""
    amplification: float | None
    """`written` for each byte that moved; null: nothing moved, or not known."""
    gained: float
    """Score removed."""
    failed: int
    """Number of block groups that it could not relocate."""
    current: int | None
    """Logical address of the block group that it relocates now; null: none."""
    score_before: float | None
    """The score at its start; null: unknown."""
    score_after: float | None
    """The score at its end; null: unknown."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One block group of a run. Sizes are bytes."""

    number: int
    """Within the run, from 1."""
    vaddr: int
    """Its logical address."""
    length: int
    """Its size."""
    used: int
    """Bytes in use before."""
    extents: int | None
    """Number of its extents; null: not counted."""
    refs: int | None
    """Number of references to its extents; null: not counted."""
    fragments: int
    """Number of free extents before."""
    score: float
    """Its score before."""
    started: datetime
    """When it started."""
    seconds: float
    """How long it took."""
    estimate_seconds: float | None
    """How long it was expected to take; null: no estimate."""
    moved: int
    """Data that was moved."""
    written: int | None
    """What all programs wrote to the devices; null: unknown."""
    estimate_written: int | None
    """What it was expected to write; null: no estimate."""
    amplification: float | None
    """`written` for each byte that moved; null: unknown."""
    gained: float
    """How much the filesystem's score fell."""
    outcome: str
    """How it ended."""
    error: str | None
    """The kernel's error; null: there was none."""


@dataclass(frozen=True, slots=True)
class BalanceSums:
    """Totals of several runs."""

    runs: int
    """Number of runs."""
    block_groups: int
    """Number of relocated block groups."""
    moved: int
    """Bytes of data."""
    written: int
    """Bytes that all programs wrote to the devices, in the runs for which this is known."""
    gained: float
    """Score removed."""
    amplification: float | None
    """`written` for each byte that these runs moved; null: unknown."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How exact the estimates were: measured divided by estimated, over all steps that have both; 1 is exact."""

    steps: int
    """Number of these steps."""
    written: float | None
    """The ratio of written to estimated bytes; null: none."""
    seconds: float | None
    """For the durations; null: there are no estimates."""


@dataclass(frozen=True, slots=True)
class OneBalance:
    """A run with its steps."""

    run: BalanceRun
    """The run."""
    steps: tuple[StepRow, ...]
    """In their order."""
    accuracy: Accuracy
    """How exact the estimates were."""


def balances(catalogue: Catalogue, filesystem: str, now: datetime, limit: int = LAST) -> tuple[BalanceRun, ...]:
    """Returns the last runs, newest first."""
    return tuple(_run(balance, now) for balance in catalogue.balances(filesystem, limit))


def one_balance(catalogue: Catalogue, filesystem: str, balance_id: int, now: datetime) -> OneBalance | None:
    """Returns a run of this filesystem, None if there is none with that id."""
    balance = catalogue.one_balance(balance_id)
    if balance is None or balance.filesystem != filesystem:
        return None
    steps = tuple(from_row(StepRow, step, amplification=_share(step.written, step.moved)) for step in catalogue.steps(balance_id))
    return OneBalance(_run(balance, now), steps, accuracy(steps))


def sums(runs: Sequence[BalanceRun]) -> BalanceSums:
    """Returns the totals of the runs, including stopped ones, because the block groups that they moved remain moved."""
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


def _run(balance: Balance, now: datetime) -> BalanceRun:
    runs = balance.finished is None and is_alive(balance.pid, balance.pid_started, balance.updated, now)
    return from_row(
        BalanceRun,
        balance,
        state=balance.outcome or ("running" if runs else "killed"),
        seconds=seconds_between(balance.started, balance.finished or balance.updated) or 0.0,
        amplification=_share(balance.written, balance.moved),
        current=balance.current if runs else None,
        score_before=_number(balance.before.get("score")),
        score_after=_number(balance.after.get("score")),
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


@blueprint.get("/<int:balance_id>", endpoint="one")
@needs_all_hosts
def balance_page(balance_id: int) -> str:
    """Shows a run with its block groups."""
    here = source()
    details = one_balance(here.catalogue, filesystem(), balance_id, here.now) if balance_id < 1 << 63 else None
    if details is None:
        abort(404, "there is no such run of balance")
    template = "pool/balance_live.html" if "X-Live" in request.headers else "pool/one_balance.html"
    return render_template(template, details=details)
