"""Passes errors of our programs to the program of ours that started them: one line of JSON each, on a separate descriptor.

So messages for people can be reworded: no program parses them. ssh forwards no such descriptor, only standard error: there an error
is a line that begins with ERROR_MARK, which is part of the protocol with programs of other versions.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from btrkeep.errors import OperatorError

VARIABLE = "BTRKEEP_ERRORS"
"""The environment's variable that holds the number of the descriptor."""
ERROR_MARK = "error: "
"""Begins a line of standard error that is an error of our programs, also on the other server of a replica."""
_LONGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class ReportedError:
    """An error, its hint, and the exit status that it ends a program with."""

    message: str
    hint: str
    status: int


def report_error(error: OperatorError) -> None:
    """Reports the error to the parent, if that asked for it."""
    descriptor = os.environ.get(VARIABLE, "")
    if not (descriptor.isascii() and descriptor.isdecimal()):
        return
    import json  # only where it is needed: every command imports this module

    line = json.dumps({"error": error.message, "hint": error.hint, "status": int(error.exit_code)})
    with suppress(OSError):  # who asked may have gone
        os.write(int(descriptor), line.encode("ascii") + b"\n")


def first_reported(file: BinaryIO) -> ReportedError | None:
    """Returns the first complete error in `file`, or None."""
    import json

    file.seek(0)
    try:
        found = json.loads(file.readline(_LONGEST))
        return ReportedError(str(found["error"]), str(found["hint"]), int(found["status"]))
    except (ValueError, KeyError, TypeError):
        return None


def last_remote_error(lines: Sequence[str]) -> str:
    """Returns the last error in the standard error of a program of ours behind ssh; if there is none, the last line, which may be
    one of ssh itself; "" if there are no lines.
    """
    errors = [line.removeprefix(ERROR_MARK) for line in lines if line.startswith(ERROR_MARK)]
    return (errors or list(lines) or [""])[-1]
