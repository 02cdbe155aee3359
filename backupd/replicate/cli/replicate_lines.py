"""The printed lines of a replication, with and without a terminal."""

from backupd.replicate.outcome import FetchedBackup, HostFailed, ReplicationEvent, ReplicationPlan, ReplicationProgress
from btrkeep.cli.output import WithoutRepeats, print_wait, print_wrapped
from btrkeep.process.progress import Notice, Waiting
from btrkeep.units import counted, format_duration, format_size, printable


def plan_line(plan: ReplicationPlan) -> str:
    """Formats the planned backups."""
    return f"{counted(plan.count, 'backup')} of {counted(len(plan.hosts), 'host')} to fetch"


def fetched_line(done: FetchedBackup) -> str:
    """Formats a fetched backup."""
    how = f"as a difference to {done.parent}" if done.parent else "completely"
    return f"{done.host}@{done.name}: {format_size(done.bytes)} in {format_duration(done.seconds)}, {how}"


class ReplicationLines:
    """Prints a line for each backup, if there is no terminal."""

    def __init__(self) -> None:
        self._waits = WithoutRepeats(print_wait)

    def __call__(self, event: ReplicationEvent) -> None:
        match event:
            case ReplicationPlan():
                if event.count:
                    print_wrapped(plan_line(event))
            case FetchedBackup():
                print_wrapped(fetched_line(event))
            case Notice():
                print_wrapped(printable(event.text), err=True)
            case Waiting():
                self._waits(event.why)
            case HostFailed() | ReplicationProgress():
                pass  # a failure is printed at the end
