"""The page in which an administrator searches for a message, made by scripts/what_to_do.py: it has all kinds of alarms and
commands.

It is read at an alarm: false advice there makes the damage larger.
"""

from collections.abc import Callable

from btrkeep.catalogue.model_alarm import KINDS
from btrkeep.decisions.alarm_advice import ANY, TABLE
from tests.beds import TOP
from tests.docs.pages import Page
from tests.docs.test_names import faults

Read = Callable[[str], Page]


def test_each_kind_of_alarm_has_advice_of_its_own() -> None:
    of_devices = {"device", "missing device"}
    assert {kind for _, kind in TABLE} - {ANY} == set(KINDS) - of_devices


def test_each_command_on_the_page_can_be_typed(page: Read) -> None:
    commands = [call for call in page("what-to-do").commands() if call]
    assert len(commands) > 20
    assert {command: wrong for command in commands if (wrong := faults(command))} == {}


def test_the_pages_of_messages_lead_there() -> None:
    for name in ("monitoring", "doctor", "states-and-exit-codes", "dashboard", "index"):
        assert ":doc:`what-to-do`" in (TOP / "docs" / f"{name}.rst").read_text(encoding="utf-8"), name
