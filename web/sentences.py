"""What of a run is told to whoever is limited to its host: by whose words they are, never by the names in them. Pure.

If a name decided, a host could print guesses, and whoever reads its runs would see which of them are names of others.
"""

import re
from collections.abc import Collection

from btrkeep.decisions.rsync_meaning import every_meaning

WITHHELD = "(the administrator can see this)"
_SIZE, _SHARE, _DURATION = r"[\d.]+ [KMGTP]?i?B", r"[\d.]+%", r"[\d.]+[smhd](?: \d+[smh])?"
_OURS = re.compile(
    "|".join(
        (
            *(rf"{re.escape(words)}(?: \(rsync's exit status -?\d+\))?" for words in sorted(every_meaning())),
            r"(?:rsync|the remote command) was ended by signal \d+",
            r"unknown exit status \d+(?: \(rsync's exit status \d+\))?",
            r"rsync ended without its statistics \(exit status -?\d+\)",
            r"files below \d+ paths that could not be read were not looked at, and cannot be counted",
            rf"(?:at least )?\d+ of \d+ files could not be read or kept \({_SHARE}, the limit is {_SHARE}\)",
            r"deletions stopped at a limit, so files that are gone are still there",
            r"no file is left of \d+ \(is something not mounted\?\)",
            rf"(?:files|bytes) went from (?:\d+|{_SIZE}) to (?:\d+|{_SIZE}): {_SHARE} less, the limit is {_SHARE}",
            r"rsync says that some files were not transferred, but not which",
            r"the deadline has passed",
            r"the window [\d:]+ ?- ?[\d:]+ has closed",
            rf"no progress for {_DURATION}",
            r"stopped by SIG[A-Z]+",
            rf"the host prints without end: more than {_SIZE}, which is not read any further",
            r"internal error",
            r"no reason is known",
            r"the run was killed before it came to its end",
        )
    )
)
"""Sentences of backupd.run.verdict and of what stops or ends a run, that hold nothing but numbers."""
_BEFORE_A_LINE = ("this server could not write: ", "the source is missing or cannot be entered: ", "nothing could be read: ")
"""What backupd.run.verdict says before a line of rsync's."""
_ALARM = re.compile(r"the newest backup is suspect: |the backup is (?:failed|partial): ")
_SILENT = re.compile(rf"no complete backup (?:for {_DURATION}|ever, {_DURATION} after it was first looked for)")
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


def of_error(text: str, host: str, paths: Collection[str], pool: object = None) -> str:
    """A run's error: a sentence that is known, after a path of the host's or without one, and a line of rsync's; or it is withheld.

    A hook's output, and what went wrong on this machine, may name anything.
    """
    path = max((f"{path}: " for path in paths if text.startswith(f"{path}: ")), key=len, default="")
    said = text.removeprefix(path)
    if _OURS.fullmatch(said):
        return text
    head = next((one for one in _BEFORE_A_LINE if path and said.startswith(one)), None)
    return f"{path}{head}{of_host_itself(said.removeprefix(head), host, pool)}" if head else WITHHELD


def of_alarm(text: str, host: str, paths: Collection[str], pool: object = None) -> str:
    """The text of a host's alarm, as backupd.alarms.events makes it: with the error as it may be told."""
    said = text.removeprefix(f"{host}: ")
    if _SILENT.fullmatch(said):
        return text
    head = found[0] if (found := _ALARM.match(said)) else None
    return f"{host}: {head}{of_error(said.removeprefix(head), host, paths, pool)}" if head else WITHHELD


def _from(word: str, below: str) -> str:
    before, found, rest = word.partition(below)
    return before.partition("/")[0] + rest if found else word
