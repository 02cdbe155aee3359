"""Whether a night met its goal. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from backupd.alarms.words import harmless
from btrkeep.config import Config
from btrkeep.decisions.host_state import COPY, HostStatus
from btrkeep.units import format_share

_MOST = 20


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
    lines += [f"{status.host}: {status.state}{f': {harmless(status.error)}' if status.error else ''}" for status in unwell[:_MOST]]
    if len(unwell) > _MOST:
        lines.append(f"and {len(unwell) - _MOST:,} more")
    return NightVerdict(met and ended is None, "\n".join(lines))
