"""Proof: when each host, and the pool, was last verified, scrubbed, drilled, booted, compared with its source, copied and repaired.

`backupd status --proof` decides the same facts. Limited users see their own hosts, and nothing about the pool.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from flask import Blueprint, render_template, request

from btrkeep.config.settings import DrillSettings, VerifySettings
from btrkeep.decisions.alarm_advice import command_for
from btrkeep.decisions.copy_status import command_of
from btrkeep.decisions.proofs import (
    WORST_FIRST,
    HostProofs,
    Proof,
    ProofKind,
    Proofs,
    ProofState,
    is_problem,
    limit_words,
    read_proofs,
)
from btrkeep.serving.viewer import Viewer
from web.hosts.data import PROBLEMS, every_facts
from web.request_values import choice, rows_per_page
from web.source import RequestContext, source, viewer

PER_PAGE = 25
TIMED = tuple(kind for kind in ProofKind if kind != ProofKind.DAMAGED)
_EARLIEST = datetime.min.replace(tzinfo=UTC)


def _age_order(kind: ProofKind) -> Callable[[HostProofs], datetime]:
    return lambda row: row.of(kind).at or _EARLIEST


ORDERS: Mapping[str, Callable[[HostProofs], Any]] = {
    "host": lambda row: row.host,
    **{kind.value: _age_order(kind) for kind in TIMED},
    ProofKind.DAMAGED.value: lambda row: WORST_FIRST[row.of(ProofKind.DAMAGED).state],
}
_COMMANDS = {
    ProofKind.VERIFIED: "backupd verify",
    ProofKind.SCRUBBED: "backupd scrub",
    ProofKind.DRILLED: "backupd drill",
    ProofKind.BOOTED: "backupd drill HOST --boot",
    ProofKind.COMPARED: "backupd verify HOST --against-source",
    ProofKind.DAMAGED: "backupd damaged",
}
"""The command that makes each proof."""


@dataclass(frozen=True, slots=True)
class ProofQuery:
    """Which hosts are listed."""

    q: str = ""
    """Words that must all occur in the name or the group."""
    state: str = ""
    """One of ProofState, or `problems`; "": all."""
    group: str = ""
    """A group; "": all."""
    sort: str = ""
    """One of ORDERS; "": the worst first."""
    page: int = 1
    """The page, from 1."""


@dataclass(frozen=True, slots=True)
class ProofList:
    """One page of hosts with their proofs."""

    query: ProofQuery
    """The query, with the page that is shown."""
    total: int
    """Number of hosts that the user may see."""
    matching: int
    """Number of those that match the query."""
    pages: int
    """Number of pages."""
    rows: tuple[HostProofs, ...]
    """The hosts of this page."""
    states: tuple[tuple[ProofState, int], ...]
    """Number of hosts by state, of those that match `q` and `group`, the worst first."""
    problems: int
    """Number of those with a problem."""
    groups: tuple[str, ...]
    """All groups."""
    pool: tuple[Proof, ...]
    """The proofs of the pool; empty for limited users."""


def proofs(source: RequestContext) -> Proofs:
    """Returns the proofs of all hosts; cached between requests. The caller must filter them by viewer."""
    return source.cached("proofs", lambda: _proofs(source))


def _proofs(source: RequestContext) -> Proofs:
    config = source.config
    return read_proofs(
        source.catalogue,
        VerifySettings(max_age=config.verify_max_age),
        DrillSettings(max_age=config.drill_max_age),
        config.copies,
        {host: facts.last_complete for host, facts in every_facts(source).items()},
        source.now,
    )


def proof_list(source: RequestContext, viewer: Viewer, query: ProofQuery) -> ProofList:
    """Returns the requested page, of the hosts that the viewer may see."""
    answer, hosts = proofs(source), source.config.hosts
    groups = {name: host.group for name, host in hosts.items() if host.group}
    mine = [row for row in answer.hosts if viewer.may_see(row.host)]
    words = query.q.casefold().split()
    wanted = [
        row
        for row in mine
        if all(word in f"{row.host} {groups.get(row.host, '')}".casefold() for word in words)
        and (not query.group or groups.get(row.host) == query.group)
    ]
    counts = Counter(row.state for row in wanted)
    chosen = [row for row in wanted if _is_in(row, query.state)]
    if query.sort:
        chosen.sort(key=ORDERS[query.sort])
    per_page = rows_per_page(PER_PAGE)
    pages = max(1, -(-len(chosen) // per_page))
    page = min(max(query.page, 1), pages)
    return ProofList(
        replace(query, page=page),
        len(mine),
        len(chosen),
        pages,
        tuple(chosen[(page - 1) * per_page : page * per_page]),
        tuple((state, counts[state]) for state in ProofState if counts[state]),
        sum(is_problem(row.state) for row in wanted),
        tuple(sorted({groups[row.host] for row in mine if row.host in groups})),
        () if viewer.limited else answer.pool,
    )


def _is_in(row: HostProofs, state: str) -> bool:
    return not state or row.state == state or (state == PROBLEMS and is_problem(row.state))


def command(source: RequestContext, proof: Proof) -> str:
    """Returns the command that makes a proof of the pool again; "": none."""
    text = _COMMANDS.get(proof.kind, "")
    if proof.kind == ProofKind.COPIED and (terms := source.config.copies.get(proof.words)):
        text = command_of(terms.kind, terms.name)
    return command_for(text, source.config.name, source.config.call)


blueprint = Blueprint("proof", __name__, url_prefix="/proof")
blueprint.add_app_template_filter(limit_words)


@blueprint.get("")
def index() -> str:
    """Shows the proofs of the pool and of the hosts, the worst first, by `q`, `state`, `group`, `sort` and `page`."""
    query = ProofQuery(
        q=request.args.get("q", "").strip()[:200],
        state=choice("state", (PROBLEMS, *ProofState)) or "",
        group=request.args.get("group", ""),
        sort=choice("sort", tuple(ORDERS)) or "",
        page=request.args.get("page", 1, int),
    )
    here = source()
    return render_template(
        "proof/proof.html",
        list=proof_list(here, viewer(), query),
        kinds=tuple(ProofKind),
        limit=here.config.verify_max_age,
        command=lambda proof: command(here, proof),
    )
