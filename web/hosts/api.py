"""Operations for hosts and their backups. The root service makes the changes, holds and acceptance, and logs the user."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from flask import abort
from pydantic import Field

from web.api import HOSTS, KEEPING, SHOWN, ApiRequest, Endpoint, Host, Moment, Name, OfHost, OneOf, either_way
from web.hosts.backups import BackupRow
from web.hosts.data import ALL_STATES, ORDERS, HostList, Query, host_list
from web.hosts.host import HostPage, host_page
from web.service_client import agent

Why = Annotated[str, Field(max_length=500, pattern=SHOWN, description="The reason; it is stored with the change.")]


@dataclass(frozen=True, slots=True)
class HostsParameters:
    """Which hosts."""

    q: Annotated[str, Field(max_length=200, description="Words that must all occur in the name, group or address.")] = ""
    state: Annotated[
        str,
        OneOf(("", *ALL_STATES)),
        Field(description="Only hosts in this state."),
    ] = ""
    group: Annotated[str, Field(max_length=255, description="Only hosts of this group.")] = ""
    sort: Annotated[str, either_way(ORDERS), Field(description="The sort order; a minus sign reverses it.")] = "host"
    page: Annotated[int, Field(ge=1, le=1_000_000, description="The page, of 100 hosts; beyond the end, the last one.")] = 1


@dataclass(frozen=True, slots=True)
class Backups:
    """A host's backups, the newest first: how many are kept and how many go, and by which rules."""

    host: str
    backups: tuple[BackupRow, ...]
    kept: int
    going: int
    retention: str


@dataclass(frozen=True, slots=True)
class OfBackup:
    """Which backup."""

    host: Host
    backup: Name


@dataclass(frozen=True, slots=True)
class HoldParameters:
    """`until`: RFC 3339; left out: for ever."""

    why: Why = ""
    until: Annotated[Moment, Field(description="The end of the hold; if omitted, it lasts until it is released.")] | None = None


@dataclass(frozen=True, slots=True)
class AcceptParameters:
    """Why it is right."""

    why: Why = ""


@dataclass(frozen=True, slots=True)
class HoldAnswer:
    """A hold as it is stored. `until` null: until it is released."""

    until: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Held:
    """The backup, its state, since when it is held. `unexpired`: it had been marked for deletion."""

    host: str
    name: str
    state: str
    at: str
    until: str | None
    why: str
    unexpired: bool


@dataclass(frozen=True, slots=True)
class Released:
    """The backup, its state, and the hold that it had; null: it had none."""

    host: str
    name: str
    state: str
    released: HoldAnswer | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The backup, which counts as complete now."""

    host: str
    name: str
    state: str
    at: str
    why: str


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
    return host_list(asked.source, asked.viewer, Query(given.q, given.state, given.group, given.sort, given.page))


def hold(asked: ApiRequest) -> Any:
    """Places a hold on a backup."""
    until = {} if asked.body.until is None else {"until": asked.body.until}
    return agent().ask("hold", host=asked.given.host, backup=asked.given.backup, why=asked.body.why, **until)


def release(asked: ApiRequest) -> Any:
    """Releases a hold, so that the retention rules apply again."""
    return agent().ask("release", host=asked.given.host, backup=asked.given.backup)


def accept(asked: ApiRequest) -> Any:
    """Accepts a suspect backup as complete."""
    return agent().ask("accept", host=asked.given.host, backup=asked.given.backup, why=asked.body.why)


_AT = "/hosts/<host>/backups/<backup>"


def _post(name: str, summary: str, answer: type, act: Callable[[ApiRequest], Any], body: type | None = None) -> Endpoint:
    path = f"{_AT}/{name}"
    return Endpoint("POST", path, name, KEEPING, summary, answer, act, OfBackup, body, operator=True, agent=True)


ENDPOINTS = (
    Endpoint("GET", "/hosts", "hosts", HOSTS, "Search, filter and sort hosts, a page at a time", HostList, hosts, HostsParameters),
    Endpoint("GET", "/hosts/<host>", "host", HOSTS, "One host: state, settings, backups, runs", HostPage, one_host, OfHost),
    Endpoint("GET", "/hosts/<host>/backups", "backups", HOSTS, "A host's backups, and why each is kept", Backups, backups, OfHost),
    _post("hold", "Hold a backup, regardless of the retention", Held, hold, HoldParameters),
    _post("release", "Release a hold", Released, release),
    _post("accept", "Accept a suspect backup as complete", Accepted, accept, AcceptParameters),
)
