"""Malicious requests: paths that lead elsewhere, forms sent from elsewhere, names with special meaning."""

import itertools
import json
import re
from pathlib import Path

import pytest

from tests.beds.dashboard import ADMIN, CUSTOMER, OPERATOR, VIEWER, Dashboard
from tests.web.files_visit import FORM, Page, Visitor, files, raw, source_of, visitor

pytestmark = [pytest.mark.btrfs, pytest.mark.root]

OUT = (
    *("..", "/..", "/../../../../etc/passwd", "%2e%2e", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc%2fpasswd"),
    *("/%252e%252e/etc/passwd", "/%00", "/etc%00/passwd", "etc/passwd", "/.%00./etc/passwd", "/%c0%ae%c0%ae/etc/passwd"),
    *("/..%5c..%5cetc", "%5c%5cetc", "/./../etc", "/" + "a/" * 3000, "/" + "%ff" * 4200, "%", "/%zz", "/%e2%80%ae"),
    *("/.%2e/.%2e/etc/passwd", "file:///etc/passwd", "/proc/self/environ"),
)
PAGES = ("", "/versions", "/compare", "/download")


@pytest.fixture
def olga(shop: Dashboard) -> Visitor:
    return visitor(shop, OPERATOR)


@pytest.mark.parametrize("page", PAGES)
def test_no_path_leads_out_of_a_backup(olga: Visitor, page: str) -> None:
    for path, kind in itertools.product(OUT, ("file", "tar") if page == "/download" else ("file",)):
        answer = olga.get(f"/files/shop{page}?path={path}&before=2026&after=latest&as={kind}")
        assert answer.status in (400, 404), (path, answer.status)
        assert b"root:x:0:0" not in answer.body
        again = olga.get(f"/files/shop{page}?quoted={path.replace('%', '%25')}&before=2026")
        assert again.status in (200, 303, 400, 404), path
        assert b"root:x:0:0" not in again.body


def test_no_symlink_on_the_way_is_followed(olga: Visitor, shop: Dashboard) -> None:
    source = source_of(shop)
    for page, path in itertools.product(PAGES, (b"/out", b"/out/", b"/out/.", b"/out/shadow", b"/shadow", b"/shadow/x")):
        for kind in ("file", "tar", "zip"):
            answer = olga.get(files("shop", source + path, page, before="2026", **{"as": kind}))
            assert answer.status < 500
            assert Path("/etc/shadow").read_bytes()[:40] not in answer.body


@pytest.mark.parametrize("name", ["backup", "before", "after", "sort", "offset", "limit", "as", "quoted", "content"])
def test_no_other_parameter_leads_out_or_breaks(olga: Visitor, shop: Dashboard, name: str) -> None:
    source = source_of(shop)
    for page, value in itertools.product(
        PAGES, ("..", "../lab", ".working", "%00", "%ff", "%0d%0aX-Evil:%201", "-1", "9" * 30, "1e9", "<b>")
    ):
        answer = olga.get(f"{files('shop', source, page)}&{name}={value}")
        assert answer.status < 500, (page, value, re.findall(r"<p.*", answer.text))
        assert "X-Evil" not in answer.headers
        assert "<b>" not in answer.text


def test_no_host_leads_out(olga: Visitor) -> None:
    for host in (
        "..",
        "%2e%2e",
        "shop%2f..%2flab",
        ".",
        "shop/../lab",
        "shop%00",
        "-rf",
        "%ff",
        "lab%20",
        "SHOP",
        "{{13579*24680}}",
        "%0a",
    ):
        for page in PAGES:
            answer = olga.get(f"/files/{host}{page}?path=/")
            assert answer.status in (301, 308, 400, 404), host
            assert b"335129720" not in answer.body


def test_a_path_of_two_meanings_is_refused_or_has_the_one_that_is_checked(olga: Visitor, shop: Dashboard) -> None:
    source = source_of(shop).decode()
    answer = olga.get(f"/files/shop?path={source}&path=/../../etc")
    assert answer.status == 400
    answer = olga.get(f"/files/shop/download?path=/etc/passwd&path={source}/prices.txt")
    assert answer.body.startswith(b"black tea")


def test_a_newline_in_a_name_makes_no_header(olga: Visitor, shop: Dashboard) -> None:
    path = source_of(shop) + b"/names/two\nlines.txt"
    request = (
        f"GET {files('shop', path, '/download')} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {olga.cookie}\r\nConnection: close\r\n\r\n"
    )
    head, _, body = raw(shop, request.encode()).partition(b"\r\n\r\n")
    assert body == b"content of two\nlines.txt"
    (data,) = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-disposition")]
    assert data.split(b": ", 1)[1] == b"attachment; filename=\"two_lines.txt\"; filename*=UTF-8''two_lines.txt"
    assert b"\n" not in head.replace(b"\r\n", b"")


def test_markup_in_a_difference_and_in_a_file_is_text(olga: Visitor, shop: Dashboard) -> None:
    source = source_of(shop)
    for address in (
        files("shop", source + b"/names/<img src=x onerror=window.pwned=1>.txt"),
        files("shop", source, "/compare", before="2026"),
    ):
        page = Page(olga.get(address))
        assert "img" not in page.tags
        assert not page.styles


def test_a_form_from_elsewhere_does_nothing(olga: Visitor, shop: Dashboard) -> None:
    source = source_of(shop).decode()
    fields = [("path", source), ("backup", "latest"), ("place", "folder"), ("into", "/var/tmp/nowhere"), ("overwrite", "all")]
    before = jobs(olga)
    for step in ("", "/preview", "/start"):
        for more in ([], [("csrf_token", "guessed")], [("csrf_token", "")]):
            answer = olga.post(f"/restore/shop{step}", *fields, *more, token=False)
            assert answer.status == 400, step
        plain = shop.ask("POST", f"/restore/shop{step}", json.dumps(dict(fields)), Cookie=olga.cookie, Content_Type="text/plain")
        assert plain.status == 400
    assert jobs(olga) == before


def test_another_persons_token_does_nothing(olga: Visitor, shop: Dashboard) -> None:
    victor = visitor(shop, VIEWER)
    stolen = re.search(r'name="csrf_token" value="([^"]+)"', victor.get("/account").text)
    assert stolen
    answer = olga.post("/restore/shop/start", ("path", "/"), ("csrf_token", stolen[1]), token=False)
    assert answer.status == 400


def test_a_link_from_elsewhere_shows_a_page_and_starts_no_download(olga: Visitor, shop: Dashboard) -> None:
    address = files("shop", source_of(shop) + b"/prices.txt", "/download")
    answer = olga.get(address, Sec_Fetch_Site="cross-site")
    assert answer.status == 303
    assert answer.headers["Location"].startswith("/files/shop?path=")
    assert olga.get(address, Sec_Fetch_Site="same-origin").status == 200


def test_who_may_not_restore_cannot(shop: Dashboard) -> None:
    source = source_of(shop).decode()
    for name, status in ((VIEWER, 403), (CUSTOMER, 403)):
        who = visitor(shop, name)
        assert who.get(f"/restore/shop?path={source}").status == status
        assert who.get("/restore/shop/preview/20261121T213345Z-dddfa746").status == status
        for step in ("", "/preview", "/start"):
            assert who.post(f"/restore/shop{step}", ("path", source), ("backup", "latest")).status == status


@pytest.mark.parametrize(
    "into", ["", "relative", "/a/../b", "/x\ny", "/x\0", "/" + "x" * 1000, "-e sh", "root@elsewhere:/etc", "/\u202ex"]
)
def test_a_restore_goes_into_no_folder_that_is_none(shop: Dashboard, into: str) -> None:
    ada = visitor(shop, ADMIN)
    before = jobs(ada)
    fields = [("path", source_of(shop).decode()), ("backup", "latest"), ("place", "folder"), ("into", into)]
    for step in ("/preview", "/start"):
        answer = ada.post(f"/restore/shop{step}", *fields)
        assert answer.status == 400
        assert Page(answer).tags.count("form") >= 1
    assert jobs(ada) == before


def test_a_restore_takes_no_path_that_leads_out(olga: Visitor) -> None:
    for path in ("/../../etc/passwd", "etc", "/%2e%2e/etc", "/a%00b", "\u00e4", ""):
        for step in ("", "/preview", "/start"):
            assert olga.post(f"/restore/shop{step}", ("path", path), ("backup", "latest")).status == 400


def jobs(who: Visitor) -> int:
    """Returns how many restores were started."""
    return who.get("/jobs?part=asked").text.count("/jobs/2")


def test_a_body_that_is_no_form_or_too_large_is_refused(shop: Dashboard, olga: Visitor) -> None:
    large = "path=" + "x" * (3 << 19)
    assert shop.ask("POST", "/restore/shop", large, Cookie=olga.cookie, Content_Type=FORM).status in (400, 413)
    many = [("path", f"/p{number}") for number in range(1001)]
    assert olga.post("/restore/shop", *many, ("backup", "latest")).status == 400
