"""Errors of our own programs, told to the program of ours that started them: one line of JSON each, on a descriptor of its own.

What is printed for people can so be worded anew: nobody reads it but people.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from btrkeep.errors import OperatorError

VARIABLE = "BTRKEEP_ERRORS"
"""The environment's variable that holds the number of the descriptor."""
_LONGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class ReportedError:
    """An error, its hint, and the exit status that it ends a program with."""

    message: str
    hint: str
    status: int


def report_error(error: OperatorError) -> None:
    """Tells it to the program that started this one; does nothing where that did not ask."""
    descriptor = os.environ.get(VARIABLE, "")
    if not (descriptor.isascii() and descriptor.isdecimal()):
        return
    import json  # only where it is needed: every command imports this module

    line = json.dumps({"error": error.message, "hint": error.hint, "status": int(error.exit_code)})
    with suppress(OSError):  # who asked may have gone
        os.write(int(descriptor), line.encode("ascii") + b"\n")


def first_reported(file: BinaryIO) -> ReportedError | None:
    """The first error that was written into `file`; None when there is none, or no whole one."""
    import json

    file.seek(0)
    try:
        found = json.loads(file.readline(_LONGEST))
        return ReportedError(str(found["error"]), str(found["hint"]), int(found["status"]))
    except (ValueError, KeyError, TypeError):
        return None
