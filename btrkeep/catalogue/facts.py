"""Single facts by name, in the table `about`; and the copy of the history, with the start of its complete part."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.sqlite import Session
from btrkeep.units import format_time, parse_time

if TYPE_CHECKING:  # few commands export or import the history
    from btrkeep.catalogue.history import Alive, Row


POOL_ID = "pool_id"


class AboutStore(CatalogueSession):
    """Facts outlive `replace_backups`."""

    def get_fact(self, name: str) -> str | None:
        """Returns the value that `set_fact` stored last, or None."""
        value: str | None = self._reader.value("SELECT value FROM about WHERE name = :name", {"name": name})
        return value

    def facts(self, beginning: str) -> dict[str, str]:
        """Returns all facts whose names start with `beginning`, by name."""
        query = "SELECT name, value FROM about WHERE substr(name, 1, :length) = :beginning ORDER BY name"
        return {row[0]: row[1] for row in self._reader.all(query, {"beginning": beginning, "length": len(beginning)})}

    def set_fact(self, name: str, value: str | None) -> None:
        """Stores a fact by its name; None deletes it."""
        with self._writing("fact written") as session:
            self._put_fact(session, name, value)

    def pool_id(self) -> str | None:
        """The id of the pool whose backups these are; None in a new catalogue."""
        return self.get_fact(POOL_ID)

    def set_pool_id(self, pool_id: str) -> None:
        """Records to which pool the backups belong."""
        self.set_fact(POOL_ID, pool_id)

    def _put_fact(self, session: Session, name: str, value: str | None) -> None:
        session.run("DELETE FROM about WHERE name = :name", {"name": name})
        if value is not None:
            session.run("INSERT INTO about (name, value) VALUES (:name, :value)", {"name": name, "value": value})


Span = tuple[datetime, datetime]
"""The start and the end of a period."""
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_UNKNOWN, _COPY = "history_unknown", "history_copy"
_ANYTHING = ("SELECT 1 FROM backup LIMIT 1", "SELECT 1 FROM run LIMIT 1", "SELECT 1 FROM sample LIMIT 1")
_MOST = 50  # spans: only the latest, which the strips of nights show


class HistoryStore(AboutStore):
    """Each method that changes rows does so in one transaction."""

    def has_backups(self) -> bool:
        """True if the catalogue lists any backup."""
        return self._reader.value(_ANYTHING[0]) is not None

    def history_rows(self) -> "Iterator[tuple[str, Row]]":
        """Yields table and values of each row that exists only in the catalogue, the newest of each table first."""
        from btrkeep.catalogue import history

        return history.rows(self._reader)

    def history_copy(self) -> str | None:
        """Returns the id of the copy that was written last from this history, or read into it."""
        return self.get_fact(_COPY)

    def set_history_copy(self, copy: str) -> None:
        """Records that this copy contains the whole history."""
        self.set_fact(_COPY, copy)

    def put_history(
        self, copy: str, rows: Mapping[str, Sequence[dict[str, Any]]], unknown: Iterable[Span], is_alive: "Alive"
    ) -> dict[str, int]:
        """Adds the rows of a copy that are missing, and the spans that the copy did not know. Returns the number of rows added by
        table.

        Raises HistoryInUse if a running job started after the oldest of them; then nothing is changed.
        """
        from btrkeep.catalogue import history

        with self._writing("history put back") as session:
            counts = history.put_back(session, rows, is_alive)
            both = overlap(_spans(self.get_fact(_UNKNOWN)), unknown)
            self._put_fact(session, _UNKNOWN, spans_text(both))
            self._put_fact(session, _COPY, copy)
        return counts

    def unknown_spans(self) -> tuple[Span, ...]:
        """Periods whose runs the catalogue cannot know: before it was made, or when it was lost."""
        return _spans(self.get_fact(_UNKNOWN))

    def know_since(self, moment: datetime) -> None:
        """Records `moment` as the time since which a new catalogue is complete. Does nothing if a time is already recorded."""
        if self.get_fact(_UNKNOWN) is None and not any(self._reader.value(query) for query in _ANYTHING):
            self.set_fact(_UNKNOWN, spans_text([(BEGINNING, moment)]))


def overlap(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Returns the times that are in both, in order. Pure."""
    every = list(others)
    overlaps = [(max(own_span[0], other[0]), min(own_span[1], other[1])) for own_span in spans for other in every]
    return sorted(span for span in overlaps if span[0] < span[1])[-_MOST:]


def spans_text(spans: Iterable[Span]) -> str:
    """Encodes spans as in a fact or a copy."""
    return json.dumps([[format_time(start), format_time(end)] for start, end in spans])


def spans_of(text: str) -> tuple[Span, ...]:
    """Reverses `spans_text`. Raises ValueError for anything else."""
    try:
        return tuple((parse_time(start), parse_time(end)) for start, end in json.loads(text)[-_MOST:])
    except TypeError as error:
        raise ValueError("no spans of time") from error


def _spans(text: str | None) -> tuple[Span, ...]:
    return spans_of(text) if text else ()
