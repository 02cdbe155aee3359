"""The pages, built once for all workers: each time takes as long as twenty tests."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.pages import Page, build


@pytest.fixture(scope="session")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built("html", tmp_path_factory)


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Page]:
    """`page("json")` is that page."""
    folder = _built("xml", tmp_path_factory)
    return lambda name: Page.read(folder / f"{name}.xml")


def _built(builder: str, factory: pytest.TempPathFactory) -> Path:
    """The first worker that asks builds; the others wait for it."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "documentation"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = shared / f"{builder} is built"
        if not done.exists():
            build(builder, shared)
            done.touch()
    return shared / builder
