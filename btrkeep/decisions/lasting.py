"""Follows conditions from one backup to the next: since when, how often, whether they last, their words and the remedy. Pure.

A file that could not be read tonight may be readable tomorrow. The same file on three nights is different: no user is working on
it, and it is missing in the backups, or they keep what the host has deleted.
"""

import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from btrkeep.backup_states import CUT, MOST, STANDING, Condition, ConditionKey, ConditionKind, shortened
from btrkeep.units import counted, local_time, printable

NIGHTS = 3
"""Number of successive backups that must have a condition before it becomes an alarm."""
_LEAST = timedelta(hours=36)
"""The minimum time between the first and the last of them: with `every = "1h"` three backups are less than three nights."""
_LONGEST_SHOWN = 120
_ON_HOST = "/etc/btrkeep-source.conf on the host"
_RANK = {kind: rank for rank, kind in enumerate(ConditionKind)}
_PLAIN = frozenset("/._-+:,=%~") | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def follow(before: Iterable[Condition], seen: Iterable[ConditionKey], started: datetime) -> tuple[Condition, ...]:
    """Returns the conditions of a backup: those `seen` in it, with the history of the backup `before`, which was its base.

    A condition that was not seen has ended. The most serious ones are kept, at most MOST, and as many lasting ones.
    """
    earlier = {condition.key: condition for condition in before}
    keys = dict.fromkeys(ConditionKey(key.kind, key.path, shortened(key.name)) for key in seen)
    followed = [_followed(earlier.get(key), key, started) for key in keys]
    followed.sort(key=lambda condition: (_RANK[condition.kind], -condition.times))
    standing = [condition for condition in followed if condition.kind in STANDING]
    return (*[condition for condition in followed if condition.kind not in STANDING][:MOST], *standing[:MOST])


def _followed(before: Condition | None, key: ConditionKey, started: datetime) -> Condition:
    if before is None or before.since > started:  # a clock was ahead
        return Condition(key, started)
    return Condition(key, before.since, before.times + 1)


def is_lasting(condition: Condition, newest: datetime) -> bool:
    """Returns True if it is to be reported as an alarm. `newest`: the start of the newest backup that has it."""
    return condition.times >= NIGHTS and newest - condition.since >= _LEAST


def lasting(conditions: Sequence[Condition], newest: datetime | None) -> tuple[Condition, ...]:
    """Returns those that last and are an alarm, the most serious first."""
    return tuple(
        condition
        for condition in conditions
        if newest is not None and condition.kind not in STANDING and is_lasting(condition, newest)
    )


def standing_words(conditions: Iterable[Condition]) -> list[str]:
    """Formats the lasting conditions that earlier backups also had: one line for each kind and source path."""
    grouped = dict[tuple[ConditionKind, str], list[Condition]]()
    for condition in conditions:
        if condition.kind in STANDING and condition.times > 1:
            grouped.setdefault((condition.kind, condition.key.path), []).append(condition)
    return [
        condition_words(group[0]) + (f" (and {counted(len(group) - 1, 'more folder')})" if len(group) > 1 else "")
        for group in grouped.values()
    ]


def condition_words(condition: Condition) -> str:
    """Formats a condition in one line, with its start. Names are escaped and truncated."""
    name = _shown(condition.key.name or condition.key.path)
    since = f"since {local_time(condition.since)} ({counted(condition.times, 'backup')} in a row)"
    match condition.kind:
        case ConditionKind.DELETIONS_SKIPPED:
            return f"{name}: deletions have been skipped {since}, so files deleted on the host may still be in the backups"
        case ConditionKind.EMPTIED:
            return f"{name} has been empty {since}, but earlier backups have files there; nothing was deleted (not mounted?)"
        case ConditionKind.DUMP_FAILED:
            return f"the host could not make the dump {name} {since}"
        case ConditionKind.NO_SNAPSHOT if condition.key.path:
            return f"{name} has not been read from a snapshot {since}"
        case ConditionKind.NO_SNAPSHOT:
            return f"the host has made no snapshots {since}, so its files were read live"
        case ConditionKind.UNREADABLE:
            return f"{name} could not be read {since}"
        case ConditionKind.NOT_TRANSFERRED:
            return f"{name}: rsync could not transfer some files {since}, and did not name them"
        case ConditionKind.NOT_KEPT:
            return f"{name} could not be stored as it is on the host {since}"
        case ConditionKind.VANISHED:
            return f"{name} has vanished during each read {since}"
        case ConditionKind.LEFT_OUT:
            return f"{name} has been excluded by `one_file_system` {since}: its files are missing from these backups, or are old"
        case ConditionKind.FETCHED_TWICE:
            return (
                f"{name} has been backed up {since}, although another folder has the same files (a snapshot, a bind mount or "
                "a copy)"
            )


def host_words(host: str, conditions: Sequence[Condition], command: str) -> str:
    """Formats the alarm about a host's lasting conditions, at least one. `command`: the command line of `backupd` for this pool.

    If deletions are skipped because a file cannot be read, the message contains the name and the pattern that excludes it.
    """
    first, rest = conditions[0], len(conditions) - 1
    same_path = [condition for condition in conditions if condition.key.path == first.key.path]
    named = next((condition for condition in (*same_path, *conditions) if exclude_pattern(condition.key)), None)
    text = condition_words(first)
    if named and named is not first:
        text, rest = f"{text}; {condition_words(named)}", rest - 1
    more = f" (and {rest:,} more)" if rest else ""
    remedy = f". Fix this, or exclude it: {exclude_command(host, named.key, command)}" if named else ""
    return f"{host}: {text}{more}{_host_remedy(host, first, command)}{remedy}"


def _host_remedy(host: str, condition: Condition, command: str) -> str:
    """Returns what to do about snapshots and dumps; "" for other conditions."""
    if condition.kind is ConditionKind.DUMP_FAILED:
        section = printable(f"[dump {condition.key.name}]")
        return f". Correct {section} in {_ON_HOST}, then: {command} run {shlex.quote(host)}"
    if condition.kind is ConditionKind.NO_SNAPSHOT and condition.key.path:  # with "required" the backup would be suspect
        return f". It became full: raise lvm_size in {_ON_HOST}, then: {command} run {shlex.quote(host)}"
    if condition.kind is ConditionKind.NO_SNAPSHOT:
        return f". The reason: {command} status {shlex.quote(host)}"
    return ""


def exclude_command(host: str, key: ConditionKey, command: str) -> str:
    """Returns the command that excludes the name of the condition. It contains no character that a shell or a mail would change."""
    return f"{command} host set {shlex.quote(host)} {shlex.quote(f'exclude+={exclude_pattern(key)}')}"


def exclude_pattern(key: ConditionKey) -> str:
    """Returns the pattern that excludes the name and everything below it; "" if there is none.

    A sender behind rrsync adds its own folder in front, so the pattern starts with the source path. Each byte with a special
    meaning in a shell, a mail or a pattern becomes a ?, which matches any one byte in rsync.
    """
    name, top = key.name, "/" + key.path.strip("/")
    if not name or name.endswith(CUT) or len(name) > _LONGEST_SHOWN:
        return ""
    start = 0 if top == "/" else f"{name}/".find(f"{top}/")
    if start < 0 or not name.startswith("/") or name[start:].rstrip("/") in ("", top):
        return ""  # without its source path a host has nothing to back up
    pattern = "".join(_as_pattern(char) for char in name[start:].rstrip("/"))
    return "" if any(part in ("", ".", "..") for part in pattern[1:].split("/")) else pattern


def _as_pattern(char: str) -> str:
    if char in _PLAIN or (ord(char) > 127 and char.isprintable()):
        return char
    return "?" * len(char.encode("utf-8", "surrogateescape"))


def _shown(name: str) -> str:
    text = printable(name)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + CUT
