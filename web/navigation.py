"""The table of pages: which there are, and how the navigation shows them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DashboardPage:
    """A page: its module in web.pages, and its address and label in the navigation, or the page whose entry is marked instead."""

    name: str
    address: str = ""
    label: str = ""
    below: str = ""
    is_of_whole_pool: bool = False
    """Viewers who are limited to some hosts do not see its entry."""


PAGES = (
    DashboardPage("overview", "/", "Overview"),
    DashboardPage("hosts", "/hosts", "Hosts"),
    DashboardPage("files", below="hosts"),
    DashboardPage("restore", below="hosts"),
    DashboardPage("copies", "/copies", "Copies"),
    DashboardPage("pool", "/pool", "Pool", is_of_whole_pool=True),
    DashboardPage("heatmap"),
    DashboardPage("balance"),
    DashboardPage("expiry"),
    DashboardPage("jobs", "/jobs", "Jobs"),
    DashboardPage("log", "/log", "Log"),
    DashboardPage("doctor", "/doctor", "Doctor", is_of_whole_pool=True),
    DashboardPage("account"),
    DashboardPage("health"),
)
