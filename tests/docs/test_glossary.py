"""The glossary has an entry for each state of a backup and each kind of section that an administrator names.

A reader who meets such a word in a message looks for it there.
"""

import re

import btrkeep.backup_states
from btrkeep.config.config_key import NAMED
from tests.beds import TOP


def test_every_state_and_every_named_section_has_an_entry() -> None:
    text = (TOP / "docs" / "glossary.rst").read_text()
    entries = {word.strip() for line in re.findall(r"^   \* - (.+)$", text, re.MULTILINE) for word in line.split(",")}
    named = set(btrkeep.backup_states.BACKUP_STATES)
    assert {*named, *NAMED} - entries == set()
