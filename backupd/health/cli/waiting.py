"""Prints on a terminal what a command is waiting for, once that has taken long enough for somebody to wonder."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from btrkeep.catalogue.migrate import FILE
from btrkeep.units import printable

_AFTER = 2.0  # seconds


@contextmanager
def waiting_for_catalogue(state: Path) -> Iterator[None]:
    """While this lasts, the catalogue in that folder is opened. Another program may hold it for half a minute."""
    if not sys.stderr.isatty():
        yield
        return
    path = printable(str(state / FILE))
    text = f"waiting for the catalogue {path}, which another program may hold (fuser -v {path})"
    timer = threading.Timer(_AFTER, lambda: click.echo(text, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
