"""The page about the root service has the existing verbs, arguments and kinds of failure.

A program that asks the root service is written by this page.
"""

import json
import re
from collections.abc import Callable

from backupd.serve.request_checks import REQUIRED
from backupd.serve.verbs import VERBS
from btrkeep.serving.protocol import KINDS, read_request
from tests.docs.pages import Page

Read = Callable[[str], Page]


def test_every_verb_stands_there_with_its_arguments(page: Read) -> None:
    result = {verb: set(arguments.split()) for verb, arguments, _ in page("serve").section("Verbs").table()}
    present = {
        verb: {name if argument.default is REQUIRED else f"[{name}]" for name, argument in entry.arguments.items()}
        for verb, entry in VERBS.items()
    }
    assert result == present


def test_every_kind_of_failure_stands_there(page: Read) -> None:
    assert [row[0] for row in page("serve").section("Protocol").table()] == list(KINDS)


def test_the_request_that_is_shown_is_one(page: Read) -> None:
    shown = page("serve").section("Protocol").blocks("json")[0]
    request = read_request(json.dumps(json.loads(shown)).encode())
    assert set(request.arguments) <= set(VERBS[request.verb].arguments)


def test_the_powers_of_the_unit_are_those_that_are_told(page: Read) -> None:
    section = page("serve").section("Hardening")
    assert set(re.findall(r"CAP_\w+", "".join(section.root.itertext()))) == {"CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_SYS_ADMIN"}
