"""The cancel token: the effect of a signal on it, and on code that sleeps in it."""

import asyncio
import os
import signal
import subprocess
import threading
import time

import pytest

from btrkeep.errors import Exit
from btrkeep.process.group import Group, GroupCancellation
from btrkeep.process.progress import Cancellation, ending_signals, signal_status

SECONDS = "250.0714"
"""Of the group's `sleep`: other tests in the same process have children named sleep, too."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_wakes_the_sleeper_and_only_the_first_one_counts(number: signal.Signals) -> None:
    before, cancellation = signal.getsignal(number), Cancellation()
    with cancellation.listening():
        timer = threading.Timer(0.2, os.kill, (os.getpid(), number))
        timer.start()
        begun = time.monotonic()
        cancellation.sleep(250)
        assert 0.1 < time.monotonic() - begun < 100
        timer.join()
        os.kill(os.getpid(), signal.SIGTERM)
    assert (bool(cancellation), cancellation.signal) == (True, number)
    assert signal.getsignal(number) == before


def test_what_is_not_cancelled_sleeps_on() -> None:
    cancellation, begun = Cancellation(), time.monotonic()
    cancellation.sleep(0.15)
    assert time.monotonic() - begun >= 0.15
    assert not cancellation


def test_a_hangup_that_was_ignored_from_the_start_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in ending_signals()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in ending_signals()


def test_a_hangup_is_told_as_terminated() -> None:
    exits = [signal_status(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert exits == [Exit.INTERRUPTED, Exit.TERMINATED, Exit.TERMINATED]


def test_cancelling_ends_the_group_under_way_and_who_waits() -> None:
    async def cancelled() -> tuple[int, float]:
        cancellation = GroupCancellation[str]()
        cancellation.group = Group.start(("sleep", SECONDS), on_stdout=lambda _: None, on_stderr=lambda _: None)
        asyncio.get_running_loop().call_later(0.1, cancellation.cancel_for, "the window has closed")
        begun = time.monotonic()
        await cancellation.wait(250)
        waited = time.monotonic() - begun
        assert cancellation.reason == "the window has closed"
        return await cancellation.group.wait(), waited

    status, waited = asyncio.run(cancelled())
    assert status == -signal.SIGTERM
    assert waited < 100
    process = subprocess.run(("pgrep", "-P", str(os.getpid()), "-f", f"^sleep {SECONDS}$"), check=False, capture_output=True)
    assert not process.stdout
