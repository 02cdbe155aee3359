"""Decides how old each proof of a host's backups is, and whether it is older than the configuration allows: verified, scrubbed,
drilled, booted, compared with the host, copied elsewhere, damaged, repaired. `backupd status --proof` and the dashboard share it.

Only a proof within a configured limit is OK. A proof that was never made, or that could not be made, never is.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from btrkeep.catalogue import Catalogue, ComparedBackup
from btrkeep.config.settings import DrillSettings, VerifySettings
from btrkeep.decisions.copy_status import (
    COPIES,
    OFFSITE,
    CopyState,
    ReplicaTerms,
    copies_of,
    copy_statuses,
    offsite_newest,
    read_session,
)
from btrkeep.decisions.drills import DrillKind, DrillOutcome, DrillResult, DrillState, drill_status, read_drills
from btrkeep.decisions.due import latest
from btrkeep.decisions.verification import FinishedScrub, late_reads, read_in_doubt, read_scrub
from btrkeep.units import counted, format_duration, parse_backup_name


class ProofKind(StrEnum):
    """What was proven."""

    VERIFIED = "verified"
    SCRUBBED = "scrubbed"
    DRILLED = "drilled"
    BOOTED = "booted"
    COMPARED = "compared"
    COPIED = "copied"
    DAMAGED = "damaged"
    REPAIRED = "repaired"


class ProofState(StrEnum):
    """The result of a proof, the worst first. `bad`: it failed, or found damage. `late`: older than its limit. `unknown`: the
    newest attempt could not check it. `never`: there was no attempt. `done`: it succeeded, and no limit is set, or it is older than
    its limit but another proof counts as well.
    """

    BAD = "bad"
    LATE = "late"
    UNKNOWN = "unknown"
    NEVER = "never"
    DONE = "done"
    OK = "ok"


WORST_FIRST = {state: place for place, state in enumerate(ProofState)}


@dataclass(frozen=True, slots=True)
class Proof:
    """One proof of a host, or of the pool."""

    kind: ProofKind
    """What was proven."""
    state: ProofState
    """Its result."""
    at: datetime | None = None
    """When it was last made; null: never."""
    limit: float | None = None
    """The age in seconds at which it is late; null: no limit is set."""
    words: str = ""
    """What was found, or why it is not OK; "": nothing."""


@dataclass(frozen=True, slots=True)
class HostProofs:
    """All proofs of a host."""

    host: str
    """Its name."""
    state: ProofState
    """The worst of them; never: its data was never read."""
    proofs: tuple[Proof, ...]
    """One of each kind."""

    def of(self, kind: ProofKind) -> Proof:
        """Returns the proof of that kind."""
        return next(proof for proof in self.proofs if proof.kind == kind)


@dataclass(frozen=True, slots=True)
class Proofs:
    """The proofs of all hosts, and of the pool."""

    hosts: tuple[HostProofs, ...]
    """The hosts with backups, the worst first."""
    pool: tuple[Proof, ...]
    """One of each kind, and one for each copy."""


def read_proofs(
    catalogue: Catalogue,
    verify: VerifySettings,
    drill: DrillSettings,
    copies: Mapping[str, ReplicaTerms],
    last_complete: Mapping[str, datetime | None],
    now: datetime,
) -> Proofs:
    """Returns all proofs, with a few queries for all hosts. `last_complete`: when the newest complete backup of each host began."""
    until, oldest, scrub = latest(now), catalogue.oldest_backups(), read_scrub(catalogue)
    verified, scrubbed = catalogue.newest_verifications(until), _scrubbed(catalogue, scrub, until)
    reads = {host: max(filter(None, (verified.get(host), scrubbed.get(host))), default=None) for host in oldest}
    late = frozenset(late_reads(oldest, reads, verify.oldest, now, is_asked=verify.max_age is not None))
    drills, compared = read_drills(catalogue), catalogue.newest_comparisons(until)
    damaged, altered = (
        Counter(host for host, _ in catalogue.unrepaired_files()),
        Counter(host for host, _ in catalogue.altered_backups()),
    )
    in_doubt = read_in_doubt(catalogue)
    doubtful = Counter(host for host, _ in in_doubt.backups) if in_doubt else Counter[str]()
    repaired, elsewhere = catalogue.newest_repairs(until), _elsewhere(catalogue, copies, last_complete, now)
    hosts = []
    for host in oldest:
        bad = Damages(damaged[host], altered[host])
        proofs = (
            _read(ProofKind.VERIFIED, verified.get(host), verify.max_age, now, is_late=host in late, doubtful=doubtful[host]),
            _read(ProofKind.SCRUBBED, scrubbed.get(host), verify.max_age, now, is_late=host in late),
            _drilled(ProofKind.DRILLED, DrillKind.RESTORE, drills.get(host, ()), until),
            _drilled(ProofKind.BOOTED, DrillKind.BOOT, drills.get(host, ()), until),
            _compared(compared.get(host)),
            elsewhere.get(host, Proof(ProofKind.COPIED, ProofState.NEVER)),
            _damaged(bad, is_read=reads[host] is not None),
            Proof(ProofKind.REPAIRED, ProofState.DONE, repaired.get(host)),
        )
        hosts.append(HostProofs(host, _host_state(proofs), proofs))
    hosts.sort(key=lambda row: (WORST_FIRST[row.state], -sum(proof.state == ProofState.NEVER for proof in row.proofs), row.host))
    pool = (
        _pool_read(reads, late, verify.max_age, sum(doubtful.values())),
        _pool_scrub(scrub, verify, until, now),
        _pool_drills(drills, drill, frozenset(oldest), now),
        _pool_newest(ProofKind.BOOTED, hosts),
        _pool_newest(ProofKind.COMPARED, hosts),
        *_pool_copies(catalogue, copies, now),
        _damaged(Damages(sum(damaged.values()), sum(altered.values())), is_read=any(reads.values())),
        Proof(ProofKind.REPAIRED, ProofState.DONE, max(repaired.values(), default=None)),
    )
    return Proofs(tuple(hosts), pool)


def is_problem(state: ProofState) -> bool:
    """Returns True for a proof that failed, is late, or could not be made."""
    return state in (ProofState.BAD, ProofState.LATE, ProofState.UNKNOWN)


def limit_words(limit: float | None) -> str:
    """Formats a limit."""
    return "no limit set" if limit is None else format_duration(limit)


@dataclass(frozen=True, slots=True)
class Damages:
    """Numbers of faulty backups."""

    damaged: int
    """Backups with damaged files."""
    altered: int
    """Backups that were changed after they were final."""

    @property
    def words(self) -> str:
        """Returns both in words."""
        counts = ((self.damaged, "damaged"), (self.altered, "altered"))
        return ", ".join(f"{counted(count, 'backup')} {word}" for count, word in counts if count)


def _host_state(proofs: Sequence[Proof]) -> ProofState:
    states = {proof.kind: proof.state for proof in proofs}
    for state in (ProofState.BAD, ProofState.LATE, ProofState.UNKNOWN):
        if state in states.values():
            return state
    return max((states[ProofKind.VERIFIED], states[ProofKind.SCRUBBED]), key=lambda state: WORST_FIRST[state])


def _scrubbed(catalogue: Catalogue, scrub: FinishedScrub | None, until: datetime) -> dict[str, datetime]:
    if scrub is None or not scrub.is_whole or scrub.finished > until:
        return {}
    return dict.fromkeys(catalogue.hosts_with_backups(scrub.begun, scrub.newest), scrub.finished)


def _read(kind: ProofKind, at: datetime | None, limit: float | None, now: datetime, *, is_late: bool, doubtful: int = 0) -> Proof:
    if doubtful:
        words = f"{counted(doubtful, 'backup')} written just before a crash and not read since"
        return Proof(kind, ProofState.UNKNOWN, at, limit, words)
    if is_late:
        return Proof(kind, ProofState.LATE, at, limit)
    if at is None:
        return Proof(kind, ProofState.NEVER, None, limit)
    return Proof(kind, ProofState.OK if limit and now - at <= timedelta(seconds=limit) else ProofState.DONE, at, limit)


def _drilled(kind: ProofKind, drill_kind: DrillKind, drills: Sequence[DrillResult], until: datetime) -> Proof:
    """Returns the result of the newest drill that ended; only if none ever did, that of an unfinished one. A drill in the future
    comes from a clock that was ahead.
    """
    if not drills:  # as for most of thousands of hosts
        return Proof(kind, ProofState.NEVER)
    of_kind = [drill for drill in drills if drill.kind == drill_kind and drill.at <= until]
    ended = next((drill for drill in of_kind if drill.outcome != DrillOutcome.UNFINISHED), None)
    if ended is None:
        words = "the drill did not finish"
        return Proof(kind, ProofState.UNKNOWN, of_kind[0].at, words=words) if of_kind else Proof(kind, ProofState.NEVER)
    is_failed = ended.outcome == DrillOutcome.FAILED
    return Proof(kind, ProofState.BAD if is_failed else ProofState.DONE, ended.at, words="failed" if is_failed else "")


def _compared(comparison: ComparedBackup | None) -> Proof:
    if comparison is None:
        return Proof(ProofKind.COMPARED, ProofState.NEVER)
    if comparison.differing:
        words = f"{counted(comparison.differing, 'file')} with other content there"
        return Proof(ProofKind.COMPARED, ProofState.BAD, comparison.at, words=words)
    if not comparison.alike:
        return Proof(ProofKind.COMPARED, ProofState.UNKNOWN, comparison.at, words="no file could be compared")
    return Proof(ProofKind.COMPARED, ProofState.DONE, comparison.at)


def _damaged(bad: Damages, *, is_read: bool) -> Proof:
    if bad.words:
        return Proof(ProofKind.DAMAGED, ProofState.BAD, words=bad.words)
    return Proof(
        ProofKind.DAMAGED, ProofState.DONE if is_read else ProofState.NEVER, words="none known" if is_read else "never read"
    )


def _elsewhere(
    catalogue: Catalogue, terms: Mapping[str, ReplicaTerms], last_complete: Mapping[str, datetime | None], now: datetime
) -> dict[str, Proof]:
    """Returns the newest copy of each host. It is late if any of its copies is: by its age for a host that is fetched from there,
    otherwise by how much older it is than the newest complete backup here; or if its last run did not copy the host completely.
    """
    known_copies = copies_of(catalogue.get_fact(COPIES))
    offsite = {name: offsite_newest(catalogue, name) for name, copy_terms in terms.items() if copy_terms.kind == OFFSITE}
    sessions = {name: read_session(catalogue, name, copy_terms.kind) for name, copy_terms in terms.items()}
    unfinished = {(name, behind.host) for name, session in sessions.items() if session for behind in session.behind}
    proofs: dict[str, Proof] = {}
    for name, newest_of in sorted({**known_copies.common, **offsite}.items()):
        limit = terms[name].oldest if name in terms else None
        for host, newest in newest_of.items():
            here = now if known_copies.fetched.get(host) == name else last_complete.get(host)
            proof = _copied(name, parse_backup_name(newest), limit, here, is_unfinished=(name, host) in unfinished)
            proofs[host] = _joined(proofs[host], proof) if host in proofs else proof
    return proofs


def _copied(name: str, at: datetime | None, limit: float | None, here: datetime | None, *, is_unfinished: bool) -> Proof:
    if at is None:
        return Proof(ProofKind.COPIED, ProofState.UNKNOWN, None, limit, f"{name}: unknown")
    if is_unfinished or (limit is not None and here and here - at > timedelta(seconds=limit)):
        return Proof(ProofKind.COPIED, ProofState.LATE, at, limit, f"{name} is behind")
    return Proof(ProofKind.COPIED, ProofState.DONE if limit is None else ProofState.OK, at, limit, name)


def _joined(first: Proof, second: Proof) -> Proof:
    """Returns two copies of a host as one proof: the worst state with its words and limit, and the newest time."""
    at = max((proof.at for proof in (first, second) if proof.at), default=None)
    if first.state != second.state and not {first.state, second.state} <= {ProofState.OK, ProofState.DONE}:
        worst = min(first, second, key=lambda proof: WORST_FIRST[proof.state])
        return Proof(worst.kind, worst.state, at, worst.limit, worst.words)
    limit = min((proof.limit for proof in (first, second) if proof.limit is not None), default=None)
    state = ProofState.OK if ProofState.OK in (first.state, second.state) else first.state
    return Proof(first.kind, state, at, limit, f"{first.words}, {second.words}")


def _pool_read(reads: Mapping[str, datetime | None], late: Collection[str], limit: float | None, doubtful: int) -> Proof:
    read = [at for at in reads.values() if at]
    at, never = min(read, default=None), len(reads) - len(read)
    overdue = sum(reads.get(host) is not None for host in late)
    words = [f"{counted(overdue, 'host')} too long ago"] if overdue else []
    words += [f"{counted(never, 'host')} never"] if never else []
    words += [f"{counted(doubtful, 'backup')} in doubt since a crash"] if doubtful else []
    if late:
        state = ProofState.LATE
    elif doubtful:
        state = ProofState.UNKNOWN
    elif never or not read:
        state = ProofState.NEVER
    else:
        state = ProofState.DONE if limit is None else ProofState.OK
    return Proof(ProofKind.VERIFIED, state, at, limit, ", ".join(words))


def _pool_scrub(scrub: FinishedScrub | None, verify: VerifySettings, until: datetime, now: datetime) -> Proof:
    limit = verify.max_age
    if scrub is None:
        return Proof(ProofKind.SCRUBBED, ProofState.NEVER, None, limit)
    if scrub.finished > until:
        return Proof(ProofKind.SCRUBBED, ProofState.UNKNOWN, scrub.finished, limit, "its time is in the future")
    if not scrub.is_whole:
        words = "it found errors, and not all files with errors are known"
        return Proof(ProofKind.SCRUBBED, ProofState.BAD, scrub.finished, limit, words)
    if now - scrub.finished > timedelta(seconds=verify.oldest):
        return Proof(ProofKind.SCRUBBED, ProofState.LATE, scrub.finished, limit)
    return Proof(ProofKind.SCRUBBED, ProofState.DONE if limit is None else ProofState.OK, scrub.finished, limit)


_DRILL_STATES = {
    DrillState.FAILING: ProofState.BAD,
    DrillState.LATE: ProofState.LATE,
    DrillState.NEVER: ProofState.NEVER,
    DrillState.OK: ProofState.OK,
}


def _pool_drills(
    drills: Mapping[str, Sequence[DrillResult]], settings: DrillSettings, hosts: frozenset[str], now: datetime
) -> Proof:
    is_asked = settings.max_age is not None
    status = drill_status(drills, hosts, settings.oldest, now, is_asked=is_asked)
    state = _DRILL_STATES[status.state]
    if state == ProofState.OK and not is_asked:
        state = ProofState.DONE
    words = f"{counted(len(status.failed), 'drill')} failed" if status.failed else ""
    return Proof(ProofKind.DRILLED, state, status.last.at if status.last else None, settings.max_age, words)


def _pool_newest(kind: ProofKind, hosts: Iterable[HostProofs]) -> Proof:
    proofs = [row.of(kind) for row in hosts]
    newest = max((proof.at for proof in proofs if proof.at), default=None)
    bad = sum(proof.state == ProofState.BAD for proof in proofs)
    if bad:
        return Proof(kind, ProofState.BAD, newest, words=f"failed for {counted(bad, 'host')}")
    if newest is None:
        return Proof(kind, ProofState.NEVER)
    is_done = any(proof.state == ProofState.DONE for proof in proofs)
    return Proof(kind, ProofState.DONE if is_done else ProofState.UNKNOWN, newest)


_COPY_STATES = {
    CopyState.FAILING: ProofState.BAD,
    CopyState.LATE: ProofState.LATE,
    CopyState.NEVER: ProofState.NEVER,
    CopyState.OK: ProofState.OK,
}


def _pool_copies(catalogue: Catalogue, copies: Mapping[str, ReplicaTerms], now: datetime) -> list[Proof]:
    proofs = [
        Proof(
            ProofKind.COPIED,
            _COPY_STATES[status.state],
            now - timedelta(seconds=status.age) if status.age is not None else None,
            status.replica.oldest,
            status.replica.name,
        )
        for status in copy_statuses(copies, catalogue, now)
    ]
    return proofs or [Proof(ProofKind.COPIED, ProofState.NEVER)]
