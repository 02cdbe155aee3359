"""What `begin` and `end` of btrkeep-source take on a btrfs with many nested subvolumes: whole processes on the host, without ssh.

    python -m bench.source_begin [--rounds 10] [--subvolumes 1 100 1000] [--json]

Each subvolume has a file that was written just before, and all of it is on the disk. `moments`: from the first snapshot to the
last.
"""

import json
from datetime import datetime
from pathlib import Path

from bench.common import own_folder, plain_parser, report, spread, timed, wait_for_quiet
from tests.beds import TOP, btrfs, work

PROGRAM = TOP / "backupd" / "source" / "btrkeep_source.py"


def _measure(folder: Path, subvolumes: int, rounds: int) -> dict[str, dict[str, float]]:
    top, words = btrfs.make("2G"), [str(PROGRAM), "--config", str(folder / "none"), "--state", str(folder / "state")]
    for number in range(subvolumes - 1):
        work("btrfs", "-q", "subvolume", "create", top / f"nested{number}")
    times: dict[str, list[float]] = {"begin": [], "end": [], "moments": []}
    for number in range(rounds):
        for place in (top, *top.glob("nested*")):
            (place / "file").write_text(str(number))
        work("btrfs", "filesystem", "sync", top)
        begun = timed([*words, "begin", str(top)])
        answer = json.loads(begun.stdout)
        taken = sorted(datetime.fromisoformat(filesystem["taken"]) for filesystem in answer["filesystems"])
        assert len(taken) == subvolumes
        times["begin"].append(begun.seconds)
        times["end"].append(timed([*words, "end", answer["session"]]).seconds)
        times["moments"].append((taken[-1] - taken[0]).total_seconds())
    work("umount", top)
    return {name: spread(seconds) for name, seconds in times.items()}


def main() -> None:
    """Runs the command line."""
    made = plain_parser("What `begin` of btrkeep-source takes.")
    made.add_argument("--rounds", type=int, default=10)
    made.add_argument("--subvolumes", type=int, nargs="+", default=[1, 100, 1000])
    options = made.parse_args()
    with own_folder(options) as folder:
        wait_for_quiet(options)
        sides = {f"{number} subvolumes": _measure(folder, number, options.rounds) for number in options.subvolumes}
    report(options, "A session of btrkeep-source, in seconds", sides)


if __name__ == "__main__":
    main()
