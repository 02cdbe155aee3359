"""Operations for hosts and their backups. The root service makes the changes, holds and acceptance, and logs the user."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from flask import abort
from pydantic import Field

from btrkeep.serving.protocol import LONGEST_REASON
from web.api import HOSTS, KEEPING, SHOWN, ApiRequest, Endpoint, Host, HostParameters, Moment, Name
from web.hosts.backup_rows import BackupRow
from web.hosts.data import HostList, Query, host_list
from web.hosts.host import HostPage, host_page
from web.service_client import root_service

Why = Annotated[str, Field(max_length=LONGEST_REASON, pattern=SHOWN, description="The reason; it is stored with the change.")]


@dataclass(frozen=True, slots=True)
class Backups:
    """A host's backups."""

    host: str
    """The host's name."""
    backups: tuple[BackupRow, ...]
    """Newest first."""
    kept: int
    """Number of backups that the retention keeps."""
    going: int
    """Number of backups that it deletes."""
    retention: str
    """The rules, in words."""


@dataclass(frozen=True, slots=True)
class OfBackup:
    """Parameters: a backup."""

    host: Host
    backup: Name


@dataclass(frozen=True, slots=True)
class HoldParameters:
    """Parameters of a hold."""

    why: Why = ""
    until: Annotated[Moment, Field(description="The end of the hold; if omitted, it lasts until it is released.")] | None = None


@dataclass(frozen=True, slots=True)
class AcceptParameters:
    """Parameters of an acceptance."""

    why: Why = ""


@dataclass(frozen=True, slots=True)
class HoldAnswer:
    """A hold, as it is stored."""

    until: str | None
    """When it ends; null: when it is released."""
    why: str
    """The reason."""


@dataclass(frozen=True, slots=True)
class Held:
    """A backup that is held now."""

    host: str
    """The host's name."""
    name: str
    """The backup's name."""
    state: str
    """Its state."""
    at: str
    """When it was held."""
    until: str | None
    """When the hold ends; null: when it is released."""
    why: str
    """The reason."""
    unexpired: bool
    """Whether it had been marked for deletion."""


@dataclass(frozen=True, slots=True)
class Released:
    """A backup whose hold was released."""

    host: str
    """The host's name."""
    name: str
    """The backup's name."""
    state: str
    """Its state."""
    released: HoldAnswer | None
    """The hold that it had; null: it had none."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A backup that counts as complete now."""

    host: str
    """The host's name."""
    name: str
    """The backup's name."""
    state: str
    """Its state."""
    at: str
    """When it was accepted."""
    why: str
    """The reason."""


def one_host(asked: ApiRequest) -> HostPage:
    """Returns everything about one host."""
    shown = host_page(asked.source, asked.viewer, asked.given.host)
    return shown or abort(404)


def backups(asked: ApiRequest) -> Backups:
    """Returns the backups of a host."""
    shown = one_host(asked)
    return Backups(asked.given.host, shown.backups, shown.kept, shown.going, shown.retention)


def hosts(asked: ApiRequest) -> HostList:
    """Returns a page of the list of hosts."""
    return host_list(asked.source, asked.viewer, asked.given)


def hold(asked: ApiRequest) -> Any:
    """Places a hold on a backup."""
    until = {} if asked.body.until is None else {"until": asked.body.until}
    return root_service().ask("hold", host=asked.given.host, backup=asked.given.backup, why=asked.body.why, **until)


def release(asked: ApiRequest) -> Any:
    """Releases a hold, so that the retention rules apply again."""
    return root_service().ask("release", host=asked.given.host, backup=asked.given.backup)


def accept(asked: ApiRequest) -> Any:
    """Accepts a suspect backup as complete."""
    return root_service().ask("accept", host=asked.given.host, backup=asked.given.backup, why=asked.body.why)


_AT = "/hosts/<host>/backups/<backup>"


def _post(name: str, summary: str, answer: type, act: Callable[[ApiRequest], Any], body: type | None = None) -> Endpoint:
    path = f"{_AT}/{name}"
    return Endpoint("POST", path, name, KEEPING, summary, answer, act, OfBackup, body, operator=True, needs_root_service=True)


ENDPOINTS = (
    Endpoint("GET", "/hosts", "hosts", HOSTS, "Search, filter and sort hosts, a page at a time", HostList, hosts, Query),
    Endpoint("GET", "/hosts/<host>", "host", HOSTS, "One host: state, settings, backups, runs", HostPage, one_host, HostParameters),
    Endpoint(
        "GET", "/hosts/<host>/backups", "backups", HOSTS, "A host's backups, and why each is kept", Backups, backups, HostParameters
    ),
    _post("hold", "Hold a backup, regardless of the retention", Held, hold, HoldParameters),
    _post("release", "Release a hold", Released, release),
    _post("accept", "Accept a suspect backup as complete", Accepted, accept, AcceptParameters),
)
