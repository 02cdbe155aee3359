"""What stops an expiry before it begins: too much would go at once, or the clock cannot be right. Pure.

Retention itself takes nothing away for a wrong clock; what a clock can do is end a grace or a hold too early. And a policy that
somebody mistyped is noticed here, before anything is marked.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from btrkeep.config.problems import nearest
from btrkeep.errors import UsageError
from btrkeep.units import counted, format_duration, format_share, format_time, printable

HOST_SHARE, HOST_COUNT = 0.30, 10  # beyond both, a host is left out
POOL_SHARE, POOL_COUNT = 0.30, 100  # beyond both, nothing is done at all
BACKWARDS = timedelta(minutes=5)  # what setting a clock right may take back
FORWARDS = timedelta(minutes=10)  # what it may add while the machine runs: the boot clock goes on in suspend too
SWITCHED_OFF = timedelta(hours=36)  # what may pass between two boots, which no clock of the machine's own measures

POOL, HOSTS, CLOCK = "pool", "hosts", "clock"
WORDS = (POOL, HOSTS, CLOCK)
_HOST = "host:"


@dataclass(frozen=True, slots=True)
class Forced:
    """What `--force` overrides: the limit of the pool, that of every host or of the hosts named, the clock's verdict."""

    pool: bool = False
    every_host: bool = False
    clock: bool = False
    hosts: frozenset[str] = field(default_factory=frozenset)

    def covers(self, host: str) -> bool:
        """Whether that host's limit is overridden."""
        return self.every_host or host in self.hosts

    @classmethod
    def parse(cls, words: Sequence[str], hosts: Collection[str]) -> "Forced":
        """The words of `--force`, `hosts` being all that there are. Raises UsageError that names the word."""
        names = frozenset(_host_of(word, hosts) for word in words if word not in WORDS)
        return cls(POOL in words, HOSTS in words, CLOCK in words, names)


def _host_of(word: str, hosts: Collection[str]) -> str:
    name = word if word in hosts else word.removeprefix(_HOST)
    if name not in hosts:
        hint = f"--force takes {', '.join(WORDS)}, or the name of a host, which is {_HOST}NAME when it is one of those words"
        raise UsageError(f"--force {printable(word)}: no such host{nearest(name, [*hosts, *WORDS])}", hint)
    return name


def force_word(host: str) -> str:
    """What `--force` takes for that host."""
    return f"{_HOST}{host}" if host in WORDS else host


@dataclass(frozen=True, slots=True)
class Share:
    """How many of a host's backups would go at once, of how many that it has."""

    going: int
    total: int


@dataclass(frozen=True, slots=True)
class Guarded:
    """`left_out`: hosts of which too much would go, with the reason. `stop`: why nothing may be done at all, or None."""

    left_out: dict[str, str]
    stop: str | None


def too_many(hosts: Mapping[str, Share], forced: Forced) -> Guarded:
    """What must not go without being asked for by name. The pool's limit is about what is left when hosts are left out."""
    left_out = {
        host: f"{_would_go(share)}, more than {format_share(HOST_SHARE)} and more than {HOST_COUNT}: "
        f"if that is right, say --force {force_word(host)}"
        for host, share in hosts.items()
        if _beyond(share, HOST_SHARE, HOST_COUNT) and not forced.covers(host)
    }
    going = sum(share.going for host, share in hosts.items() if host not in left_out)
    pool = Share(going, sum(share.total for share in hosts.values()))
    if forced.pool or not _beyond(pool, POOL_SHARE, POOL_COUNT):
        return Guarded(left_out, None)
    limits = f"more than {format_share(POOL_SHARE)} and more than {POOL_COUNT}"
    return Guarded(left_out, f"of the pool {_would_go(pool)}, {limits}: if that is right, say --force {POOL}")


def _beyond(share: Share, most: float, count: int) -> bool:
    return share.going > count and share.going / share.total > most


def _would_go(share: Share) -> str:
    return f"{share.going:,} of {counted(share.total, 'backup')} would go at once"


@dataclass(frozen=True, slots=True)
class ClockFact:
    """The clocks of one moment: the wall's, and the seconds since the boot `boot_id`, suspend included (CLOCK_BOOTTIME)."""

    wall: datetime
    boottime: float
    boot_id: str


@dataclass(frozen=True, slots=True)
class ClockVerdict:
    """`stop`: why nothing may be done. `wait`: why grace and hold ends wait for one more run. None: nothing against it."""

    stop: str | None = None
    wait: str | None = None


def clock_verdict(last: ClockFact | None, now: ClockFact, newest: datetime | None, rehearsal: bool) -> ClockVerdict:
    """Whether the wall clock can be right, by what the last expiry saw and by the finish of the newest run, `newest`.

    Whoever stops leaves the last fact as it is; whoever waits or goes on records `now`, so that one more run is enough.
    A rehearsal's clock goes where it is told, but not back.
    """
    known = max((moment for moment in (last.wall if last else None, newest) if moment), default=None)
    if known and now.wall < known - BACKWARDS:
        gone = f"the clock went backwards: it says {format_time(now.wall)}, and it was {format_time(known)} already"
        return ClockVerdict(stop=f"{gone}; if it is right now, say --force {CLOCK}")
    if last is None or rehearsal:
        return ClockVerdict()
    passed, explained, slack = now.wall - last.wall, *_explained(last, now)
    if passed <= explained + slack:
        return ClockVerdict()
    ahead = f"the clock went ahead by {_words(passed)} since {format_time(last.wall)}"
    return ClockVerdict(
        wait=f"{ahead}, of which this machine's boot clock explains {_words(explained)}: "
        f"grace and hold ends wait one more run, or say --force {CLOCK}"
    )


def _explained(last: ClockFact, now: ClockFact) -> tuple[timedelta, timedelta]:
    """How much time has passed by the boot clock, and what may have passed besides."""
    if last.boot_id == now.boot_id:
        return timedelta(seconds=now.boottime - last.boottime), FORWARDS
    return timedelta(seconds=now.boottime), SWITCHED_OFF


def _words(span: timedelta) -> str:
    return format_duration(span.total_seconds())
