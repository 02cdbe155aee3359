"""Logs in to a dashboard and checks its pages, for demo.sh.

    python look_at_pages.py ADDRESS NAME HOST WORD... <PASSWORD

Prints each page's address, how long it took, and its heading. Each WORD is PAGE=TEXT: the page must contain that text. Exit status
1 if a page cannot be opened or does not contain its text.
"""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from html import unescape
from http.cookiejar import CookieJar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPCookieProcessor, build_opener

PAGES = ("/", "/hosts", "/hosts/{host}", "/files/{host}", "/copies", "/pool", "/pool/day", "/pool/heatmap", "/pool/timelapse",
         "/pool/score", "/pool/balance", "/pool/expiry", "/jobs", "/log", "/doctor")  # fmt: skip


class Browser:
    """A client with cookies, which is sufficient for the dashboard."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.opener = build_opener(HTTPCookieProcessor(CookieJar()))

    def page(self, path: str, **fields: str) -> str:
        """Returns the page's HTML; `fields` are sent as a form. Raises URLError."""
        data = urlencode(fields).encode() if fields else None
        with self.opener.open(self.address + path, data, timeout=60) as answer:
            return str(answer.read().decode())

    def log_in(self, name: str, password: str) -> None:
        """Raises SystemExit if the login is refused."""
        token = re.search(r'name="csrf_token"[^>]*value="([^"]+)"', self.page("/login"))
        try:
            page = self.page("/login", name=name, password=password, csrf_token=token[1] if token else "", next="/")
        except HTTPError as error:
            raise SystemExit(f"the login failed: {error}") from None
        if "Log out" not in page:
            raise SystemExit("the login failed")


def heading(page: str) -> str:
    """Returns the text of the first heading."""
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", page, re.DOTALL)
    return words(heading[1]) if heading else ""


def words(html: str) -> str:
    """Returns the text without tags, in one line."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def main(address: str, name: str, host: str, wanted: Sequence[str]) -> int:
    """Returns the exit status."""
    browser, status = Browser(address), 0
    browser.log_in(name, sys.stdin.readline().rstrip("\n"))
    shows: dict[str, list[str]] = {}
    for page, _, text in (word.partition("=") for word in wanted):
        shows.setdefault(page, []).append(text)
    for path in (page.format(host=quote(host)) for page in PAGES):
        begun = time.perf_counter()
        try:
            page = browser.page(path)
        except URLError as error:
            print(f"  {path:<18} {error}")
            status = 1
            continue
        print(f"  {path:<18} {(time.perf_counter() - begun) * 1000:4.0f} ms  {heading(page)}")
        for text in shows.pop(path, []):
            if text not in words(page):
                print(f"  {path:<18} does not show: {text}")
                status = 1
    return status or (1 if shows else 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for word in ("address", "name", "host"):
        parser.add_argument(word, metavar=word.upper())
    parser.add_argument("wanted", nargs="*", metavar="WORD")
    sys.exit(main(**vars(parser.parse_args())))
