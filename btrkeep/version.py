"""The version with the commit that it was made from, as --version shows it."""

import re
from contextlib import suppress
from pathlib import Path

from btrkeep import __version__

_HERE = Path(__file__).resolve().parent
_COMMIT = re.compile(r"[0-9a-f]{12,64}")
_SHOWN = 12


def version_words() -> str:
    """Returns "0.1.0 (commit 2d68a657a1b2)"; without a commit only the version."""
    commit = _recorded("commit.txt") or _recorded("archived.txt") or _checkout_commit()
    return f"{__version__} (commit {commit[:_SHOWN]})" if _COMMIT.fullmatch(commit) else __version__


def _recorded(name: str) -> str:
    """Returns the commit that install.sh (commit.txt) or `git archive` (archived.txt) has recorded, "" without one."""
    with suppress(OSError):
        commit = (_HERE / name).read_text().strip()
        return commit if _COMMIT.fullmatch(commit) else ""
    return ""


def _checkout_commit() -> str:
    """Returns the commit of the checkout that this file is in, "" if it is in none. Read from files: git need not be installed."""
    git = _HERE.parent / ".git"
    with suppress(OSError):
        head = (git / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head
        if (git / name).is_file():
            return (git / name).read_text().strip()
        packed = (line.split() for line in (git / "packed-refs").read_text().splitlines())
        return next((words[0] for words in packed if words[1:] == [name]), "")
    return ""
