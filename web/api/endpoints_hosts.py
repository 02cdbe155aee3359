"""Hosts, what runs now and the whole of it: as the overview and the pages of hosts show them."""

from dataclasses import dataclass
from typing import Annotated

from flask import abort
from pydantic import Field

from web.api import HOSTS, STATE, ApiRequest, Endpoint, OfHost, OneOf, either_way
from web.data import hosts as of_hosts
from web.data.host import HostPage, host_page
from web.data.host_backups import BackupRow
from web.data.hosts import HostList, Query
from web.data.overview import Overview
from web.data.overview import overview as of_overview
from web.same_names import of_row


@dataclass(frozen=True, slots=True)
class HostsParameters:
    """Which hosts."""

    q: Annotated[str, Field(max_length=200, description="Words that must all occur in the name, group or address.")] = ""
    state: Annotated[
        str,
        OneOf(("", *of_hosts.ALL_STATES)),
        Field(description="Only hosts in this state."),
    ] = ""
    group: Annotated[str, Field(max_length=255, description="Only hosts of this group.")] = ""
    sort: Annotated[str, either_way(of_hosts.ORDERS), Field(description="The sort order; a minus sign reverses it.")] = "host"
    page: Annotated[int, Field(ge=1, le=1_000_000, description="The page, of 100 hosts; beyond the end, the last one.")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewAnswer(Overview):
    """The content of the overview page. `sentence`: the result of the newest night, null before the first."""

    sentence: str | None


@dataclass(frozen=True, slots=True)
class Backups:
    """A host's backups, the newest first: how many are kept and how many go, and by which rules."""

    host: str
    backups: tuple[BackupRow, ...]
    kept: int
    going: int
    retention: str


def overview(asked: ApiRequest) -> OverviewAnswer:
    """Returns the content of the overview page."""
    found = of_overview(asked.source, asked.viewer)
    sentence = found.nights[0].sentence if found.nights else None
    return of_row(OverviewAnswer, found, sentence=sentence)


def one_host(asked: ApiRequest) -> HostPage:
    """Returns everything about one host."""
    found = host_page(asked.source, asked.viewer, asked.given.host)
    return found or abort(404)


def backups(asked: ApiRequest) -> Backups:
    """Returns the backups of a host."""
    found = one_host(asked)
    return Backups(asked.given.host, found.backups, found.kept, found.going, found.retention)


def hosts(asked: ApiRequest) -> HostList:
    """Returns a page of the list of hosts."""
    given = asked.given
    return of_hosts.host_list(asked.source, asked.viewer, Query(given.q, given.state, given.group, given.sort, given.page))


ENDPOINTS = (
    Endpoint("GET", "/overview", "overview", STATE, "Summary of the newest night and of all hosts", OverviewAnswer, overview),
    Endpoint("GET", "/hosts", "hosts", HOSTS, "Search, filter and sort hosts, a page at a time", HostList, hosts, HostsParameters),
    Endpoint("GET", "/hosts/<host>", "host", HOSTS, "One host: state, settings, backups, runs", HostPage, one_host, OfHost),
    Endpoint("GET", "/hosts/<host>/backups", "backups", HOSTS, "A host's backups, and why each is kept", Backups, backups, OfHost),
)
