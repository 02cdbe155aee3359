"""The far side of a copy by rsync: one `rsync --server --sender` for the folder of one backup that was looked up in the pool.

The other side's rsync asks for it with the words of a remote command. Of these only a fixed list of options is passed on, and what
names the backup is HOST/NAME/UUID/: the path comes from the pool. The rsync that answers reads, as root, what the other side says,
which may be anything. So it runs in a cell in which it sees programs and that one backup, read-only, and nothing else.
"""

import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backupd.files.tree import require_nothing_mounted
from backupd.replicate.sender import BackupSender, SendRefused
from backupd.repo.read_lock import lock_for_reading
from backupd.rsync.allowed_calls import seccomp_filter
from backupd.rsync.cell import PROGRAM, confined_command, confinement_hint, filter_file
from btrkeep.config import HostConfig
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError
from btrkeep.process.proc import physical_memory
from btrkeep.process.programs import environment

_SERVER = ("--server", "--sender")
_LETTERS = re.compile(r"-[lHogDtpAXrcS]{1,20}e\d{0,3}\.[A-Za-z]{0,20}")
"""rsync's own options in one word: of metadata, of checksums, of holes; behind the e what the other side's rsync can do."""
_LONG = re.compile(r"--numeric-ids|--inplace|--info=[A-Z0-9,]{1,60}")
_MOST_WORDS = 12
STALL = 6 * 3600
"""Seconds: whoever receives says nothing while a large file is read for its checksum. A backup that is read is not deleted."""
LONGEST = 7 * 86400.0
"""Seconds for one backup, after which the other side has to ask again."""
_ADDRESS_SPACE = 1 << 30
"""Bytes beyond what a host's rsync may have in memory: the other side can give it filter rules without end, which it keeps."""


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """What the other side's rsync asks for: options that were found harmless, and a backup that has yet to be looked up."""

    options: tuple[str, ...]
    host: str
    name: str
    uuid: str


def words_of_remote_command(command: str) -> tuple[str, ...]:
    """The words of SSH_ORIGINAL_COMMAND if it asks for rsync, else (). Raises SendRefused."""
    if _SERVER[0] not in command:
        return ()
    try:
        return tuple(shlex.split(command))
    except ValueError:
        raise SendRefused("what is asked for cannot be understood") from None


def parse_copy_request(words: Sequence[str]) -> CopyRequest:
    """Returns the request in the words of a remote command, ignoring those before `--server`. Raises SendRefused."""
    found = list(words)
    asked = found[found.index(_SERVER[0]) :] if _SERVER[0] in found else []
    if len(asked) > _MOST_WORDS or tuple(asked[:2]) != _SERVER or len(asked) < 5 or asked[-2] != ".":
        raise SendRefused("nothing is run here but rsync, and that only to send a backup")
    options = asked[2:-2]
    if not _LETTERS.fullmatch(options[0]) or not all(_LONG.fullmatch(option) for option in options[1:]):
        raise SendRefused(f"rsync may not be asked for {' '.join(options)[:200]!r} here")
    parts = asked[-1].split("/")
    if len(parts) != 4 or parts[3]:
        raise SendRefused("a backup is asked for as HOST/NAME/UUID/")
    return CopyRequest(tuple(options), *parts[:3])


def sending_command(asked: CopyRequest, path: Path) -> tuple[str, ...]:
    """The rsync that sends what lies in the folder `path`."""
    return ("rsync", *_SERVER, *asked.options, f"--timeout={STALL}", ".", f"{path}/")


def send_by_rsync(sender: BackupSender, words: Sequence[str], *, confined: bool) -> int:
    """Answers the other side's rsync on this program's input and output; returns rsync's exit status.

    Raises SendRefused for anything that it must not ask for, DataUnreadable for a backup in which something is mounted.
    """
    from btrkeep.process.foreground import run_in_foreground  # which imports asyncio, and who sends streams needs neither

    asked = parse_copy_request(words)
    chosen = sender.look_up(asked.host, asked.name, asked.uuid)
    command = sending_command(asked, chosen.path)
    memory = HostConfig(asked.host).max_memory.bytes_of(physical_memory()) + _ADDRESS_SPACE
    with lock_for_reading(chosen.path):
        require_nothing_mounted(chosen.path)
        if not confined:
            return run_in_foreground(command, sender.out, memory=memory, longest=LONGEST)
        with ClosingFd(filter_file()) as calls:
            cell = confined_command(command, None, calls, shown=(str(chosen.path),))
            return run_in_foreground(cell, sender.out, keep_open=(calls,), memory=memory, longest=LONGEST)


def may_confine(*, is_foreign: bool) -> bool:
    """Returns True if the sending rsync runs in a cell: always for another machine. Raises OperatorError where it cannot."""
    if seccomp_filter() is not None and shutil.which(PROGRAM, path=environment()["PATH"]):
        return True
    if is_foreign:
        raise OperatorError("rsync sends to another machine from within a cell, which cannot be made here", confinement_hint())
    return False
