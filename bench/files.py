"""Looking into backups: whole processes of `browse`, `versions` and `compare`, from the shell's prompt back to it.

    python -m bench.files [--backups 34] [--names 100000] [--files 200000] [--json]

One host with so many backups, each a snapshot of the one before in which a few files changed; a folder with very many names, and a
tree of many files. Caches are warm after the first, unmeasured round; what the disks take otherwise is theirs.
"""

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from bench.catalogue_commands import Measured, measure
from bench.common import own_folder, plain_parser, report, say, spread, wait_for_quiet
from tests.beds import btrfs
from tests.beds.history import every
from tests.beds.lineage import make_lineage
from tests.beds.nights import Nights

LIMITS = {"versions of a file": 0.2, "versions of a folder": 0.2, "browse": 0.2}
_LAST = datetime(2026, 11, 20, 22, 0, 3, tzinfo=UTC)
_PER_FOLDER = 200


def fill(number: int, data: Path, names: int, files: int) -> None:
    """The first backup with everything; in each other one a file that changed, one that came, and a folder's time."""
    if number == 0:
        for folder in (data / "etc" / "many", data / "srv"):
            folder.mkdir(parents=True)
        for one in range(names):
            os.close(os.open(data / "etc" / "many" / f"name-{one:06}", os.O_CREAT | os.O_WRONLY, 0o644))
        for one in range(files):
            if one % _PER_FOLDER == 0:
                folder = data / "srv" / f"{one // _PER_FOLDER:05}"
                folder.mkdir()
            (folder / f"file-{one:07}").write_bytes(b"x" * (one % 64))
    (data / "etc" / "passwd").write_text(f"{number}\n")
    if number % 3 == 0:
        (data / "etc" / "fstab").write_text(f"{number}\n")
    (data / "srv" / f"new-{number}").write_bytes(b"new")


COMMANDS = {
    "browse": ("browse", "web1", "/etc"),
    "browse of many names": ("browse", "web1", "/etc/many"),
    "browse of many names, JSON": ("browse", "web1", "/etc/many", "--json"),
    "versions of a file": ("versions", "web1", "/etc/passwd"),
    "versions of a file that never changed": ("versions", "web1", "/etc/many/name-000001"),
    "versions of a folder": ("versions", "web1", "/etc"),
    "compare": ("compare", "web1", "/srv", "{oldest}"),
    "versions by content, of a file": ("versions", "web1", "/etc/fstab", "--content"),
}


def main() -> None:
    """The command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--backups", type=int, default=34)
    made.add_argument("--names", type=int, default=100_000, help="in one folder")
    made.add_argument("--files", type=int, default=200_000, help=f"in a tree, {_PER_FOLDER} in a folder")
    made.add_argument("--rounds", type=int, default=7, help="measured ones; one more comes first")
    options = made.parse_args()
    with own_folder(options):
        point = btrfs.make("4G", options="noatime")
        report(options, "Looking into backups", _measure_all(options, point))


def _measure_all(options: argparse.Namespace, point: Path) -> dict[str, dict[str, dict[str, float]]]:
    say(f"making {options.backups} backups")
    nights = Nights(point, "--rehearsal")
    starts = every(1, options.backups, _LAST)
    names = make_lineage(nights, "web1", starts, lambda number, data: fill(number, data, options.names, options.files))
    found: dict[str, list[Measured]] = {name: [] for name in COMMANDS}
    quiet = [wait_for_quiet(options)]
    for number in range(options.rounds + 1):
        for name, words in COMMANDS.items():
            measured = measure(nights.config, [word.format(oldest=names[0]) for word in words])
            found[name] += [measured] if number else []
    quiet.append(wait_for_quiet(options))
    if not all(quiet):
        say("others were working on this machine meanwhile: the figures are too high")
    return {
        "seconds": {name: {**spread([each.seconds for each in measureds]), **_limit(name)} for name, measureds in found.items()},
        "seconds of CPU time": {name: spread([each.cpu for each in measureds]) for name, measureds in found.items()},
        "MB of memory": {name: spread([each.memory / 1e6 for each in measureds]) for name, measureds in found.items()},
    }


def _limit(name: str) -> dict[str, float]:
    return {"limit": LIMITS[name]} if name in LIMITS else {}


if __name__ == "__main__":
    main()
