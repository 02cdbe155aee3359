"""From a host to one of its files without ten clicks, and several files in one download. Without it a user opens each folder of a
path, and gives up before the file that he knows by half its name.
"""

import io
import json
import os
import re
import tarfile
import zipfile
from urllib.parse import unquote, urlencode

import pytest
from playwright.sync_api import Browser

from tests.beds.browser import enter, visit
from tests.beds.dashboard import CUSTOMER, LATIN1, NAMES, OPERATOR, VIEWER, Dashboard
from tests.web.files_visit import Page, Visitor, files, path_in, source_of, visitor

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


@pytest.fixture
def olga(shop: Dashboard) -> Visitor:
    return visitor(shop, OPERATOR)


@pytest.fixture
def source(shop: Dashboard) -> bytes:
    return source_of(shop)


def test_the_configured_paths_and_a_path_of_single_folders_are_one_click_away(olga: Visitor, source: bytes) -> None:
    assert b"/" in [path_in(link) for link in Page(olga.get("/hosts/shop")).addresses("/files/shop?")]
    top = Page(olga.get(files("shop", b"/")))
    rows = [path_in(link) for link in top.addresses("/files/shop?")]
    assert rows.count(source) == 2, "the configured path, and the row of the only folder in each other"
    assert f"{os.fsdecode(source)[1:]}/" in top.text


def test_a_typed_path_opens_with_the_escapes_that_a_page_shows(olga: Visitor, source: bytes) -> None:
    typed = os.fsdecode(source)
    for text, wanted in ((typed, source), (typed[1:] + "/names/caf\\xe9.txt", source + b"/names/" + LATIN1)):
        answer = olga.get(f"/files/shop?{urlencode({'typed': text})}")
        assert (answer.status, path_in(answer.headers["Location"])) == (303, wanted)
    missing = olga.get(f"/files/shop?{urlencode({'typed': typed + '/pricse.txt'})}")
    page = olga.get(missing.headers["Location"])
    assert page.status == 404
    assert source + b"/prices.txt" in [path_in(link) for link in Page(page).addresses("/files/shop?")]
    assert olga.get(f"/files/shop?{urlencode({'typed': '/a/../etc'})}").status == 400


def test_a_file_with_all_its_versions_is_one_field_and_one_click_from_the_overview(shop: Dashboard, browser: Browser) -> None:
    assert shop.nights
    with visit(browser, shop.url) as (page, noticed):
        enter(page, shop.url, shop.cookie)
        page.goto("/")
        page.keyboard.press("/")
        page.keyboard.type(f"shop:{shop.nights.source}/prices.txt")
        page.keyboard.press("Enter")
        with page.expect_download() as download:
            page.get_by_role("table").first.get_by_role("link", name="Download").last.click()
        assert download.value.path().read_text().startswith("black tea 2.80")
        noticed.nothing()


def test_a_path_is_completed_from_its_folder_alone(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    def completed(text: str, who: Visitor = olga, host: str = "shop") -> list[str]:
        answer = who.get(f"/files/{host}/complete?{urlencode({'typed': text})}")
        return list(json.loads(answer.text)) if answer.status == 200 else []

    top = os.fsdecode(source)
    assert completed(f"{top}/PRI") == [f"{top}/prices.txt"]
    assert completed(f"{top}/n") == [f"{top}/names/"]
    assert f"{top}/names/caf\\xe9.txt" in completed(f"{top}/names/c")
    assert completed(f"{top}/nowhere/x") == completed("/../x") == []
    assert len(completed(f"{top}/folder/f")) == 30
    carol = visitor(shop, CUSTOMER)
    assert carol.get("/files/shop/complete?typed=/").status == carol.get("/files/none/complete?typed=/").status == 404
    assert completed("/", carol, "lab")


def test_a_folder_is_filtered_and_what_is_below_is_searched(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    filtered = Page(olga.get(files("shop", source, find="PRICE")))
    assert "1 name in" in filtered.text
    assert [path_in(link) for link in filtered.addresses("/files/shop?") if "sort" not in link][-1] == source + b"/prices.txt"
    results = Page(olga.get(files("shop", source, "/search", find="file 0?.txt")))
    assert "10 results" in results.text
    assert source + b"/folder/file 07.txt" in [path_in(link) for link in results.addresses("/files/shop?")]
    odd = Page(olga.get(files("shop", b"/", "/search", find="caf\\xe9")))
    assert source + b"/names/" + LATIN1 in [path_in(link) for link in odd.addresses("/files/shop?")]
    assert "No name below" in Page(olga.get(files("shop", b"/", "/search", find="no such name"))).text
    assert olga.get(files("shop", source, "/search", find="")).status == 303
    assert visitor(shop, CUSTOMER).get(files("shop", b"/", "/search", find="a")).status == 404


def zipped(body: bytes) -> list[bytes]:
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        return [archive.read(name) for name in archive.namelist() if not name.endswith("/")]


def tarred(body: bytes) -> list[bytes]:
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        return [file.read() for member in archive if (file := archive.extractfile(member))]


def test_selected_names_are_one_archive(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    folder = Page(olga.get(files("shop", source + b"/names")))
    boxes = folder.values("path")
    hidden = [(name, folder.values(name)[-1]) for name in ("folder", "backup")]
    for kind in ("zip", "tar"):
        answer = olga.post("/files/shop/download", *[("path", box) for box in boxes[:3]], *hidden, ("as", kind))
        assert answer.status == 200
        contents = zipped(answer.body) if kind == "zip" else tarred(answer.body)
        assert len(contents) == 3
        assert set(contents) < {b"content of " + name for name in NAMES}
        assert 'filename="shop-names-2' in answer.headers["Content-Disposition"]
    victor = visitor(shop, VIEWER)
    whole = victor.post("/files/shop/download", ("folder", folder.values("folder")[0]), ("as", "zip"))
    assert set(zipped(whole.body)) == {b"content of " + name for name in NAMES}
    assert victor.post("/files/shop/download", ("path", boxes[0]), token=False).status == 400
    assert victor.post("/files/shop/download").status == 400
    assert visitor(shop, CUSTOMER).post("/files/shop/download", ("path", boxes[0])).status == 404
    assert Page(victor.get(files("shop", source))).values("path"), "a viewer selects what to download"


def test_a_browser_completes_a_path_and_downloads_a_selection(browser: Browser, shop: Dashboard, source: bytes) -> None:
    name, _, value = visitor(shop, OPERATOR).cookie.partition("=")
    with visit(browser, shop.url, accept_downloads=True) as (page, noticed):
        page.context.add_cookies([{"name": name, "value": value, "url": shop.url}])
        page.goto(files("shop", b"/"))
        field = page.get_by_role("combobox", name="Path")
        field.fill(f"{os.fsdecode(source)}/pri")
        page.locator("#paths option").first.wait_for(state="attached")
        assert page.locator("#paths option").evaluate_all("all => all.map(each => each.value)") == [
            f"{os.fsdecode(source)}/prices.txt"
        ]
        field.fill(os.fsdecode(source))
        field.press("Enter")
        page.get_by_label("Select prices.txt", exact=True).check()
        page.get_by_label("Select large.bin", exact=True).check()
        with page.expect_download() as begun:
            page.get_by_role("button", name="Download selected as zip").click()
        names = zipfile.ZipFile(begun.value.path()).namelist()
        assert sorted(name.rsplit("/", 1)[1] for name in names if not name.endswith("/")) == ["large.bin", "prices.txt"]
        assert re.fullmatch(r"shop-.*\.zip", unquote(begun.value.suggested_filename))
        noticed.nothing()
