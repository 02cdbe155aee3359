"""The backups of a host as its page shows them: each with why it is kept, as the retention or the root service decides."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from btrkeep.backup_states import FINISHED
from btrkeep.catalogue import Backup
from btrkeep.config import Retention
from btrkeep.decisions.calendar_strip import StripLetter, kind_of
from btrkeep.decisions.copies import REPLICA
from btrkeep.decisions.due import latest
from btrkeep.decisions.expiry_plan import HostBackups
from btrkeep.decisions.retention import Candidate, Decision, Hold, RetentionCode
from btrkeep.decisions.retention_words import explain, hold_words, reason_words
from btrkeep.decisions.verification import Verified, verified_words
from btrkeep.units import format_time, parse_time
from web.copies import also_on
from web.redaction import host_error, host_line
from web.same_names import of_row
from web.source import RequestContext


@dataclass(frozen=True, slots=True)
class BackupRow:
    """One backup. `name` is None for `.working`; times, seconds and bytes as in the catalogue.

    `keep`: whether the retention keeps it, None if that is not decided (`.working`); `why`: the rules that keep it, or when it
    expires and why, in the words of `backupd retention explain`; `goes`: when it may be deleted. `held`: its hold in words, None if
    no hold is in force. `letter`, `kind`: its mark on the calendar. Permitted actions: `may_hold`, `may_release`, `may_accept`.
    """

    name: str | None
    state: str
    started: datetime
    finished: datetime | None
    duration: float | None
    files: int | None
    size: int | None
    new_bytes: int | None
    base: str | None
    error: str | None
    warnings: tuple[str, ...]
    keep: bool | None
    why: str
    goes: datetime | None
    held: str | None
    letter: str
    kind: str
    may_hold: bool
    may_release: bool
    may_accept: bool
    ahead: bool = False
    """Its timestamp is in the future: a clock was wrong."""
    verified: Verified | None = None
    """The state of its data; None for `.working`."""
    verified_words: str = ""
    """The same in a sentence."""
    copies: tuple[str, ...] = ()
    """The replicas and repositories that have this backup too, as of the last replication or listing."""

    @property
    def restorable(self) -> bool:
        """Returns True if files can be restored from it."""
        return self.name is not None and self.state != "deleting"


@dataclass(frozen=True, slots=True)
class KnownDecision:
    """The decision about a backup: made here, or answered by `backupd retention explain`. `reasons`: words, for each rule."""

    keep: bool
    rules: tuple[str, ...]
    reasons: tuple[str, ...]
    expires: datetime | None


def decided(backups: Sequence[Backup], policy: Retention | None, source: RequestContext, host: str) -> dict[str, KnownDecision]:
    """Returns the decision about each final backup by the host's policy, by name; without a policy all are kept."""
    rules = policy or Retention()
    shared: dict[str, list[str]] = {}
    for one in (one for one in also_on(source, host) if one.kind == REPLICA):
        shared.setdefault(one.backup, []).append(one.replica)
    found = [replace(one, common=", ".join(shared.get(one.name, ()))) for one in candidates(backups)]
    facts = HostBackups("", found, rules, configured=policy is not None)
    return {one.name: _known(one) for one in explain(facts, rules, source.site.zone, source.now).decisions}


def _known(one: Decision) -> KnownDecision:
    rules = tuple(reason.code for reason in one.reasons)
    return KnownDecision(one.keep, rules, tuple(map(reason_words, one.reasons)), one.expires)


def candidates(backups: Iterable[Backup]) -> list[Candidate]:
    """Returns the final backups as input for retention, without regard to their expiry."""
    every = list(backups)
    base = next((one.base for one in every if one.name is None), None)
    return [
        Candidate(one.name, one.started, one.outcome or one.state, one.expired, hold_of(one), one.name == base)
        for one in every
        if one.name and (one.outcome or one.state) in FINISHED
    ]


def hold_of(backup: Backup) -> Hold | None:
    """Returns the hold in a row, even if it has ended."""
    return None if backup.held_why is None else Hold(backup.held_until, backup.held_why)


def by_service(answer: Sequence[Mapping[str, Any]]) -> dict[str, KnownDecision]:
    """Parses the decisions from the output of `backupd retention explain HOST --json`."""
    return {
        str(one["name"]): KnownDecision(
            bool(one["keep"]),
            tuple(str(rule) for rule in one["rules"]),
            tuple(str(reason) for reason in one["reasons"]),
            parse_time(one["expires"]) if one["expires"] else None,
        )
        for one in answer
    }


def strip_letter(backup: Backup, one: KnownDecision) -> StripLetter:
    return kind_of(one.keep, one.rules, backup.outcome or backup.state)


def backup_row(
    backup: Backup,
    decision: KnownDecision | None,
    now: datetime,
    time_words: Callable[[datetime], str] = format_time,
    verified: Verified | None = None,
    copies: tuple[str, ...] = (),
) -> BackupRow:
    """Returns one row, with the decision about the backup and the result of its verification."""
    hold = hold_of(backup)
    held = hold_words(hold, time_words) if hold and hold.is_in_force(now) else None
    kind = strip_letter(backup, decision) if decision else None
    stays = decision is not None and backup.state != "deleting"
    return of_row(
        BackupRow,
        backup,
        size=backup.bytes,
        error=host_error(backup.error, backup.cause, backup.host),
        warnings=tuple(host_line(line, backup.host) for line in backup.warnings),
        keep=decision.keep if decision else None,
        why=_why(decision, held) if decision else "",
        goes=decision.expires if decision else None,
        held=held,
        letter=kind.letter if kind else "",
        kind=kind.name if kind else "",
        may_hold=stays and held is None,
        may_release=stays and hold is not None,
        may_accept=backup.state in ("suspect", "altered"),
        ahead=backup.started > latest(now),
        verified=verified,
        verified_words=verified_words(verified, time_words) if verified else "",
        copies=copies,
    )


def _why(decision: KnownDecision, held: str | None) -> str:
    """Returns the reasons; a hold is described by `held`, if given."""
    pairs = zip(decision.rules, decision.reasons, strict=True)
    return ", ".join(held if held and rule == RetentionCode.HELD else reason for rule, reason in pairs)
