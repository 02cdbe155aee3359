"""The pages, a module each with a `blueprint`: what a page shows is in web/data, how it looks in web/templates."""

from dataclasses import dataclass
from importlib import import_module

from flask import Flask


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its module in web.pages, and its address and label in the navigation, or the page whose entry is marked instead."""

    name: str
    address: str = ""
    label: str = ""
    below: str = ""
    is_of_whole_pool: bool = False
    """Viewers who are limited to some hosts do not see its entry."""


PAGES = (
    Page("overview", "/", "Overview"),
    Page("hosts", "/hosts", "Hosts"),
    Page("files", below="hosts"),
    Page("restore", below="hosts"),
    Page("copies", "/copies", "Copies"),
    Page("pool", "/pool", "Pool", is_of_whole_pool=True),
    Page("heatmap"),
    Page("balance"),
    Page("expiry"),
    Page("jobs", "/jobs", "Jobs"),
    Page("log", "/log", "Log"),
    Page("doctor", "/doctor", "Doctor", is_of_whole_pool=True),
    Page("account"),
    Page("health"),
)


def register(app: Flask) -> None:
    """Adds every page to the application."""
    for page in PAGES:
        app.register_blueprint(import_module(f"web.pages.{page.name}").blueprint)
