"""kill_at.py WHEN MODULE:NAME COUNT [backupd's own words]: backupd that kills itself with SIGKILL at one step, or lingers there.

WHEN is `before` or `after`: when the function NAME of MODULE is called for the COUNTth time, or has returned from that. The step is
named from outside, so the program itself knows nothing of being tested. A step that is never reached kills nothing, which the exit
status shows. With `slow:SECONDS:FILE` it makes FILE and takes so much longer before the step (a function that is not awaited); with
`does:COMMAND` it runs that line of the shell to its end before the step.
"""

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def linger(seconds: str, flag: str) -> None:
    Path(flag).touch()
    time.sleep(float(seconds))


def deadly(function: Callable[..., Any], when: str, count: int) -> Callable[..., Any]:
    """The function, with a death before or after its `count`th call."""
    calls = 0

    def is_it() -> bool:
        nonlocal calls
        calls += 1
        return calls == count

    @functools.wraps(function)
    def wrapped(*args: Any, **keys: Any) -> Any:
        it = is_it()
        if it and when == "before":
            die()
        if it and when.startswith("slow:"):
            linger(*when.split(":", 2)[1:])
        if it and when.startswith("does:"):
            subprocess.run(when.partition(":")[2], shell=True, check=True)
        result = function(*args, **keys)
        if it and when == "after":
            die()
        return result

    @functools.wraps(function)
    async def awaited(*args: Any, **keys: Any) -> Any:
        it = is_it()
        if it and when == "before":
            die()
        result = await function(*args, **keys)
        if it and when == "after":
            die()
        return result

    return awaited if asyncio.iscoroutinefunction(function) else wrapped


def arm(spec: str, when: str, count: int) -> None:
    """Replaces MODULE:NAME (or MODULE:CLASS.NAME) where it is looked up."""
    module, _, path = spec.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, import_module(module))
    found = owner.__dict__[name]
    if isinstance(found, classmethod):
        setattr(owner, name, classmethod(deadly(found.__func__, when, count)))
    else:
        setattr(owner, name, deadly(found, when, count))


if __name__ == "__main__":
    import backupd.actions.hold
    import backupd.actions.rename
    import backupd.cli
    import backupd.cli.accept_
    import backupd.cli.run_

    arm(sys.argv[2], sys.argv[1], int(sys.argv[3]))
    sys.argv = ["backupd", *sys.argv[4:]]
    backupd.cli.main()
