"""From sections to a configuration: inherited settings, and hosts checked against their groups and the pool."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from btrkeep.config import config_model, settings
from btrkeep.config.config_key import (
    BACKUP,
    BALANCE,
    DRILL,
    EXPIRY,
    FETCHED_BY,
    GROUP,
    HOST,
    NOTIFY,
    OFFSITE,
    POOL,
    PUSH,
    REPLICA,
    RETENTION,
    SERVE,
    SSH,
    VERIFY,
    WEB,
)
from btrkeep.config.config_model import Retention
from btrkeep.config.exclusion import NOTHING_EXCLUDED, Exclusion
from btrkeep.config.keys import DEFAULTS, LEGAL, default_zone
from btrkeep.config.merge import Sections, TomlSection
from btrkeep.config.problems import InvalidValue, Problems, dotted, nearest, quoted, reference, show
from btrkeep.config.self_exclusion import SelfExclusion, self_exclusions
from btrkeep.errors import ConfigError
from btrkeep.units import counted

T = TypeVar("T")
Excluding = Callable[[Sections, Problems], Exclusion | None]
STATE = Path("/var/lib/btrkeep")
"""The parent of each pool's state folder, unless the configuration has another one."""
_INHERITED = {key.name for key in LEGAL[HOST].values() if key.inherited}
_MOST_NAMED = 3  # hosts that are named; the others are counted
_COPIES = {REPLICA: "a replica", PUSH: "a [push] section", FETCHED_BY: "a [fetched_by] section", OFFSITE: "a repository"}
_SAME_NAME = "{} already has this name, and `status` shows both in one table"
_NEEDS_ADDRESS = ("port", "rsync_path", "ssh_options")  # keys about the connection to a host


def exclude_nothing(_sections: Sections, _problems: Problems) -> None:
    """Rejects the whole configuration for any problem."""


class Policies:
    """Makes the retention of groups and hosts: each key from the closest section that sets it.

    Equal policies are one object: 3,000 hosts have only a few.
    """

    def __init__(self, all_hosts: Mapping[str, Any]) -> None:
        self._all_hosts = all_hosts
        self._made: dict[tuple[tuple[str, Any], ...], Retention] = {}

    def of(self, *sections: Mapping[str, Any]) -> Retention:
        """Returns the policy from these sections, the widest first; without any, the policy of all hosts."""
        keys = dict(self._all_hosts)
        for section in sections:
            keys |= section.get(RETENTION, {})
        key = tuple(keys.items())
        if key not in self._made:
            self._made[key] = Retention(**keys)
        return self._made[key]


def build(
    file: Path, name: str, sections: Sections, problems: Problems, excluding: Excluding = exclude_nothing
) -> config_model.Config:
    """Returns the whole configuration. Raises ConfigError with every problem, including earlier ones.

    `excluding` decides whether the problems concern only some hosts and copies, which are then left out.
    """
    pool = _pool(file, name, sections.single[POOL], problems)
    kept = [SelfExclusion("the pool", pool.get("path"), everywhere=True), SelfExclusion("the state folder", pool.get("state"))]
    policies = Policies(sections.single[RETENTION])
    hosts = dict(_hosts(sections, kept, policies, problems))
    replicas = dict(_replicas(sections, policies, problems))
    pushes = dict(_pushes(sections, problems))
    fetched_by = dict(_fetched_by(sections, problems))
    offsites = dict(_offsites(sections, problems))
    _report_hosts_without_retention(file, hosts.values(), problems)
    exclusion = excluding(sections, problems) if problems.faults else NOTHING_EXCLUDED
    if exclusion is None or "path" not in pool:
        raise ConfigError(problems.merged(), f"{reference()} explains every key", problems.located())
    backup = {key: value for key, value in sections.single[BACKUP].items() if key not in _INHERITED}
    return config_model.Config(
        file=file,
        name=name,
        pool=settings.PoolSettings(**pool),
        backup=settings.BackupSettings(**backup),
        ssh=settings.SshSettings(**sections.single[SSH]),
        retention=policies.of(),
        expiry=settings.ExpirySettings(**sections.single[EXPIRY]),
        balance=settings.BalanceSettings(**sections.single[BALANCE]),
        verify=settings.VerifySettings(**sections.single[VERIFY]),
        drill=settings.DrillSettings(**sections.single[DRILL]),
        notify=settings.NotifySettings(**sections.single[NOTIFY]),
        web=settings.WebSettings(**sections.single[WEB]),
        serve=settings.ServeSettings(**sections.single[SERVE]),
        groups={group: _group(group, table.values, policies) for group, table in sections.named[GROUP].items()},
        hosts=_without(hosts, exclusion.hosts),
        replicas=_without(replicas, exclusion.copies),
        pushes=_without(pushes, exclusion.copies),
        fetched_by=_without(fetched_by, exclusion.copies),
        offsites=_without(offsites, exclusion.copies),
        notices=tuple(problems.notices),
        faults=exclusion.faults,
        excluded=exclusion.hosts,
        excluded_copies=exclusion.copies,
        faulty_sections=exclusion.sections,
        unread=exclusion.unread,
        faulty_files=tuple(dict.fromkeys(problem.file for problem in problems.faults)),
        texts=problems.texts,
    )


def _without(configured: Mapping[str, T], excluded: Collection[str]) -> dict[str, T]:
    return {name: settings for name, settings in configured.items() if name not in excluded}


def _pool(file: Path, name: str, given: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    if "path" not in given and not problems.unread:
        reason = 'missing: the folder that `backupd init` made, such as path = "/srv/backup"'
        problems.add(file, "pool.path", reason, (POOL, "path"))
    try:
        values = {"state": STATE / name, "zone": default_zone(), **given}
    except InvalidValue as refused:
        problems.add(file, "pool.zone", refused.reason, (POOL, "zone"))
        return dict(given)
    return values


def _group(name: str, values: Mapping[str, Any], policies: Policies) -> config_model.GroupSettings:
    return config_model.GroupSettings(
        name, values.get("concurrency"), values.get("bandwidth"), _shared(values), policies.of(values)
    )


def _shared(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key in _INHERITED}


def inherit(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `own` over `base`: values replace, `exclude` adds, `exclude_only` replaces, together with an `exclude` beside it."""
    values = {**base, **own}
    if "exclude" in own or "exclude_only" in own:
        start = own["exclude_only"] if "exclude_only" in own else base.get("exclude", ())
        values["exclude"] = tuple(dict.fromkeys((*start, *own.get("exclude", ()))))
        values.pop("exclude_only", None)
    return values


def _all_hosts(backup: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of [backup] that apply to every host. Its `exclude` replaces the default instead of adding to it."""
    base = {"exclude": () if "exclude" in backup else DEFAULTS["exclude"]}
    return inherit(base, _shared(backup))


def _hosts(
    sections: Sections, kept: list[SelfExclusion], policies: Policies, problems: Problems
) -> Iterator[tuple[str, config_model.HostConfig]]:
    all_hosts = _all_hosts(sections.single[BACKUP])
    groups = sections.named[GROUP]
    shared = {name: inherit(all_hosts, _shared(table.values)) for name, table in groups.items()}
    for name, table in sections.named[HOST].items():
        group = table.values.get("group")
        if group is not None and group not in groups:  # an unreadable file may define it
            setting, reason = f"{dotted(HOST, name, 'group')} = {show(group)}", f"there is no such group{nearest(group, groups)}"
            problems.add(table.file, setting, reason, (HOST, name, "group"), implied=problems.unread)
        values = inherit(shared.get(group or "", all_hosts), table.values)
        values[RETENTION] = policies.of(groups[group].values if group in groups else {}, table.values)
        if "paths" not in values and not _paths_refused(table, groups):
            reason = 'missing: the source paths, such as paths = ["/etc", "/srv"]'
            problems.add(table.file, dotted(HOST, name, "paths"), reason, (HOST, name, "paths"))
        values["self_excluded"] = () if "address" in table.given else _this_machine(name, table, values, kept, problems)
        _report_empty_values(name, table.file, values, problems)
        _check_snapshots(name, table.file, values, "address" in table.given, problems)
        _check_engine(name, table.file, values, "address" in table.given, table.values.get("keep_on_host"), problems)
        if values.get("calls") and "address" not in table.given:
            where = f"{dotted(HOST, name, 'calls')} = true"
            problems.add(table.file, where, "the host has no address: this machine does not call itself", (HOST, name, "calls"))
        values["share_with"] = _share_with(name, table.file, values, sections, problems)
        yield name, config_model.HostConfig(name, **values)


def _replicas(sections: Sections, policies: Policies, problems: Problems) -> Iterator[tuple[str, config_model.ReplicaSettings]]:
    for name, table in sections.named[REPLICA].items():
        values = dict(table.values)
        source = values.pop("from", None)
        if source is None and "from" not in table.given:
            reason = 'missing: the other pool, such as from = "ssh://root@backup1"'
            problems.add(table.file, dotted(REPLICA, name, "from"), reason, (REPLICA, name))
        where = {"folder": source} if isinstance(source, Path) else {"address": source} if isinstance(source, str) else {}
        values[RETENTION] = policies.of(table.values)
        yield name, config_model.ReplicaSettings(name, **where, **values)


def _pushes(sections: Sections, problems: Problems) -> Iterator[tuple[str, config_model.PushSettings]]:
    for name, table in sections.named[PUSH].items():
        values = dict(table.values)
        address = values.pop("to", None)
        if address is None and "to" not in table.given:
            reason = 'missing: the other server, such as to = "ssh://root@backup2"'
            problems.add(table.file, dotted(PUSH, name, "to"), reason, (PUSH, name))
        _require_other_name(PUSH, name, table, sections, problems)
        yield name, config_model.PushSettings(name, address=address or "", **values)


def _fetched_by(sections: Sections, problems: Problems) -> Iterator[tuple[str, config_model.FetchedBySettings]]:
    for name, table in sections.named[FETCHED_BY].items():
        _require_other_name(FETCHED_BY, name, table, sections, problems)
        yield name, config_model.FetchedBySettings(name, **table.values)


def _require_other_name(section: str, name: str, table: TomlSection, sections: Sections, problems: Problems) -> None:
    """Adds a problem if a copy of another section has that name."""
    for other, kind in _COPIES.items():
        if other == section:
            return
        if name in sections.named[other]:
            problems.add(table.file, dotted(section, name), _SAME_NAME.format(kind), (section, name))


def _offsites(sections: Sections, problems: Problems) -> Iterator[tuple[str, config_model.OffsiteSettings]]:
    for name, table in sections.named[OFFSITE].items():
        values = dict(table.values)
        retention = values.pop(RETENTION, None)
        if "environment_file" not in table.given:
            for key, example in (("repository", '"/mnt/nas/backup"'), ("password_file", '"/etc/btrkeep/offsite.password"')):
                if key not in table.given:
                    problems.add(table.file, dotted(OFFSITE, name, key), f"missing: such as {key} = {example}", (OFFSITE, name))
        _require_other_name(OFFSITE, name, table, sections, problems)
        yield name, config_model.OffsiteSettings(name, retention=Retention(**retention) if retention else None, **values)


def _tables(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the tables of a section; after a table that contains only another table, also that one."""
    for inner in content.values():
        while isinstance(inner, dict):
            yield inner
            inner = next(iter(inner.values())) if len(inner) == 1 else None


def _paths_refused(table: TomlSection, groups: Mapping[str, TomlSection]) -> bool:
    """True if paths, or the group that may have them, are given and wrong: that was reported, and nothing else is missing."""
    group = groups.get(table.values.get("group", ""))
    if any("paths" in inner for inner in _tables(table.given)):  # [host.web1.example.org]
        return True
    return "paths" in table.given or ("group" in table.given and (group is None or "paths" in group.given))


def _this_machine(
    name: str, table: TomlSection, values: Mapping[str, Any], kept: list[SelfExclusion], problems: Problems
) -> tuple[str, ...]:
    """Checks a host without address: what its source paths must exclude."""
    for key in _NEEDS_ADDRESS:
        if key in table.values:
            problems.add_notice(table.file, dotted(HOST, name, key), "has no effect: without an address, the host is this machine")
    for key in ("before", "after"):
        if any("{address}" in word for word in values.get(key, ())):
            reason = "contains {address}, but the host has no address"
            problems.add(table.file, dotted(HOST, name, key), reason, (HOST, name, key))
    source_exclusions = self_exclusions(values.get("paths", ()), kept)
    where = dotted(HOST, name, "paths")
    for piece in source_exclusions:
        if piece.pattern:
            problems.add_notice(table.file, where, f"{quoted(piece.source)} contains {piece.name}: {piece.pattern} is excluded")
        else:
            reason = f"{quoted(piece.source)}: is {piece.name} itself, or lies in it"
            problems.add(table.file, where, reason, (HOST, name, "paths"))
    return tuple(dict.fromkeys(piece.pattern for piece in source_exclusions if piece.pattern))


def _share_with(name: str, file: Path, values: Mapping[str, Any], sections: Sections, problems: Problems) -> str | None:
    """Returns the host to share data with. A missing host is not an error, because it may have been removed; nothing is shared.

    A host of another group is refused: groups are how the configuration separates owners.
    """
    hosts, sibling = sections.named[HOST], values.get("share_with")
    if sibling is None or sibling == name:
        return None
    where = f"{dotted(HOST, name, 'share_with')} = {show(sibling)}"
    if sibling not in hosts:
        problems.add_notice(file, where, f"there is no such host, so nothing is shared{nearest(sibling, hosts)}")
        return None
    group, other = values.get("group"), hosts[sibling].values.get("group")
    if (group is None or group != other) and not values.get("share_across_groups"):
        reason = "is not in the same group: users who see one could learn about the other's files (share_across_groups allows it)"
        problems.add(file, where, reason, (HOST, name, "share_with"))
    return str(sibling)


def _check_snapshots(name: str, file: Path, values: Mapping[str, Any], has_address: bool, problems: Problems) -> None:
    """Adds a problem if the host cannot be asked for snapshots: it is this machine, or another command starts its rsync."""
    if values.get("snapshots", "off") == "off":
        return
    where, path = f"{dotted(HOST, name, 'snapshots')} = {show(values['snapshots'])}", (HOST, name, "snapshots")
    if not has_address:
        reason = 'the host has no address: snapshots of this machine are not made; set snapshots = "off" for this host'
        problems.add(file, where, reason, path)
    elif "rsync_path" in values:
        problems.add(file, where, "rsync_path is set, but btrkeep-source starts rsync then: remove rsync_path", path)


def _check_engine(
    name: str, file: Path, values: Mapping[str, Any], has_address: bool, own_keep: str | None, problems: Problems
) -> None:
    """Adds a problem if the host cannot be backed up by streams: it is this machine, or something would be excluded.

    `own_keep`: the host's own `keep_on_host`.
    """
    if values.get("engine", "rsync") != "send":
        if own_keep is not None:
            reason = 'has no effect: only engine = "send" keeps snapshots on the host'
            problems.add_notice(file, dotted(HOST, name, "keep_on_host"), reason)
        return
    where, path = f"{dotted(HOST, name, 'engine')} = {show(values['engine'])}", (HOST, name, "engine")
    own = [pattern for pattern in values["exclude"] if pattern not in DEFAULTS["exclude"]]
    own = [pattern for pattern in own if any(_may_match_below(pattern, source) for source in values.get("paths", ()))]
    if not has_address:
        problems.add(file, where, 'the host has no address: use engine = "rsync" for this machine', path)
    elif "rsync_path" in values:
        problems.add(file, where, "rsync_path is set, but btrkeep-source sends the stream: remove rsync_path", path)
    elif own:
        reason = (
            f"exclude has {quoted(own[0])}, but a stream contains the whole subvolume: move these files to a subvolume "
            'of their own (`btrfs subvolume create`), and remove the pattern; or use engine = "rsync"'
        )
        problems.add(file, where, reason, path)


def _may_match_below(pattern: str, source: str) -> bool:
    """Returns False if an exclude pattern certainly matches nothing in a source path: it begins at the root with another name."""
    names, parts = pattern.strip("/").split("/"), [part for part in source.split("/") if part]
    if not pattern.startswith("/"):
        return True
    return all(name == part or re.search(r"[*?\[\\]", name) for name, part in zip(names, parts, strict=False))


def _report_empty_values(name: str, file: Path, values: Mapping[str, Any], problems: Problems) -> None:
    for path in values.get("paths", ()):
        for pattern in (f"{path}/*", f"{path}/**"):
            if pattern in values["exclude"]:
                where = dotted(HOST, name, "paths")
                problems.add_notice(
                    file, where, f"{quoted(path)} is backed up as an empty folder: {quoted(pattern)} excludes its content"
                )


def _report_hosts_without_retention(file: Path, hosts: Iterable[config_model.HostConfig], problems: Problems) -> None:
    """Adds one notice for all hosts without a retention policy: all of their backups are kept until the pool is full."""
    names = [host.name for host in hosts if host.retention.missing]
    if names:
        problems.add_notice(file, "no retention", f"every backup of {_listed(names)} is kept")


def _listed(names: list[str]) -> str:
    """ "a", "a and b", "a, b, c and 2,997 other hosts"."""
    parts, others = names[:_MOST_NAMED], len(names) - _MOST_NAMED
    if others > 0:
        parts.append(counted(others, "other host"))
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
