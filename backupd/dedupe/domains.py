"""Which hosts may share data: those of one group, because the room that a host takes reveals which files others have."""

from collections.abc import Iterable, Mapping

from btrkeep.config import HostConfig

_ACROSS = ("across", "")


def domains(hosts: Iterable[str], configured: Mapping[str, HostConfig]) -> list[list[str]]:
    """The hosts, in lists of those that may share: one for each group, one for all with `share_across_groups`.

    A host without a group, or one that is not configured any more, shares among its own backups.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        found.setdefault(_domain(host, configured.get(host)), []).append(host)
    return list(found.values())


def _domain(host: str, config: HostConfig | None) -> tuple[str, str]:
    if config and config.share_across_groups:
        return _ACROSS
    return ("group", config.group) if config and config.group else ("host", host)
