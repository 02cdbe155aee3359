"""Processes that work in batches. Each test has its own process, because a process with threads does not fork."""

import os
import subprocess
import sys

import pytest

from tests.beds import TOP

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one processor there are no processes")


def test_who_takes_a_result_may_wait_for_all_the_others() -> None:
    """Two results arrive at the same time, and taking the first also takes the second."""
    script = """
import os, time
from btrkeep.process.batch_workers import BatchWorkers

root, taken = os.open("/", os.O_RDONLY), []
with BatchWorkers(lambda source, to, batch: batch, 2) as workers:
    def then(answer):
        taken.append(answer)
        workers.finish()

    for batch in (1, 2):
        workers.give(root, root, batch, then)
    time.sleep(0.5)  # both have answered
    workers.finish()
print(sorted(taken))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=TOP, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[1, 2]\n"
