"""A command in namespaces of its own for mounts and processes: what it mounts, and whoever it starts, ends with it."""

from pathlib import Path

from tests.beds import session

_WALLS = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
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
    """The words that start it; with `proc`, /proc shows its processes and no others.

    A new namespace has copies of all mounts, and these keep a filesystem alive that another worker's test unmounts meanwhile. So
    those of other workers are let go at once.
    """
    words = (*_WALLS, "--mount-proc") if proc else _WALLS
    return (*words, "bash", "-euc", _LET_GO, "-", session.own_name(), session.PREFIX, *command)
