"""Pages about actions that the root service delays or refuses: a backup that waits, and a refused restore."""

import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.beds import btrfs, work
from tests.beds.badssh import FAKESSH
from tests.beds.dashboard import ADMIN, CUSTOMER, LOGIN, OPERATOR, Dashboard, own_folder, user_id
from tests.beds.dashboard import serving as dashboard
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving
from tests.beds.watch import wait_for

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


@dataclass
class Site:
    """`busy` is being backed up on the pool's only place all the time; `next`, which is carol's, and `last` wait."""

    web: Dashboard
    service: Service
    jobs: dict[str, str]

    def page(self, path: str, who: str = OPERATOR) -> str:
        return self.web.ask("GET", path, Cookie=self.web.log_in(who)).text


@pytest.fixture(scope="module")
def site(_shared_mount: Path) -> Iterator[Site]:
    """The site, which tests must not change."""
    top = Path(tempfile.mkdtemp(prefix="waiting-", dir=_shared_mount)) / "top"
    work("btrfs", "-q", "subvolume", "create", top)
    nights = Nights(top)
    nights.state.parent.chmod(0o755)
    nights.settings("backup", concurrency=1)
    gate, log = nights.top / "gate", nights.top / "begun"
    script = nights.top / "gated-ssh"
    script.write_text(
        f'#!/bin/bash\ntouch {log}\nuntil [ -e {gate} ]; do sleep 0.05; done\nexec {shlex.quote(str(FAKESSH))} "$@"\n'
    )
    script.chmod(0o755)
    (nights.source / "srv").mkdir()
    (nights.source / "srv/file").write_text("content")
    for host in ("busy", "next", "last"):
        nights.host(host, nights.source / "srv")
    gate.touch()
    nights.run("next")
    gate.unlink()
    nights.settings("ssh", command=str(script))
    with (
        own_folder() as folder,
        serving(nights.config, "--allow", str(user_id()), "--login", folder / LOGIN) as service,
        dashboard(folder, nights.state, service.socket, ("next",)) as web,
    ):
        try:
            jobs = {host: service.agent().ask("run", host=host)["job"] for host in ("busy", "next", "last")}
            wait_for(log.exists)
            yield Site(web, service, jobs)
        finally:
            gate.touch()
            wait_for(lambda: all(job["state"] in ("done", "failed") for job in service.agent().ask("jobs")))
    btrfs.delete_subvolume(top, _shared_mount)


def test_the_page_of_a_backup_that_waits_says_for_what(site: Site) -> None:
    page = site.page(f"/jobs/{site.jobs['next']}")
    assert "The backup waits for a free slot: 1 of 1 in use by requested backups. Also waiting: 1 other backup." in page
    assert "Nothing yet" not in page
    assert "It waits" not in site.page(f"/jobs/{site.jobs['busy']}")


def test_who_sees_one_host_is_told_that_it_waits_and_of_no_others(site: Site) -> None:
    page = site.page(f"/jobs/{site.jobs['next']}", CUSTOMER)
    assert "The backup waits for a free slot" in page
    assert "Waiting besides" not in page


def test_a_host_that_waits_is_not_offered_to_be_run_but_its_job_is_shown(site: Site) -> None:
    for host in ("busy", "next"):
        page = site.page(f"/hosts/{host}/run")
        assert f'href="/jobs/{site.jobs[host]}"' in page
        assert "<button>Run now</button>" not in page


def test_no_folder_is_offered_where_the_service_restores_to_none(site: Site) -> None:
    page = site.page("/restore/next?path=/", ADMIN)
    assert 'value="original"' in page
    assert 'value="folder"' not in page
    assert "--restore-elsewhere" in page
