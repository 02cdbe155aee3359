"""Files of JSON in a host's folder: read within bounds, since a pool may be carried here from elsewhere; replaced as a whole."""

import errno
import json
import logging
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from btrkeep.descriptors import ClosingFd
from btrkeep.pool.atomic import write_atomically

LARGEST = 16 << 20
"""The maximum bytes of such a file, backup.json among them; real ones have some thousands."""
LARGEST_NUMBER = (1 << 63) - 1  # what a database's column takes

NOT_UNDERSTOOD = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""The exceptions for invalid JSON, endless nesting, and unexpected values."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a fifo may lie there
_log = logging.getLogger(__name__)

T = TypeVar("T")


def text_of_file(path: Path) -> str:
    """Returns the text of a regular file of ours; follows no symlink, waits for no pipe.

    Raises OSError if it is missing, or no file (EINVAL); ValueError if it is not text, or too large to be ours.
    """
    with ClosingFd(os.open(path, _READ)) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(fd, "rb", closefd=False) as file:
            content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it has more than {LARGEST >> 20} MiB")
    return content.decode("utf-8")


def read_json_file(path: Path, parse: Callable[[Any], T], nothing: T) -> T:
    """Returns what `parse` makes of the file's fields; `nothing` if there is no file, or if it cannot be read, which is logged."""
    try:
        return parse(json.loads(text_of_file(path)))
    except FileNotFoundError:
        return nothing
    except (OSError, *NOT_UNDERSTOOD) as error:
        _log.warning("%s cannot be read: %s", path, error)
        return nothing


def has_room(text: str) -> bool:
    """Returns True if text_of_file would read that."""
    return len(text.encode("utf-8", "surrogateescape")) <= LARGEST


def replace_json_file(path: Path, texts: Iterable[str], version: int) -> None:
    """Replaces the file by the first of the texts that can be read again, or the last. `version`: their "format".

    Leaves what a later version of btrkeep wrote: it may know more than we. Raises OSError.
    """
    with suppress(OSError, *NOT_UNDERSTOOD):
        if int(json.loads(text_of_file(path))["format"]) > version:
            _log.warning("%s is of a later version of btrkeep, and stays as it is", path)
            return
    text = ""
    for text in texts:
        if has_room(text):
            break
    write_atomically(path, text)


def number_of(value: Any) -> int:
    """Returns a number of a file as one that a column of the catalogue takes. Raises ValueError."""
    if abs(number := int(value)) > LARGEST_NUMBER:
        raise ValueError(f"{number} is too large")
    return number


def path_of(value: Any) -> str:
    """Returns a path of a file. Raises ValueError if no file can have it."""
    if b"\0" in os.fsencode(path := str(value)):
        raise ValueError(f"{path!r} is the path of no file")
    return path
