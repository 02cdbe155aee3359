"""Opens and closes the catalogue: one file, two connections."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Self

from btrkeep.catalogue import dashboard_copy, migrate, readonly, sqlite, tables
from btrkeep.catalogue.readonly import CatalogueUnready
from btrkeep.catalogue.sqlite import CatalogueBusy, Session
from btrkeep.descriptors import Closing
from btrkeep.errors import OperatorError

_COPY_HINT = "`backupd check` makes a new copy, or reports what is wrong with the catalogue itself"


class CatalogueSession(Closing):
    """A connection for reading, and one for writing, so that a list can be read while rows are written."""

    def __init__(self, state: Path, reader: Session, writer: Session | None) -> None:
        self._state = state
        self._reader = reader
        self._writer = writer
        self._copies = False  # whether copies for the dashboard are made
        self._is_periodic = False
        self._copied_changes = 0
        self._next_copy = time.monotonic()
        self._hosts_with_row: set[str] = set()  # hosts that have their row, which is never deleted

    @classmethod
    def open(cls, state: Path, *, copies: bool = True) -> Self:
        """Opens the catalogue in the folder `state`; makes it if it is missing, and migrates an old one (a copy of the old file is
        kept beside it). With `copies` the dashboard's copy is renewed after changes.

        Raises OperatorError if the file is damaged or no catalogue (the hint explains how to rebuild it), or if its schema is newer
        than this code.
        """
        path = migrate.prepared(state)
        with ExitStack() as stack:  # if one fails, the other is closed too
            reader, writer = (stack.enter_context(closing(sqlite.opened(path))) for _ in range(2))
            stack.pop_all()
        opened = cls(state, reader, writer)
        opened._copies = copies
        return opened

    @classmethod
    def open_readonly(cls, state: Path) -> Self:
        """Opens the catalogue in the folder `state` for reading only. Methods that write raise TypeError.

        Raises CatalogueUnready if there is none or if it has another schema. The methods that read, and this one, raise
        CatalogueBusy if it changes faster than it can be read.
        """
        path = state / migrate.FILE
        readonly.require_catalogue(path)
        return cls._for_reading(state, readonly.ReadOnlySession(path))

    @classmethod
    def open_copy(cls, state: Path) -> Self:
        """Opens the newest copy of the catalogue in `state` that was made for the dashboard. Raises the same as `open_readonly`."""
        path = state / dashboard_copy.FILE
        readonly.require_catalogue(path)
        try:
            return cls._for_reading(state, readonly.CopySession(path))
        except (CatalogueBusy, CatalogueUnready):
            raise
        except OperatorError as error:  # its hint is about the catalogue itself, which may be intact
            raise CatalogueUnready(f"the dashboard's copy cannot be read: {error.message}", _COPY_HINT) from error

    @classmethod
    def _for_reading(cls, state: Path, reader: Session) -> Self:
        opened = cls(state, reader, None)
        try:
            readonly.require_schema(opened._reader)
        except BaseException:
            opened.close()
            raise
        return opened

    def wait_at_most(self, seconds: float) -> None:
        """From now on a method that writes raises CatalogueBusy if others make it wait longer than that, instead of 30 s."""
        if self._writer:
            self._writer.wait_at_most(seconds)

    def copy_seldom(self) -> None:
        """From now on a large catalogue is copied for the dashboard only at `seldom_interval`. For programs that a timer starts
        every few minutes throughout the day, which call it before their first change.
        """
        self._is_periodic = True

    @classmethod
    @contextmanager
    def rebuilt(cls, state: Path) -> Iterator[tuple[Self, list[Path]]]:
        """Yields an empty catalogue that replaces the damaged one when it is closed, and a list that then contains the path of the
        old one.

        After an error the old catalogue is unchanged.
        """
        aside: list[Path] = []
        with migrate.made_beside(state) as folder:
            with cls.open(folder, copies=False) as catalogue:
                yield catalogue, aside
            if old := migrate.put_in_place(folder, state):
                aside.append(old)
        cls.open(state, copies=False).close()  # sets the modes of its files
        dashboard_copy.renew(state / migrate.FILE, is_urgent=True)

    def require_integrity(self) -> None:
        """Raises CatalogueDamaged if any part of the file is damaged, including parts that no query has read yet."""
        sqlite.require_integrity(self._reader)
        for table in tables.TABLES:  # intact pages may still contain wrong values
            for _ in self._reader.stream(f"SELECT {table.select()} FROM {table.name}"):
                pass

    def close(self) -> None:
        """Closes both connections. An iterator that has not reached its end raises an error at the next step."""
        changes = self._writer.changes if self._writer else 0
        self._reader.close()
        if self._writer:
            self._writer.close()
        if self._copies:
            self._copies = False
            path = self._state / migrate.FILE
            may_wait = self._is_periodic and not dashboard_copy.is_small(path)
            is_urgent = changes > self._copied_changes and not may_wait
            dashboard_copy.renew(path, is_urgent=is_urgent, every=dashboard_copy.seldom_interval)

    @contextmanager
    def _writing(self, change: str) -> Iterator[Session]:
        if self._writer is None:
            raise TypeError("the catalogue is open for reading")
        with self._writer.transaction(change) as session:
            yield session
        if self._copies and not self._is_periodic and time.monotonic() >= self._next_copy:
            self._renew_copy(session)

    def _renew_copy(self, session: Session) -> None:
        """Renews the dashboard's copy while the catalogue stays open, unless it is young enough."""
        path = self._state / migrate.FILE
        changes = session.changes
        if dashboard_copy.renew(path, is_urgent=False):
            self._copied_changes = changes
        self._next_copy = time.monotonic() + dashboard_copy.interval(dashboard_copy.size_of(path))
