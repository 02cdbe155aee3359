"""A restore from the dashboard, from the choice to the restored files."""

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.dashboard import ADMIN, NAMES, OPERATOR, Dashboard, own_folder
from tests.beds.manifest import differences, manifest
from tests.beds.watch import wait_for
from tests.web.files_visit import Page, Visitor, files, source_of, visitor

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


@pytest.fixture
def olga(shop: Dashboard) -> Visitor:
    return visitor(shop, OPERATOR)


@pytest.fixture
def ada(shop: Dashboard) -> Visitor:
    """A user who may choose a folder of the host."""
    return visitor(shop, ADMIN)


@pytest.fixture
def into() -> Iterator[Path]:
    """A folder of the host, which is this machine behind a stand-in for ssh."""
    with own_folder() as folder:
        yield folder / "restored"


def form_of(page: Page) -> list[tuple[str, str]]:
    """Returns the fields that a browser would send from the page's unchanged form, not that of the downloads."""
    lines = []
    for field in page.fields:
        if field["of form"].endswith("/download"):
            continue
        chosen = field.get("type") not in ("radio", "checkbox") or "checked" in field
        if field.get("name") and field["name"] != "csrf_token" and chosen:
            lines.append((field["name"], field.get("value", "")))
    return lines


def with_(fields: list[tuple[str, str]], **other: str) -> list[tuple[str, str]]:
    return [(name, value) for name, value in fields if name not in other] + list(other.items())


def wait(who: Visitor, job: str) -> dict[str, object]:
    """Waits for the job's end and returns the job."""
    assert who.web.service
    end = time.monotonic() + 60
    while True:
        answer = who.web.service.agent().ask("job", job=job)
        if answer["state"] in ("done", "failed"):
            return dict(answer)
        assert time.monotonic() < end, answer
        time.sleep(0.1)


def test_chosen_names_of_any_bytes_come_back_to_a_folder_on_the_host(ada: Visitor, shop: Dashboard, into: Path) -> None:
    assert shop.nights
    folder = Page(ada.get(files("shop", source_of(shop) + b"/names")))
    boxes = folder.values("path")
    assert len(boxes) == len(NAMES)
    chosen = ada.post("/restore/shop", *[("path", box) for box in boxes], ("backup", folder.values("backup")[0]))
    assert chosen.status == 200
    asked = with_(form_of(Page(chosen)), place="folder", into=os.fspath(into), overwrite="never")
    preview = ada.post("/restore/shop/preview", *asked)
    assert preview.status == 200, Page(preview).text
    assert f"{len(NAMES)} names" in Page(preview).text
    assert "Nothing would be overwritten." in Page(preview).text
    assert not into.exists()
    begun = ada.post("/restore/shop/start", *form_of(Page(preview)))
    assert begun.status == 303
    job = begun.headers["Location"].removeprefix("/jobs/")
    answer = wait(ada, job)
    assert answer["state"] == "done", answer
    assert answer["who"] == ADMIN
    back = {os.fsencode(path.name): path.read_bytes() for path in into.iterdir()}
    assert back == {name: b"content of " + name for name in NAMES}
    assert ada.get(begun.headers["Location"]).status == 200


def test_the_key_is_checked_and_the_command_for_the_backup_server_does_it(ada: Visitor, shop: Dashboard, into: Path) -> None:
    """authorized_keys is explained where it matters alone: this host accepts the key."""
    assert shop.nights
    boxes = Page(ada.get(files("shop", source_of(shop) + b"/names"))).values("path")
    form = ada.post("/restore/shop", *[("path", box) for box in boxes])
    match = re.search(r'data-live="(/restore/shop/key/[^"]+)"', form.text)
    address = match[1] if match else "/hosts/shop"  # the check was faster than the form
    wait_for(lambda: match is None or "data-over" in ada.get(address, X_Live="1").text)
    assert "can be reached and allows a restore" in (ada.get(address).text if match else form.text)
    again = ada.post("/restore/shop", *[("path", box) for box in boxes]).text
    assert "can be reached and allows a restore" in again, "the same check is used for some minutes"
    assert "authorized_keys" not in again
    shown = [unescape(text) for text in re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", form.text, re.DOTALL)]
    ours = f'backupd() {{ {shlex.quote(sys.executable)} -m backupd --config {shop.nights.config} "$@"; }}'
    typed = shown[0].replace("/root/restored", str(into))
    work("bash", "-ec", f"{ours}\n{typed}", cwd=TOP)
    assert {os.fsencode(path.name): path.read_bytes() for path in into.iterdir()} == {name: b"content of " + name for name in NAMES}


def test_a_preview_says_what_would_be_overwritten_and_does_nothing(ada: Visitor, shop: Dashboard, into: Path) -> None:
    assert shop.nights
    first = shop.nights.names("shop")[0]
    into.mkdir()
    (into / "prices.txt").write_text("coffee")
    page = Page(ada.get(f"/restore/shop?path={source_of(shop).decode()}/prices.txt&backup={first}"))
    asked = with_(form_of(page), place="folder", into=os.fspath(into), overwrite="all")
    text = Page(ada.post("/restore/shop/preview", *asked)).text
    assert "1 name would be overwritten." in text
    assert f"{into}/prices.txt" in text
    kept = Page(ada.post("/restore/shop/preview", *with_(asked, overwrite="never"))).text
    assert "Nothing would be overwritten." in kept
    assert (into / "prices.txt").read_text() == "coffee"
    begun = ada.post("/restore/shop/start", *asked)
    assert wait(ada, begun.headers["Location"].removeprefix("/jobs/"))["state"] == "done"
    assert (into / "prices.txt").read_text() == "black tea 2.80\ngreen tea 3.20\n"
    result = "1 file replaced; 30 B read again and compared, no difference"
    assert f"{result}." in Page(ada.get(begun.headers["Location"])).text
    assert f"{result}." in Page(ada.get("/hosts/shop?tab=runs")).text
    log = json.loads(shop.nights.backupd("log", "shop", "--actions", "--json", "-n", "2").stdout)
    assert sorted((action["what"], action["by"].partition(" ")[0]) for action in log) == [("restore", ADMIN), ("restored", ADMIN)]
    assert result in [action["why"] for action in log]


def test_a_deleted_file_comes_back_to_its_own_place(olga: Visitor, shop: Dashboard) -> None:
    assert shop.nights
    lost = shop.nights.source / "folder" / "file 07.txt"
    before = manifest(lost.parent)
    content = lost.read_bytes()
    lost.unlink()
    try:
        page = Page(olga.get(files("shop", source_of(shop) + b"/folder")))
        asked = with_(form_of(Page(olga.post("/restore/shop", *form_of(page)))), place="original")
        assert [value for name, value in asked if name == "path"] == [source_of(shop).decode() + "/folder"]
        preview = olga.post("/restore/shop/preview", *asked)
        assert preview.status == 200, Page(preview).text
        assert "new 1" in Page(preview).text
        begun = olga.post("/restore/shop/start", *form_of(Page(preview)))
        assert wait(olga, begun.headers["Location"].removeprefix("/jobs/"))["state"] == "done"
        assert differences(before, manifest(lost.parent)) == []
    finally:
        if not lost.exists():
            lost.write_bytes(content)


def test_an_older_version_replaces_the_present_one_unless_the_user_chooses_otherwise(olga: Visitor, shop: Dashboard) -> None:
    """From an older version "keep existing files" was preselected, so that the restore did nothing."""
    assert shop.nights
    names, path = shop.nights.names("shop"), f"{source_of(shop).decode()}/prices.txt"
    for name, rule in ((names[0], "all"), (names[-1], "never"), ("latest", "never")):
        form = form_of(Page(olga.get(f"/restore/shop?path={path}&backup={name}")))
        assert dict(form)["overwrite"] == rule, name
    chosen = Page(olga.get(f"/restore/shop?path={path}&backup={names[0]}&overwrite=never"))
    assert dict(form_of(chosen))["overwrite"] == "never"


def test_the_form_downloads_what_it_would_restore(olga: Visitor, shop: Dashboard) -> None:
    path = f"{source_of(shop).decode()}/prices.txt"
    form = Page(olga.get(f"/restore/shop?path={path}"))
    hidden = [
        (field["name"], field["value"]) for field in form.fields if field["of form"] == "/files/shop/download" and "type" in field
    ]
    answer = olga.post("/files/shop/download", *[pair for pair in hidden if pair[0] != "csrf_token"], ("as", "zip"))
    assert answer.body.startswith(b"PK")
    assert 'filename="shop-prices.txt-' in answer.headers["Content-Disposition"]


def test_what_was_typed_stays_when_it_does_not_fit(ada: Visitor, shop: Dashboard) -> None:
    asked = [
        ("path", source_of(shop).decode()),
        ("backup", "latest"),
        ("place", "folder"),
        ("into", "no/folder"),
        ("overwrite", "all"),
    ]
    answer = ada.post("/restore/shop/preview", *asked)
    assert answer.status == 400
    page = Page(answer)
    given = dict(form_of(page)) | {"backup": ""}
    assert given.pop("q") == ""  # the search of each page
    assert given == dict(asked) | {"backup": "", "path": source_of(shop).decode()}
    assert 'role="alert"' in answer.text


def test_the_form_holds_one_backup_whatever_comes_to_be_the_latest(olga: Visitor, shop: Dashboard) -> None:
    assert shop.nights
    page = Page(olga.get(f"/restore/shop?path={source_of(shop).decode()}"))
    assert sorted(set(page.values("backup"))) == [shop.nights.names("shop")[-1]]


def test_a_backup_that_is_gone_meanwhile_is_told_with_the_nearest(olga: Visitor, shop: Dashboard) -> None:
    answer = olga.post("/restore/shop/start", ("path", source_of(shop).decode()), ("backup", "2020-01-01T000000Z"))
    assert answer.status == 404
    assert "no backup 2020-01-01T000000Z" in Page(answer).text


def test_what_cannot_be_restored_says_why(ada: Visitor, shop: Dashboard, into: Path) -> None:
    fields = [("path", "/nowhere"), ("backup", "latest"), ("place", "folder"), ("into", os.fspath(into))]
    answer = ada.post("/restore/shop/preview", *fields)
    assert answer.status == 409
    assert "/nowhere" in Page(answer).text
    assert "Traceback" not in answer.text


def test_a_job_of_another_host_or_kind_is_no_preview(olga: Visitor, shop: Dashboard) -> None:
    assert shop.service
    rows = [row["job"] for row in shop.service.agent().ask("jobs")]
    for job in (*rows[:2], "20200101T000000Z-00000000", "..", "x"):
        assert olga.get(f"/restore/shop/preview/{job}").status in (400, 404)
    assert json.dumps(rows)


def test_an_operator_restores_to_where_the_files_were_and_nowhere_else(olga: Visitor, shop: Dashboard, into: Path) -> None:
    """A user who can put a file anywhere on a host and restore it into /etc/cron.d would be root there."""
    assert shop.nights
    path = f"{source_of(shop).decode()}/prices.txt"
    form = Page(olga.get(f"/restore/shop?path={path}"))
    assert form.values("place") == ["original"]
    assert form.values("into") == []
    assert Page(visitor(shop, ADMIN).get(f"/restore/shop?path={path}")).values("place") == ["original", "folder"]
    before = olga.get("/api/v1/tasks").text
    for address in ("/restore/shop", "/restore/shop/preview", "/restore/shop/start"):
        fields = [("path", path), ("backup", "latest"), ("place", "folder"), ("into", os.fspath(into)), ("overwrite", "all")]
        assert olga.post(address, *fields).status == 403, address
    wish = json.dumps({"paths": [path], "folder": os.fspath(into)})
    for verb, who, status in (("restore", OPERATOR, 403), ("restore/preview", OPERATOR, 403), ("restore/preview", ADMIN, 200)):
        words = {"Authorization": f"Bearer {shop.tokens[who]}", "Content_Type": "application/json"}
        assert shop.ask("POST", f"/api/v1/hosts/shop/{verb}", wish, **words).status == status, (verb, who)
    assert olga.get("/api/v1/tasks").text == before
    assert not into.exists()
