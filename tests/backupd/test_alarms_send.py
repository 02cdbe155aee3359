"""Messages through a real web server and a real mail server, read without knowledge of btrkeep."""

import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from backupd.alarms import alarm_messages
from backupd.alarms.send import Delivery, reason_of, send, service_of
from btrkeep.catalogue import StoredAlarm
from btrkeep.config import Url
from tests.backupd.facts import NOW
from tests.beds import TOP
from tests.beds.receivers import Mail, Web, mail, web

EVIL = (
    "<script>alert(1)</script> <img src=x onerror=y> [click](http://evil/) @everyone <!channel> &lt;b&gt; `x` "
    "\x1b[31m\r\nSubject: x\u202e"
)


@pytest.fixture
def server() -> Iterator[Web]:
    with web() as result:
        yield result


@pytest.fixture
def mailbox() -> Iterator[Mail]:
    with mail() as result:
        yield result


def alarms(*texts: str, subject: str = "failure") -> list[StoredAlarm]:
    return [StoredAlarm(subject, f"host h{number}", text, 0, NOW, 1, None, NOW, None) for number, text in enumerate(texts)]


def evil_message() -> alarm_messages.Message:
    return alarm_messages.changes_message("main", "machine", alarms(f"web1: the backup failed: {EVIL}"), [])


class Tags(HTMLParser):
    """All tags and links of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
@pytest.mark.parametrize("form", ["html", "text", "markdown"])
def test_a_mail_has_the_text_and_nothing_that_a_host_wrote_is_markup(mailbox: Mail, form: str) -> None:
    url = Url(f"mailto://127.0.0.1:{mailbox.port}?from=backup@example.org&to=admin@example.org&format={form}")
    assert [delivery.arrived for delivery in send([url], evil_message())] == [True]
    (got,) = mailbox.got
    assert "admin@example.org" in got["To"]
    assert got["Subject"].startswith("btrkeep main: web1: the backup failed: \u2039script\u203a")
    assert len(got.get_all("Subject") or []) == 1
    for part in (part for part in got.walk() if part.get_content_maintype() == "text"):
        content = part.get_content()
        assert "alert(1)" in content
        assert "\x1b" not in content
        assert "\u202e" not in content
        if part.get_content_subtype() == "html":
            page = Tags(content)
            assert page.tags <= {"html", "head", "meta", "title", "body", "p", "br", "pre", "div", "span"}
            assert [value for name, value in page.attributes if name in ("href", "src") or name.startswith("on")] == []
            assert "From btrkeep on machine." in page.text.replace("\xa0", " ")


@pytest.mark.slow
def test_a_mail_is_plain_text_unless_its_url_says_otherwise(mailbox: Mail) -> None:
    send([Url(f"mailto://127.0.0.1:{mailbox.port}?from=backup@example.org&to=admin@example.org")], evil_message())
    (got,) = mailbox.got
    assert [part.get_content_type() for part in got.walk()] == ["text/plain"]
    assert got.get_content().splitlines()[0] == "Failed:"
    assert len(got.get_content().splitlines()) == 5


def test_a_webhook_gets_title_text_and_kind(server: Web) -> None:
    assert send([Url(f"json://127.0.0.1:{server.port}/hook")], evil_message()) == [Delivery(1, "JSON", True)]
    (got,) = server.json()
    assert got["type"] == "failure"
    title, line, *_ = got["message"].splitlines()
    assert title == "Failed:"
    assert line.startswith(f"- web1: the backup failed: {alarm_messages.harmless(EVIL, 266)} (since ")
    assert not re.search(r"[<>@`\x1b]|\]\(", got["message"] + got["title"])


def test_one_that_does_not_work_keeps_no_other_from_being_told_and_the_reason_is_said(server: Web, mailbox: Mail) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unheard:
        closed = unheard.getsockname()[1]
    urls = [
        f"json://127.0.0.1:{closed}/",
        "nonsense://x",
        f"json://127.0.0.1:{server.port}/a",
        f"mailto://127.0.0.1:{mailbox.port}?from=a@b.de&to=a@b.de",
    ]
    server.status = 503
    deliveries = send([Url(url) for url in urls], alarm_messages.test_message("main", "machine"))
    assert [(delivery.number, delivery.service, delivery.arrived, delivery.reason) for delivery in deliveries] == [
        (1, "JSON", False, "connection refused"),
        (2, "nonsense", False, "apprise does not support this URL"),
        (3, "JSON", False, "it answers with status 503"),
        (4, "E-Mail", True, ""),
    ]
    assert "Nothing is wrong" in mailbox.got[0].as_string()


def test_nothing_of_a_url_gets_out_whatever_is_logged(
    server: Web, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    server.status = 401
    with socket.create_server(("127.0.0.1", 0)) as unheard:
        closed = unheard.getsockname()[1]
    urls = [
        Url(f"json://user:hunter2@127.0.0.1:{server.port}/hunter2?x=hunter2"),
        Url(f"json://user:hunter2@127.0.0.1:{closed}/hunter2"),
        Url(f"mailto://user:hunter2@127.0.0.1:{closed}?to=hunter2@example.org"),
        Url("slack://hunter2"),
    ]
    deliveries = send(urls, alarm_messages.test_message("main", "machine"))
    assert [delivery.arrived for delivery in deliveries] == [False] * 4
    out = capfd.readouterr()
    assert "hunter2" not in caplog.text + out.out + out.err + repr(deliveries) + " ".join(map(str, deliveries)) + repr(urls)
    assert logging.getLogger("apprise").propagate  # unchanged


def test_the_reason_is_not_taken_from_our_own_message() -> None:
    assert (
        reason_of(["JSON Payload: rsync timed out, Connection refused", "Failed to send: error=500."])
        == "it answers with status 500"
    )
    assert reason_of(["JSON Payload: rsync timed out", "hunter2"]) == "the reason is unknown"


def test_services_are_known_by_their_names() -> None:
    assert service_of(Url("mailto://u:p@example.org")) == "E-Mail"
    assert service_of(Url("slack://x")) is None


@pytest.mark.slow
def test_apprise_is_loaded_only_when_something_is_sent() -> None:
    used = "backupd.alarms.cli, backupd.run.cli.run, backupd.doctor.checks"
    code = f"import sys, {used}; print('apprise' in sys.modules, 'requests' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=TOP, text=True, capture_output=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_message_about_five_hundred_hosts_is_one_that_can_be_read() -> None:
    message = alarm_messages.changes_message(
        "main", "machine", alarms(*(f"h{n}: broke {n}" for n in range(500))), alarms("h7: broke", subject="silent")
    )
    assert message.title == "btrkeep main: 500 alarms, 1 resolved"
    lines = message.body.splitlines()
    assert len(lines) < 30
    assert "- and 480 more: backupd status" in lines
    assert all(len(line) <= 310 for line in lines)


def test_a_foreign_text_is_cut_and_made_harmless() -> None:
    assert alarm_messages.harmless("a\n\tb  c") == "a b c"
    assert alarm_messages.harmless("x" * 1000) == "x" * 297 + "..."
    assert alarm_messages.harmless("\udcff\x00") == "\\xff\\x00"
    assert alarm_messages.harmless("root@web1") == "root(at)web1"
