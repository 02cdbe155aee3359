"""The pages of files of a real pool, through the real dashboard and the real root service."""

import hashlib
import io
import os
import re
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.beds.dashboard import CUSTOMER, MARKUP, NAMES, OPERATOR, QUICK, VIEWER, Dashboard
from tests.beds.manifest import differences, manifest
from tests.beds.watch import wait_for
from tests.beds.work import work
from tests.web.files_visit import Page, Visitor, files, path_in, source_of, visitor

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


@pytest.fixture
def olga(shop: Dashboard) -> Visitor:
    return visitor(shop, OPERATOR)


@pytest.fixture
def source(shop: Dashboard) -> bytes:
    return source_of(shop)


def data_of(shop: Dashboard, path: bytes, night: int = -1) -> Path:
    """Returns the real path of a path in a backup of `shop`."""
    assert shop.nights
    return shop.nights.data("shop", os.fsdecode(path), shop.nights.names("shop")[night])


def listed(folder: Path) -> list[bytes]:
    """Returns the names in a folder, according to the kernel."""
    return [os.fsencode(path.name) for path in folder.iterdir()]


def names_of(page: Page, source: bytes) -> list[bytes]:
    """Returns the names in a folder's table, from the targets of its links."""
    names = [path_in(address) for address in page.addresses("/files/shop?")]
    return [path.rsplit(b"/", 1)[1] for path in dict.fromkeys(names) if path.startswith(source + b"/") and path != source]


def test_a_folder_shows_the_names_that_it_has_folders_first(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    page = Page(olga.get(files("shop", source)))
    names = listed(data_of(shop, source))
    assert set(names_of(page, source)) == set(names)
    assert names_of(page, source)[:2] == [b"folder", b"names"]
    assert f"{len(names)} names in" in page.text


def test_a_row_has_kind_size_mode_owner_and_where_a_symlink_points(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    text = Page(olga.get(files("shop", source))).text
    large = data_of(shop, source + b"/large.bin").stat()
    mode, owner = f"{stat.S_IMODE(large.st_mode):04o}", f"{large.st_uid}:{large.st_gid}"
    assert f"large.bin file 5.00 MiB {mode} {owner}" in text
    assert "shadow → points to /etc/shadow symlink - 0777" in text
    assert "out → points to ../../../../../../../../etc symlink" in text


def test_a_symlink_is_shown_and_never_followed(olga: Visitor, source: bytes) -> None:
    page = olga.get(files("shop", source + b"/out"))
    assert page.status == 200
    assert "Points to" in page.text
    below = olga.get(files("shop", source + b"/out/passwd"))
    assert below.status == 404
    assert "is a symlink to" in below.text
    for kind in ("file", "tar"):
        assert olga.get(files("shop", source + b"/out/passwd", "/download", **{"as": kind})).status == 404
    assert olga.get(files("shop", source + b"/shadow", "/download")).status == 400
    archive = olga.get(files("shop", source + b"/shadow", "/download", **{"as": "tar"}))
    with tarfile.open(fileobj=io.BytesIO(archive.body)) as unpacked:
        (member,) = unpacked.getmembers()
    assert (member.issym(), member.linkname) == (True, "/etc/shadow")


def test_the_page_of_a_file_has_its_metadata_versions_and_content(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    page = Page(olga.get(files("shop", source + b"/prices.txt")))
    status = data_of(shop, source + b"/prices.txt").stat()
    assert f"({status.st_size} bytes)" in page.text
    assert "3 versions in 3 backups" in page.text
    assert "black tea 4.80 green tea 3.20" in page.text
    assert shop.nights
    for name in shop.nights.names("shop"):
        assert any(name in address for address in page.addresses("/files/shop?"))


def test_every_version_can_be_downloaded_and_is_what_the_night_had(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    page = Page(olga.get(files("shop", source + b"/prices.txt", "/versions")))
    got = {olga.get(address).body for address in page.addresses("/files/shop/download?")}
    assert got == {data_of(shop, source + b"/prices.txt", night).read_bytes() for night in range(3)}
    assert len(got) == 3


def test_the_backups_before_and_after_a_change_are_a_click_away(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    assert shop.nights
    first, middle, last = shop.nights.names("shop")
    page = Page(olga.get(files("shop", source + b"/prices.txt", backup=middle)))
    steps = {link["rel"]: link["href"] for link in page.links if link.get("rel") in ("prev", "next")}
    assert f"backup={first}" in steps["prev"]
    assert f"backup={last}" in steps["next"]
    folder = Page(olga.get(files("shop", source + b"/folder", backup=middle)))
    assert not [link for link in folder.links if link.get("rel") in ("prev", "next")]
    assert "unchanged in all backups that have it" in folder.text


def test_a_backup_is_chosen_by_a_form_without_a_script_whatever_the_name(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    assert shop.nights
    for name in NAMES:
        page = Page(olga.get(files("shop", source + b"/names/" + name)))
        (quoted,) = page.values("quoted")
        done = olga.get(f"/files/shop?quoted={quoted.replace('%', '%25')}&backup={shop.nights.names('shop')[0]}")
        assert done.status == 303
        assert path_in(done.headers["Location"]) == source + b"/names/" + name
        assert olga.get(done.headers["Location"]).status == 200


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_of_any_bytes_works_in_every_link(olga: Visitor, source: bytes, name: bytes) -> None:
    listing = Page(olga.get(files("shop", source + b"/names")))
    (address,) = {address for address in listing.addresses("/files/shop?") if path_in(address) == source + b"/names/" + name}
    page = olga.get(address)
    assert page.status == 200
    (download,) = {
        address for address in Page(page).addresses("/files/shop/download?") if "as=file" in address and "backup" in address
    }
    got = olga.get(download)
    assert got.body == b"content of " + name
    assert got.headers["Content-Disposition"].startswith("attachment;")
    for answer in (page, olga.get(files("shop", source + b"/names"))):
        assert "Set-Cookie" not in answer.headers or "\n" not in answer.headers["Set-Cookie"]
        assert MARKUP.decode() not in answer.text
        assert not Page(answer).styles
        assert "img" not in Page(answer).tags
        assert all(script.startswith("/static/") for script in Page(answer).scripts)


def test_names_that_cannot_be_shown_are_escaped_and_marked(olga: Visitor, source: bytes) -> None:
    text = Page(olga.get(files("shop", source + b"/names"))).text
    for shown in (
        r"caf\xe9.txt escaped",
        r"two\nlines.txt escaped",
        r"\u202egnp.txt escaped",
        "<img src=x onerror=window.pwned=1>.txt",
    ):
        assert shown in text
    assert "\u202e" not in text


def test_two_backups_are_compared_line_by_line_and_name_by_name(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    assert shop.nights
    first, _, last = shop.nights.names("shop")
    lines = olga.get(files("shop", source + b"/prices.txt", "/compare", before=first, after=last))
    assert "removed: black tea 2.80" in Page(lines).text
    assert "added: black tea 4.80" in Page(lines).text
    folder = Page(olga.get(files("shop", source, "/compare", before=first, after=last)))
    assert "1 difference: 1 changed" in folder.text
    assert "No differences." in olga.get(files("shop", source + b"/folder", "/compare", before=first, after=last)).text


def test_a_folder_is_downloaded_as_a_tar_that_gnu_tar_unpacks_to_the_same(
    olga: Visitor, shop: Dashboard, source: bytes, tmp_path: Path
) -> None:
    got = olga.get(files("shop", source, "/download", **{"as": "tar"}))
    (tmp_path / "it.tar").write_bytes(got.body)
    work("tar", "-xpf", tmp_path / "it.tar", "-C", tmp_path, "--xattrs", "--acls", "--strip-components=0")
    unpacked = tmp_path / os.fsdecode(source).strip("/")
    path = unpacked if unpacked.exists() else tmp_path / os.fsdecode(source).rsplit("/", 1)[1]
    assert differences(manifest(path), manifest(data_of(shop, source))) == []
    assert 'filename="shop-source' in got.headers["Content-Disposition"]


def test_a_folder_is_downloaded_as_a_zip_with_every_content(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    got = olga.get(files("shop", source + b"/folder", "/download", **{"as": "zip"}))
    with zipfile.ZipFile(io.BytesIO(got.body)) as archive:
        assert archive.testzip() is None
        by_name = {
            zip_info.filename.rsplit("/", 1)[1]: archive.read(zip_info) for zip_info in archive.infolist() if not zip_info.is_dir()
        }
    assert by_name == {path.name: path.read_bytes() for path in data_of(shop, source + b"/folder").iterdir()}


def test_a_download_is_whole_and_no_browser_shows_it(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    got = olga.get(files("shop", source + b"/large.bin", "/download"))
    data = data_of(shop, source + b"/large.bin").read_bytes()
    assert hashlib.sha256(got.body).digest() == hashlib.sha256(data).digest()
    headers = got.headers
    assert headers["Content-Length"] == str(len(data))
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"].startswith("sandbox")


def test_a_backup_that_is_gone_leads_to_the_nearest_that_is_there(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    assert shop.nights
    first, _, last = shop.nights.names("shop")
    for asked, near in (("2020-01-01T000000Z", first), ("2031-01-01", last)):
        answer = olga.get(files("shop", source + b"/prices.txt", backup=asked))
        assert answer.status == 404
        (address, *_) = [address for address in Page(answer).addresses("/files/shop?") if f"backup={near}" in address]
        assert path_in(address) == source + b"/prices.txt"
        assert olga.get(address).status == 200


def test_a_path_that_is_not_there_names_what_is_meant_and_what_is_above(olga: Visitor, source: bytes) -> None:
    answer = olga.get(files("shop", source + b"/foldr/file 01.txt"))
    assert answer.status == 404
    paths = {path_in(address) for address in Page(answer).addresses("/files/shop?")}
    assert {source + b"/folder", source} <= paths
    assert olga.get(files("shop", b"/" + b"deep/" * 300)).status == 404


def test_a_folder_is_sorted_as_its_titles_say_and_comes_in_pages(olga: Visitor, source: bytes, shop: Dashboard) -> None:
    folder = data_of(shop, source + b"/folder")
    names, sizes = listed(folder), {os.fsencode(path.name): path.stat().st_size for path in folder.iterdir()}
    down = names_of(Page(olga.get(files("shop", source + b"/folder", sort="-size"))), source + b"/folder")
    assert [sizes[name] for name in down] == sorted(sizes.values(), reverse=True)
    assert 'aria-sort="descending"' in olga.get(files("shop", source + b"/folder", sort="-size")).text
    rest = names_of(Page(olga.get(files("shop", source + b"/folder", offset="25"))), source + b"/folder")
    assert rest == sorted(names)[25:]
    for wrong in ("sort=colour", "offset=-1", "offset=x", "backup=../..", "backup=main%00"):
        assert olga.get(files("shop", source) + "&" + wrong).status == 400


def test_the_root_leads_down_to_the_files_and_its_breadcrumb_says_where_one_is(olga: Visitor, source: bytes) -> None:
    top = Page(olga.get("/files/shop"))  # the folders down to it have nothing else: they are one row
    addresses = {address for address in top.addresses("/files/shop?") if path_in(address) == source}
    (address,) = addresses
    page = Page(olga.get(address))
    above = source.rpartition(b"/")[0]
    assert above in [path_in(crumb) for crumb in page.addresses("/files/shop?")]
    assert olga.get(files("shop", above)).status == 200
    (_tab, here) = [link for link in page.links if link.get("aria-current") == "page" and link["href"].startswith("/files/shop?")]
    assert path_in(here["href"]) == source


def test_who_is_limited_to_hosts_finds_no_other_anywhere(shop: Dashboard, source: bytes) -> None:
    carol = visitor(shop, CUSTOMER)
    for page in ("", "/versions", "/compare", "/download"):
        answer = carol.get(files("shop", source + b"/folder", page, before="2026", **{"as": "tar"}))
        assert answer.status == 404
        nowhere = carol.get(files("nothing", source + b"/folder", page, before="2026", **{"as": "tar"}))
        assert nowhere.status == 404
        assert answer.text == nowhere.text
    assert carol.get(files("lab", source + b"/folder")).status == 200


def test_who_may_not_restore_sees_no_way_to(shop: Dashboard, source: bytes) -> None:
    victor = visitor(shop, VIEWER)
    for address in (
        files("shop", source),
        files("shop", source + b"/prices.txt"),
        files("shop", source + b"/prices.txt", "/versions"),
    ):
        page = victor.get(address)
        assert page.status == 200
        assert "restore" not in page.text.lower()
    boxes = Page(victor.get(files("shop", source)))
    assert not any(field["of form"].startswith("/restore") for field in boxes.fields), "what he selects he downloads"
    assert {"zip", "tar"} <= set(boxes.values("as"))


def without_csv(text: str) -> str:
    """Returns the page in lower case without the links for its tables as CSV, which have no content of a file."""
    return re.sub(r'<p class="quiet csv">.*?</p>', "", text, flags=re.DOTALL).lower()


def test_what_is_switched_off_has_no_way_to_it(olga: Visitor, shop: Dashboard, source: bytes) -> None:
    assert shop.nights
    addresses = [
        files("shop", source),
        files("shop", source + b"/prices.txt"),
        files("shop", source + b"/prices.txt", "/versions"),
    ]
    before = [olga.get(address).text for address in addresses]
    assert all("download" in text and "estore" in text for text in before)
    shop.nights.tables["serve"] = {**QUICK, "no_downloads": True, "no_restores": True}
    try:
        shop.nights.write()
        # The root service reads the configuration again at the next request, and publishes it beside the answer.
        wait_for(lambda: "download" not in without_csv(olga.get(addresses[0]).text), 20)
        for address in addresses:
            page = olga.get(address)
            assert page.status == 200
            assert "download" not in without_csv(page.text)
            assert "restore" not in page.text.lower()
            assert "green tea" not in page.text
    finally:
        shop.nights.tables["serve"] = QUICK
        shop.nights.write()
        wait_for(lambda: "download" in olga.get(addresses[0]).text, 20)


def test_who_is_not_logged_in_is_asked_to_and_comes_back_to_the_very_bytes(shop: Dashboard, source: bytes) -> None:
    address = files("shop", source + b"/names/caf\xe9.txt")
    answer = shop.ask("GET", address)
    assert answer.status == 303
    assert "caf%25E9.txt" in answer.headers["Location"]
