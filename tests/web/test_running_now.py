"""Running transfers: without these figures a backup that hangs looks like one that works, and its end is a guess."""

from datetime import timedelta
from pathlib import Path

import pytest

from btrkeep.catalogue import Progress
from btrkeep.config import HostConfig
from tests.web.made import DAY, EVENING, ME, MY_START, NOW, client, run, write
from web.source import RequestContext

PAGE = "/overview/running"


@pytest.fixture(autouse=True)
def _morning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestContext, "now", NOW)


def progress(run_id: int, **more: object) -> Progress:
    values = {"path": "/srv", "files_done": 50, "files_total": 200, "bytes": 3 << 30, "rate": 12e6, "share": 0.25, "updated": NOW}
    return Progress("web1", run_id, ME, MY_START, **{**values, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "minutes", "shown"),
    [
        ((12, 11, 13), (40, 38, 41), ", about 30m left, since"),
        ((12, 11), (40, 38), "B/s, since"),  # too few
        ((12, 4, 40), (40, 38, 41), "B/s, since"),  # they differ too much
        ((12, 11, 13), (200, 190, 210), "B/s, since"),  # at this rate it would end hours before the usual time
        ((2, 3, 2), (40, 38, 41), "B/s, since"),  # it has more than usual already
    ],
)
def test_the_time_left_comes_from_bytes_and_earlier_runs_and_is_not_guessed(
    tmp_path: Path, sizes: tuple[int, ...], minutes: tuple[int, ...], shown: str
) -> None:
    started = [EVENING - number * DAY for number in range(len(sizes), 0, -1)]
    earlier = [
        run("web1", begin, finished=begin + timedelta(minutes=took), literal_bytes=size << 29, matched_bytes=size << 29)
        for begin, took, size in zip(started, minutes, sizes, strict=True)
    ]
    catalogue = write(tmp_path / "state", [HostConfig("web1", paths=("/srv",))], runs=earlier)
    began = catalogue.start_run("web1", NOW - timedelta(minutes=10), ME, MY_START, night=True)
    catalogue.put_progress(progress(began))
    catalogue.close()
    assert shown in client(tmp_path / "state").get(PAGE).text


def test_a_transfer_that_does_not_move_says_since_when_and_promises_no_end(tmp_path: Path) -> None:
    """As of the run's last report: an old copy of the catalogue does not make a moving transfer stand."""
    earlier = [run("web1", EVENING - number * DAY, literal_bytes=12 << 30) for number in range(3, 0, -1)]
    catalogue = write(tmp_path / "state", [HostConfig("web1", paths=("/srv",))], runs=earlier)
    began = catalogue.start_run("web1", NOW - timedelta(minutes=10), ME, MY_START, night=True)
    minute = timedelta(minutes=1)
    for advanced, shown in ((12 * minute, True), (minute, False)):
        reported = NOW - 30 * minute
        catalogue.put_progress(progress(began, updated=reported, advanced=reported - advanced))
        text = client(tmp_path / "state").get(PAGE).text
        assert ('<span class="is-late">no progress for 12m</span>' in text) is shown
        assert ("B/s, since" in text) is not shown
    catalogue.close()
