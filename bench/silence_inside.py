"""What bench.silence runs in the booted machine: the clean nights, then each fault in turn. Each result is a line of a file."""

import json
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from bench.silence_acts import Fault
from bench.silence_faults import FAULTS
from bench.silence_machine import DAY, PLACES, Machine, listed

_PATIENCE = 12.0  # seconds; the dashboard may show a page of some seconds ago

_LONGEST = 600
"""Seconds that a night, the making of a fault, and its end each may take."""

_REGULAR_DAYS = 6
"""Days after which verification, a drill and expiry run again between two faults, as their timers would start them."""

APART = 1.1
"""Days between two faults: an alarm that comes back within a day of its end is sent again once only, by design."""


def main() -> None:
    """Reads its instructions from a file, and appends the results to another. Ends early if a fault has left a problem behind."""
    orders = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    results = Path(sys.argv[2])
    signal.signal(signal.SIGALRM, _too_long)
    machine = Machine(tuple(orders["devices"]))
    try:
        machine.set_up()
        for number in orders["clean_nights"]:
            _begin(results, {"clean_night": number})
            _record(results, _clean_night(machine, number))
        if not orders["clean_nights"]:
            machine.messages()
        proven = 0.0
        for name in orders["faults"]:
            fault = next(fault for fault in FAULTS if fault.name == name)
            _begin(results, {"fault": fault.name, "kind": fault.kind})
            is_due = machine.now() - proven > _REGULAR_DAYS * DAY
            proven = machine.now() if is_due else proven
            row = _faulty(machine, fault, is_due=is_due)
            _record(results, row)
            if row.get("left") or "broken_undo" in row:
                return
    finally:
        machine.tear_down()


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"not over after {_LONGEST} s")


def _begin(results: Path, row: dict[str, Any]) -> None:
    (results.parent / "begun").write_text(json.dumps(row), encoding="utf-8")


def _record(results: Path, row: dict[str, Any]) -> None:
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _clean_night(machine: Machine, number: int) -> dict[str, Any]:
    """Runs a night without a fault; every sixth one with expiry, verification and a drill."""
    begun = time.monotonic()
    signal.alarm(_LONGEST)
    try:
        machine.night(*(("expire", "verify", "drill") if number % 6 == 0 else ()))
        complaints = listed(machine.reports())
    except Exception:  # noqa: BLE001 - recorded
        complaints = [f"not made: {traceback.format_exc()[-1500:]}"]
    signal.alarm(0)
    return {"clean_night": number, "complaints": complaints, "seconds": round(time.monotonic() - begun, 1)}


def _faulty(machine: Machine, fault: Fault, *, is_due: bool) -> dict[str, Any]:
    """Makes the fault and undoes it. `is_due`: verification, a drill and expiry run before it."""
    row: dict[str, Any] = {"fault": fault.name, "kind": fault.kind, "simulated": fault.is_simulated}
    begun = time.monotonic()
    signal.alarm(_LONGEST)
    try:
        if is_due:
            machine.unit("verify", "drill", "expire")
        machine.messages()
        machine.later(APART * DAY)
        machine.unit("news")
        machine.messages()
        row |= _made(machine, fault)
    except Exception:  # noqa: BLE001 - recorded; the other faults are still made
        row["broken"] = traceback.format_exc()[-1500:]
    signal.alarm(_LONGEST)
    try:
        fault.undo(machine)
        machine.night(*fault.after, days=APART)
        row["left"] = _quiet(machine)
        row |= {"journal": machine.journal()} if row["left"] else {}
    except Exception:  # noqa: BLE001 - recorded
        row["broken_undo"] = traceback.format_exc()[-1500:]
    signal.alarm(0)
    return {**row, "took": round(time.monotonic() - begun, 1)}


def _made(machine: Machine, fault: Fault) -> dict[str, Any]:
    reported: dict[str, dict[str, float]] = {}
    shown: dict[str, list[str]] = {}
    fault.make(machine)
    made = time.monotonic()
    steps = _steps(fault)
    for number, step in enumerate(steps):
        if fault.nights and fault.jobs == ("sample", "news"):
            machine.night(days=fault.days * APART)
        else:
            machine.later(step)
            machine.unit(*fault.jobs)
        deadline = time.monotonic() + (_PATIENCE if number + 1 == len(steps) else 0)
        while True:
            reports = machine.reports()
            when = {
                "seconds": round(time.monotonic() - made, 1),
                "nights": number + 1 if fault.nights else 0,
                "waited": sum(steps[: number + 1]) if not fault.nights else 0,
            }
            for place in PLACES:
                if place not in reported and _is_reported(fault, place, reports[place]):
                    reported[place] = when
                shown.setdefault(place, []).extend(reports[place])
            if set(fault.places) <= set(reported) or time.monotonic() > deadline:
                break
            time.sleep(1)
        if set(fault.places) <= set(reported):
            break
    missing = [place for place in fault.places if place not in reported]
    return {
        "reported": reported,
        "not_told": missing,
        **({"journal_of_fault": machine.journal()} if missing else {}),
        "shown": {place: [text[:400] for text in dict.fromkeys(texts)][:6] for place, texts in shown.items()},
    }


def _steps(fault: Fault) -> list[float]:
    """Returns the seconds before each reading."""
    if fault.nights:
        return [fault.days * APART * DAY] * fault.nights
    return [0, fault.wait] if fault.wait else [0]


def _is_reported(fault: Fault, place: str, complaints: tuple[str, ...]) -> bool:
    """Returns True if a place reports this fault: metrics have no words, so any complaint of theirs counts."""
    if place == "metrics":
        return bool(complaints)
    return any(re.search(fault.words, text, re.IGNORECASE | re.DOTALL) for text in complaints)


def _quiet(machine: Machine) -> list[str]:
    """Returns the problems that are still reported after a fault was undone and a night has passed. The messages are about
    recoveries.
    """
    machine.messages()
    deadline = time.monotonic() + _PATIENCE
    while True:
        left = listed(machine.reports())
        if not left or time.monotonic() > deadline:
            return left[:8]
        time.sleep(1)


if __name__ == "__main__":
    main()
