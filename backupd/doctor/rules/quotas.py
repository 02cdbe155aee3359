"""Rules about quotas of hosts, and about what counts for them: simple quotas, and the qgroups that they are not."""

import shlex
from collections.abc import Iterator
from platform import release

from backupd.actions.quota import costs
from backupd.doctor.facts import DoctorFacts
from backupd.doctor.finding import DoctorRule, diagnosis
from backupd.doctor.rules.commands import backupd
from btrkeep.decisions.findings import Finding
from btrkeep.decisions.remedy import FixCommand
from btrkeep.units import counted

_SIMPLE, _FULL = "squota", "qgroup"
_FEATURE = "simple_quota"


def idle_quotas(quotas: int, mode: str, known: bool) -> str:
    """Returns why quotas of hosts are not enforced; "" if they are, or there are none. `known`: the kernel has simple quotas."""
    if not quotas or mode == _SIMPLE:
        return ""
    have = f"{counted(quotas, 'host')} {'has a quota that does' if quotas == 1 else 'have quotas that do'} not hold"
    return f"{have}: simple quotas are not switched on" + ("" if known else ", and this kernel knows none (Linux 6.7 does)")


def _qgroups(facts: DoctorFacts) -> Iterator[Finding]:
    """Finds unwanted qgroups. Simple quotas enabled with `backupd quota` are wanted."""
    fs, site = facts.filesystem, facts.site
    simple = fs.quota == _SIMPLE
    if not fs.quota or (simple and (site.quota_since or site.quotas)):
        return
    yield diagnosis(
        "qgroups",
        "note" if simple else "warning",
        f"{'simple quotas' if simple else 'qgroups'} are switched on",
        "every new extent is accounted to the subvolume that it was written for, which costs little (`backupd quota show`)"
        if simple
        else "for every extent that changes hands all snapshots that refer to it are found, again and again: to delete snapshots "
        "takes many times as long and can stop the whole filesystem",
        "limits and numbers of qgroups are gone; btrkeep needs none (`backupd usage` tells where the space goes)",
        (),
        (FixCommand(("btrfs", "quota", "disable", str(site.pool))),),
    )


def _quotas(facts: DoctorFacts) -> Iterator[Finding]:
    fs, site = facts.filesystem, facts.site
    version, repairs = site.programs
    known = _FEATURE in fs.kernel_features
    if idle := idle_quotas(site.quotas, fs.quota, known):
        first = (
            (f"btrfs quota disable {shlex.quote(str(site.pool))}   # numbers and limits of qgroups are gone",)
            if fs.quota == _FULL
            else ()
        )
        enable = (*first, f"{backupd(site, 'quota enable')}   # first with --dry-run")
        yield diagnosis(
            "quotas",
            "warning",
            idle,
            "without simple quotas nobody counts what a host wrote, so nothing stops it at its quota; with them btrfs does",
            "; ".join(costs(release(), version)),
            enable if known else ("# take `quota` out of the configuration, or use a newer kernel",),
        )
    if fs.quota == _SIMPLE and (site.quotas or site.quota_since) and (site.own_balance or fs.reclaim):
        who, timer = "btrfs-balancer" if site.own_balance else "the kernel", f"btrkeep-balance@{site.name}.timer"
        yield diagnosis(
            "quotas",
            "warning",
            f"{who} balances, and what that moves is counted for other hosts",
            "where a balance finds free space between two extents, the first is counted for the owner of the second (Linux 6.18): "
            "the numbers of hosts become wrong, and a quota may stop a host for what another one wrote",
            "without balancing free space fragments; without simple quotas no quota holds",
            (f"{backupd(site, 'quota disable')}   # or: systemctl disable --now {timer}",),
        )
    if _FEATURE in fs.features and not repairs:
        yield diagnosis(
            "quotas",
            "warning",
            f"btrfs-progs {version} cannot check or repair this filesystem, which has had simple quotas",
            "what mends a damaged filesystem has to be there before it is needed",
            "none: a newer btrfs-progs works with older kernels too",
            ("# install btrfs-progs 6.7 or later, from backports or a newer release",),
        )


QUOTA_RULES = (
    DoctorRule("qgroups", ("note", "warning"), "qgroups, or simple quotas that nobody asked for here", _qgroups, fixable=True),
    DoctorRule(
        "quotas", ("warning",), "quotas that do not hold or are counted wrong; btrfs-progs too old for simple quotas", _quotas
    ),
)
