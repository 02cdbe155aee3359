"""Whether a night met its goal. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from backupd.alarms.words import harmless
from btrkeep.config import Config
from btrkeep.decisions.alike import grouped_alike, without_host
from btrkeep.decisions.host_state import COPY, HostStatus
from btrkeep.units import counted, format_share

_MOST = 5  # lines: a service shows the first ones in a list
_LONGEST = 200  # characters of one


@dataclass(frozen=True, slots=True)
class NightVerdict:
    """`text` says how many hosts are well, and which are not."""

    met: bool
    text: str


def judge_night(config: Config, hosts: Sequence[HostStatus], ended: str | None = None) -> NightVerdict:
    """Decides whether the night was good: as many hosts as [notify] ping_goal requires are well, and nothing ended it early
    (`ended`).

    The present state of the hosts counts, not what this run did: a host whose window opens later, or that had its backup an hour
    ago, is well.
    """
    own = [status for status in hosts if status.state != COPY]
    configured = {status.host: config.host_named(status.host) for status in own}
    counting = [status for status in own if configured[status.host].enabled and not configured[status.host].optional]
    unwell = [status for status in counting if status.state != "ok"]
    well = len(counting) - len(unwell)
    # By numbers of hosts, so that 100 % is all of them whatever floating point makes of it.
    met = well >= len(counting) * config.notify.ping_goal - 1e-9
    lines = [f"{well:,} of {len(counting):,} hosts are well, the goal is {format_share(config.notify.ping_goal)}"]
    if ended is not None:
        lines.insert(0, f"the night ended early: {harmless(ended)}")
    groups = grouped_alike(unwell, lambda status: f"{status.state}: {without_host(status.error or '', status.host)}")
    lines += [_line(group) for group in groups[:_MOST]]
    if more := sum(len(group) for group in groups[_MOST:]):
        lines.append(f"and {more:,} more")
    return NightVerdict(met and ended is None, "\n".join(lines))


def _line(group: Sequence[HostStatus]) -> str:
    """A line for one host, or for all that are unwell for the same reason."""
    first = group[0]
    subject = first.host if len(group) == 1 else counted(len(group), "host")
    reason = f": {first.error}" if first.error else ""
    return harmless(f"{subject}: {first.state}{reason}", _LONGEST)
