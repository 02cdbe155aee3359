"""The dashboard's pages while the pool is read-only, does not answer, or fails to read and write.

    python -m bench.poor_disk

It says how long pages took, and the first one after each fault. Exit status 1 if a page was an internal error or took longer than
30 seconds, or a traceback was printed. It needs root, nbdkit and FUSE.
"""

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bench import common
from btrkeep.serving.protocol import RequestRefused
from tests.beds import btrfs, dashboard, nbd, work
from tests.beds.hangfs import hanging
from tests.beds.nights import Nights

PAGE_WITHIN = 30.0
"""Seconds: 10 for the look at what may be silent, and what a loaded machine takes."""
_LINK = re.compile(r'href="(/[^"#]*)"')
_MOST = 60
_FAULTS = ("read-only", "silent", "failing")  # "failing" is the last one: afterwards the filesystem is not mounted again


def pages(folder: Path) -> dict[str, object]:
    """Requests all pages that the first one links to, with each fault, and the first one afterwards."""
    results: dict[str, object] = {}
    wrong: list[str] = []
    with ExitStack() as stack:
        image, point, inject = folder / "image", folder / "mount", folder / "inject"
        with image.open("wb") as file:
            file.truncate(2 << 30)
        point.mkdir()
        errors = (f"error-{way}{how_often}" for way in ("pread", "pwrite") for how_often in ("=EIO", "-rate=100%"))
        loop = btrfs.attach(nbd.filtered(stack, image, "error", *errors, f"error-file={inject}"))
        stack.callback(work, "losetup", "--detach", loop)
        work("mkfs.btrfs", "-q", loop)
        work("mount", "-o", "noatime", loop, point)
        stack.callback(work, "umount", "--lazy", point)
        with suppress(RequestRefused), dashboard.real_shop(point) as web:  # its end asks the service, whose disk has failed
            assert web.nights
            paths = [*_paths(web), "/files/shop", "/files/lab", f"/files/shop/versions?path={web.nights.source}/prices.txt"]
            results["well"] = _page_times(web, paths, wrong, "well")
            for fault in _FAULTS:
                with _with_fault(fault, web.nights, point, inject):
                    results[fault] = _page_times(web, paths, wrong, fault)
                begun = time.monotonic()
                status = web.ask("GET", "/", Cookie=web.cookie).status
                results[f"after {fault}"] = [status, round(time.monotonic() - begun, 1)]
            for name, log in (("dashboard", web.log_text), ("root service", web.service.log_text if web.service else "")):
                wrong += [f"{name}: {log[log.index('Traceback') :][:600]}"] if "Traceback" in log else []
    return {**results, "wrong": wrong}


@contextmanager
def _with_fault(fault: str, nights: Nights, point: Path, inject: Path) -> Iterator[None]:
    if fault == "read-only":
        work("mount", "-o", "remount,ro", point)
        yield
        work("mount", "-o", "remount,rw", point)
    elif fault == "failing":
        inject.touch()
        Path("/proc/sys/vm/drop_caches").write_text("2")
        with suppress(OSError):
            (point / "made").write_bytes(b"x")
        subprocess.run(["btrfs", "filesystem", "sync", point], check=False, capture_output=True)
        yield
        inject.unlink()
    else:
        with hanging(nights.pool, dead=True):
            yield


def _paths(web: dashboard.Dashboard) -> list[str]:
    """Returns the pages that the first one links to, and those that these link to."""
    links: dict[str, None] = {"/": None}
    for _ in range(2):
        for path in list(links):
            text = web.ask("GET", path, Cookie=web.cookie).text
            links |= dict.fromkeys(link.replace("&amp;", "&") for link in _LINK.findall(text) if "/static" not in link)
            if len(links) > _MOST:
                return [path for path in links if "logout" not in path][:_MOST]
    return [path for path in links if "logout" not in path]


def _page_times(web: dashboard.Dashboard, paths: list[str], wrong: list[str], fault: str) -> dict[str, object]:
    statuses, slowest, where = Counter[str](), 0.0, ""
    for path in paths:
        begun = time.monotonic()
        try:
            status = web.ask("GET", path, Cookie=web.cookie).status
        except TimeoutError:
            status = 0
        spent = time.monotonic() - begun
        statuses[str(status)] += 1
        if status in (0, 500) or spent > PAGE_WITHIN:
            wrong.append(f"{fault}: {path}: {status} after {spent:.0f} s")
        if spent > slowest:
            slowest, where = spent, path
    return {**statuses, "the slowest": [where, round(slowest, 1)]}


def main() -> None:
    """Runs all faults, prints the results, and exits with the status."""
    options = common.plain_parser(__doc__.splitlines()[0]).parse_args()
    with common.own_folder(options) as folder:
        shown_pages = pages(folder)
    print(json.dumps(shown_pages, indent=1))
    sys.exit(1 if shown_pages["wrong"] else 0)


if __name__ == "__main__":
    main()
