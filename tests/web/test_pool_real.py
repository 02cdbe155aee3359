"""The pages of the pool on a real btrfs, with the root service and in a real browser, compared with dump-tree, sysfs and the
programs.
"""

import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from tests.beds import btrfs, dumped, session, work
from tests.beds.browser import Noticed, visit
from tests.beds.cli import TOP
from tests.beds.dashboard import LOGIN, Answer, Dashboard, csrf_of, own_folder, serving, user_id
from tests.beds.nights import Nights
from tests.beds.serving import serving as root_service
from tests.heatmap.states import entries_at

pytestmark = pytest.mark.btrfs
NUMBER = re.compile(r"<dt>([^<]*)</dt><dd>(.*?)</dd>", re.DOTALL)


@dataclass
class Bed:
    """A pool with one recorded state; `groups` and `chunks`: dump-tree's output at that time."""

    web: Dashboard
    point: Path
    groups: dict[int, tuple[int, int, int]]
    chunks: dict[int, tuple[tuple[int, int], ...]]
    id: str

    def get(self, path: str, **headers: str) -> Answer:
        return self.web.ask("GET", path, Cookie=self.web.cookie, **headers)

    def post(self, path: str, page: str) -> Answer:
        words = urlencode({"csrf_token": csrf_of(self.get(page).text)})
        return self.web.ask("POST", path, words, Content_Type="application/x-www-form-urlencoded", Cookie=self.web.cookie)


@pytest.fixture(scope="module")
def bed(no_leftovers: None) -> Iterator[Bed]:
    """A separate btrfs on two devices, without writes after its state is recorded, so that dump-tree prints the same state."""
    point = btrfs.make("2G", 2, ("-d", "raid1", "-m", "raid1"))
    try:
        yield from _served(point)
    finally:
        problems = session.remove(point.parent)
    assert not problems, "\n".join(problems)


def _served(point: Path) -> Iterator[Bed]:
    nights = Nights(point)
    nights.state.parent.chmod(0o755)
    for number in range(40):
        (nights.source / f"{number}").write_bytes(bytes([number]) * (number * 30_000))
    nights.host("shop", nights.source)
    nights.run()
    nights.backupd("sample")
    work("sync", "-f", point)
    work(sys.executable, "-m", "heatmap", "nightly", "--config", nights.config, cwd=TOP)
    groups = {vaddr: (length, used, flags) for vaddr, length, used, flags in _block_groups(point)}
    chunks = {vaddr: stripes for vaddr, _, _, stripes in dumped.chunks(point)}
    with (
        own_folder() as folder,
        root_service(nights.config, "--allow", str(user_id()), "--login", folder / LOGIN) as service,
        serving(folder, nights.state, service.socket, ("lab",)) as web,
    ):
        web.nights, web.service = nights, service
        match = re.search(r'data-map="/pool/heatmap/([^.]+)\.json', web.ask("GET", "/pool/heatmap", Cookie=web.cookie).text)
        assert match
        yield Bed(web, point, groups, chunks, match[1])


def _block_groups(point: Path) -> list[tuple[int, int, int, int]]:
    """Reads the block groups, from the block group tree where it exists."""
    return dumped.block_groups(point, 11) or dumped.block_groups(point, 2)


def test_the_table_of_block_groups_is_what_dump_tree_shows(bed: Bed) -> None:
    page = bed.get("/pool/blockgroups?order=vaddr").text
    shown = [int(vaddr) for vaddr in re.findall(r"<th scope=\"row\"><a [^>]*>(\d+)</a>", page)]
    assert shown == sorted(bed.groups)
    for devid, paddr in (pair for stripes in bed.chunks.values() for pair in stripes):
        assert f"{devid}: {paddr}" in page


def test_a_block_group_has_its_figures_and_its_places_on_the_devices(bed: Bed) -> None:
    from btrkeep.units import format_size

    for vaddr, (length, used, _) in bed.groups.items():
        page = bed.get(f"/pool/blockgroup/{vaddr}").text
        facts = {name: re.sub(r"<[^>]+>", "", value).strip() for name, value in NUMBER.findall(page)}
        assert facts["Length"] == format_size(length)
        assert facts["Used"].startswith(format_size(used))
        for devid, paddr in bed.chunks[vaddr]:
            assert f"on device {devid} at {paddr} (0x{paddr:x})" in page
        assert page.count("Stored on device") == len(bed.chunks[vaddr])
    inside = min(bed.groups) + 4096
    answer = bed.get(f"/pool/blockgroup/{inside}")
    assert answer.status == 404
    assert f"/pool/blockgroup/{min(bed.groups)}" in answer.text
    assert bed.get(f"/pool/blockgroup/{hex(min(bed.groups))}").status == 200


def test_the_map_agrees_with_the_dev_extents_of_dump_tree(bed: Bed) -> None:
    answer = json.loads(bed.get(f"/pool/heatmap/{bed.id}.json?sort=physical").body)
    entries = answer["entries"]
    extents = sorted((devid, paddr, vaddr) for devid, paddr, vaddr, _ in dumped.device_extents(bed.point))
    assert sorted(zip(entries["devid"], entries["paddr"], entries["vaddr"], strict=True)) == extents


def test_the_picture_of_the_extents_is_the_one_that_the_program_draws(bed: Bed) -> None:
    vaddr = max(bed.groups, key=lambda group: bed.groups[group][1])
    answer = bed.get(f"/pool/blockgroup/{vaddr}/extents.png?curve=snake")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "image/png")
    words = ("-q", "--blockgroup", str(vaddr), "--curve", "snake", "--order", "9", "--size", "9", "-o", "-", str(bed.point))
    theirs = subprocess.run([sys.executable, "-m", "heatmap", *words], cwd=TOP, capture_output=True, check=True).stdout
    assert (_pixels(answer.body) == _pixels(theirs)).all()
    assert bed.get(f"/pool/blockgroup/{vaddr + 1}/extents.png").status == 502


def _pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def test_the_doctor_runs_on_request_and_shows_the_findings_of_the_command(bed: Bed) -> None:
    assert "It has not run" in bed.get("/doctor").text
    assert bed.post("/doctor", "/doctor").status == 303
    page = unescape(bed.get("/doctor").text)
    assert bed.web.nights
    answer = json.loads(bed.web.nights.backupd("doctor", "--json", check=False).stdout)
    assert answer["findings"]
    for finding in answer["findings"]:
        assert finding["what"] in page
        assert finding["why"] in page
        assert all(line in page for line in finding["commands"])
    assert f"{len(answer['checks'])} checks" in page


def test_a_plan_is_made_on_request_and_is_that_of_the_balancer(bed: Bed) -> None:
    assert "Make a plan" in bed.get("/pool/balance").text
    assert bed.post("/pool/balance/plan", "/pool/balance").status == 303
    page = unescape(bed.get("/pool/balance").text)
    assert bed.web.nights
    words = ("plan", "--config", bed.web.nights.config, "--json", bed.point)
    answer = json.loads(work(sys.executable, "-m", "balancer", *words, cwd=TOP).stdout)
    assert f"by {answer['policy']}" in page
    if not answer["planned"]:
        assert "Nothing is worth balancing" in page
    for planned_group in answer["planned"]:
        assert f"/pool/blockgroup/{planned_group['vaddr']}" in page


def test_a_job_that_was_started_here_is_shown_with_what_it_says_until_it_is_over(bed: Bed) -> None:
    assert bed.web.service
    job = bed.web.service.agent().ask("run", host="shop")["job"]
    end = time.monotonic() + 60
    while "Finished." not in (page := bed.get(f"/jobs/{job}").text):
        assert f'data-live="/jobs/{job}"' in page
        assert time.monotonic() < end
        time.sleep(0.2)
    assert "backup of shop" in page
    assert "data-live" not in page
    part = bed.get(f"/jobs/{job}", X_Live="1").text
    assert "<html" not in part
    assert "Finished." in part
    assert f"/jobs/{job}" in bed.get("/jobs").text
    carol = bed.web.log_in("carol")
    assert bed.web.ask("GET", f"/jobs/{job}", Cookie=carol).status == 404
    assert job not in bed.web.ask("GET", "/jobs", Cookie=carol).text
    assert bed.get("/jobs/20200101T000000Z-00000000").status == 404
    assert "/jobs/night-" in bed.get("/jobs").text
    assert "data-live" not in bed.get("/jobs").text  # no page polls a service that ends when idle


# --- in a browser


@pytest.fixture
def seen(bed: Bed, browser: Browser) -> Iterator[tuple[Page, Noticed]]:
    name, _, value = bed.web.cookie.partition("=")
    with visit(browser, bed.web.url) as (page, noticed):
        page.context.add_cookies([{"name": name, "value": value, "url": bed.web.url}])
        yield page, noticed
        noticed.nothing()


@pytest.mark.parametrize("wish", ["sort=physical&curve=hilbert", "sort=virtual&curve=snake", "sort=physical&curve=linear"])
def test_what_is_under_the_pointer_is_what_the_map_says(bed: Bed, seen: tuple[Page, Noticed], wish: str) -> None:
    page, _ = seen
    answer = json.loads(bed.get(f"/pool/heatmap/{bed.id}.json?{wish}").body)
    page.goto(f"/pool/heatmap?{wish}")
    canvas = page.locator(".heatmap .canvas")
    canvas.scroll_into_view_if_needed()
    page.wait_for_load_state("networkidle")
    box = page.locator(".heatmap img").bounding_box()
    assert box
    edge, spots = 2 ** answer["size"], np.random.default_rng(1).random((12, 2))
    for across, down in spots.tolist():
        x, y = int(across * edge), int(down * min(edge, edge * 500 / box["height"]))
        page.mouse.move(box["x"] + (x + 0.5) / edge * box["width"], box["y"] + (y + 0.5) / edge * box["height"])
        here = entries_at(answer, x, y)
        words = f"Block group {answer['entries']['vaddr'][here[0]]}" if here else "Nothing is allocated there."
        page.locator(".under", has_text=words).wait_for()
        if here and "devid" in answer["entries"]:
            place = f"device {answer['entries']['devid'][here[0]]} at {answer['entries']['paddr'][here[0]]}"
            page.locator(".under", has_text=place).wait_for()


def test_the_heatmap_is_moved_over_by_keys_and_opens_the_block_group(bed: Bed, seen: tuple[Page, Noticed]) -> None:
    page, _ = seen
    page.goto("/pool/heatmap?curve=linear")
    page.locator(".heatmap .canvas").focus()
    under = page.locator(".under a")
    for _ in range(200):
        page.keyboard.press("Shift+ArrowUp")
        page.locator(".mark").wait_for()
        if under.count():
            break
    vaddr = under.first.inner_text().split()[-1]
    assert int(vaddr) in bed.groups
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/pool/blockgroup/{vaddr}**")
    page.locator(".extents img").scroll_into_view_if_needed()
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.querySelector('.extents img').naturalWidth") == 512


def test_a_click_opens_and_a_finger_only_shows(bed: Bed, browser: Browser, seen: tuple[Page, Noticed]) -> None:
    page, _ = seen
    page.goto("/pool/heatmap?curve=linear")
    page.locator(".heatmap .canvas").click(position={"x": 3, "y": 3})
    page.wait_for_url("**/pool/blockgroup/**")
    name, _, value = bed.web.cookie.partition("=")
    with visit(browser, bed.web.url, has_touch=True, viewport={"width": 390, "height": 844}) as (phone, noticed):
        phone.context.add_cookies([{"name": name, "value": value, "url": bed.web.url}])
        phone.goto("/pool/heatmap?curve=linear")
        phone.locator(".heatmap .canvas").tap(position={"x": 3, "y": 3})
        phone.locator(".under a").first.wait_for()
        assert "/pool/heatmap" in phone.url
        noticed.nothing()
