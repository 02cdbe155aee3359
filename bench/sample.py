"""The cost of one `backupd sample`: whole processes, with a catalogue of months behind them.

    python -m bench.sample [--rounds 20] [--json]

The limit is half a second of CPU time.
"""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.common import Bed, Timed, bed, ours, plain_parser, report, say, spread, timed, wait_for_quiet
from btrkeep.catalogue import Catalogue

LIMIT = 0.5
_MONTHS = 120


def _fill(state: Path) -> None:
    """Inserts two weeks of raw samples and 120 days of hours, all like the existing one."""
    with Catalogue.open(state) as catalogue:
        with closing(sqlite3.connect(state / "catalogue.sqlite")) as file:
            filesystem = file.execute("SELECT filesystem FROM sample").fetchone()[0]
        newest = catalogue.newest_sample(filesystem)
        assert newest is not None
        now = datetime.now(UTC)
        raw = [replace(newest, taken=now - timedelta(minutes=5 * number)) for number in range(14 * 288, 0, -1)]
        hours = [
            replace(newest, taken=raw[0].taken - timedelta(hours=number), span="hour") for number in range(_MONTHS * 24, 0, -1)
        ]
        catalogue.replace_samples([], [*hours, *raw])


def _measure(place: Bed, rounds: int, quiet: bool) -> dict[str, dict[str, dict[str, float]]]:
    command = ours(place, "sample", "--json")
    assert json.loads(timed(command).stdout)["size"]  # the first one compiles
    _fill(place.folder / "state")
    measurements = [timed(command) for _ in range(rounds)]
    others = {name: timed(ours(place, name)) for name in ("trend", "day", "forecast")}
    if not quiet:
        say("others were working on this machine: the figures are too high")
    cpu = {"sample": {**spread([measurement.cpu for measurement in measurements]), "limit": LIMIT}}
    return {"seconds of CPU time": cpu, "seconds": _others(measurements, others)}


def _others(samples: Sequence[Timed], others: dict[str, Timed]) -> dict[str, dict[str, float]]:
    return {
        "sample": spread([timed_command.seconds for timed_command in samples]),
        **{name: spread([timed_command.seconds]) for name, timed_command in others.items()},
    }


def main() -> None:
    """Runs the command line."""
    made = plain_parser("What one `backupd sample` takes.")
    made.add_argument("--rounds", type=int, default=20)
    made.set_defaults(transport="local")
    options = made.parse_args()
    with bed(options, "1G", "256M") as place:
        place.configure({"web1": place.hosts})
        report(options, "One sample", _measure(place, options.rounds, wait_for_quiet(options)))


if __name__ == "__main__":
    main()
