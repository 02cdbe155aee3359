"""Makes our code and its interpreter readable for all users.

A checkout below a home of mode 0700, or made with a umask of 077, is its owner's alone. What runs without rights in a test then
gets a copy of the code, and sees the environment, which is large, through a mount in the session's folder.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.beds import session
from tests.beds.cli import TOP
from tests.beds.work import work

NOBODY = 65534
_OURS = ("btrkeep", "backupd", "balancer", "heatmap", "web", "tests/beds", "scripts", "demo.sh", "install.sh")


@dataclass(frozen=True, slots=True)
class Readable:
    """`top` has the checkout's packages, beds and scripts; `python` has the libraries."""

    python: Path
    top: Path

    def run_as(self, user: int, *words: str | Path) -> tuple[str | Path, ...]:
        """Returns the words that run `python WORDS` as a user with the group of the same number and no rights; see
        `environment`.
        """
        return (*without_rights(user), self.python, *words)

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.top)}


def without_rights(user: int = NOBODY) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--")


_readable: list[Readable] = []


def readable() -> Readable:
    """Returns the checkout itself if every user can read it; otherwise a copy in the session's folder, until `close`."""
    if not _readable:
        here = Readable(Path(sys.executable), TOP)
        _readable.append(here if _is_everybodys(here) else _brought())
    return _readable[0]


def close() -> None:
    """Deletes the copy."""
    while _readable:
        if (checkout := _readable.pop()).top != TOP:
            problems = session.remove(checkout.top.parent)
            assert not problems, "\n".join(problems)


def _is_everybodys(place: Readable) -> bool:
    if os.geteuid() != 0:
        return True
    paths = (place.python, *(place.top / name for name in _OURS))
    done = work(*without_rights(), "find", *paths, "!", "-readable", "-print", "-quit", check=False, cwd=Path("/"))
    return done.returncode == 0 and not done.stdout


def _brought() -> Readable:
    folder = Path(tempfile.mkdtemp(prefix="readable-", dir=session.folder()))
    folder.chmod(0o755)
    place = Readable(folder / "python" / "bin" / "python", folder / "top")
    for name in _OURS:
        (place.top / name).parent.mkdir(parents=True, exist_ok=True)
        work("cp", "-a", TOP / name, place.top / name)
    (folder / "python").mkdir()
    work("mount", "--bind", "-o", "ro", sys.prefix, folder / "python")  # nothing that clears away can reach through it
    work("chmod", "-R", "a+rX", place.top)
    work(sys.executable, "-m", "compileall", "-q", place.top)  # a user without rights cannot store compiled modules
    return place
