"""The tables of docs/what-to-do.rst: each message as the program makes it, what to do, and the command.

An administrator searches the page for the words of a message, so the messages come from the functions that make them.
`python -m scripts.make_lists` writes the tables.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any

from backupd.alarms import alarm_messages
from backupd.alarms.send import Delivery
from backupd.expire.report import expiry_words
from btrkeep.backup_states import Cause, CauseCode, Condition, ConditionKey, ConditionKind
from btrkeep.catalogue import model_alarm as kinds
from btrkeep.catalogue.sqlite import _FULL
from btrkeep.config.values import SizeOrShare
from btrkeep.decisions import findings as checks
from btrkeep.decisions.alarm_advice import ANY, TABLE
from btrkeep.decisions.cause_words import altered_words, cause_words
from btrkeep.decisions.lasting import host_words
from btrkeep.decisions.pool_health import HealthLimits, PoolFacts, Redundancy, judge_pool
from btrkeep.decisions.repeated import RepeatedFailure, Step, repeated_words
from btrkeep.decisions.rsync_meaning import ExitCause, ExitKind, Meaning
from btrkeep.decisions.safety_limits import ClockBehind
from btrkeep.decisions.schedule import ScheduleVerdict
from btrkeep.pool.space_by_profile import Room

GIB, DAY = 1 << 30, 86400.0
STATE, TIMER = "/var/lib/btrkeep/main", "btrkeep-backup@main.timer"
SINCE = datetime(2026, 11, 20, 22, tzinfo=UTC)
LIMITS = HealthLimits(Path("/srv/backup"), Path(STATE), SizeOrShare("5%", 0.05), 0.9)
NAMES = {
    **dict.fromkeys((kinds.HOST, kinds.DAMAGED, kinds.CONDITION, kinds.HOST_KEY), "web1"),
    **dict.fromkeys((kinds.REPLICA, kinds.PUSH, kinds.FETCHED_BY), "second"),
    kinds.OFFSITE: "cloud",
    kinds.STATE_FULL: STATE,
    kinds.UNIT: "btrkeep-backup@main.service",
}
"""The names in the commands, by the kind of subject."""


def of_pool(check: str, **facts: Any) -> tuple[str, ...]:
    """Returns the message of that check about a pool with these facts."""
    return tuple(finding.text for finding in judge_pool(PoolFacts(**facts), LIMITS).findings if finding.check == check)


def with_room(check: str, unallocated: float, free: float, metadata: float) -> tuple[str, ...]:
    """Returns the message of that check about a pool of 10 TiB with so many GiB left."""
    return of_pool(check, room=Room(10240 * GIB, int(free * GIB), int(unallocated * GIB), int(metadata * GIB)))


def _messages() -> dict[tuple[str, str], tuple[str, ...]]:
    late = ScheduleVerdict(("web1",), "every 1d, window 22:00-06:00 UTC", None, (TIMER,))
    unreadable = Condition(ConditionKey(ConditionKind.UNREADABLE, "/srv", "/srv/x"), SINCE, 3)
    return {
        (kinds.FAILURE, kinds.HOST): (alarm_messages.failing("web1", "failed", "REASON"),),
        (kinds.SUSPECT, kinds.HOST): (alarm_messages.suspect("web1", "REASON"),),
        (kinds.SILENT, kinds.HOST): (
            alarm_messages.silent("web1", 3 * DAY, "REASON"),
            alarm_messages.never_complete("web1", 3 * DAY),
        ),
        (kinds.FAILURE, kinds.POOL): (alarm_messages.unusable("REASON"),),
        (kinds.FAILURE, kinds.EXPIRY): (alarm_messages.job_failed(kinds.EXPIRY, "failed", "REASON"),),
        (kinds.FAILURE, kinds.BALANCE): (alarm_messages.job_failed(kinds.BALANCE, "failed", "REASON"),),
        (kinds.FAILURE, kinds.DRILL): (alarm_messages.drills_are_late(40 * DAY), alarm_messages.drills_fail(["REASON"])),
        (kinds.FAILURE, kinds.VERIFICATION): (alarm_messages.not_verified(["web1"], 90 * DAY),),
        (kinds.FAILURE, kinds.READ_ONLY): of_pool(checks.READ_ONLY, read_only=True),
        (kinds.FAILURE, kinds.CONFIGURATION): (alarm_messages.configuration(["FILE:LINE: REASON"]),),
        (kinds.FAILURE, kinds.CATALOGUE): of_pool(checks.CATALOGUE, lost=True),
        (kinds.FAILURE, kinds.STATE_FULL): (_FULL[1].format(path=f"{STATE}/catalogue.sqlite"),),
        (kinds.FAILURE, kinds.CLOCK): (expiry_words(ClockBehind(SINCE, SINCE.replace(day=23))).partition("; ")[0],),
        (kinds.FAILURE, kinds.ALTERED_BACKUPS): (altered_words([("web1", "2026-11-20T220003Z")]),),
        (kinds.ROOM, kinds.MIN_FREE): with_room(checks.ROOM, 100, 300, 9),
        (kinds.ROOM, kinds.UNALLOCATED): with_room(checks.UNALLOCATED, 0, 0.5, 9)
        + with_room(checks.UNALLOCATED, 0, 900, 0.1)
        + with_room(checks.UNALLOCATED, 0, 900, 9),
        (kinds.FAILURE, kinds.SCHEDULE): of_pool(checks.SCHEDULE, schedule=late)
        + of_pool(checks.SCHEDULE, schedule=ScheduleVerdict(("web1",))),
        (kinds.ROOM, kinds.USED): with_room(checks.USED, 500, 300, 9),
        (ANY, kinds.UNIT): (alarm_messages.unit_failed("btrkeep-backup@main.service", "exit-code"),),
        (kinds.SILENT, kinds.OFFSITE): (alarm_messages.never_copied("offsite", "cloud", 7 * DAY),),
        (ANY, kinds.OFFSITE): (alarm_messages.copy_fails("offsite", "cloud", "REASON", []),),
        (ANY, kinds.REPLICA): (alarm_messages.copy_fails("replica", "second", "REASON", []),),
        (ANY, kinds.PUSH): (alarm_messages.copy_fails("push", "second", "REASON", []),),
        (ANY, kinds.FETCHED_BY): (alarm_messages.copy_is_late("fetched_by", "second", 7 * DAY),),
        (ANY, kinds.DAMAGED): (alarm_messages.damaged("web1", 3, 2),),
        (kinds.DEVICES, ANY): of_pool(checks.MISSING, missing=(2,), redundancy=Redundancy({"data": {1: GIB}}, 0, GIB, (2,)))
        + of_pool(checks.ERRORS, errors={1: {"read": 3}}),
        (ANY, kinds.CONDITION): (host_words("web1", [unreadable], "backupd"),),
        (ANY, kinds.HOST_KEY): (alarm_messages.other_key("web1", "").removesuffix(" Now: "),),
        (ANY, kinds.STEP): (repeated_words(RepeatedFailure(Step.SCRUB, "", "scrub", 3, SINCE, "REASON")),),
        (kinds.SERVICE, ANY): (alarm_messages.service_broken(str(Delivery(1, "E-Mail", False)), "REASON"),),
    }


def tables() -> str:
    """Returns both tables: the alarms with the advice for each, and the reasons why a host fails."""
    return (
        f"\n{_head('Message', 'What to do', 'Command', widths='35 40 25')}{alarms()}\n"
        f"Why a host failed or is suspect\n{'-' * 31}\n"
        "REASON in the messages above, ``backupd status web1`` and ``backupd log web1`` have these texts. For all of them see\n"
        ":doc:`states-and-exit-codes`.\n\n"
        f"{_head('Reason', 'What to do', widths='50 50')}{reasons()}\n"
    )


def alarms() -> str:
    """Returns a row for each entry of the table of advice."""
    messages = _messages()
    assert set(messages) == set(TABLE)
    return "".join(
        _row(messages[key], entry.words, entry.command.format(name=NAMES.get(key[1], ""), pool="main"))
        for key, entry in TABLE.items()
    )


def _head(*titles: str, widths: str) -> str:
    cells = "\n     - ".join(titles)
    return f".. list-table::\n   :header-rows: 1\n   :widths: {widths}\n\n   * - {cells}\n"


def _of_rsync(cause: ExitCause) -> str:
    return Meaning(ExitKind.HOST, cause).words


REASONS: Mapping[str, str] = {
    _of_rsync(ExitCause.KEY_REFUSED): "Add the line of :doc:`restricted-keys` to ``authorized_keys`` of the user on the host.",
    _of_rsync(ExitCause.HOST_KEY): "``backupd host test web1`` shows both keys. Compare, then replace the recorded one "
    "(:doc:`restricted-keys`).",
    _of_rsync(ExitCause.NO_SUCH_NAME): "Check ``address`` in the configuration and the DNS.",
    _of_rsync(ExitCause.SILENT): "Check that the host is on, and that a firewall lets this server reach its ssh port.",
    _of_rsync(ExitCause.REFUSED): "Start sshd on the host, or set ``port``.",
    _of_rsync(ExitCause.CLOSED): "sshd had too many connections or failed logins: raise ``MaxStartups`` in its ``sshd_config``.",
    _of_rsync(ExitCause.NO_RSYNC): "Install rsync on the host, or set ``rsync_path``.",
    _of_rsync(ExitCause.SUDO_PASSWORD): "Set ``NOPASSWD`` for rsync in sudoers (:doc:`restricted-keys`).",
    _of_rsync(ExitCause.NO_PROTOCOL): "Remove output from the shell's startup files on the host, such as ``.bashrc``.",
    cause_words(Cause(CauseCode.SOURCE_MISSING, "/srv", {"line": "..."})): "Make or mount it there, or correct ``paths``.",
    cause_words(Cause(CauseCode.FEWER_FILES, "/srv", {"before": 900, "after": 300, "limit": 0.5})): (
        "``backupd list web1`` names the backup. If the files were deleted on purpose: ``backupd accept web1 latest``."
    ),
    cause_words(Cause(CauseCode.NO_SNAPSHOTS, facts={"line": "..."})): "Install btrkeep-source on the host, or set "
    '``snapshots = "auto"`` (:doc:`sources`).',
    cause_words(
        Cause(CauseCode.NOT_FROM_SNAPSHOT, "/srv", {"line": "..."})
    ): '``backupd check --connect`` shows which paths the host can take snapshots of. For the others set ``snapshots = "auto"``.',
    cause_words(Cause(CauseCode.DUMP_FAILED, facts={"name": "shop", "line": "..."})): (
        "Correct the command in ``/etc/btrkeep-source.conf`` of the host, and run the host again."
    ),
    cause_words(Cause(CauseCode.NOT_MOUNTED, "/srv", {"folder": "/srv/data", "others": 0, "files": 900, "bytes": GIB})): (
        "Mount it on the host. If it was emptied on purpose: ``backupd accept web1 latest``."
    ),
    cause_words(Cause(CauseCode.UNREADABLE, "/srv", {"missed": 30, "below": 0, "files": 1000, "limit": 0.01})): (
        "Let the user of the backup read them, exclude them, or raise ``unreadable_limit``."
    ),
    cause_words(Cause(CauseCode.DEADLINE)): "The next run continues. For large first copies raise ``deadline``.",
    cause_words(Cause(CauseCode.WINDOW_CLOSED, facts={"window": "22:00-06:00"})): (
        "The next run continues. If it happens every night, make ``window`` longer, or raise ``concurrency`` or ``bandwidth``."
    ),
    cause_words(Cause(CauseCode.STALLED, "/srv", {"seconds": 1800})): "Check the connection and the disk of the host.",
    cause_words(Cause(CauseCode.MAX_MEMORY, facts={"found": 2 * GIB, "limit": GIB})): (
        "Back up fewer files with one path, or raise ``max_memory``."
    ),
    cause_words(Cause(CauseCode.SERVER_FAULT, facts={"line": "..."})): "Check this server: ``backupd doctor``, ``dmesg``.",
}
"""Why a host failed or is suspect, and what to do."""


def reasons() -> str:
    """Returns a row for each reason."""
    return "".join(_row((message,), advice) for message, advice in REASONS.items())


def _row(messages: tuple[str, ...], advice: str, command: str | None = None) -> str:
    cells = [_literal("\n\n".join(messages)), _literal(advice) if command is not None else advice]
    cells += [f"``{command}``" if command else ""] if command is not None else []
    return "".join(f"{line}\n" for line in _cells(cells))


def _cells(cells: list[str]) -> Iterator[str]:
    for number, cell in enumerate(cells):
        first = "   * - " if number == 0 else "     - "
        paragraphs = [
            fill(part, 132, initial_indent=" " * 7, subsequent_indent=" " * 7, break_long_words=False, break_on_hyphens=False)
            for part in cell.split("\n\n")
        ]
        yield (first + "\n\n".join(paragraphs)[7:]).rstrip()


def _literal(text: str) -> str:
    """Escapes text of the program for reStructuredText."""
    return text.replace("`", "``").replace("*", "\\*")
