"""What of a run is told to whoever is limited to its host: by whose words they are, never by the names in them. Pure.

If a name decided, a host could print guesses, and whoever reads its runs would see which of them are names of others.
"""

import re
from dataclasses import replace

from btrkeep.causes import Cause, CauseCode
from btrkeep.decisions.cause_words import cause_words

WITHHELD = "(the administrator can see this)"
_PLACES = ("/etc/btrkeep", "/run/btrkeep", "/var/lib/btrkeep")
"""The usual places, as everybody can read them in the documentation; so they tell nobody whether a guess was right."""
_BETWEEN = re.compile(r"([\s\"']+)")


def of_host_itself(line: str, host: str, pool: object = None) -> str:
    """A line that rsync said of a host's backup: paths in a folder hosts/HOST, wherever that is, are told from there on.

    ssh may name usual places of this machine; such a line is withheld.
    """
    if any(place in line for place in _PLACES):
        return WITHHELD
    below = f"/hosts/{host}/"
    if pool and _BETWEEN.search(str(pool)):
        line = line.replace(f"{pool}{below}", "")
    return "".join(_from(word, below) for word in _BETWEEN.split(line))


def of_cause(cause: Cause | None, host: str, pool: object = None) -> str:
    """Why a run or a backup is not complete: numbers, and a line of rsync's as `of_host_itself` has it.

    What has no cause, a hook's output or an error of this machine, may name anything. It is withheld.
    """
    if cause is None or cause.code is CauseCode.POOL:
        return WITHHELD
    line = cause.facts.get("line")
    told = cause if line is None else replace(cause, facts={**cause.facts, "line": of_host_itself(line, host, pool)})
    return cause_words(told)


def _from(word: str, below: str) -> str:
    before, found, rest = word.partition(below)
    return before.partition("/")[0] + rest if found else word
