"""Tables of pages as CSV: `?csv=NUMBER` in the address of any page downloads its table of that number.

The page is rendered as always, so the file has the rows that its viewer may see and no others. While it is rendered, filters write
numbers for programs (bytes, seconds, RFC 3339), no text is cut off, and lists have all their rows (`request_values.rows_per_page`).
"""

import csv
import io
import re
import threading
from html.parser import HTMLParser

from flask import Response, g, request

from btrkeep.units import printable
from web.request_values import is_csv

LINKS = 9
"""The maximum number of tables of a page."""
_TABLE = re.compile(
    r"(?:aria-label=\"([^\"]*)\"[^>]*>\s*)?<table\b([^>]*)>(?:\s*<caption[^>]*>(.*?)</caption>)?|<h2[^>]*>(.*?)</h2>", re.DOTALL
)
_LABEL = re.compile(r"aria-label=\"([^\"]*)\"")
_TAGS = re.compile(r"<[^>]*>")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_AFTER_SEMICOLON = re.compile(r";(?=[\s\"]*[=+@-])")
"""Spreadsheets of many countries divide lines at semicolons, inside these cells too."""
_APART = ("br", "details", "div", "li", "p", "small")
_LEFT_OUT = ("", "Actions")
_WAITS = 5.0  # seconds


def tables_of(html: str) -> list[str]:
    """Returns the names of the tables in a page: their label or caption, else the heading above them."""
    names, heading = [], "Table"
    for around, attributes, caption, title in _TABLE.findall(html):
        if title:
            heading = title
            continue
        own = _LABEL.search(attributes)
        names.append(" ".join(_TAGS.sub(" ", around or (own[1] if own else "") or caption or heading).split()))
    return names[:LINKS]


class OneTable:
    """Lets one table be made at a time: all rows of 3,000 hosts take seconds, and a script could ask for them again and again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def begin(self) -> Response | None:
        """Takes the turn of a request for a table. Returns the refusal if other tables take too long."""
        if not is_csv():
            return None
        if not self._lock.acquire(timeout=_WAITS):
            busy = "Another table is being made. Try again in a moment.\n"
            return Response(busy, 503, {"Retry-After": "10"}, content_type="text/plain; charset=utf-8")
        g.makes_table = True
        return None

    def end(self, _error: BaseException | None = None) -> None:
        """Ends the turn."""
        if g.pop("makes_table", False):
            self._lock.release()


def as_csv(response: Response, name: str) -> Response:
    """Returns the requested table of a page as a download; any other response unchanged."""
    wanted = request.args.get("csv", "")
    is_page = response.status_code == 200 and response.mimetype == "text/html" and not response.is_streamed
    if not wanted or not is_page or request.method != "GET":
        return response
    reader = _Tables()
    reader.feed(response.get_data(as_text=True))
    if not wanted.isascii() or not wanted.isdigit() or not 1 <= int(wanted[:9]) <= len(reader.tables):
        return Response("The page has no such table.\n", 404, content_type="text/plain; charset=utf-8")
    text = io.StringIO()
    csv.writer(text).writerows(_without_actions(reader.tables[int(wanted) - 1]))
    answer = Response("\ufeff" + text.getvalue(), content_type="text/csv; charset=utf-8")  # by this mark Excel knows UTF-8
    place = re.sub(r"[^A-Za-z0-9.]+", "-", request.path).strip("-.") or "overview"
    answer.headers["Content-Disposition"] = f'attachment; filename="btrkeep-{name}-{place}-{wanted}.csv"'
    return answer


def harmless(cell: str) -> str:
    """Returns the text of a cell so that no spreadsheet runs it as a formula; numbers stay numbers."""
    cell = _AFTER_SEMICOLON.sub(";'", cell)
    return f"'{cell}" if cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell) else cell


def _without_actions(rows: list[list[str]]) -> list[list[str]]:
    """Returns the rows without columns of buttons and boxes, which have no heading."""
    heads = rows[0] if rows else []
    kept = [place for place, head in enumerate(heads) if head not in _LEFT_OUT]
    return [[harmless(row[place]) for place in kept if place < len(row)] for row in rows]


class _Tables(HTMLParser):
    """Reads the cells of all tables. Of a <time> its moment is read, of a drawing its title."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._words: list[str] | None = None
        self._span = 1
        self._skipped = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begins a table, a row or a cell."""
        given = dict(attrs)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("td", "th") and self.tables and self.tables[-1]:
            self._words, self._span = [], int(given.get("colspan") or 1)
        elif tag == "time" and self._words is not None and (moment := given.get("datetime")):
            self._words.append(moment)
            self._skipped = tag
        elif tag in _APART and self._words is not None:
            self._words.append(" ")

    def handle_endtag(self, tag: str) -> None:
        """Ends a cell."""
        if tag == self._skipped:
            self._skipped = ""
        elif tag in ("td", "th") and self._words is not None:
            text = " ".join("".join(self._words).split())
            self.tables[-1][-1].extend([printable("" if text == "-" else text)] + [""] * (min(self._span, 100) - 1))
            self._words = None

    def handle_data(self, data: str) -> None:
        """Adds text to the cell."""
        if self._words is not None and not self._skipped:
            self._words.append(data)
