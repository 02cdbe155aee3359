"""The part of the configuration that the dashboard may read: no secrets, no commands.

Only root can read the files in /etc/btrkeep, because they contain passwords, and the dashboard runs as another user. So programs
that load the configuration as root write its harmless part into the catalogue, as one fact in JSON, whenever it has changed. Of a
host only keys declared as `shown` are published, so each new key must be considered first.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from btrkeep.config.config_key import KEY
from btrkeep.config.config_model import Config, HostConfig, Retention
from btrkeep.config.keys import DEFAULTS
from btrkeep.config.reading import backupd_command
from btrkeep.config.settings import ExpirySettings, WebSettings
from btrkeep.config.values import Listen, Window, parse_listen, parse_window
from btrkeep.errors import OperatorError
from btrkeep.units import format_time, parse_time

FACT = "published"
LOST, CLOCK = "lost", "clock_doubt"
"""Facts of the catalogue while it lists none of the pool's backups, and while the clock is doubted: the reason."""
ALIVE = "alive"
"""The fact of the bytes that each host wrote and that still exist, as JSON. Missing without simple quotas."""
_SHOWN = (*(key.name for key in fields(HostConfig) if KEY in key.metadata and key.metadata[KEY].shown), "fault")
_RETENTION = tuple(attribute.name for attribute in fields(Retention))


class FactStore(Protocol):
    """The catalogue, as far as it is needed here."""

    def get_fact(self, name: str) -> str | None:
        """Returns a fact by its name."""

    def set_fact(self, name: str, value: str | None) -> None:
        """Stores a fact; None deletes it."""


@dataclass(frozen=True, slots=True)
class PublishedCopy:
    """A copy without its secrets: a replica, a server to which this pool's backups are sent, a pool that fetches, or an offsite
    repository.
    """

    name: str
    """Its name."""
    oldest: float
    """The age in seconds at which it counts as late."""
    comes_and_goes: bool
    """True if its pool is on a disk that may be absent until it counts as late."""
    retention: Retention | None = None
    """The rules for the backups of a replica; None for other kinds."""
    kind: str = "replica"
    """Its section in the configuration."""


@dataclass(frozen=True, slots=True)
class Published:
    """A pool's configuration without its secrets."""

    name: str
    """The pool's name."""
    path: Path | None = None
    """The pool's folder."""
    state: Path | None = None
    """The state folder."""
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))
    """The pool's time zone."""
    rehearsal: bool = False
    """True for a pool of `backupd rehearse`."""
    filesystem: str | None = None
    """The UUID of the filesystem, under which samples and scores are stored; None: unknown."""
    call: str = ""
    """The command line of `backupd` for a pool whose configuration is not in /etc/btrkeep; "": its name is enough."""
    min_free: str = str(DEFAULTS["min_free"])
    """As configured, such as "5%"."""
    concurrency: int = DEFAULTS["concurrency"]
    """The limit of [backup]."""
    bandwidth: int | None = DEFAULTS["bandwidth"]
    """The limit of [backup] in bytes per second; None: no limit."""
    silent: float | None = DEFAULTS["silent"]
    """As in [notify], seconds; None: as soon as a host is late."""
    used_limit: float = DEFAULTS["used_limit"]
    """As in [notify], a share."""
    ping_goal: float = DEFAULTS["ping_goal"]
    """As in [notify], a share."""
    services: tuple[str, ...] | None = None
    """The kinds of the services of [notify] that get alarms, such as mailto, without their addresses; None: unknown."""
    verify_max_age: float | None = None
    """`max_age` of [verify], seconds; None: no limit is set."""
    drill_max_age: float | None = None
    """`max_age` of [drill], seconds; None: no limit is set."""
    expiry: ExpirySettings = field(default_factory=ExpirySettings)
    """[expiry]."""
    hosts: Mapping[str, HostConfig] = field(default_factory=dict)
    """The hosts by name, without their hooks and options of ssh."""
    since: Mapping[str, datetime] = field(default_factory=dict)
    """When each host was first published, if it was added after this was recorded for the first time."""
    web: WebSettings = field(default_factory=WebSettings)
    """[web]."""
    no_downloads: bool = DEFAULTS["no_downloads"]
    """As in [serve]."""
    no_restores: bool = DEFAULTS["no_restores"]
    """As in [serve]."""
    are_rights_known: bool = True
    """False if a mistake makes it unclear what [web] and [serve] allow."""
    copies: Mapping[str, PublishedCopy] = field(default_factory=dict)
    """The copies by name, without their addresses."""

    @property
    def red_share(self) -> float:
        """Returns the share of hosts without a complete backup from which a finished night is red: `red_night`, or more if the goal
        of [notify] allows more.
        """
        return max(self.web.red_night, 1 - self.ping_goal)


_PLAIN_TYPES = (str, str | None, bool, int, int | None, float, float | None)
_PLAIN = tuple(key.name for key in fields(Published) if key.type in _PLAIN_TYPES)
"""The fields whose values are published unchanged, under their names."""


def publish(
    config: Config, facts: FactStore, *, rehearsal: bool | None = None, filesystem: str | None = None, now: datetime | None = None
) -> bool:
    """Publishes the harmless part of the configuration. Returns True if it had changed and was written. `rehearsal` and
    `filesystem` are the pool's, if the caller has read it; None keeps the published ones. New hosts are recorded as existing since
    `now`; None records nothing.
    """
    before = facts.get_fact(FACT)
    former = _parsed_text(before)
    marker = {
        "rehearsal": former.get("rehearsal", False) if rehearsal is None else rehearsal,
        "filesystem": filesystem or former.get("filesystem"),
    }
    content = {**_pool(config), **_rights(config, former), **marker, "since": _since(config, former, now)}
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    if text == before:
        return False
    facts.set_fact(FACT, text)
    return True


def _rights(config: Config, former: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rights of users. While a mistake makes these unclear, the published state applies, or else nothing is allowed."""
    if not config.are_rights_known:
        strict = {"web": {}, "no_downloads": True, "no_restores": True}
        return {**{key: former.get(key, value) for key, value in strict.items()}, "are_rights_known": False}
    return {
        "web": {key.name: _plain(getattr(config.web, key.name)) for key in fields(WebSettings)},
        "no_downloads": config.serve.no_downloads,
        "no_restores": config.serve.no_restores,
        "are_rights_known": True,
    }


def _parsed_text(before: str | None) -> dict[str, Any]:
    """Parses the published text; {} if it is damaged, so that it is published again."""
    try:
        former = json.loads(before) if before else {}
    except (ValueError, RecursionError):
        return {}
    return former if isinstance(former, dict) else {}


def _since(config: Config, former: Mapping[str, Any], now: datetime | None) -> dict[str, str]:
    """Returns when each host was first published."""
    before, hosts = former.get("since", {}), former.get("hosts", {})
    new = {name: format_time(now) for name in config.every_host if name not in hosts} if now else {}
    return {name: since for name, since in {**new, **before}.items() if name in config.every_host}


def published(facts: FactStore, name: str = "main") -> Published:
    """Returns what was published last, or the defaults for a pool named `name`. Raises OperatorError if it is damaged."""
    text = facts.get_fact(FACT)
    try:
        return _parsed(text) if text else Published(name)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise OperatorError("the configuration in the catalogue is damaged", "publish it again: `backupd check`") from None


def _pool(config: Config) -> dict[str, Any]:
    call = backupd_command(config.name, config.file)
    return {
        "name": config.name,
        "call": call if " --config " in call else "",
        "path": str(config.pool.path),
        "state": str(config.pool.state),
        "zone": config.pool.zone.key,
        "min_free": str(config.pool.min_free),
        "concurrency": config.backup.concurrency,
        "bandwidth": config.backup.bandwidth,
        "silent": config.notify.silent,
        "used_limit": config.notify.used_limit,
        "ping_goal": config.notify.ping_goal,
        "verify_max_age": config.verify.max_age,
        "drill_max_age": config.drill.max_age,
        "services": [url.scheme for url in config.notify.urls],
        "replicas": {name: [replica.oldest, replica.comes_and_goes] for name, replica in config.replicas.items()},
        "pushes": {name: push.oldest for name, push in config.pushes.items()},
        "fetched_by": {name: fetched_by_settings.oldest for name, fetched_by_settings in config.fetched_by.items()},
        "offsites": {name: offsite.oldest for name, offsite in config.offsites.items()},
        "replica_retention": {name: _policy(replica.retention) for name, replica in config.replicas.items()},
        "expiry": {"max_orphans": config.expiry.max_orphans, "mount_option": config.expiry.mount_option},
        "hosts": {name: dict(_host(host)) for name, host in config.every_host.items()},
    }


def _host(host: HostConfig) -> Iterator[tuple[str, Any]]:
    """Yields the settings that differ from the defaults, so that 3,000 hosts take only some hundred kilobytes."""
    usual = HostConfig(host.name)
    for key in _SHOWN:
        if (value := getattr(host, key)) != getattr(usual, key):
            yield key, str(value) if isinstance(value, Window) else value
    if host.retention != usual.retention:
        yield "retention", _policy(host.retention)


def _policy(retention: Retention) -> dict[str, Any]:
    return {key: getattr(retention, key) for key in _RETENTION}


def _policy_of(given: Mapping[str, Any]) -> Retention:
    return Retention(**{key: value for key, value in given.items() if key in _RETENTION})


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Listen) else value


@lru_cache(maxsize=4)
def _parsed(text: str) -> Published:
    """Ignores keys of a newer version; keys that an older version did not publish get their defaults."""
    given = json.loads(text)
    site = Published(**{key: given[key] for key in _PLAIN if key in given})
    kept = given.get("replica_retention", {})
    expiry = {key: given.get("expiry", {})[key] for key in ("max_orphans", "mount_option") if key in given.get("expiry", {})}
    return replace(
        site,
        path=Path(given["path"]),
        state=Path(given["state"]),
        zone=ZoneInfo(given["zone"]),
        services=tuple(given["services"]) if "services" in given else None,
        expiry=ExpirySettings(**expiry),
        hosts={name: _host_of(name, values) for name, values in given["hosts"].items()},
        since={name: parse_time(since) for name, since in given.get("since", {}).items()},
        copies={
            name: PublishedCopy(name, terms[0], terms[1], _policy_of(kept[name]) if name in kept else None)
            for name, terms in given.get("replicas", {}).items()
        }
        | {
            name: PublishedCopy(name, oldest, False, kind=kind)
            for key, kind in (("pushes", "push"), ("fetched_by", "fetched_by"), ("offsites", "offsite"))
            for name, oldest in given.get(key, {}).items()
        },
        web=_web_of(given.get("web", {})),
    )


def _host_of(name: str, given: Mapping[str, Any]) -> HostConfig:
    values: dict[str, Any] = {
        key: tuple(given[key]) if isinstance(given[key], list) else given[key] for key in _SHOWN if key in given
    }
    if "window" in given:
        values["window"] = parse_window(given["window"])
    if "retention" in given:
        values["retention"] = _policy_of(given["retention"])
    return HostConfig(name, **values)


def _web_of(given: Mapping[str, Any]) -> WebSettings:
    values = {attribute.name: given[attribute.name] for attribute in fields(WebSettings) if attribute.name in given}
    values |= {key: tuple(values[key]) for key in ("names", "behind_proxy") if key in values}
    if "listen" in values:
        values["listen"] = parse_listen(values["listen"])
    return WebSettings(**values)
