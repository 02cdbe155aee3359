"""How long until a fault is reported? Makes the faults of bench/silence_faults.py on a booted backup server, one after the
other, and reads the four places that report: `backupd status`, the overview, the metrics, and a webhook.

The server is a Debian in a container under real systemd, with btrkeep installed by install.sh; hosts are real sshd processes, the
pool is a real raid1 on loop devices. Nights without a fault come first: in these no place may report anything. The services
of systemd's timers are started at once, so the seconds do not include the time until the timer elapses: up to five minutes for
messages and samples, a quarter of an hour for runs. Nights are simulated: the clocks of all programs but systemd itself are moved.

With --record FILE an interrupted run continues. A fault that a place does not report is listed as "not told". A fault
that leaves something behind, or ends the machine, is a failed row; the others are made on a machine that is booted for them.
"""

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.common import own_folder, plain_parser, say
from bench.silence_acts import Fault
from bench.silence_faults import FAULTS
from bench.silence_machine import PLACES
from btrkeep.units import format_duration
from tests.beds import TOP, btrfs, session, work
from tests.beds.machine import booted, why_not

_SCRIPT = """\
mkdir -p /hosts /root/bench
export PYTHONPATH=/usr/local/lib/silence/code PYTHONDONTWRITEBYTECODE=1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec 3>&1 >/results/output 2>&1
/usr/bin/python3 -m bench.silence_inside /results/orders.json /results/rows || { cat /results/output >&3; exit 1; }
"""
_CODE = ("__init__", "silence_acts", "silence_steps", "silence_faults", "silence_machine", "silence_inside")
_SET_UP, _LONGEST = 600.0, 120.0  # seconds: of a machine, and of a fault or a night on the average
_DISK = 1 << 30


def main() -> int:
    """Runs the command line."""
    options = _parser().parse_args()
    faults = chosen(options.only, options.kind)
    if options.list:
        for fault in faults:
            print(f"{fault.kind}  {fault.name}")
        return 0
    if why := why_not():
        raise SystemExit(f"no benchmark: {why}")
    done = _recorded(options.record)
    nights = max(0, options.clean_nights - len(done) + len(faults_of(done)))
    rows = done + measure(not_done([fault.name for fault in faults], done), nights, options)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(table(rows)))
    return 0 if all(is_good(row) for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    made = plain_parser(__doc__ or "")
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--only", action="append", default=[], metavar="NAME", help="only this fault; may be given several times")
    made.add_argument(
        "--kind", action="append", default=[], choices=sorted({fault.kind for fault in FAULTS}), help="only this kind"
    )
    made.add_argument("--list", action="store_true", help="print the faults and make none")
    made.add_argument("--clean-nights", type=int, default=30, metavar="N", help="nights without a fault, before all others [30]")
    made.add_argument(
        "--record", type=Path, metavar="FILE", help="append each result to FILE; faults that are in it are not repeated"
    )
    return made


def chosen(names: Sequence[str], kinds: Sequence[str]) -> list[Fault]:
    """Returns the faults with these names and kinds; all of them if none is given. Raises SystemExit for an unknown name."""
    if unknown := set(names) - {fault.name for fault in FAULTS}:
        raise SystemExit(f"there is no fault {min(unknown)!r}: --list prints all of them")
    return [fault for fault in FAULTS if (not names or fault.name in names) and (not kinds or fault.kind in kinds)]


def _recorded(record: Path | None) -> list[dict[str, Any]]:
    if record is None or not record.exists():
        return []
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]


def measure(names: Sequence[str], clean_nights: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Boots the machine, and returns a row for each night and each fault."""
    if not names and not clean_nights:
        return []
    with own_folder(options) as folder:
        return run_inside(folder, names, clean_nights, options.record)


def run_inside(folder: Path, names: Sequence[str], clean_nights: int, record: Path | None = None) -> list[dict[str, Any]]:
    """Runs the faults with these names in a machine that is booted for them; its files are in `folder`.

    A machine ends early when a fault left something behind or ended it: the others get a new one.
    """
    results, library = folder / "results", folder / "library"
    for path in (results, library / "code" / "bench"):
        path.mkdir(parents=True)
    folder.chmod(0o755)
    for name in _CODE:
        shutil.copy(TOP / "bench" / f"{name}.py", library / "code" / "bench")
    work("cc", "-O2", "-shared", "-fPIC", "-o", library / "clock.so", TOP / "bench" / "silence_clock.c")
    rows, begun = results / "rows", results / "begun"
    with _followed(rows, record):
        while True:
            done = _recorded(rows)
            nights = range(len(done) - len(faults_of(done)) + 1, clean_nights + 1)
            orders = {"faults": not_done(names, done), "clean_nights": [*nights]}
            if not orders["faults"] and not orders["clean_nights"]:
                return done
            begun.unlink(missing_ok=True)
            ended = _boot(folder / "machine", results, library, orders)
            if len(_recorded(rows)) > len(done):
                continue
            if not begun.exists():
                say(f"the machine could not be set up: {ended}")
                return done
            with rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(unfinished(json.loads(begun.read_text(encoding="utf-8")), ended)) + "\n")


def faults_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the faults that have a row."""
    return [row["fault"] for row in rows if "fault" in row]


def not_done(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """The faults that have no row yet, in their order."""
    done = set(faults_of(rows))
    return [name for name in names if name not in done]


def unfinished(begun: dict[str, Any], ended: str) -> dict[str, Any]:
    """Returns the row of a fault or a night in which the machine ended; `begun` is the machine's record of its start."""
    words = f"the machine ended early: {ended}"
    return {**begun, "seconds": 0, "complaints": [words]} if "clean_night" in begun else {**begun, "took": 0, "broken": words}


def _boot(folder: Path, results: Path, library: Path, orders: dict[str, Any]) -> str:
    """Boots a machine with a new pool, waits for its end, and returns why it ended early, or ""."""
    folder.mkdir()
    loops = [btrfs.attach(_sparse(folder / f"disk{number}")) for number in range(2)]
    try:
        work("mkfs.btrfs", "-q", "-m", "raid1", "-d", "raid1", *loops)
        (library / "offset").write_bytes(bytes(4096))
        (results / "orders.json").write_text(json.dumps({**orders, "devices": loops}), encoding="utf-8")
        binds = [(results, "/results"), (library, "/usr/local/lib/silence"), *((Path(loop), loop) for loop in loops)]
        longest = _SET_UP + _LONGEST * (len(orders["faults"]) + len(orders["clean_nights"]))
        with booted({"main.sh": _SCRIPT}, [*binds, (Path("/dev/btrfs-control"), "/dev/btrfs-control")], longest):
            return ""
    except (AssertionError, subprocess.TimeoutExpired) as error:
        output = results / "output"
        printed = output.read_text(encoding="utf-8", errors="replace")[-3000:] if output.exists() else ""
        return f"{str(error)[-3000:]}\n{printed}".strip()
    finally:
        for problem in session.remove(folder):
            say(problem)


def _sparse(image: Path) -> Path:
    with image.open("wb") as file:
        file.truncate(_DISK)
    return image


@contextmanager
def _followed(rows: Path, record: Path | None) -> Iterator[None]:
    """Prints each row as it comes, and appends it to the record."""
    over = threading.Event()

    def follow() -> None:
        seen = 0
        while True:
            last = over.is_set()
            lines = rows.read_text(encoding="utf-8").splitlines(keepends=True) if rows.exists() else []
            for line in (line for line in lines[seen:] if line.endswith("\n")):
                seen += 1
                say(line_of(json.loads(line)))
                if record:
                    with record.open("a", encoding="utf-8") as file:
                        file.write(line)
            if last:
                return
            over.wait(0.5)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def is_good(row: dict[str, Any]) -> bool:
    """True for a silent clean night, and for a fault that all places reported and that left nothing."""
    if "clean_night" in row:
        return not row["complaints"]
    return not (row.get("not_told", True) or row.get("left", True) or "broken" in row or "broken_undo" in row)


def line_of(row: dict[str, Any]) -> str:
    """Formats a result in one line."""
    if "clean_night" in row:
        return f"clean night {row['clean_night']}: {'; '.join(row['complaints'])[:300] or 'nothing reported'} ({row['seconds']} s)"
    words = [f"{place} {_after(row, place)}" for place in PLACES]
    words += [f"still reported: {'; '.join(row['left'])[:200]}"] if row.get("left") else []
    words += [row[key].strip().splitlines()[-1][:200] for key in ("broken", "broken_undo") if key in row]
    return f"{row['kind']}  {row['fault']}: {', '.join(words)} ({row['took']} s)"


def _after(row: dict[str, Any], place: str) -> str:
    """Formats how long the report took: in nights if these were simulated, otherwise in seconds."""
    if place in row.get("not_told", ()):
        return "not told"
    if (when := row.get("reported", {}).get(place)) is None:
        return "-"
    if when["nights"]:
        return f"{when['nights']:.0f} night{'s' if when['nights'] > 1 else ''}"
    if when["waited"]:
        return format_duration(when["waited"])
    return f"{when['seconds']:.0f} s"


def _quoted(cell: str) -> str:
    return f'"{cell}"' if "," in cell else cell


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the table for docs/reliability.rst, and the sums."""
    order = {fault.name: number for number, fault in enumerate(FAULTS)}
    nights = [row for row in rows if "clean_night" in row]
    faults = sorted((row for row in rows if "fault" in row), key=lambda row: order.get(row["fault"], len(FAULTS)))
    yield from (".. csv-table::", f"   :header: kind, fault, {', '.join(PLACES)}", "   :widths: 6, 46, 12, 12, 12, 12", "")
    for row in faults:
        cells = (row["kind"], row["fault"], *(_after(row, place) for place in PLACES))
        yield f"   {', '.join(_quoted(cell) for cell in cells)}"
    yield ""
    loud = [row for row in nights if row["complaints"]]
    silent = [f"{row['fault']} ({', '.join(row.get('not_told', ['not made']))})" for row in faults if row.get("not_told", True)]
    left = [row["fault"] for row in faults if row.get("left")]
    yield f"clean nights: {len(nights)}, of which {len(loud)} were not silent"
    yield f"faults: {len(faults)}, reported by all that should: {len(faults) - len(silent)}"
    yield from (f"not told: {words}" for words in silent)
    made = {row["fault"] for row in faults}
    for fault in (fault for fault in FAULTS if fault.because and fault.name in made):
        others = ", ".join(place for place in PLACES if place not in fault.places)
        yield f"not expected of {others}: {fault.name}: {fault.because}"
    yield from (f"still reported after the end: {name}" for name in left)


if __name__ == "__main__":
    begun = time.monotonic()
    status = main()
    say(f"{time.monotonic() - begun:.0f} s")
    sys.exit(status)
