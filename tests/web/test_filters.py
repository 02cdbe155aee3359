"""The filters and functions of templates, without a page around them."""

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from flask import Flask

from tests.beds import TOP
from web.app import PAGES
from web.filters import night_dates, with_commands


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("keep less, `backupd forecast` shows when", "keep less, <code>backupd forecast</code> shows when"),
        ("<b>`<i>`", "&lt;b&gt;<code>&lt;i&gt;</code>"),
        ("one ` alone\x1b[1m", "one <code> alone\\x1b[1m</code>"),
        ("", ""),
    ],
)
def test_what_stands_between_backquotes_is_a_command_and_nothing_is_markup(text: str, shown: str) -> None:
    assert str(with_commands(text)) == shown


def test_every_link_of_a_template_or_page_leads_to_a_page_that_there_is() -> None:
    """Renaming a view breaks only the pages that link to it, with an error 500."""
    app = Flask("links")
    for page in PAGES:
        app.register_blueprint(page.blueprint)
    views = {rule.endpoint for rule in app.url_map.iter_rules()} | {"static", "api.openapi"}
    files = [path for path in (TOP / "web").rglob("*") if path.suffix in (".html", ".py")]
    links = {(path.name, link) for path in files for link in re.findall(r"""url_for\(\s*["'](\w+\.\w+)["']""", path.read_text())}
    assert len(links) > 50
    assert sorted((name, link) for name, link in links if link not in views) == []


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        ("2026-11-27T21:00:00+00:00", "27 to 28 November"),
        ("2026-11-30T21:00:00+00:00", "30 November to 1 December"),
        ("2026-11-29T23:30:00+00:00", "30 November to 1 December"),  # half past midnight in Berlin
        ("2025-12-31T21:00:00+00:00", "31 December to 1 January"),
        ("2025-12-30T21:00:00+00:00", "30 to 31 December 2025"),
    ],
)
def test_a_night_is_named_by_both_its_dates(begin: str, words: str) -> None:
    now = datetime(2026, 12, 2, tzinfo=UTC)
    assert night_dates(datetime.fromisoformat(begin), ZoneInfo("Europe/Berlin"), now) == words
