"""A command in its own namespaces: its mounts, and with `walled` its children, end with it."""

from pathlib import Path

from tests.beds import session

_APART = ("unshare", "--mount", "--propagation", "private")
_WALLS = (*_APART, "--pid", "--fork", "--kill-child")
_LET_GO = """\
for point in $(cut -d ' ' -f 5 /proc/self/mountinfo); do
    case $point in
    */"$1"/*) ;;
    */"$2"*)  # it may have gone with one above
        if grep -qF " $point " /proc/self/mountinfo; then umount --lazy "$point" || ! mountpoint --quiet "$point"; fi ;;
    esac
done
shift 2
exec "$@"
"""


def walled(*command: str | Path, proc: bool = False) -> tuple[str | Path, ...]:
    """Returns the words that start it with its own mounts and processes; with `proc`, /proc shows its processes and no others."""
    words = (*_WALLS, "--mount-proc") if proc else _WALLS
    return (*words, *_let_go(command))


def with_own_mounts(*command: str | Path) -> tuple[str | Path, ...]:
    """Returns the words that start it with its own mounts only, as the process that they start."""
    return (*_APART, *_let_go(command))


def _let_go(command: tuple[str | Path, ...]) -> tuple[str | Path, ...]:
    """A new namespace has copies of all mounts, and these keep a filesystem in use that another worker's test unmounts. So
    those of other workers are unmounted in it at once.
    """
    return ("bash", "-euc", _LET_GO, "-", session.own_name(), session.PREFIX, *command)
