"""Times the commands that look into backups, `browse`, `versions` and `compare`, and other programs that do the same.

    python -m bench.files [--backups 34] [--names 100000] [--files 200000] [--against FOLDER] [--only PART ...] [--json]

One host with many backups, each a snapshot of the one before in which a few files changed; a folder with very many names, and a
tree of many files. The programs of a part run in turns. Caches are warm after the first, unmeasured round, so the time of the
disks is not included. `--against` adds a checkout of another version, which runs in this one's Python.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bench.catalogue_commands import NOW, Measured, measure_stream
from bench.common import own_folder, plain_parser, report, say, spread, wait_for_quiet
from tests.beds import TOP, btrfs
from tests.beds.history import every
from tests.beds.lineage import make_lineage
from tests.beds.nights import Nights

LIMITS = {"versions of a file": 0.2, "versions of a folder": 0.2, "browse": 0.2}
"""Agreed, in seconds."""
_LAST = datetime(2026, 11, 20, 22, 0, 3, tzinfo=UTC)
_PER_FOLDER = 200


def fill(number: int, data: Path, names: int, files: int) -> None:
    """Makes the first backup with all files; each later one has one changed file, one new file, and a folder with a new time."""
    if number == 0:
        for folder in (data / "etc" / "many", data / "srv"):
            folder.mkdir(parents=True)
        for file_number in range(names):
            os.close(os.open(data / "etc" / "many" / f"name-{file_number:06}", os.O_CREAT | os.O_WRONLY, 0o644))
        for file_number in range(files):
            if file_number % _PER_FOLDER == 0:
                folder = data / "srv" / f"{file_number // _PER_FOLDER:05}"
                folder.mkdir()
            (folder / f"file-{file_number:07}").write_bytes(b"x" * (file_number % 64))
    (data / "etc" / "passwd").write_text(f"{number}\n")
    if number % 3 == 0:
        (data / "etc" / "fstab").write_text(f"{number}\n")
    lines = (f"service{line} {line + number * (line % 100 == 0)}/tcp\n" for line in range(4000))
    (data / "etc" / "services").write_text("".join(lines))
    (data / "srv" / f"new-{number}").write_bytes(b"new")


class Part(NamedTuple):
    """A command, and shell texts with the same effect, by the name of their program.

    In both {old} and {new} are the oldest and the newest backup: its name for btrkeep, otherwise the folder with its files.
    """

    words: Sequence[str]
    peers: Mapping[str, str]


_LIST = r"find {new}/etc%s -mindepth 1 -maxdepth 1 -printf '%%M %%U %%G %%s %%t %%f -> %%l\n' | sort"
_STAT = r"find {new}/../../*/data/%s -maxdepth 0 -printf '%%i %%M %%U %%G %%s %%t %%C@ %%p\n' | sort"
_SAME = "etc/many/name-000001"
_EQUAL_OR_NOT = "; test $? -le 1"
_DIFF = {
    "diff -rq": f"diff -rq --no-dereference {{old}}/srv {{new}}/srv{_EQUAL_OR_NOT}",
    "rsync -n": "rsync -naHAX --delete -i {new}/srv/ {old}/srv/",
}
_TEXT = {
    "diff -u": f"diff -u {{old}}/etc/services {{new}}/etc/services{_EQUAL_OR_NOT}",
    "git diff": f"git diff --no-index {{old}}/etc/services {{new}}/etc/services{_EQUAL_OR_NOT}",
}
PARTS: Mapping[str, Part] = {
    "browse": Part(("browse", "web1", "/etc"), {"find": _LIST % ""}),
    "browse of many names": Part(("browse", "web1", "/etc/many"), {"find": _LIST % "/many"}),
    "browse of many names, JSON": Part(("browse", "web1", "/etc/many", "--json"), {}),
    "versions of a file": Part(("versions", "web1", "/etc/passwd"), {"find": _STAT % "etc/passwd"}),
    "versions of a file that never changed": Part(("versions", "web1", f"/{_SAME}"), {"find": _STAT % _SAME}),
    "versions of a folder": Part(("versions", "web1", "/etc"), {"find": _STAT % "etc"}),
    "versions by content, of a file": Part(
        ("versions", "web1", "/etc/fstab", "--content"), {"sha256sum": "sha256sum {new}/../../*/data/etc/fstab"}
    ),
    "compare": Part(("compare", "web1", "/srv", "{old}"), _DIFF),
    "compare by content": Part(("compare", "web1", "/srv", "{old}", "--content"), _DIFF),
    "compare a text": Part(("compare", "web1", "/etc/services", "{old}", "--text"), _TEXT),
}
_FIGURES: Mapping[str, Callable[[Measured], float]] = {
    "seconds": lambda measured: measured.seconds,
    "seconds of CPU time": lambda measured: measured.cpu,
    "MB of memory": lambda measured: measured.memory / 1e6,
}


def main() -> None:
    """Runs the command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--backups", type=int, default=34)
    made.add_argument("--names", type=int, default=100_000, help="names in one folder")
    made.add_argument("--files", type=int, default=200_000, help=f"files in a tree, {_PER_FOLDER} in a folder")
    made.add_argument("--rounds", type=int, default=7, help="measured rounds, after an unmeasured one")
    made.add_argument("--only", nargs="+", metavar="PART", choices=PARTS, default=list(PARTS), help="only these parts")
    made.add_argument("--against", type=Path, metavar="FOLDER", help="a checkout of another version")
    options = made.parse_args()
    with own_folder(options):
        point = btrfs.make("4G", options="noatime")
        report(options, "Looking into backups", _measure_all(options, point))


def _measure_all(options: argparse.Namespace, point: Path) -> dict[str, dict[str, dict[str, float]]]:
    say(f"making {options.backups} backups")
    nights = Nights(point, "--rehearsal")
    starts = every(1, options.backups, _LAST)
    names = make_lineage(nights, "web1", starts, lambda number, data: fill(number, data, options.names, options.files))
    summary = dict[str, dict[str, dict[str, float]]]()
    quiet = [wait_for_quiet(options)]
    for part in options.only:
        measured = _measure(options, _sides(nights, names, PARTS[part], options.against))
        for words, figure in _FIGURES.items():
            summary[f"{part}: {words}"] = {
                side: {**spread([figure(run) for run in runs]), **_limit(part, side, words)} for side, runs in measured.items()
            }
        quiet.append(wait_for_quiet(options))
    if not all(quiet):
        say("others were working on this machine meanwhile: the figures are too high")
    return summary


def _sides(nights: Nights, names: Sequence[str], part: Part, against: Path | None) -> dict[str, Sequence[str]]:
    words = [word.format(old=names[0]) for word in part.words]
    command = (sys.executable, "-m", "backupd", "--config", str(nights.config), *words, "--now", NOW)
    data = {"old": str(nights.data("web1", "", names[0])), "new": str(nights.data("web1", "", names[-1]))}
    return {
        "ours": ("env", "-C", str(TOP), *command),
        **({"the other version": ("env", "-C", str(against), *command)} if against else {}),
        **{peer: ("sh", "-c", text.format(**data)) for peer, text in part.peers.items()},
    }


def _measure(options: argparse.Namespace, sides: Mapping[str, Sequence[str]]) -> dict[str, list[Measured]]:
    runs: dict[str, list[Measured]] = {side: [] for side in sides}
    for number in range(options.rounds + 1):
        for side in reversed([*sides]) if number % 2 else sides:
            program, *words = sides[side]
            measured, _ = measure_stream((shutil.which(program) or program, *words))
            runs[side] += [measured] if number else []
    return runs


def _limit(part: str, side: str, words: str) -> dict[str, float]:
    return {"limit": LIMITS[part]} if (side, words) == ("ours", "seconds") and part in LIMITS else {}


if __name__ == "__main__":
    main()
