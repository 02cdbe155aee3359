"""Limits of the bytes of a page, and of an answer of the API."""

from pathlib import Path
from typing import NoReturn

import pytest

from btrkeep.config import HostConfig
from btrkeep.serving.protocol import RequestRefused
from tests.web.made import EVENING, backup, client, write
from web import endpoints
from web.files import data


@pytest.mark.parametrize("length", [1, 100, 2000, 4095])
def test_a_page_of_a_folder_has_fewer_entries_with_a_longer_path(length: int) -> None:
    size = data.page_size(b"/" * length)
    assert 20 <= size <= 500
    assert size * 6 * (length + 255) <= 4 << 20
    assert (size == 500) == (length < 2000)


@pytest.mark.slow
def test_the_page_of_a_folder_asks_for_as_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()

    def browse(*given: object, **_named: object) -> NoReturn:
        asked.append(given[5])
        raise RequestRefused("it is enough")

    monkeypatch.setattr(data, "browse", browse)
    write(tmp_path, [HostConfig("web1")], [backup("web1", EVENING)]).close()
    for path in ("/etc", "/" + "x" * 3000):
        client(tmp_path).get("/files/web1", query_string={"path": path})
    assert asked == [500, data.page_size(b"/" + b"x" * 3000)]


def test_an_answer_of_the_api_about_one_host_is_bounded_and_one_about_all_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, [HostConfig("web1")], [backup("web1", EVENING)]).close()
    api = client(tmp_path)
    assert api.get("/api/v1/hosts/web1/backups").status_code == 200
    monkeypatch.setattr(endpoints, "LONGEST_OF_HOST", 100)
    refused = api.get("/api/v1/hosts/web1/backups")
    assert refused.status_code >= 400
    assert "more than the limit of 100 B" in refused.get_data(as_text=True)
    assert api.get("/api/v1/hosts").status_code == 200
