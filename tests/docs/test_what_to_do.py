"""The page that says what to do when: its rows are the table of the alarms' advice. Each command on it can be made."""

import re

from backupd.alarms import words
from btrkeep.catalogue.model_alarm import (
    CONDITION,
    DAMAGED,
    FAILURE,
    FETCHED_BY,
    HOST,
    HOST_KEY,
    OFFSITE,
    PUSH,
    REPLICA,
    SILENT,
    STATE_FULL,
    SUSPECT,
    UNIT,
)
from btrkeep.decisions.alarm_advice import ANY, TABLE
from tests.beds import TOP

NAMES = dict.fromkeys((HOST, DAMAGED, CONDITION, HOST_KEY), "web1") | dict.fromkeys((REPLICA, PUSH, FETCHED_BY), "second")
NAMES |= {OFFSITE: "cloud", STATE_FULL: "/var/lib/btrkeep/main"}


def rows() -> list[tuple[str, ...]]:
    text = (TOP / "docs" / "what-to-do.rst").read_text(encoding="utf-8")
    table = text[text.index("   * - Message") : text.index("More of it:")]
    cells = [re.split(r"\n     - ?", row) for row in re.split(r"^   \* - ", table, flags=re.MULTILINE)[2:]]
    return [tuple(" ".join(cell.split()).replace("``", "`") for cell in row) for row in cells]


def test_the_page_has_the_advice_for_each_message() -> None:
    wanted = []
    for key, entry in TABLE.items():
        name = "btrkeep-backup@main.service" if key[1] == UNIT else NAMES.get(key[1], "")
        command = f"`{entry.command.format(name=name, pool='main')}`" if entry.command else ""
        wanted.append((entry.example, entry.words, command))
    assert rows() == wanted
    assert len(wanted) > 15


def test_the_messages_of_the_page_are_those_of_the_program() -> None:
    assert TABLE[FAILURE, HOST].example == words.failing("web1", "failed", "REASON")
    assert TABLE[SUSPECT, HOST].example == words.suspect("web1", "REASON")
    assert TABLE[SILENT, HOST].example == words.silent("web1", 3 * 86400)
    assert TABLE[ANY, UNIT].example == words.unit_failed("btrkeep-backup@main.service", "exit-code")
    assert TABLE[ANY, OFFSITE].example == words.copy_fails("offsite", "cloud", "REASON", [])
    assert TABLE[SILENT, OFFSITE].example == words.never_copied("offsite", "cloud", 7 * 86400)
    assert TABLE[ANY, FETCHED_BY].example == words.copy_is_late("fetched_by", "second", 7 * 86400)
    assert TABLE[ANY, DAMAGED].example == words.damaged("web1", 3, 2)


def test_the_pages_of_messages_lead_there() -> None:
    for page in ("monitoring", "doctor", "states-and-exit-codes", "dashboard", "index"):
        assert ":doc:`what-to-do`" in (TOP / "docs" / f"{page}.rst").read_text(encoding="utf-8"), page
