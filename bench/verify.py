"""Reading backups back, side by side: `backupd verify`, b2sum, sha256sum, cat, a scrub, and the checks of restic and borg.

    python -m bench.verify [--files 30000] [--mib 1900] [--rounds 3]

One backup of random data. Caches are dropped before each; btrkeep reads once for the first time, and once compares with its
records. restic (check --read-data) and borg (check --verify-data) have the same data in a repository of their own on the same
filesystem; a peer that is not installed is named as missing. The verdict: btrkeep against the faster of b2sum and cat, and against
restic and borg. "cat, each CPU" reads as many files at once as there are processors. "C, SHA-256" is read_files.c with eight
threads, the cost without an interpreter; it needs a compiler and libssl-dev.
"""

import argparse
import os
import random
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.common import Timed, own_folder, plain_parser, report, say, spread, timed, wait_for_quiet
from tests.beds import TOP, btrfs, work
from tests.beds.nights import Nights

LIMIT = 1.2
"""The limit, as a multiple of the time of the faster of b2sum and the disk."""
PEER_LIMIT = 2.5
"""The target: at least this many times faster than each of the peers."""
_IN_C = "C, SHA-256"
_PEERS = {"restic": "restic", "borg": "borgbackup"}  # their Debian packages
_SECRET = {"RESTIC_PASSWORD": "bench", "BORG_PASSPHRASE": "bench", "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes"}


def main() -> None:
    """Runs the command line."""
    made = plain_parser(__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--files", type=int, default=30_000)
    made.add_argument("--mib", type=int, default=1900, help="MiB of all files together")
    made.add_argument("--rounds", type=int, default=3)
    options = made.parse_args()
    os.environ |= _SECRET
    with own_folder(options):
        report(options, "Reading backups back", _measure_all(options, btrfs.make(f"{4 * options.mib + 4096}M", options="noatime")))


def _fill(folder: Path, files: int, mib: int) -> None:
    chance, mean = random.Random(1), (mib << 20) / files
    for number in range(files):
        inner = folder / f"{number // 200:04}"
        inner.mkdir(exist_ok=True)
        (inner / f"{number:07}").write_bytes(chance.randbytes(int(chance.expovariate(1 / mean)) + 1))


def _measure_all(options: argparse.Namespace, point: Path) -> Mapping[str, object]:
    nights = Nights(point)
    say(f"making {options.files} files of {options.mib} MiB")
    _fill(nights.source, options.files, options.mib)
    nights.host("web1", nights.source)
    nights.run("web1")
    data, verify = nights.backup("web1") / "data", (sys.executable, "-m", "backupd", "--config", str(nights.config), "verify")
    sides: dict[str, tuple[str, ...]] = {
        "cat": ("sh", "-c", f"find {data} -type f -print0 | xargs -0 cat >/dev/null"),
        "cat, each CPU": ("sh", "-c", f"find {data} -type f -print0 | xargs -0 -n200 -P{os.cpu_count()} cat >/dev/null"),
        "b2sum": ("sh", "-c", f"find {data} -type f -print0 | xargs -0 b2sum >/dev/null"),
        "sha256sum": ("sh", "-c", f"find {data} -type f -print0 | xargs -0 sha256sum >/dev/null"),
        "btrfs scrub": ("btrfs", "scrub", "start", "-B", str(point)),
        "verify, compares": verify,
        **_in_c(point, data),
        **_others(point, data),
    }
    done: dict[str, list[Timed]] = {"verify, first": [], **{name: [] for name in sides}}
    quiet = []
    for number in range(options.rounds):
        for name in ("checksums", "verified.json"):
            (nights.pool / "hosts/web1" / name).unlink(missing_ok=True)
        quiet.append(wait_for_quiet(options))
        done["verify, first"].append(_cold(verify, point))
        for name in sorted(sides, key=lambda side: hash((number, side))):
            done[name].append(_cold(sides[name], point))
        say(", ".join(f"{name} {runs[-1].seconds:.1f} s ({runs[-1].cpu:.1f} of CPU)" for name, runs in done.items()))
    return _summary(done, all(quiet))


def _summary(done: Mapping[str, list[Timed]], quiet: bool) -> Mapping[str, object]:
    times = {name: [run.seconds for run in runs] for name, runs in done.items()}
    used = {name: [run.cpu for run in runs] for name, runs in done.items()}
    best = [min(sums, cat) for sums, cat in zip(times["b2sum"], times["cat"], strict=True)]
    ratios = {"to the faster of b2sum and cat": {**spread(_over(times["verify, compares"], best)), "limit": LIMIT}}
    for name in ("cat, each CPU", "btrfs scrub", *({_IN_C} & times.keys())):
        ratios[f"to {name}"] = spread(_over(times["verify, compares"], times[name]))
    ratios |= {
        f"{name} to ours": {**spread(_over(times[name], times["verify, compares"])), "agreed": PEER_LIMIT}
        for name in _PEERS
        if name in times
    }
    missing = [name for name in _PEERS if name not in times]
    for name in missing:
        say(f"{name} is not installed, so nothing is compared with it: apt-get install {_PEERS[name]}")
    return {
        "seconds": {name: spread(seconds) for name, seconds in times.items()},
        "CPU seconds": {name: spread(seconds) for name, seconds in used.items()},
        "ratios": ratios,
        "missing peers": missing,
        "quiet": quiet,
    }


def _in_c(point: Path, data: Path) -> dict[str, tuple[str, ...]]:
    if not shutil.which("cc") or not Path("/usr/include/openssl/evp.h").exists():
        say("no compiler, or no libssl-dev: nothing is compared with a program in C")
        return {}
    program = point / "read_files"
    work("cc", "-O2", "-o", program, TOP / "bench" / "read_files.c", "-lcrypto", "-lpthread")
    return {_IN_C: ("sh", "-c", f"find {data} -type f -print0 | {program} 8")}


def _others(point: Path, data: Path) -> dict[str, tuple[str, ...]]:
    made: Mapping[str, Callable[[str], tuple[str, ...]]] = {"restic": _restic, "borg": _borg}
    medians = {}
    for name in _PEERS:
        make = made[name]
        if shutil.which(name):
            say(f"making the repository of {name}")
            medians[name] = make(str(point / name))
            backup = (
                ("restic", "-q", "-r", str(point / name), "backup")
                if name == "restic"
                else ("borg", "create", f"{point / name}::one")
            )
            work(*backup, data)
    return medians


def _restic(repository: str) -> tuple[str, ...]:
    work("restic", "-q", "init", "-r", repository)
    return ("restic", "-q", "--no-cache", "-r", repository, "check", "--read-data")


def _borg(repository: str) -> tuple[str, ...]:
    work("borg", "init", "-e", "repokey", repository)
    return ("borg", "check", "--verify-data", repository)


def _over(numerators: list[float], denominators: list[float]) -> list[float]:
    return [first / second for first, second in zip(numerators, denominators, strict=True)]


def _cold(command: tuple[str, ...], point: Path) -> Timed:
    work("sync", "-f", point)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    return timed(command)


if __name__ == "__main__":
    main()
