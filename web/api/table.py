"""The operations of the API: one description from which routes, checks and the OpenAPI document are made.

Parameters are a frozen dataclass: the types of its fields are the accepted types, fields with a default are optional. `Annotated`
with `Field` adds limits and a description. Answers are the frozen dataclasses that the pages show.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from btrkeep.serving.viewer import Viewer
from web.source import RequestContext

Path = Annotated[
    bytes,
    Field(description="An absolute path of the host. In a query it is percent-encoded byte by byte, as it need not be UTF-8."),
]
"""A path within a backup, as bytes. In a body it is a string, in which a byte that is no UTF-8 is a lone surrogate (\\udcXX)."""
Host = Annotated[str, Field(max_length=255, description="The host's name in the configuration.")]
Which = Annotated[
    str, Field(pattern=r"^(latest|[0-9][0-9TZ-]{3,17})$", description="The backup's name, `latest`, or a day: its last one.")
]
Name = Annotated[
    str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{6}Z$", description="The backup's name, 2026-11-20T220003Z.")
]
Moment = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
SHOWN = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""A text of characters that can be shown, as a pattern."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """No parameters."""


@dataclass(frozen=True, slots=True)
class OfHost:
    """Which host."""

    host: Host


@dataclass(frozen=True, slots=True)
class OfNumber:
    """Which one."""

    number: Annotated[str, Field(pattern=r"^[0-9]{1,18}$", description="The id.")]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request whose parameters, role and host are validated. `given` is an instance of the endpoint's `takes`, `body` of its
    `body`.
    """

    source: RequestContext
    viewer: Viewer
    given: Any
    body: Any = None


@dataclass(frozen=True, slots=True)
class Bytes:
    """An answer that is not JSON: its media type, and its meaning in words."""

    media: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation. `path` is Flask's; `name` its operationId. `errors`: statuses besides 400, 401 and those of the agent.

    `pool_wide`: it covers all hosts, so viewers who are limited to some may not use it. `agent`: it asks the root service.
    """

    method: Literal["GET", "POST"]
    path: str
    name: str
    tag: str
    summary: str
    answer: Any
    act: Callable[[ApiRequest], Any]
    takes: type = Nothing
    body: type | None = None
    operator: bool = False
    pool_wide: bool = False
    agent: bool = False
    errors: tuple[int, ...] = field(default=())

    @property
    def of_host(self) -> bool:
        """Returns True if it concerns one host, which the viewer must be allowed to see."""
        return "<host>" in self.path
