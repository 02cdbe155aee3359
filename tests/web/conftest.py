"""Fixtures of the dashboard's tests: one dashboard of each kind for the session, a browser for a module."""

import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.beds import btrfs, leftout
from tests.beds.dashboard import Dashboard, made_site, real_shop
from tests.beds.made_catalogue import copied_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def site(no_leftovers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """The dashboard of an invented site of 120 hosts, full of hostile text. It has no root service."""
    with made_site(partial(copied_site, tmp_path_factory)) as web:
        yield web


@pytest.fixture(scope="session")
def shop(_shared_mount: Path) -> Iterator[Dashboard]:
    """The dashboard of a real pool of two hosts, three nights old, with its root service. Tests share it."""
    top = Path(tempfile.mkdtemp(prefix="shop-", dir=_shared_mount)) / "top"
    subprocess.run(["btrfs", "-q", "subvolume", "create", top], check=True)
    try:
        with real_shop(top) as web:
            yield web
    finally:
        btrfs.delete_subvolume(top, _shared_mount)
        top.parent.rmdir()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Debian's Chromium."""
    from tests.beds import browser as browsers  # Playwright takes half a second of each worker, and --unit has no browser

    if why := browsers.why_not():
        pytest.skip(leftout.reason("in a real browser", why))
    with browsers.chromium() as browser:
        yield browser
