"""The dashboard's copy of a catalogue that a test holds open, or wrote without the programs."""

from pathlib import Path

from btrkeep.catalogue import dashboard_copy, migrate


def copied(state: Path) -> None:
    """Makes a copy of the committed state."""
    dashboard_copy.renew(state / migrate.FILE, is_urgent=True)
