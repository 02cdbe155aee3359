"""Decides which requested backup starts next: they wait until fewer are running than may run at a time. Pure."""

from collections import Counter
from collections.abc import Iterable

from backupd.serve.jobs import RUN, ServeJob
from btrkeep.serving.protocol import RequestRefused

PER_ASKER = 250
IN_ALL = 1000
"""Backups that wait. Each is a file of half a kilobyte, and no process; more would be a mistake, or somebody's mischief."""
FOR_OTHERS = 100
"""The last places of all are for those who have nothing waiting: a few who ask for very much shut nobody else out."""


def is_under_way(job: ServeJob) -> bool:
    """Returns True if it has been started, and is not over: it has a process, or will have one in a moment."""
    return not job.over and not job.waits


def next_turns(jobs: Iterable[ServeJob], at_once: int) -> list[ServeJob]:
    """The waiting backups that begin now, in this order: so many that `at_once` are under way.

    The next is of those who asked and have the fewest under way; among these, of whoever was served longest ago; then it is the
    oldest. So one person's hundred hosts do not keep another's one host waiting.
    """
    runs = [job for job in jobs if job.verb == RUN]
    waiting = [job for job in runs if job.waits]
    busy = Counter(job.who for job in runs if is_under_way(job))
    served: dict[str, tuple[str, int]] = {}
    for job in runs:
        served[job.who] = max(served.get(job.who, ("", 0)), (job.called or "", 0))
    latest, chosen = max((moment for moment, _ in served.values()), default=""), list[ServeJob]()
    while waiting and busy.total() < at_once:
        first = min(waiting, key=lambda job: (busy[job.who], served[job.who], job.since or "", job.id))
        waiting.remove(first)
        chosen.append(first)
        busy[first.who] += 1
        served[first.who] = (latest, len(chosen))
    return chosen


def require_turn(jobs: Iterable[ServeJob], who: str) -> None:
    """Raises RequestRefused, of kind busy, when too many wait already."""
    waiting = Counter(job.who for job in jobs if job.waits)
    hint = "ask again when some of them have begun; `backupd run --all` takes all hosts"
    if waiting[who] >= PER_ASKER:
        raise RequestRefused(f"{PER_ASKER} backups that {who} has asked for wait for their turn already", hint, "busy", own=True)
    places = IN_ALL - FOR_OTHERS if waiting[who] else IN_ALL
    if waiting.total() >= places:
        raise RequestRefused(f"{places:,} backups wait for their turn already", hint, "busy", own=True)
