"""Planning an expiry, and explaining the retention, for 2,800 hosts with 34 backups each: whole processes.

    python -m bench.expire_plan [--hosts 2800] [--backups 34] [--json]

The catalogue and the pool are those of bench.catalogue_commands. The policy keeps 14 daily, 13 weekly and 12 monthly backups. On
the night before, nine hosts in ten had the oldest backup that no rule keeps marked (notes.json, and its row), so most hosts have
something to delete, and some have something to mark.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from backupd.repo.notes_json import Notes, write_notes
from bench import make_catalogue
from bench.catalogue_commands import NOW, Measured, make_site, measure
from bench.common import own_folder, plain_parser, report, say, spread, wait_for_quiet
from btrkeep.backup_states import EXPIRED
from btrkeep.catalogue import Backup, Catalogue
from btrkeep.config import Retention
from btrkeep.decisions.retention import Candidate, decide
from btrkeep.units import format_time, parse_time
from tests.beds import TOP, btrfs, work

ONE = "host0007.example.org"
POLICY = Retention(daily=14, weekly=13, monthly=12)
MARKED_AT = parse_time(NOW) - timedelta(days=1, hours=1)
LIMIT = 2.0
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "expire --dry-run": ("expire", "--dry-run"),
    "expire --dry-run --json": ("expire", "--dry-run", "--json"),
    "retention explain": ("retention", "explain"),
    "retention explain --json": ("retention", "explain", "--json"),
    "retention explain HOST": ("retention", "explain", ONE),
}


def make_due(config: Path, pool: Path, folder: Path, hosts: int, count: int) -> int:
    """Writes the policy, and marks on nine hosts in ten; returns the number of marks."""
    policy = f"daily = {POLICY.daily}\nweekly = {POLICY.weekly}\nmonthly = {POLICY.monthly}\n"
    config.write_text(f"{config.read_text(encoding='utf-8')}[retention]\n{policy}", encoding="utf-8")
    marked: dict[str, str] = {}
    by_host: dict[str, list[Backup]] = {}
    for backup in make_catalogue.backups(hosts, count):
        by_host.setdefault(backup.host, []).append(backup)
    for number, (host, backups) in enumerate(by_host.items()):
        if number % 10 and (name := _oldest_that_goes(backups)):
            marked[host] = name
            write_notes(pool / "hosts" / host, Notes({name: {EXPIRED: {"at": format_time(MARKED_AT), "why": "no rule keeps it"}}}))
    with Catalogue.open(folder / "state") as catalogue:
        catalogue.replace_backups(make_catalogue.POOL_ID, _rows(by_host, marked))
    return len(marked)


def _oldest_that_goes(backups: Sequence[Backup]) -> str | None:
    candidates = [Candidate(backup.name, backup.started, backup.state) for backup in backups if backup.name]
    return next((decision.name for decision in decide(candidates, POLICY, ZoneInfo("UTC"), MARKED_AT) if not decision.keep), None)


def _rows(by_host: Mapping[str, Sequence[Backup]], marked: Mapping[str, str]) -> Iterator[Backup]:
    for host, backups in by_host.items():
        for backup in backups:
            gone = {"state": EXPIRED, "expired": MARKED_AT} if marked.get(host) == backup.name else {}
            yield replace(backup, outcome=backup.state, **gone)  # type: ignore[arg-type]


def _measure_all(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    say(f"making a pool of {options.hosts} hosts with {options.backups} backups each")
    pool = btrfs.make("4G", options="noatime") / "pool"
    config = make_site(pool, folder, options.hosts, options.backups)
    marked = make_due(config, pool, folder, options.hosts, options.backups)
    planned = json.loads(work(*_rehearsal(config), cwd=TOP).stdout)
    assert len(planned["delete"]) == marked, planned["stop"]
    measurements: dict[str, list[Measured]] = {name: [] for name in COMMANDS}
    quiet = []
    for turn in range(options.runs + 1):
        quiet.append(wait_for_quiet(options))
        for name, words in COMMANDS.items():
            measured = measure(config, words)
            measurements[name] += [measured] if turn else []  # the first one finds cold caches
    if not all(quiet):
        say("others were working on this machine meanwhile: the figures are too high")
    return {
        "backups": options.hosts * options.backups,
        "of them to be marked": len(planned["mark"]),
        "of them to be deleted": len(planned["delete"]),
        "seconds": {
            name: {**spread([each.seconds for each in measureds]), "limit": LIMIT} for name, measureds in measurements.items()
        },
        "seconds of CPU time": {name: spread([each.cpu for each in measureds]) for name, measureds in measurements.items()},
    }


def _rehearsal(config: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "backupd", "--config", str(config), *COMMANDS["expire --dry-run --json"], "--now", NOW)


def main() -> None:
    """Runs the command line."""
    words = plain_parser(__doc__ or "")
    words.add_argument("--runs", type=int, default=5, help="measured runs of each command, after an unmeasured one")
    words.add_argument("--hosts", type=int, default=2800)
    words.add_argument("--backups", type=int, default=34)
    options = words.parse_args()
    with own_folder(options) as folder:
        report(options, "Planning an expiry", _measure_all(options, folder))


if __name__ == "__main__":
    main()
