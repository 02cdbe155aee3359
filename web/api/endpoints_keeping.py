"""Endpoints for the changes that operators make: holds and acceptance. The root service makes them and logs the user."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from web.api import KEEPING, SHOWN, ApiRequest, Endpoint, Host, Moment, Name
from web.service_client import agent

Why = Annotated[str, Field(max_length=500, pattern=SHOWN, description="The reason; it is stored with the change.")]


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
    _post("hold", "Hold a backup, whatever the retention says", Held, hold, HoldParameters),
    _post("release", "Release a hold", Released, release),
    _post("accept", "Accept a suspect backup as complete", Accepted, accept, AcceptParameters),
)
