"""Opens and closes the catalogue: one file, two connections."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from btrkeep.catalogue import migrate, readonly, sqlite, tables
from btrkeep.catalogue.sqlite import Session


class CatalogueSession:
    """A connection for reading, and one for writing, so that a list can be read while rows are written."""

    def __init__(self, state: Path, reader: Session, writer: Session | None) -> None:
        self._state = state
        self._reader = reader
        self._writer = writer
        self._known: set[str] = set()  # hosts that have their row, which is never deleted

    @classmethod
    def open(cls, state: Path) -> Self:
        """Opens the catalogue in the folder `state`; creates it if missing, migrates it if behind (a copy of the old file is kept
        beside it).

        Raises OperatorError if the file is damaged or no catalogue (the hint says how to rebuild it), or if its schema is newer
        than this code.
        """
        path = migrate.prepared(state)
        with ExitStack() as stack:  # neither stays open without the other
            reader, writer = (stack.enter_context(closing(sqlite.opened(path))) for _ in range(2))
            stack.pop_all()
        return cls(state, reader, writer)

    @classmethod
    def open_readonly(cls, state: Path) -> Self:
        """Opens the catalogue in the folder `state` for reading only. Methods that write raise TypeError.

        Raises CatalogueUnready if there is none or it has another schema, and CatalogueBusy, as the reading methods do, if it
        changes faster than it can be read.
        """
        path = state / migrate.FILE
        readonly.require_catalogue(path)
        opened = cls(state, readonly.ReadOnlySession(path), None)
        try:
            readonly.require_schema(opened._reader)
        except BaseException:
            opened.close()
            raise
        return opened

    def wait_at_most(self, seconds: float) -> None:
        """From now on a method that writes raises CatalogueBusy when others keep it waiting for longer than that, not than 30 s."""
        if self._writer:
            self._writer.wait_at_most(seconds)

    @classmethod
    @contextmanager
    def made_anew(cls, state: Path) -> Iterator[tuple[Self, list[Path]]]:
        """Yields an empty catalogue that replaces the damaged one when it is closed, and a list that then contains the path of the
        old one.

        After an error the old catalogue is unchanged.
        """
        aside: list[Path] = []
        with migrate.made_beside(state) as folder:
            with cls.open(folder) as catalogue:
                yield catalogue, aside
            if old := migrate.put_in_place(folder, state):
                aside.append(old)
        cls.open(state).close()  # who may read it goes by the folder that it is in

    def require_integrity(self) -> None:
        """Raises CatalogueDamaged if any part of the file is damaged, including parts that no query has read yet."""
        sqlite.require_integrity(self._reader)
        for table in tables.TABLES:  # pages may be whole with values in them that nobody wrote
            for _ in self._reader.stream(f"SELECT {table.select()} FROM {table.name}"):
                pass

    def close(self) -> None:
        """Close both connections. An iterator that is not at its end raises an error when it is asked on."""
        self._reader.close()
        if self._writer:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _writing(self, change: str) -> AbstractContextManager[Session]:
        if self._writer is None:
            raise TypeError("the catalogue is open for reading")
        return self._writer.transaction(change)
