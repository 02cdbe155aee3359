"""A real browser, Debian's headless Chromium, and its reports: scripts that ran, violated policies, errors.

Playwright's loop lives in the thread that started it, and no other asyncio.run() works there in that time. So a browser is
started for a module of tests (0.7 s) and ended with it, not for the session.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Playwright, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
WORDS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb")
LAPTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PATIENCE = 30_000  # milliseconds: the machine is busy with the other tests
_LISTEN = (
    "addEventListener('securitypolicyviolation', e => tellViolation(`${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}`))"
)


def why_not() -> str:
    """Returns why tests cannot have a browser here, or ""."""
    return "" if os.access(CHROMIUM, os.X_OK) else f"{CHROMIUM} is not installed"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, until the context ends."""
    expect.set_options(timeout=PATIENCE)  # Playwright's five seconds are less than a login takes on a busy machine
    with sync_playwright() as playwright:
        browser = _launched(playwright)
        try:
            yield browser
        finally:
            browser.close()


def _launched(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=CHROMIUM, args=list(WORDS))


@dataclass
class Noticed:
    """The problems that a browser's pages reported, each as a line."""

    violations: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """Requests to any other server."""

    def nothing(self) -> None:
        """Fails if there was a problem."""
        assert (self.violations, self.errors, self.dialogs, self.elsewhere) == ([], [], [], [])


@contextmanager
def visit(browser: Browser, url: str, **wishes: Any) -> Iterator[tuple[Page, Noticed]]:
    """Yields a page in a separate browser profile, whose paths are below `url`; `wishes` are those of Playwright's new_context."""
    context = browser.new_context(**{"base_url": url, "viewport": LAPTOP, "locale": "en-GB", **wishes})
    try:
        context.set_default_timeout(PATIENCE)
        noticed = Noticed()
        yield page_of(context, url, noticed), noticed
    finally:
        context.close()


def page_of(context: BrowserContext, url: str, noticed: Noticed) -> Page:
    """A new page of a profile, which records errors, scripts and violated policies."""
    context.expose_function("tellViolation", lambda words: noticed.violations.append(words))
    context.add_init_script(_LISTEN)
    context.on("request", lambda request: None if _is_ours(request.url, url) else noticed.elsewhere.append(request.url))
    page = context.new_page()
    page.on("pageerror", lambda error: noticed.errors.append(str(error)))
    page.on("console", lambda message: noticed.errors.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: _dismiss(dialog, noticed))
    return page


def _dismiss(dialog: Dialog, noticed: Noticed) -> None:
    noticed.dialogs.append(dialog.message)
    dialog.dismiss()


def _is_ours(asked: str, url: str) -> bool:
    return asked.startswith((url + "/", "data:", "about:")) or asked == url


def log_in(page: Page, name: str, password: str) -> None:
    """Logs in with the form, which another page may have led to."""
    if "/login" not in page.url:
        page.goto("/login")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def enter(page: Page, url: str, cookie: str) -> None:
    """Sets the cookie of a user who is already logged in: `cookie` is a Cookie header's text."""
    name, _, value = cookie.partition("=")
    page.context.add_cookies([{"name": name, "value": value, "url": url}])
