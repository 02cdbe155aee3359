"""What is told of months is computed by one, whoever else comes meanwhile."""

import threading
from pathlib import Path

from tests.web.made import client, write
from web.data.by_the_hour import by_the_hour
from web.kept import Kept
from web.settings import Settings
from web.source import Source
from web.warm import warm


def source_of(state: Path) -> Source:
    return Source(Settings("main", state, state, state), Kept())


def test_who_comes_while_it_is_computed_anew_gets_the_one_before(tmp_path: Path) -> None:
    write(tmp_path).close()
    here, begun, go_on = source_of(tmp_path), threading.Event(), threading.Event()
    assert by_the_hour(here, "key", lambda: "first") == "first"
    assert by_the_hour(here, "key", lambda: "second") == "first"
    later = source_of(tmp_path)
    later.now = here.now.replace(year=here.now.year + 1)  # another hour

    def slowly() -> str:
        begun.set()
        go_on.wait(10)
        return "second"

    slow = threading.Thread(target=by_the_hour, args=(later, "key", slowly))
    slow.start()
    assert begun.wait(10)
    assert by_the_hour(later, "key", lambda: "third") == "first"
    go_on.set()
    slow.join(10)
    assert by_the_hour(later, "key", lambda: "third") == "second"


def test_who_comes_while_it_is_computed_for_the_first_time_waits_for_it(tmp_path: Path) -> None:
    write(tmp_path).close()
    here, begun, go_on, found = source_of(tmp_path), threading.Event(), threading.Event(), []

    def slowly() -> str:
        begun.set()
        go_on.wait(10)
        return "first"

    one = threading.Thread(target=lambda: found.append(by_the_hour(here, "key", slowly)))
    one.start()
    assert begun.wait(10)
    two = threading.Thread(target=lambda: found.append(by_the_hour(here, "key", lambda: "second")))
    two.start()
    two.join(0.2)
    assert found == []
    go_on.set()
    one.join(10)
    two.join(10)
    assert found == ["first", "first"]


def test_the_start_prepares_every_template_also_where_there_is_no_catalogue(tmp_path: Path) -> None:
    app = client(tmp_path / "nothing").application
    warm(app)
    assert app.jinja_env.cache is not None
    assert len(app.jinja_env.cache) == len(app.jinja_env.list_templates())
