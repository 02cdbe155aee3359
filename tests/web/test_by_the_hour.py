"""Figures of months are computed once, even for parallel requests."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.web.made import client, write
from web.cli.serve import warm
from web.dashboard_settings import Settings
from web.source import Caches, RequestContext


@pytest.fixture
def caches() -> Caches:
    return Caches()


def ask(caches: Caches, state: Path, compute: Callable[[], str], *, years_on: int = 0) -> str:
    """Returns the result of a request for the figures. The thread that opened its catalogue closes it, as after a request."""
    with closing(RequestContext(Settings("main", state, state, state), caches)) as source:
        source.now = source.now.replace(year=source.now.year + years_on)
        return source.cached_for_the_hour("key", compute)


def test_who_comes_while_it_is_computed_anew_gets_the_one_before(caches: Caches, tmp_path: Path) -> None:
    write(tmp_path).close()
    begun, go_on = threading.Event(), threading.Event()
    assert ask(caches, tmp_path, lambda: "first") == "first"
    assert ask(caches, tmp_path, lambda: "second") == "first"

    def slowly() -> str:
        begun.set()
        go_on.wait(60)
        return "second"

    slow = threading.Thread(target=lambda: ask(caches, tmp_path, slowly, years_on=1))
    slow.start()
    assert begun.wait(60)
    assert ask(caches, tmp_path, lambda: "third", years_on=1) == "first"
    go_on.set()
    slow.join(60)
    assert ask(caches, tmp_path, lambda: "third", years_on=1) == "second"


def test_who_comes_while_it_is_computed_for_the_first_time_waits_for_it(caches: Caches, tmp_path: Path) -> None:
    write(tmp_path).close()
    begun, go_on, lines = threading.Event(), threading.Event(), list[str]()

    def slowly() -> str:
        begun.set()
        go_on.wait(60)
        return "first"

    thread = threading.Thread(target=lambda: lines.append(ask(caches, tmp_path, slowly)))
    thread.start()
    assert begun.wait(60)
    two = threading.Thread(target=lambda: lines.append(ask(caches, tmp_path, lambda: "second")))
    two.start()
    two.join(0.2)
    assert lines == []
    go_on.set()
    thread.join(60)
    two.join(60)
    assert lines == ["first", "first"]


@pytest.mark.slow
def test_the_start_prepares_every_template_also_where_there_is_no_catalogue(tmp_path: Path) -> None:
    app = client(tmp_path / "nothing").application
    warm(app)
    assert app.jinja_env.cache is not None
    assert len(app.jinja_env.cache) == len(app.jinja_env.list_templates())
