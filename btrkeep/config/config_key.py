"""A key of the configuration. Each is declared at the field of the settings class that it sets."""

from dataclasses import dataclass, field
from typing import Any

from btrkeep.config.value_types import ValueKind

POOL, BACKUP, RETENTION, EXPIRY, NOTIFY = "pool", "backup", "retention", "expiry", "notify"
BALANCE, VERIFY, DRILL, WEB, SERVE = "balance", "verify", "drill", "web", "serve"
SSH, GROUP, HOST, REPLICA, PUSH, OFFSITE = "ssh", "group", "host", "replica", "push", "offsite"
FETCHED_BY = "fetched_by"
SINGLE = (POOL, BACKUP, RETENTION, EXPIRY, BALANCE, VERIFY, DRILL, NOTIFY, WEB, SERVE, SSH)  # sections that exist once
NAMED = (GROUP, HOST, REPLICA, PUSH, FETCHED_BY, OFFSITE)  # sections with names: [host.web1]
SECTIONS = SINGLE + NAMED
WITHIN = dict.fromkeys(
    (GROUP, HOST, REPLICA, OFFSITE), (RETENTION,)
)  # sections that are also allowed inside a named one: [host.web1.retention]
EVERY_HOST, SHARED = (BACKUP, GROUP, HOST), (GROUP, HOST)
WITH_COPIES = (*EVERY_HOST, REPLICA, PUSH, OFFSITE)


KEY = "key"  # of a field's metadata


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of the configuration."""

    sections: tuple[str, ...]
    """The sections that may have it, the widest first."""
    kind: ValueKind
    """The type of its value."""
    default: Any
    """In the form of TOML, and parsed like a user's value; None: no default."""
    example: str
    """An example in the form of TOML."""
    meaning: str
    """The text for the documentation."""
    inherited: bool = True
    """Whether a host takes it from its group, and a group from the section for all hosts."""
    secret: bool = False
    """Never shown, not even if it is wrong."""
    shown: bool = False
    """True if the dashboard may read it for a host."""
    name: str = ""
    """The name in the file; "": that of the field."""
    beside: "ConfigKey | None" = None
    """Another key that sets the same field; None: none."""

    @property
    def value(self) -> Any:
        """Returns the default as the program uses it."""
        return None if self.default is None else self.kind(self.default)

    @property
    def metadata(self) -> dict[str, Any]:
        """Returns the value for its field."""
        return {KEY: self}


def entry(*words: Any, **more: Any) -> Any:
    """Returns the field for a ConfigKey with these arguments."""
    return filled_by(ConfigKey(*words, **more))


def filled_by(declared: ConfigKey) -> Any:
    """Returns a field with the default of the key."""
    return field(default=declared.value, metadata=declared.metadata)
