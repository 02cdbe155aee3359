"""Decides which parts of a run's output a viewer who is limited to its host may see: by their author, never by the names in them.
Pure.

If names decided, a host could print guesses, and a viewer of its runs would see which of them are names of other hosts.
"""

import re
from dataclasses import replace

from btrkeep.causes import Cause, CauseCode
from btrkeep.decisions.cause_words import cause_words

WITHHELD = "(the administrator can see this)"
_PLACES = ("/etc/btrkeep", "/run/btrkeep", "/var/lib/btrkeep")
"""The usual places, which the documentation publishes; so they confirm no guess."""
_BETWEEN = re.compile(r"([\s\"']+)")


def of_host_itself(line: str, host: str, pool: object = None) -> str:
    """Returns a line that rsync printed for a host's backup: removes the beginning of paths up to the folder hosts/HOST.

    ssh may name usual places of this machine; such a line is withheld.
    """
    if any(place in line for place in _PLACES):
        return WITHHELD
    below = f"/hosts/{host}/"
    if pool and _BETWEEN.search(str(pool)):
        line = line.replace(f"{pool}{below}", "")
    return "".join(_from(word, below) for word in _BETWEEN.split(line))


def of_cause(cause: Cause | None, host: str, pool: object = None) -> str:
    """Returns why a run or a backup is not complete: numbers, and a line of rsync's as `of_host_itself` returns it.

    An error without a cause (a hook's output, an error of this machine) may name anything and is withheld.
    """
    if cause is None or cause.code is CauseCode.POOL:
        return WITHHELD
    line = cause.facts.get("line")
    told = cause if line is None else replace(cause, facts={**cause.facts, "line": of_host_itself(line, host, pool)})
    return cause_words(told)


def _from(word: str, below: str) -> str:
    before, found, rest = word.partition(below)
    return before.partition("/")[0] + rest if found else word
