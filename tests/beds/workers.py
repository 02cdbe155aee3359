"""Expensive resources shared by all workers of a pytest session: made by the first one that needs them."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, subject: str, make: Callable[[Path], object]) -> Path:
    """Returns the folder of that name, in which `make` has made `what`; the other workers wait for it. If `make` fails, it is
    missing for them.
    """
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        begun = shared / f"{subject} is begun"
        if not begun.exists():
            begun.touch()  # not repeated after a failure, which would take as long
            make(shared)
    return shared
