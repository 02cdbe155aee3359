"""Fixtures of tests of the catalogue."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from btrkeep.catalogue import Catalogue


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    with Catalogue.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def sql(catalogue: Catalogue, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Opens the same file with only sqlite3."""
    with closing(sqlite3.connect(tmp_path / "catalogue.sqlite", isolation_level=None)) as connection:
        yield connection
