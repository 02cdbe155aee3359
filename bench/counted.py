"""Runs a command and counts what it takes: time, CPU time, its peak of memory, input and output."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.growth import CPU, MEMORY, SECONDS, Figures, megabytes
from tests.beds import TOP

# The peak of memory that the kernel counts for a process begins with that of its parent, so the parent is a small program.
# The counters of a process and of its finished children can be read until it is waited for.
_STARTER = """
import json, os, sys, time
tells = int(sys.argv[1])
os.set_inheritable(tells, False)
begun = time.perf_counter()
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
took = time.perf_counter() - begun
with open(f"/proc/{pid}/io") as file:
    counters = dict(line.split(": ") for line in file)
_, status, used = os.wait4(pid, 0)
told = [os.waitstatus_to_exitcode(status), took, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]
os.write(tells, json.dumps([told, {name: int(value) for name, value in counters.items()}]).encode())
"""


@dataclass(frozen=True, slots=True)
class Counted:
    """A command that has ended: its exit status, negative for a signal, its figures and its output."""

    status: int
    figures: Figures
    stdout: str
    stderr: str


def counted(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Counted:
    """Runs a command to its end, whatever its status; does not wait for processes that it leaves behind. `env` is added to the
    environment of this process.

    Figures are those of the command with the children that it waited for; the memory is the peak of the largest of them.
    """
    reading, tells = os.pipe()
    words = [sys.executable, "-I", "-S", "-c", _STARTER, str(tells), *argv]
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=TOP, pass_fds=[tells], env={**os.environ, **(env or {})}
        ):
            os.close(tells)
            with os.fdopen(reading, encoding="utf-8") as pipe:
                report = pipe.read()
        out.seek(0)
        err.seek(0)
        stdout, stderr = out.read(), err.read()
    if not report:
        raise SystemExit(f"{' '.join(argv)} could not be started: {stderr[-1000:]}")
    (status, seconds, cpu, peak), counters = json.loads(report)
    return Counted(status, {SECONDS: seconds, CPU: cpu, MEMORY: peak / 1e6, **megabytes(counters)}, stdout, stderr)
