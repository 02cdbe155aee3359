"""Makes the texts of alarms and messages, as plain text. Pure.

Much of the text comes from hosts and programs (errors, lines of a journal), and is shown in mails, in chats and on telephones. So
foreign text is shortened, made printable, and cannot be taken for markup: the formats of services (HTML, Markdown, Slack's own)
need an angle bracket, a link's "](" or a mention's @ for that.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from btrkeep.catalogue import StoredAlarm
from btrkeep.catalogue.model_alarm import FAILURE, UNIT, AlarmSubject
from btrkeep.choices import ALARM_EVENTS
from btrkeep.decisions.alarm_advice import Advice, advice
from btrkeep.decisions.cause_words import grouped_alike, without_host
from btrkeep.decisions.copy_status import OFFSITE, age_words, done_words
from btrkeep.units import counted, format_duration, local_time, names_in_words, printable, seconds_between

_LONGEST = 300
_LONGEST_WITH_COMMAND = 1200
_SHORT = 100
_OUR_UNIT = re.compile(r"btrkeep-[a-z-]+(@[A-Za-z0-9_.:-]{1,100})?\.(service|timer)", re.ASCII)
_MOST = 20  # lines about an event, or from a journal
_HARMLESS = str.maketrans({"<": "\u2039", ">": "\u203a", "@": "(at)", "`": "'"})


@dataclass(frozen=True, slots=True)
class Message:
    """A message."""

    title: str
    """The subject."""
    body: str
    """The text."""
    kind: str
    """One of apprise's: info, success, warning, failure. Services show it as a colour or a sign."""


def harmless(text: str, longest: int = _LONGEST) -> str:
    """Returns foreign `text` in one line of at most this length, without anything that a program could interpret."""
    shown = printable(" ".join(text.split())).translate(_HARMLESS).replace("](", "] (")
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


def changes_message(
    pool: str, machine: str, alarms: Sequence[StoredAlarm], recoveries: Sequence[StoredAlarm], call: str = ""
) -> Message:
    """Returns one message for all new alarms and recoveries. `call`: how `backupd` is called for the pool, if not by its name."""
    by_event = {event: [alarm for alarm in alarms if alarm.what == event] for event in ALARM_EVENTS}
    parts = [
        section(ALARM_EVENTS[event], alarm_lines(stored_alarms, pool, call))
        for event, stored_alarms in by_event.items()
        if stored_alarms
    ]
    if recoveries:
        parts.append(section("Resolved", listed(_recovery(row) for row in recoveries), len(recoveries), call))
    return Message(_title(pool, alarms, recoveries), "\n\n".join([*parts, sender(machine)]), _kind(alarms))


def alarm_lines(alarms: Sequence[StoredAlarm], pool: str, call: str = "") -> list[str]:
    """Returns a line for each alarm, or for alarms of many hosts with the same reason: the problem, its start, and the command.
    Alarms with the same advice are listed together, before the advice.
    """
    groups: dict[str, list[str]] = {}
    for same in _same_alarms(alarms)[:_MOST]:
        hint = advice(same[0], pool, call)
        command = f"; {_command(hint, same[0].about)}" if hint.command else ""
        if len(same) > 1:
            command = f"; {call or 'backupd'} status"
        since = local_time(min(alarm.since for alarm in same))
        groups.setdefault(hint.words, []).append(f"- {same_words(same)} (since {since}{command})")
    unlisted = sum(len(same) for same in _same_alarms(alarms)[_MOST:])
    more = [f"- and {unlisted:,} more: {call or 'backupd'} status"] if unlisted else []
    return [line for words, lines in groups.items() for line in (*lines, f"  What to do: {words}")] + more


def _same_alarms(alarms: Sequence[StoredAlarm]) -> list[list[StoredAlarm]]:
    return grouped_alike(alarms, lambda alarm: without_host(alarm.text, alarm.host) if alarm.host else None)


def summarised(alarms: Sequence[StoredAlarm]) -> list[str]:
    """Returns a line for each alarm, or for alarms of many hosts with the same reason."""
    return [same_words(same) for same in _same_alarms(alarms)]


def same_words(alarms: Sequence[StoredAlarm]) -> str:
    """The text of an alarm, or of several alike, with the names of their hosts."""
    text = alarm_words(alarms[0])
    if len(alarms) == 1:
        return text
    text = text.removeprefix(f"{alarms[0].about.name}: ")
    names = names_in_words([alarm.about.name for alarm in alarms])
    return f"{counted(len(alarms), 'host')}: {text} ({names})"


def alarm_words(alarm: StoredAlarm) -> str:
    """The alarm's text. Names of our own units can be copied, and a command is never cut in the middle."""
    name = alarm.about.name
    if alarm.about.kind == UNIT and _OUR_UNIT.fullmatch(name) and alarm.text.startswith(name):
        return f"{name} {harmless(alarm.text.removeprefix(name), _LONGEST - len(name))}"
    return harmless(alarm.text, _LONGEST_WITH_COMMAND if alarm.about.traits.has_command else _LONGEST)


def _command(hint: Advice, about: AlarmSubject) -> str:
    return hint.command if about.kind != UNIT or _OUR_UNIT.fullmatch(about.name) else harmless(hint.command)


def _title(pool: str, alarms: Sequence[StoredAlarm], recoveries: Sequence[StoredAlarm]) -> str:
    if len(alarms) == 1 and not recoveries:
        text = alarm_words(alarms[0])
        return f"btrkeep {pool}: {text if len(text) <= _SHORT else text[: _SHORT - 3] + '...'}"
    if len(recoveries) == 1 and not alarms:
        return f"btrkeep {pool}: resolved: {harmless(recoveries[0].text, 100)}"
    words = [counted(len(alarms), "alarm")] if alarms else []
    return f"btrkeep {pool}: {', '.join([*words, *([f'{len(recoveries):,} resolved'] if recoveries else [])])}"


def _kind(alarms: Sequence[StoredAlarm]) -> str:
    if not alarms:
        return "success"
    return "failure" if any(alarm.what in ("failure", "devices") for alarm in alarms) else "warning"


def _recovery(row: StoredAlarm) -> str:
    often = f", it occurred {counted(row.times, 'time')}" if row.times > 1 else ""
    lasted = format_duration(seconds_between(row.since, row.recovered))
    return f"{harmless(row.text)} (since {local_time(row.since)}, resolved after {lasted}{often})"


MISTAKES = 5
"""At most this many mistakes of the configuration are in the message."""


def configuration(faults: Sequence[str], call: str = "backupd") -> str:
    """The configuration has mistakes."""
    more = f" (and {len(faults) - MISTAKES:,} more: {call} check)" if len(faults) > MISTAKES else ""
    return f"the configuration is wrong: {'; '.join(faults[:MISTAKES])}{more}"


def unusable(fault: str) -> str:
    """The pool cannot be used."""
    return f"the pool cannot be used: {fault}"


def suspect(host: str, reason: str) -> str:
    """A host's newest backup is suspect."""
    return f"{host}: the newest backup is suspect: {reason}"


def failing(host: str, outcome: str | None, reason: str) -> str:
    """A host's newest run made no complete backup."""
    return f"{host}: the backup {'failed' if outcome == 'failed' else f'is {outcome}'}: {reason}"


def other_key(host: str, hint: str) -> str:
    """A host's key is not the recorded one."""
    return f"{host}: the host key is not the recorded one: the host was reinstalled, or another machine answers. What to do: {hint}"


def damaged(host: str, backups: int, files: int) -> str:
    """Files of a host's backups are damaged: `files` in the worst of them."""
    each = "each" if backups > 1 else "it"
    return f"{host}: {counted(backups, 'backup')} damaged, up to {counted(files, 'file')} in {each}"


def silent(host: str, seconds: float, reason: str | None = None) -> str:
    """A host has had no complete backup for this long. `reason`: why its newest backup or run is not complete; None: none is."""
    return f"{host}: no complete backup for {format_duration(seconds)}" + (f": {reason}" if reason else "")


def never_complete(host: str, seconds: float, reason: str | None = None) -> str:
    """A host never had a complete backup, this long after the first check; `reason` as in `silent`."""
    text = f"{host}: no complete backup yet, {format_duration(seconds)} after the first check"
    return f"{text}: {reason}" if reason else text


def copy_fails(kind: str, name: str, error: str, behind: Sequence[tuple[str, str]]) -> str:
    """A copy could not be made, or not of all its hosts."""
    if error:
        return f"{kind} {name}: {error}"
    host, why = behind[0]
    more = f" (and {counted(len(behind) - 1, 'more host')})" if len(behind) > 1 else ""
    return f"{kind} {name}: {host}: {why}{more}"


def copy_is_late(kind: str, name: str, seconds: float) -> str:
    """A copy has not been made for this long."""
    if kind == OFFSITE:
        return f"{kind} {name}: {age_words(kind, seconds)}"
    return f"{kind} {name}: not {done_words(kind)} for {format_duration(seconds)}"


def never_copied(kind: str, name: str, seconds: float) -> str:
    """A copy was never made, this long after the first check."""
    return f"{kind} {name}: never {done_words(kind)}, {format_duration(seconds)} after the first check"


def drills_fail(failures: Sequence[str], command: str = "") -> str:
    """Restored backups differed. `command`: the command that repeats the first failed drill."""
    more = f" (and {counted(len(failures) - 1, 'more host')})" if len(failures) > 1 else ""
    then = f". Correct the cause, then repeat the drill: {command}" if command else ""
    return f"drill: {failures[0]}{more}{then}"


def drills_are_late(age: float | None) -> str:
    """Formats for how long no restore has been proven; None: never."""
    return f"drill: no restore was proven for {format_duration(age)}" if age is not None else "drill: no restore was ever proven"


def not_verified(hosts: Sequence[str], seconds: float) -> str:
    """Formats that no data of these hosts was read for longer than configured."""
    return f"verification: no backup of {names_in_words(hosts, 1, 'host')} was read for {format_duration(seconds)}"


def job_failed(job: str, outcome: str | None, reason: str | None) -> str:
    """An expiry or a balance failed; without an outcome it was killed."""
    return f"{job} {outcome or 'killed'}: {reason or 'no reason was recorded'}"


def unit_failed(unit: str, result: str) -> str:
    """A unit of systemd failed."""
    return f"{unit} failed: {result}"


def service_broken(service: str, reason: str) -> str:
    """A service of [notify] urls accepts no message."""
    return f"{service} does not work: {reason}"


def broken_services_message(pool: str, machine: str, services: Sequence[StoredAlarm]) -> Message:
    """Returns the message to the working services about services that accept no messages."""
    lines = [f"- {harmless(row.text)}" for row in services]
    parts = [
        section("Not delivered", lines, len(lines)),
        "  What to do: Correct [notify] urls; `backupd notify --test` tries them.",
    ]
    return Message(f"btrkeep {pool}: {harmless(services[0].text, 100)}", "\n".join(parts) + f"\n\n{sender(machine)}", "warning")


def section(title: str, lines: Sequence[str], number: int = 0, call: str = "") -> str:
    """A title and a list. `number`: of all its entries, if it was cut: 500 hosts fail together when the network is gone."""
    more = [f"- and {number - _MOST:,} more: {call or 'backupd'} status"] if number > _MOST else []
    return "\n".join([f"{title}:", *lines, *more])


def listed(lines: Iterable[str]) -> list[str]:
    """The first entries of a list for `section`."""
    return [f"- {line}" for line in islice(lines, _MOST)]


def sender(machine: str) -> str:
    return f"From btrkeep on {harmless(machine)}."


def unit_message(
    pool: str, machine: str, unit: str, result: str, lines: Sequence[str], at: datetime, faults: Sequence[str] = (), call: str = ""
) -> Message:
    """Formats the failure of a unit of systemd: mistakes of the configuration, its last lines, and what to do."""
    name = unit if _OUR_UNIT.fullmatch(unit) else harmless(unit)
    body = [section("The configuration is wrong", listed(map(harmless, faults)), len(faults), call)] if faults else []
    body.append(f"{name} failed: {harmless(result)}.")
    if lines:
        body.append("\n".join(["Its last messages:", *(f"    {harmless(line)}" for line in lines[-_MOST:])]))
    else:
        body.append("The journal has no messages of this unit.")
    about = AlarmSubject(UNIT, unit)
    hint = advice(StoredAlarm(FAILURE, str(about), "", 0, at, 1, None, None, None), pool, call)
    body.append(f"Since {local_time(at)}. What to do: {hint.words}\n    {_command(hint, about)}\n    systemctl start {name}")
    why = ": the configuration is wrong" if faults else ""
    return Message(f"btrkeep {pool}: {name} failed{why}", "\n\n".join([*body, sender(machine)]), "failure")


def test_message(pool: str, machine: str) -> Message:
    """The message of `notify --test`."""
    return Message(f"btrkeep {pool}: a test", f"This is a test. Nothing is wrong.\n\n{sender(machine)}", "info")
