"""Decides which backups of a host are kept, and why. Pure: takes plain data and an explicit `now`, returns reasons with every
answer.

The first complete backup of a day, ISO week, month or year, in the pool's zone, represents that period; the newest N represented
periods of each kind are kept. Suspect and failed backups expire when two complete ones are newer; until then the same rules apply
to them as a separate group. No rule counts from `now`, so the backups of a host that is no longer backed up remain, and a wrong
clock deletes nothing. The first backup of a period remains the first, so it does not matter how often the policy is applied
(docs/decisions/0008-retention.rst).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from btrkeep.backup_states import ALTERED, COMPLETE, FAILED, SUSPECT
from btrkeep.config import Retention
from btrkeep.config.config_key import RETENTION
from btrkeep.config.config_model import PERIOD_NAMES, PERIODS
from btrkeep.config.keys import TABLE
from btrkeep.config.problems import InvalidValue, nearest
from btrkeep.decisions.due import latest

ENOUGH = 2  # that many newer complete backups make a suspect or failed one unnecessary
_KNOWN = (SUSPECT, FAILED)  # the known states besides complete


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold of a backup."""

    until: datetime | None = None
    """When it ends; None: never."""
    why: str = ""
    """The reason, as the operator wrote it."""

    def is_in_force(self, now: datetime) -> bool:
        """Returns True if it has not ended."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class DeletionRequest:
    """A user's request to delete a backup (`backupd delete`), and why.

    `last`: also if no other complete one is left. `at_once`: without a grace period. `by`: the login name of the user.
    """

    why: str = ""
    last: bool = False
    at_once: bool = False
    by: str = ""


class RetentionCode(StrEnum):
    """Code of a reason to keep or delete a backup, as in JSON, in addition to the periods of the policy, whose codes are their
    names.
    """

    MIN_KEEP = "min_keep"
    NEWEST = "newest"
    NEWEST_COMPLETE = "newest-complete"
    BEFORE_SUSPECT = "before-suspect"
    IN_USE = "in-use"
    COMMON = "common"
    HELD = "held"
    NO_POLICY = "no-policy"
    IN_FUTURE = "in-future"
    ALTERED = "altered"
    UNKNOWN_STATE = "unknown-state"
    NO_RULE = "no-rule"
    REPLACED = "replaced"
    FORGOTTEN = "forgotten"
    BY_HAND = "by-hand"


class Reason(NamedTuple):
    """One reason; btrkeep.decisions.retention_words has the text. A tuple, because 90,000 backups are decided in a second.

    `code` is a RetentionCode or the name of a period; `number` of `of` periods; `state`: suspect or failed, for a rule that thins
    those; `text`: an operator's words (HELD, BY_HAND), the name of a backup (BEFORE_SUSPECT), a state (UNKNOWN_STATE), the names
    of replicas (COMMON); `until`: the end of a hold.
    """

    code: str
    number: int = 0
    of: int = 0
    state: str = ""
    text: str = ""
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A final backup."""

    name: str
    """Its name."""
    started: datetime
    """When its run started."""
    state: str
    """complete, suspect, failed or altered, as if it was not expired."""
    expired: datetime | None = None
    """When it was marked for deletion; None: it is not marked."""
    hold: Hold | None = None
    """Its hold; None: it is not held."""
    in_use: bool = False
    """True if it is the base of the run in progress, or of a run that will be continued."""
    asked: DeletionRequest | None = None
    """The request to delete it; None: a rule has marked it, or it is not marked."""
    common: str = ""
    """The replica whose newest common backup with this pool it is, so that the next difference needs it; "": none."""

    def marked(self, now: datetime) -> datetime | None:
        """Returns when it was marked as expired; None if it was not, or if the mark is in the future, because then its grace period
        would last for years.
        """
        return None if self.expired and self.expired > latest(now) else self.expired


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one backup."""

    name: str
    """Its name."""
    keep: bool
    """True if it is kept."""
    reasons: tuple[Reason, ...]
    """Every rule and minimum that keeps it; if none does, why it expires."""
    expires: datetime | None
    """When it may be deleted: the mark, or now, plus the grace period; None if it is kept."""


def decide(
    candidates: Sequence[Candidate], policy: Retention, zone: ZoneInfo, now: datetime, *, forgotten: datetime | None = None
) -> list[Decision]:
    """Returns one decision for each candidate, oldest first.

    Pass all final backups of the host, including those marked as expired: until they are deleted, they count. Backups whose
    deletion a user requested do not count: the others are decided as if these were already deleted. `forgotten`: when the host was
    given up; then every backup expires, whatever the minimums are.
    """
    ordered = sorted(candidates, key=lambda backup: (backup.started, backup.name))
    asked = _requested_deletions(ordered, now) if forgotten is None else {}
    rest = _by_policy(
        [candidate for candidate in ordered if candidate.name not in asked] if asked else ordered, policy, zone, now, forgotten
    )
    if not asked:
        return rest
    by_name = {decision.name: decision for decision in (*rest, *(_by_request(backup, policy, now) for backup in asked.values()))}
    return [by_name[candidate.name] for candidate in ordered]


def _requested_deletions(backups: Sequence[Candidate], now: datetime) -> dict[str, Candidate]:
    """Returns the backups whose deletion a user requested, by name. A complete one is included only if another one remains, or if
    the user confirmed deleting the last.

    Another one remained when the deletion was requested, but it may have been removed by hand since.
    """
    asked = {backup.name: backup for backup in backups if backup.asked}
    if not asked or any(_counts(backup, latest(now)) for backup in backups if not backup.asked):
        return asked
    return {
        name: candidate
        for name, candidate in asked.items()
        if candidate.state != COMPLETE or (candidate.asked and candidate.asked.last)
    }


def _by_request(backup: Candidate, policy: Retention, now: datetime) -> Decision:
    """Decides about a backup whose deletion a user requested: a hold keeps it, and so does a run based on it, but no replica."""
    assert backup.asked is not None
    if kept := tuple(_kept_by_itself(replace(backup, common=""), now)):
        return Decision(backup.name, True, kept, None)
    grace = timedelta(0) if backup.asked.at_once else timedelta(seconds=policy.grace)
    return Decision(
        backup.name, False, (Reason(RetentionCode.BY_HAND, text=backup.asked.why),), (backup.marked(now) or now) + grace
    )


def _by_policy(
    backups: Sequence[Candidate], policy: Retention, zone: ZoneInfo, now: datetime, forgotten: datetime | None
) -> list[Decision]:
    reasons: list[list[Reason]] = [[] for _ in backups]
    if forgotten is None:
        for place, reason in _kept(backups, policy, zone, now, reasons):
            reasons[place].append(reason)
    grace = timedelta(seconds=policy.grace)
    replaced = _replaced(backups, now)
    return [
        Decision(backup.name, True, tuple(why), None)
        if why
        else Decision(backup.name, False, (_why_deleted(backup, forgotten, place < replaced),), (backup.marked(now) or now) + grace)
        for place, (backup, why) in enumerate(zip(backups, reasons, strict=True))
    ]


def _replaced(backups: Sequence[Candidate], now: datetime) -> int:
    """Returns the index before which every backup has ENOUGH newer complete ones; 0 if there are too few."""
    end = latest(now)
    newest = (place for place in reversed(range(len(backups))) if _counts(backups[place], end))
    return next(islice(newest, ENOUGH - 1, None), 0)


def _counts(backup: Candidate, end: datetime) -> bool:
    return backup.state == COMPLETE and backup.started <= end


def _kept(
    backups: Sequence[Candidate], policy: Retention, zone: ZoneInfo, now: datetime, reasons: Sequence[Sequence[Reason]]
) -> Iterator[tuple[int, Reason]]:
    """Yields index and reason of each kept backup. `reasons`: the reasons found so far.

    A time in the future, from a wrong clock, is not used for any period: the decisions about the others are the same with and
    without it.
    """
    if policy.missing:
        yield from ((place, Reason(RetentionCode.NO_POLICY)) for place in range(len(backups)))
        yield from _by_itself(backups, now)
        return
    end = latest(now)
    counted = [place for place, backup in enumerate(backups) if backup.started <= end]
    complete = [place for place in counted if backups[place].state == COMPLETE]
    yield from _by_rules(backups, complete, policy, zone)
    yield from _newest(complete, policy.min_keep)
    yield from _by_itself(backups, now)
    unfinished = [place for place in counted if backups[place].state != COMPLETE]
    alone = [place for place in unfinished if not reasons[place]]  # held backups do not displace others
    for group, places in _not_yet_replaced(backups, alone, complete).items():
        yield from _thinned(backups, places, group.state, policy, zone)
    # Last, because an expiring suspect backup needs no earlier backup as a fallback.
    yield from _before_suspects(backups, [place for place in unfinished if reasons[place]], complete)


def _by_rules(
    backups: Sequence[Candidate], complete: Sequence[int], policy: Retention, zone: ZoneInfo, state: str = ""
) -> Iterator[tuple[int, Reason]]:
    """Yields the first complete backup of each of the newest periods with one. One backup may represent several periods."""
    newest_first = [(place, _periods(_local_day(backups[place].started, zone))) for place in reversed(complete)]
    for column, name in enumerate(PERIOD_NAMES):
        if limit := getattr(policy, name):
            first = {periods[column]: place for place, periods in newest_first}  # the oldest of a period is inserted last
            for period, reason in zip(sorted(first, reverse=True), _numbered(name, limit, len(first), state), strict=False):
                yield first[period], reason


def _local_day(moment: datetime, zone: ZoneInfo) -> int:
    """Returns the number of the day, in the pool's zone, of `moment`."""
    try:
        return moment.astimezone(zone).toordinal()
    except OverflowError:  # before the first possible date: one odd folder must not stop the decision about all others
        return moment.toordinal()


@lru_cache(16384)  # thousands of hosts share the same days
def _periods(day: int) -> tuple[int, ...]:
    """Returns the periods of a local day, one of each length."""
    return tuple(period.number(date.fromordinal(day)) for period in PERIODS)


@lru_cache(1024)
def _numbered(code: str, limit: int, most: int, state: str = "") -> tuple[Reason, ...]:
    """Returns the first of `limit`, the second of `limit`, ...: at most `most` reasons."""
    return tuple(Reason(code, number, limit, state) for number in range(1, min(limit, most) + 1))


def _newest(complete: Sequence[int], min_keep: int) -> Iterator[tuple[int, Reason]]:
    if complete:
        yield complete[-1], Reason(RetentionCode.NEWEST_COMPLETE)
    yield from zip(reversed(complete), _numbered(RetentionCode.MIN_KEEP, min_keep, len(complete)), strict=False)


def _by_itself(backups: Sequence[Candidate], now: datetime) -> Iterator[tuple[int, Reason]]:
    """Yields the reasons that keep a backup regardless of all others."""
    end = latest(now)
    for place, backup in enumerate(backups):
        for reason in _kept_by_itself(backup, now):
            yield place, reason
        if backup.started > end:
            yield place, Reason(RetentionCode.IN_FUTURE)


def _kept_by_itself(backup: Candidate, now: datetime) -> Iterator[Reason]:
    if backup.in_use:
        yield Reason(RetentionCode.IN_USE)
    if backup.common:
        yield Reason(RetentionCode.COMMON, text=backup.common)
    if backup.hold and backup.hold.is_in_force(now):
        yield Reason(RetentionCode.HELD, text=backup.hold.why, until=backup.hold.until)


class _Group(NamedTuple):
    """Suspect or failed backups between the same complete ones, with the number of newer complete ones."""

    newer: int
    state: str


def _not_yet_replaced(backups: Sequence[Candidate], unfinished: Sequence[int], complete: Sequence[int]) -> dict[_Group, list[int]]:
    """Groups the suspect and failed backups with too few newer complete ones: they may be the only backups of their days."""
    groups: dict[_Group, list[int]] = {}
    for place in unfinished:
        newer = len(complete) - bisect_left(complete, place)
        if newer < ENOUGH or backups[place].state not in _KNOWN:
            groups.setdefault(_Group(newer, backups[place].state), []).append(place)
    return groups


def _thinned(
    backups: Sequence[Candidate], places: Sequence[int], state: str, policy: Retention, zone: ZoneInfo
) -> Iterator[tuple[int, Reason]]:
    """Yields what the policy would keep of complete backups, applied to one group. A group grows only at its newer end and expires
    completely, so the result does not depend on how often this is called.
    """
    if state == ALTERED:  # an administrator decides
        yield from ((place, Reason(RetentionCode.ALTERED)) for place in places)
        return
    if state not in _KNOWN:  # a later version's state: an unknown state is never deleted
        yield from ((place, Reason(RetentionCode.UNKNOWN_STATE, text=state)) for place in places)
        return
    yield from _by_rules(backups, places, policy, zone, state)
    yield from zip(reversed(places), _numbered(RetentionCode.NEWEST, policy.min_keep, len(places), state), strict=False)


def _before_suspects(backups: Sequence[Candidate], kept: Sequence[int], complete: Sequence[int]) -> Iterator[tuple[int, Reason]]:
    """Yields the backups that would be needed for a restore if a suspect backup is really a loss of data."""
    for place in kept:
        before = bisect_left(complete, place)
        if before and backups[place].state == SUSPECT:
            yield complete[before - 1], Reason(RetentionCode.BEFORE_SUSPECT, text=backups[place].name)


def _why_deleted(backup: Candidate, forgotten: datetime | None, replaced: bool) -> Reason:
    if forgotten:
        return Reason(RetentionCode.FORGOTTEN)
    if backup.state == COMPLETE:
        return Reason(RetentionCode.NO_RULE)
    return Reason(RetentionCode.REPLACED if replaced else RetentionCode.NO_RULE, state=backup.state)


_KINDS = {key.name: key.kind for key in TABLE if RETENTION in key.sections}


def parse_policy(text: str, base: Retention) -> Retention:
    """Returns the policy `base` changed by a text such as "daily=7,weekly=4"; every key of [retention] is allowed. Raises
    ValueError with the mistake.
    """
    changes: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in _KINDS:
            raise ValueError(f"{name!r} is not a key of a policy ({', '.join(_KINDS)}){nearest(name, _KINDS)}")
        if not equals:
            raise ValueError(f"{name!r} has no value: write it like daily=7,weekly=4")
        if name in changes:
            raise ValueError(f"{name!r} is given twice")
        changes[name] = _policy_value(name, value)
    return replace(base, **changes)


def _policy_value(name: str, text: str) -> Any:
    try:
        return _KINDS[name](int(text) if text.isascii() and text.isdecimal() else text)
    except InvalidValue as refused:
        raise ValueError(f"{name}={text}: {str(refused).removesuffix(', without quotes')}") from None
