"""Compares restored files with the backup by `rsync --dry-run --checksum`, which is independent of our restore.

It reads the content of every file on both sides, and compares file types, sizes, times in nanoseconds, owners, modes, ACLs,
extended attributes, targets of symlinks, device numbers, and which names are hard links of each other.
"""

import asyncio
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backupd.drill.drill_context import NotFinished
from backupd.files.conflict_policy import differs_words
from btrkeep.errors import OperatorError
from btrkeep.process.group import ENDS_WITH_US, Group
from btrkeep.units import printable

_TICK = 0.1
_SAMPLES = 20
_LONGEST = 1 << 16  # bytes of a line, or of its messages, that are parsed
_NEW = "+" * 9
_SPECIAL = re.compile(rb"[*?\[\\]")
_DID_NOTHING = (20, 22, 126, 127)  # cancelled, out of memory, not startable: nothing was compared
# What each letter of rsync's itemized changes means, by its position in YXcstpoguax.
_FIELDS = ((2, "content"), (3, "size"), (4, "time"), (5, "mode"), (6, "owner"), (7, "group"), (9, "ACL"), (10, "attributes"))


@dataclass(slots=True)
class FoundDifferences:
    """The differences of a restored tree."""

    number: int = 0
    """Number of names that differ."""
    samples: list[str] = field(default_factory=list)
    """The first of them, with the kind of difference."""

    def add(self, name: str, difference: str) -> None:
        """Counts one more difference."""
        self.number += 1
        if len(self.samples) < _SAMPLES:
            self.samples.append(f"{printable(name)}: {difference}")


def comparison_command(source: Path, copy: Path, names: Path | None, exclusions: Path | None = None) -> tuple[str, ...]:
    """Returns the command. `names`: a file with the restored names, each followed by a NUL; None: everything except the folders in
    the file `exclusions` (write_exclusions).
    """
    selection = (f"--files-from={names}", "--from0") if names else ("--recursive", "--delete")
    but = ("--from0", f"--exclude-from={exclusions}") if exclusions else ()
    return (
        *ENDS_WITH_US,
        "rsync",
        *("--dry-run", "--links", "--perms", "--times", "--group", "--owner", "--devices", "--specials", "--hard-links"),
        *("--acls", "--xattrs", "--checksum", "--modify-window=-1", "--numeric-ids", "--no-implied-dirs"),
        *("--filter=-x system.*", "--filter=-x security.selinux", "--filter=-x btrfs.*", "--out-format=%i %n%L"),
        *selection,
        *but,
        f"{source}/",
        f"{copy}/",
    )


def difference_of(line: str) -> tuple[str, str] | None:
    """Parses the name and the kind of difference in a line of rsync's output; None if there is no difference."""
    code, name = line[:11], line[12:]  # attributes that are equal may be blanks: "hf          name => other"
    if code.startswith("*deleting"):
        return name, "it is not in the backup"
    if len(code) < 11 or code[0] not in "<>ch.":
        return None
    if code[2:11] == _NEW:
        is_link = code[0] == "h"
        return name, "it is not a hard link, unlike in the backup" if is_link else "it was not restored"
    fields = [attribute for place, attribute in _FIELDS if code[place] not in ".+ "]
    if code[0] == "h" and not fields:
        fields = ["hard link"]
    if code[0] == "c" and not fields:
        fields = ["target or kind"]
    return (name, differs_words(fields)) if fields else None


async def compare(
    source: Path,
    copy: Path,
    names: Path | None,
    is_over: Callable[[], bool],
    is_to_wait: Callable[[], bool],
    exclusions: Path | None = None,
) -> FoundDifferences:
    """Returns the differences between `copy` and `source`. If `is_over` returns True, the result is incomplete: the caller must
    check that again. Pauses while `is_to_wait` returns True.

    Raises OperatorError if it is impossible, NotFinished if rsync died.
    """
    found_differences, error_output, rest = FoundDifferences(), bytearray(), bytearray()

    def take(data: bytes) -> None:
        rest.extend(data)
        *lines, last = bytes(rest).split(b"\n")
        rest[:] = last[:_LONGEST]
        for line in lines:
            if difference := difference_of(line.decode("utf-8", "surrogateescape")):
                found_differences.add(*difference)

    def hear(data: bytes) -> None:
        error_output.extend(data[: max(0, _LONGEST - len(error_output))])

    group = Group.start(comparison_command(source, copy, names, exclusions), on_stdout=take, on_stderr=hear)
    ended = asyncio.create_task(group.wait())
    waits = False
    while not ended.done():
        await asyncio.wait((ended,), timeout=_TICK)
        if is_over():
            group.signal(signal.SIGKILL)
        elif waits != is_to_wait():
            waits = not waits
            group.signal(signal.SIGSTOP if waits else signal.SIGCONT)
    status = await ended
    if (status < 0 or status in _DID_NOTHING) and not is_over():
        raise NotFinished(f"rsync did not compare: {_ended_words(status)}", "`journalctl -k` shows whether memory ran out")
    if status and not is_over():
        words = error_output.decode("utf-8", "replace").strip().splitlines() or [f"exit status {status}"]
        raise OperatorError(
            f"rsync could not compare: {printable(words[0])}", "check the kernel's messages (dmesg) for disk errors"
        )
    return found_differences


def _ended_words(status: int) -> str:
    return f"it was ended by signal {-status}" if status < 0 else f"exit status {status}"


def write_names(file: Path, paths: Sequence[bytes]) -> None:
    """Writes the names of the paths for rsync, with the folders above each. Raises OSError."""
    above = {folder for path in paths for folder in _above(path)}
    with file.open("xb") as out:
        for path in [*sorted(above), *paths]:
            out.write(b"./" + path.lstrip(b"/") + b"\0")  # a line that begins with # would be a comment


def write_exclusions(file: Path, folders: Iterable[bytes]) -> None:
    """Writes names of folders as patterns of rsync that match only these. Raises OSError."""
    with file.open("xb") as out:
        for name in folders:
            has_wildcards = any(character in name for character in b"*?[")  # without one, a backslash is literal
            out.write(b"/" + (_SPECIAL.sub(rb"\\\g<0>", name) if has_wildcards else name) + b"/\0")


def _above(path: bytes) -> list[bytes]:
    names = path.strip(b"/").split(b"/")
    return [b"/".join(names[:depth]) for depth in range(1, len(names))]
