"""A program that takes over this program's input and output until it ends."""

import subprocess
from collections.abc import Sequence

from btrkeep.process.group import ENDS_WITH_US
from btrkeep.process.programs import Finished, ProgramFailed, environment, wait_for_end
from btrkeep.units import format_duration

_FIRST_TO_GO = 800  # oom_score_adj, see proc(5)


def run_in_foreground(
    command: Sequence[str], output: int, *, keep_open: Sequence[int] = (), memory: int | None, longest: float | None = None
) -> int:
    """Runs a program on this one's standard input, `output` and standard error; returns its exit status (negative: the signal).

    It ends with this program. `memory`: bytes of its address space; it is then also the first to go when the machine has none left.
    `longest`: seconds after which it is killed. Raises ProgramFailed if it cannot be started, or was killed for that.
    """
    bounded = ("choom", "-n", str(_FIRST_TO_GO), "--", "prlimit", f"--as={memory}", "--") if memory else ()
    try:
        process = subprocess.Popen(
            (*ENDS_WITH_US, *bounded, *command), stdin=0, stdout=output, env=environment(), pass_fds=tuple(keep_open), bufsize=0
        )
    except OSError as error:
        raise ProgramFailed(Finished(tuple(command), 127, "", f"{command[0]}: {error.strerror}")) from None
    try:
        return process.wait(longest)
    except subprocess.TimeoutExpired:
        process.kill()
        wait_for_end(process)
        raise ProgramFailed(
            Finished(tuple(command), 124, "", f"{command[0]}: no end after {format_duration(longest or 0)}")
        ) from None
    except BaseException:  # a signal
        process.kill()
        wait_for_end(process)
        raise
