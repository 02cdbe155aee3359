"""Shows progress on a terminal, only if the work takes long."""

import sys
import time

import click

_PATIENCE = 1.0
_PAUSE = 0.2


class Meter:
    """Told how far it is, it keeps a line of standard error up to date, after the first second; none where that is no terminal."""

    def __init__(self, what: str) -> None:
        self._what, self._next, self._shown = what, time.monotonic() + _PATIENCE, False
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, share: float) -> None:
        """`share` is from 0 to 1."""
        if self._is_terminal and (now := time.monotonic()) >= self._next:
            click.echo(f"\r{self._what}: {share:4.0%}", err=True, nl=False)
            self._next, self._shown = now + _PAUSE, True

    def end(self) -> None:
        """Takes the line away."""
        if self._shown:
            click.echo("\r" + " " * (len(self._what) + 7) + "\r", err=True, nl=False)
            self._shown = False
