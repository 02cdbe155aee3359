"""Decides whether an optional host is absent, or refuses. Pure.

A laptop in a bag has no route, does not answer, or refuses the connection because another machine has its address. One that refuses
the key, or has another host key, is there: nobody would hear of that for as long as it counts as absent.
"""

from btrkeep.catalogue import HostFacts
from btrkeep.decisions.rsync_meaning import ExitCause

_ABSENT = frozenset({ExitCause.NO_ROUTE, ExitCause.SILENT, ExitCause.REFUSED, ExitCause.NO_ANSWER_CONNECTING})


def is_absent(cause: ExitCause, *, has_resolved: bool) -> bool:
    """Returns True if a host that ssh could not connect to is not there. `has_resolved`: its name has led to it before."""
    return cause in _ABSENT or (cause is ExitCause.NO_SUCH_NAME and has_resolved)


def has_other_key(facts: HostFacts) -> bool:
    """Returns True if the newest run ended because a host that was backed up before has no recorded key, or another one."""
    cause = facts.last_run_cause
    return cause is not None and cause.facts.get("exit_cause") == ExitCause.HOST_KEY and facts.last_complete is not None
