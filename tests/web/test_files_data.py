"""The code behind the pages of files, on plain data: names of any bytes, neighbours in time, orders, headers of downloads."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from flask import Flask
from hypothesis import example, given
from hypothesis import strategies as st
from waitress import channel

from btrkeep.errors import OperatorError
from btrkeep.serving.viewer import RequestSlots, Viewer
from web.app import create_app
from web.dashboard_settings import Settings
from web.download import TooManyDownloads, disposition, name_of, place, sent
from web.files.data import Which, beginning, browse, bytes_of, choices, nearest, text_of
from web.files.differences import HistoryPage, NeighbouringBackups, PathInBackupRow, line_of, neighbouring_backups
from web.files.page import PageLinks, is_escaped, quoted
from web.request_values import path_of_request, paths_of_form

ALICE, BOB, CAROL = (Viewer(name, "viewer") for name in ("alice", "bob", "carol"))

NAME = st.binary(min_size=1, max_size=40).filter(lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b".."))
PATH = st.lists(NAME, max_size=6).map(lambda names: b"/" + b"/".join(names))


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Flask:
    folder: Path = tmp_path_factory.mktemp("web")
    return create_app(Settings("main", folder / "state", folder, folder / "socket"))


@given(PATH)
@example(b"/caf\xe9/two\nlines/\xe2\x80\xae/a+b %41&path=/x#?;=")
def test_a_path_of_any_bytes_is_the_same_behind_its_link_and_its_form(app: Flask, path: bytes) -> None:
    with app.test_request_context("/"):
        address = PageLinks("web1", "latest").browse(text_of(path), sort="name")
    assert re.fullmatch(r"[!-~]+", address)
    with app.test_request_context(address):
        assert path_of_request() == path
    with app.test_request_context("/", method="POST", data={"path": quoted(text_of(path))}):
        assert paths_of_form() == [path]


@given(NAME)
@example(b'x"\r\nSet-Cookie: a=b')
@example(b"%22%0d%0a; filename=evil")
@example("\u202egnp.exe".encode())
def test_no_name_gets_out_of_the_header_of_a_download(name: bytes) -> None:
    output = disposition(name)
    assert output.isascii()
    assert output.isprintable()
    match = re.fullmatch(r"attachment; filename=\"([^\"\\%]+)\"; filename\*=UTF-8''([A-Za-z0-9%._~!$&+^`|*'-]+)", output)
    assert match, output
    assert unquote(match[2], errors="strict").isprintable()


def test_a_usual_name_is_kept_as_it_is() -> None:
    assert disposition(b"report 2026.txt") == "attachment; filename=\"report 2026.txt\"; filename*=UTF-8''report%202026.txt"
    assert disposition("é.txt".encode()) == "attachment; filename=\"_.txt\"; filename*=UTF-8''%C3%A9.txt"
    assert disposition(b"caf\xe9") == "attachment; filename=\"caf_\"; filename*=UTF-8''caf%EF%BF%BD"


def test_an_archive_is_called_after_host_folder_and_day() -> None:
    assert name_of("web1", "2026-11-20T220003Z", b"/etc/nginx", "tar") == b"web1-nginx-2026-11-20.tar"
    assert name_of("web1", "latest", b"/", "zip") == b"web1.zip"
    assert name_of("web1", "latest", b"/etc/hosts", "file") == b"hosts"


def moment(day: int) -> datetime:
    return datetime(2026, 11, day, 22, tzinfo=UTC)


def which(day: int, state: str = "complete") -> Which:
    return Which(f"2026-11-{day:02}T220000Z", state, moment(day))


def test_the_nearest_backup_is_the_nearest_in_time() -> None:
    whiches = [which(20), which(10), which(2)]
    assert nearest(whiches, "2026-11-13T220000Z") == whiches[1]
    assert nearest(whiches, "2026-11-17") == whiches[0]
    assert nearest(whiches, "2026-11") == whiches[0]
    assert nearest([], "2026-11-13T220000Z") is None


def history(*output: tuple[int, str, int | None]) -> HistoryPage:
    seen = tuple(PathInBackupRow(which(day).name, moment(day), "complete", name, version) for day, name, version in output)
    return HistoryPage("web1", "/etc", False, (), (), seen, len(seen), None)


@pytest.mark.parametrize(
    ("day", "before", "after"),
    [(1, None, 3), (2, None, 3), (3, 2, 4), (4, 3, 6), (5, 3, 6), (6, 5, None)],
)
def test_the_changes_around_a_backup_are_those_nearest_to_it(day: int, before: int | None, after: int | None) -> None:
    history_page = history(
        (1, "there", 0), (2, "there", 0), (3, "missing", None), (4, "there", 1), (5, "there", 1), (6, "there", 0)
    )
    wanted = NeighbouringBackups(which(before).name if before else None, which(after).name if after else None)
    assert neighbouring_backups(history_page, which(day).name) == wanted


def test_a_backup_that_says_nothing_of_a_path_is_no_change() -> None:
    history_page = history((1, "there", 0), (2, "not finished", None), (3, "there", 0))
    assert neighbouring_backups(history_page, which(3).name) == NeighbouringBackups(None, None)


class Told:
    """An agent of a folder with that many names, in the agent's order; `sorts`: whether it sorts them as requested."""

    def __init__(self, total: int, sorts: bool = True) -> None:
        self.total, self.sorts, self.asked = total, sorts, list[Mapping[str, Any]]()

    def ask(self, verb: str, **arguments: Any) -> Mapping[str, Any]:
        assert verb == "browse"
        self.asked.append(arguments)
        first, limit = arguments["offset"], arguments["limit"]
        shown = [self._entry(number) for number in range(first, min(self.total, first + limit))]
        backup = {"name": which(1).name, "state": "complete", "started": "2026-11-01T22:00:00Z"}
        order = {"sort": "name", "descending": False}
        if self.sorts:
            order = {name: arguments.get(name, usual) for name, usual in order.items()}
        return {"backup": backup, "path": "/", "entry": self._entry(0), "entries": shown, "total": self.total, **order}

    def _entry(self, number: int) -> dict[str, Any]:
        kinds = {"kind": "file", "size": number * 7919 % 10007, "allocated": 0, "mode": "0644", "uid": 0, "gid": 0}
        times = {"mtime": "2026-11-01T22:00:00Z", "mtime_ns": -number, "inode": number, "links": 1, "target": None}
        return {"path": f"/{number:06}", "name": f"{number:06}", **kinds, **times}


@pytest.mark.parametrize(
    ("sort", "word", "descending"), [("-size", "size", True), ("time", "mtime", False), ("-name", "name", True)]
)
def test_one_page_of_a_large_folder_is_asked_for_in_the_order_that_is_wanted(sort: str, word: str, descending: bool) -> None:
    agent = Told(12_345)
    page = browse(agent, "web1", "latest", b"/", offset=10, limit=5, sort=sort)
    assert (page.sort, page.total, len(page.entries)) == (sort, 12_345, 5)
    [asked] = agent.asked
    assert (asked["offset"], asked["limit"], asked["sort"], asked["descending"]) == (10, 5, word, descending)


def test_a_folder_that_is_too_large_to_be_sorted_comes_by_name_and_says_so() -> None:
    page = browse(Told(20, sorts=False), "web1", "latest", b"/", offset=7, limit=2, sort="-size")
    assert (page.sort, [entry.name for entry in page.entries]) == ("name", ["000007", "000008"])


def test_a_time_that_no_calendar_has_is_told_by_its_number() -> None:
    agent = Told(1)
    agent._entry = lambda number: {**Told._entry(agent, number), "mtime": None, "mtime_ns": 2**62}  # type: ignore[method-assign]
    assert browse(agent, "web1", "latest", b"/").entry.mtime is None


@given(st.binary(max_size=300))
def test_whatever_a_file_holds_its_lines_are_safe_to_show(data: bytes) -> None:
    text = beginning([data], len(data))
    if text is None:
        assert set(data) & ({*range(32)} - {9, 10, 12, 13, 27})
    else:
        assert all(line.isprintable() for line in text.lines)


def test_the_beginning_of_a_long_file_ends_with_a_whole_character() -> None:
    data = "é".encode() * 40_000
    text = beginning((data[start : start + 1000] for start in range(0, len(data), 1000)), len(data), limit=1001)
    assert text
    assert text.more
    assert text.lines == ("é" * 500,)
    assert beginning([b"a\tb\r\nc"], 6) == type(text)(("a       b", "c"), False)


def test_a_line_of_a_difference_cannot_hide_what_it_says() -> None:
    assert line_of("+a\u202eb\x1b[0m").text == "a\\u202eb\\x1b[0m"
    assert [line_of(line).what for line in ("+x", "-x", " x", "@@ -1 +1 @@")] == ["added", "removed", "same", "place"]


def test_only_backups_that_can_be_restored_from_are_offered() -> None:
    def row(name: str | None, state: str, day: int) -> Any:
        return type("Row", (), {"name": name, "state": state, "started": moment(day)})()

    rows = [
        row("a", "complete", 1),
        row(None, "running", 5),
        row("b", "deleting", 2),
        row("c", "suspect", 3),
        row("d", "expired", 4),
    ]
    assert [choice.name for choice in choices(rows, moment(4))] == ["d", "c", "a"]
    assert [choice.name for choice in choices(rows, moment(3))] == ["c", "a", "d"]  # d is stamped in the future


def test_a_name_is_marked_when_it_is_shown_otherwise_than_it_is() -> None:
    assert is_escaped(text_of(b"caf\xe9"))
    assert is_escaped("two\nlines")
    assert not is_escaped("café <b>")
    assert bytes_of(text_of(b"caf\xe9")) == b"caf\xe9"


class Stream:
    """A stream of two pieces that breaks, or ends."""

    length = None

    def __init__(self, breaks: bool) -> None:
        self.breaks, self.closed = breaks, 0

    def __iter__(self) -> Iterator[bytes]:
        yield b"one"
        if self.breaks:
            raise OperatorError("the disk is broken")
        yield b"two"

    def close(self) -> None:
        self.closed += 1


def test_a_download_gives_its_place_back_however_it_ends() -> None:
    places = RequestSlots(at_once=1, of_one=1)
    for breaks in (False, True):
        with place(ALICE, places):
            stream = Stream(breaks)
            response = sent(stream, b"x", ALICE, places)
        with pytest.raises(TooManyDownloads), place(ALICE, places):
            pass
        pieces = response.iter_encoded()
        assert next(pieces) == b"one"
        if breaks:
            with pytest.raises(channel.ClientDisconnected):
                next(pieces)
        response.close()
        response.close()
        assert stream.closed == 1
        places.take(ALICE)
        places.leave(ALICE)


def test_downloads_leave_room_for_others() -> None:
    places = RequestSlots(at_once=4, of_one=2)
    places.take(ALICE)
    places.take(ALICE)
    with pytest.raises(TooManyDownloads, match="of yours"), place(ALICE, places):
        pass
    places.take(BOB)
    with pytest.raises(TooManyDownloads, match="the maximum number"), place(BOB, places):
        pass  # the last one is for users without any
    places.take(CAROL)
    with pytest.raises(TooManyDownloads, match="the maximum number"), place(Viewer("dave", "viewer"), places):
        pass
    with pytest.raises(ValueError, match="no"), place(BOB, RequestSlots(1, 1)) as taken:
        raise ValueError("no")
    assert not taken.total


def test_accounts_of_one_customer_share_what_one_user_may_have() -> None:
    places = RequestSlots(at_once=4, of_one=2)
    accounts = [Viewer(f"acme{number}", "viewer", ("acme-*", "shop")) for number in range(3)]
    places.take(accounts[0])
    places.take(replace(accounts[1], hosts=("shop", "acme-*")))
    with pytest.raises(TooManyDownloads, match="of yours"), place(accounts[2], places):
        pass
    with place(Viewer("beta", "viewer", ("beta-*",)), places):
        pass
    places.leave(accounts[0])
    with place(accounts[2], places):
        pass
