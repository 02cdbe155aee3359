"""The copy of the history on the pool: the part of a lost catalogue that no backup.json can restore. See docs/decisions/0023.

The nightly commands replace the whole POOL/.btrkeep/history.jsonl.gz once a day, and each failed run does. Its first line describes
it, each following line is a row, the last line has their number. A copy with rows that are missing in the catalogue is never
replaced: they are restored first.
"""

import gzip
import io
import json
import logging
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from btrkeep.catalogue import Catalogue
from btrkeep.catalogue.facts import BEGINNING, Span, spans_of, spans_text
from btrkeep.catalogue.history import COLUMNS, MOST_ROWS, values_of
from btrkeep.errors import LockHeld, OperatorError
from btrkeep.pool.atomic import write_atomically
from btrkeep.pool.locks import take_lock
from btrkeep.pool.marker import MARKER, Pool
from btrkeep.process.proc import start_time
from btrkeep.units import counted, format_time, local_time, parse_time

log = logging.getLogger(__name__)

FILE, ASIDE = "history.jsonl.gz", "history.damaged"
FORMAT = 1
_LOCK = "history"
_DAY = timedelta(hours=20)  # nights are a day apart, sometimes a little less
_MOST = 256 << 20  # bytes of text; writing stops earlier
_LONGEST = 1 << 20  # bytes of a line
_FOREVER = datetime.max.replace(tzinfo=BEGINNING.tzinfo)


class UnusableCopy(OperatorError):
    """The copy is damaged, of another pool, or of a later version."""


class NewerCopy(UnusableCopy):
    """A later version wrote it, so it is not changed."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of the file."""

    id: str
    """The id of the copy."""
    written: datetime
    """When the copy was written."""
    unknown: tuple[Span, ...]
    """Times in which runs may be missing."""
    columns: Mapping[str, list[str]]
    """The columns of each table."""


@dataclass(slots=True)
class RestoredHistory:
    """The rows that were restored into the catalogue."""

    counts: dict[str, int] = field(default_factory=dict)
    """Number of rows by table."""
    passed_over: int = 0
    """Number of skipped rows."""
    written: datetime | None = None
    """When the copy was written; None: nothing was restored."""
    problem: str = ""
    """Why nothing was restored; "": it was."""

    def __bool__(self) -> bool:
        """True if there is anything to report."""
        return bool(self.problem or self.passed_over or any(self.counts.values()))

    def __str__(self) -> str:
        if self.problem:
            return f"the copy of the history on the pool is not used: {self.problem}"
        words = [counted(count, noun) for table, noun in _NOUNS.items() if (count := self.counts.get(table, 0))]
        more = f"; {counted(self.passed_over, 'row')} of the copy could not be read" if self.passed_over else ""
        from_then = f" (state of {local_time(self.written)})" if self.written else ""
        return f"the history was restored from the pool{from_then}: {', '.join(words) or 'nothing new'}{more}"


_NOUNS = {"run": "run", "expiry": "deletion run", "balance": "balance", "score": "score", "sample": "sample", "alarm": "alarm"}


def restore_history(pool: Pool, catalogue: Catalogue) -> RestoredHistory:
    """Restores the rows of the pool's copy into the catalogue, unless this catalogue has written or read that copy. Returns the
    result.

    A copy that is damaged or of another pool is set aside. Raises only errors of the catalogue.
    """
    path = pool.path / MARKER / FILE
    try:
        with _CopyReader(path) as file:
            head = _head(file, pool)
            if head.id == catalogue.history_copy():
                return RestoredHistory()
            rows, passed_over = _rows(file, head)
    except FileNotFoundError:
        return RestoredHistory()
    except NewerCopy as error:
        return RestoredHistory(problem=error.message)
    except UnusableCopy as error:
        return RestoredHistory(problem=f"{error.message}; {_set_aside(path)}")
    except OSError as error:
        return RestoredHistory(problem=f"{path}: {error.strerror or error}")
    unknown = [*head.unknown, (head.written, _FOREVER)]
    try:
        counts = catalogue.put_history(head.id, rows, unknown, lambda pid, started: start_time(pid) == started)
    except OperatorError as error:
        return RestoredHistory(problem=f"{error.message} ({error.hint})")
    return RestoredHistory(counts, passed_over, head.written)


def _set_aside(path: Path) -> str:
    """Sets an unusable copy aside and returns a message about it. A full or read-only pool may refuse the rename."""
    try:
        path.replace(path.with_name(ASIDE))
    except OSError as error:
        return f"it cannot be renamed: {error.strerror}"
    return f"it was renamed to {path.with_name(ASIDE)}"


def keep_history(pool: Pool, catalogue: Catalogue, now: datetime, *, daily: bool = True) -> str:
    """Replaces the copy by the present history of the catalogue. Returns the reason if it could not, else "". With `daily`, a copy
    younger than 20 hours is kept.

    A failure is not an error: the copy may not use the pool's reserve, and its space on a full pool is freed.
    """
    path = pool.path / MARKER / FILE
    try:
        with take_lock(pool.locks / _LOCK, "copying the history", format_time(now)):
            if daily and _is_of_today(path, pool, catalogue, now):
                return ""
            if problem := restore_history(pool, catalogue).problem:
                log.info("%s", problem)
                if path.exists():
                    return problem
            copy = str(uuid.uuid4())
            _replace(path, _text(pool, catalogue, copy, now))
            catalogue.set_history_copy(copy)
    except LockHeld:
        return ""  # another process is writing it
    except OperatorError as error:
        return error.message
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""


def _is_of_today(path: Path, pool: Pool, catalogue: Catalogue, now: datetime) -> bool:
    try:
        with _CopyReader(path) as file:
            head = _head(file, pool)
    except (OSError, UnusableCopy):
        return False
    return head.id == catalogue.history_copy() and timedelta() <= now - head.written < _DAY


def _text(pool: Pool, catalogue: Catalogue, copy: str, now: datetime) -> bytes:
    """Returns the content of the file. If it would become too large, the oldest runs are left out."""
    made, size, count = io.BytesIO(), 0, 0
    head = {"format": FORMAT, "pool": pool.id, "id": copy, "written": format_time(now), "columns": COLUMNS}
    with gzip.GzipFile(fileobj=made, mode="wb", compresslevel=5, mtime=0) as file:
        file.write(_line({**head, "unknown": spans_text(catalogue.unknown_spans())}))
        for table, values in catalogue.history_rows():
            line = _line([table, *values])
            if len(line) > _LONGEST:
                continue
            size += len(line)
            if size > _MOST - 2 * _LONGEST:
                break
            file.write(line)
            count += 1
        file.write(_line({"rows": count}))
    return made.getvalue()


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _replace(path: Path, content: bytes) -> None:
    """Replaces the file. On OSError, removes what was written, because others need the space on a full pool."""
    try:
        write_atomically(path, content)
    except OSError:
        with suppress(OSError):
            path.with_name(path.name + ".new").unlink()
        raise


class _CopyReader:
    """Yields the lines of a copy. Raises OSError; UnusableCopy if it is not a gzip file or too long."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = gzip.open(path, "rb")  # noqa: SIM115
        self._read = 0

    def __enter__(self) -> "_CopyReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        try:
            while line := self._file.readline(_LONGEST + 1):
                self._read += len(line)
                if len(line) > _LONGEST or self._read > _MOST:
                    raise UnusableCopy(f"{self._path} is larger than a copy can be")
                yield json.loads(line)
        except (EOFError, gzip.BadGzipFile, zlib.error, ValueError, RecursionError) as error:
            raise UnusableCopy(f"{self._path} is damaged: {error}") from error


def _head(file: "_CopyReader", pool: Pool) -> Head:
    fields: Any = next(iter(file), None)
    try:
        if fields["format"] > FORMAT:
            raise NewerCopy(f"the copy has format {fields['format']}, this program reads {FORMAT}")
        if fields["pool"] != pool.id:
            raise UnusableCopy(f"the copy belongs to another pool ({fields['pool']})")
        columns = {str(table): [str(name) for name in names] for table, names in fields["columns"].items()}
        return Head(str(fields["id"]), parse_time(fields["written"]), spans_of(fields["unknown"]), columns)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnusableCopy(f"the copy is damaged: {error!r}") from error


def _rows(file: "_CopyReader", head: Head) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Returns the rows by table, and the number of invalid ones. Raises UnusableCopy if the end is missing."""
    rows: dict[str, list[dict[str, Any]]] = {table: [] for table in COLUMNS}
    passed_over, lines = 0, iter(file)
    for count, line in enumerate(lines):
        if isinstance(line, dict):
            if line.get("rows") != count or next(lines, None) is not None:  # gzip's checksum follows the last line
                break
            return rows, passed_over
        if count >= MOST_ROWS:
            raise UnusableCopy("the copy has more rows than the limit")
        try:
            table, *values = line
            rows[table].append(values_of(table, head.columns[table], values))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            log.info("a row of %s is skipped: %s", FILE, error)
            passed_over += 1
    raise UnusableCopy("the copy is incomplete")
