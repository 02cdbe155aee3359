"""Decides whether an expiry must not start: too much would be deleted together, or the clock cannot be right. Pure.

The retention itself deletes nothing because of a wrong clock, but a clock that is ahead ends a grace period or a hold too early. A
mistyped policy is also noticed here, before anything is marked.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from btrkeep.config.problems import nearest
from btrkeep.errors import UsageError
from btrkeep.units import printable

HOST_SHARE, HOST_COUNT = 0.30, 10  # above both, a host is skipped
POOL_SHARE, POOL_COUNT = 0.30, 100  # above both, nothing is deleted at all
BACKWARDS = timedelta(minutes=5)  # the largest backward correction of a clock
FORWARDS = timedelta(minutes=10)  # the largest forward correction while the machine runs; the boot clock also runs during suspend
SWITCHED_OFF = timedelta(hours=36)  # the longest time between two boots, which no clock of the machine measures
STAYED = timedelta(hours=20)  # between the expiries of two nights; several manual ones in an hour prove nothing

POOL, HOSTS, CLOCK = "pool", "hosts", "clock"
WORDS = (POOL, HOSTS, CLOCK)
_HOST = "host:"


@dataclass(frozen=True, slots=True)
class Forced:
    """The checks that `--force` overrides."""

    pool: bool = False
    """The limit of the pool."""
    every_host: bool = False
    """The limit of each host."""
    clock: bool = False
    """The check of the clock."""
    hosts: frozenset[str] = field(default_factory=frozenset)
    """The limit of these hosts."""

    def covers(self, host: str) -> bool:
        """Returns True if that host's limit is overridden."""
        return self.every_host or host in self.hosts

    @classmethod
    def parse(cls, words: Sequence[str], hosts: Collection[str]) -> "Forced":
        """Parses the words of `--force`; `hosts`: all existing ones. Raises UsageError that names an invalid word."""
        names = frozenset(_host_of(word, hosts) for word in words if word not in WORDS)
        return cls(POOL in words, HOSTS in words, CLOCK in words, names)


def _host_of(word: str, hosts: Collection[str]) -> str:
    name = word if word in hosts else word.removeprefix(_HOST)
    if name not in hosts:
        hint = f"--force takes {', '.join(WORDS)}, or the name of a host; write {_HOST}NAME if that is one of these words"
        raise UsageError(f"--force {printable(word)}: no such host{nearest(name, [*hosts, *WORDS])}", hint)
    return name


def force_word(host: str) -> str:
    """Returns the value of `--force` for this host."""
    return f"{_HOST}{host}" if host in WORDS else host


@dataclass(frozen=True, slots=True)
class DeletedShare:
    """How many of a host's backups would be deleted together."""

    going: int
    """Number of backups to be deleted."""
    total: int
    """Number of its backups."""


@dataclass(frozen=True, slots=True)
class LimitsExceeded:
    """`skipped_hosts`: hosts that would lose too much. `stop`: the pool would lose too much, so nothing may be done at all."""

    skipped_hosts: dict[str, DeletedShare]
    stop: DeletedShare | None


def too_many(hosts: Mapping[str, DeletedShare], forced: Forced) -> LimitsExceeded:
    """Returns what must not be deleted unless forced by name. The pool's limit applies to the hosts that are not already
    skipped.
    """
    skipped_hosts = {
        host: share for host, share in hosts.items() if _beyond(share, HOST_SHARE, HOST_COUNT) and not forced.covers(host)
    }
    going = sum(share.going for host, share in hosts.items() if host not in skipped_hosts)
    pool = DeletedShare(going, sum(share.total for share in hosts.values()))
    return LimitsExceeded(skipped_hosts, pool if _beyond(pool, POOL_SHARE, POOL_COUNT) and not forced.pool else None)


def _beyond(share: DeletedShare, most: float, count: int) -> bool:
    return share.going > count and share.going / share.total > most


@dataclass(frozen=True, slots=True)
class ClockFact:
    """The clocks at one time."""

    wall: datetime
    """The system clock."""
    boottime: float
    """Seconds since the boot, including suspend (CLOCK_BOOTTIME)."""
    boot_id: str
    """The kernel's id of the boot."""


@dataclass(frozen=True, slots=True)
class ClockBehind:
    """The clock shows `now`, although `newest_known` is already past."""

    now: datetime
    newest_known: datetime


@dataclass(frozen=True, slots=True)
class ClockAhead:
    """How far the system clock ran ahead of the clock of this boot."""

    by: timedelta
    """How far."""
    since: datetime
    """The time with which it is compared."""
    explained: timedelta
    """The part of the difference that the clock of this boot explains."""


@dataclass(frozen=True, slots=True)
class ClockVerdict:
    """`stop`: why nothing may be done. `wait`: why the ends of grace periods and holds wait for a night. None: no objection."""

    stop: ClockBehind | None = None
    wait: ClockAhead | None = None


@dataclass(frozen=True, slots=True)
class ClockPast:
    """The times of earlier expiries. `trusted`: the last consistent one. `doubted`: a later one that was too far ahead of it or
    before it; the first of a consistent series.
    """

    trusted: ClockFact | None = None
    doubted: ClockFact | None = None


def clock_verdict(past: ClockPast, now: ClockFact, newest: datetime | None, rehearsal: bool) -> ClockVerdict:
    """Decides whether the wall clock can be right, from what earlier expiries saw and the end of the newest run, `newest`.

        against the trusted fact        against the doubted one                       verdict
        -                               agrees with it, for a night                   believed: it has been consistent since
        before it                       the same, and a run has ended in that night   believed: the trusted one was ahead
        agrees with it, same boot       -                                             believed: the boot clock proves it
        before it, or before a run      -                                             stop
        too far ahead of it             -                                             wait, for a night
        agrees with it                  -                                             believed

    Runs do not count against the boot clock. So expiries or a night under a clock that was years ahead delay nothing once the clock
    is right again; if it was believed, by one morning. A rehearsal's clock may be set forward at will, but not back.
    """
    if not rehearsal and _has_stayed(past, now, newest):
        return ClockVerdict()
    trusted = past.trusted
    if trusted and not rehearsal and trusted.boot_id == now.boot_id and _is_consistent(trusted, now):
        return ClockVerdict()
    newest_known = max((moment for moment in (trusted.wall if trusted else None, newest) if moment), default=None)
    if newest_known and now.wall < newest_known - BACKWARDS:
        return ClockVerdict(stop=ClockBehind(now.wall, newest_known))
    if trusted is None or rehearsal or _is_consistent(trusted, now):
        return ClockVerdict()
    return ClockVerdict(wait=ClockAhead(now.wall - trusted.wall, trusted.wall, _explained(trusted, now)[0]))


def _has_stayed(past: ClockPast, now: ClockFact, newest: datetime | None) -> bool:
    """True if the clock has run normally for a night since a doubted time. A clock that is behind also needs a run that ended."""
    doubted, trusted = past.doubted, past.trusted
    if doubted is None or not _is_consistent(doubted, now) or _between(doubted, now) < STAYED:
        return False
    if newest and newest > now.wall + BACKWARDS:
        return False
    is_behind = trusted is None or now.wall < trusted.wall - BACKWARDS
    return not is_behind or (newest is not None and newest >= doubted.wall - BACKWARDS)


def _between(doubted: ClockFact, now: ClockFact) -> timedelta:
    """Compares by the boot clock; after another boot only by the wall clock."""
    return _explained(doubted, now)[0] if doubted.boot_id == now.boot_id else now.wall - doubted.wall


def past_after(past: ClockPast, now: ClockFact, verdict: ClockVerdict) -> ClockPast:
    """Returns the state for the next expiry. Of a consistent series of doubted times the first is kept: its night of waiting has
    started.
    """
    if not verdict.stop and not verdict.wait:
        return ClockPast(now)
    return past if past.doubted and _is_consistent(past.doubted, now) else replace(past, doubted=now)


def _is_consistent(last: ClockFact, now: ClockFact) -> bool:
    """Returns True if the wall clock has run since then in agreement with the boot clock."""
    explained, slack = _explained(last, now)
    return -BACKWARDS <= now.wall - last.wall <= explained + slack


def _explained(last: ClockFact, now: ClockFact) -> tuple[timedelta, timedelta]:
    """Returns how much time has passed by the boot clock, and how much more may have passed."""
    if last.boot_id == now.boot_id:
        return timedelta(seconds=now.boottime - last.boottime), FORWARDS
    return timedelta(seconds=now.boottime), SWITCHED_OFF
