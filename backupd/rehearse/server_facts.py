"""The facts about the server for a rehearsal: its configuration, its catalogue, and the format and mount of its pool.
Only reads.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from backupd.rehearse.fleet import ScaledFleet, learn_fleet, scale_fleet
from backupd.rehearse.rehearsal_types import Fleet, RehearsalPlan, RehearsedBalance, Variant, VariantSettings
from btrkeep.catalogue import Catalogue
from btrkeep.config import Config, Retention
from btrkeep.config.config_model import PERIODS
from btrkeep.config.published import published
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.pool.allocation import Allocation, read_allocation
from btrkeep.pool.marker import SYSFS, filesystem_uuid, open_pool
from btrkeep.pool.mounts import allocator, mount_of

FILL, LEAST_FILL, MOST_FILL = 0.5, 0.3, 0.65
"""The share of the throwaway pool that is used at the end: like the pool's, within limits."""
_BUDGET = 0.05
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server that is imitated."""

    fleet: Fleet
    """Its hosts and their files."""
    settings: VariantSettings
    """Its settings."""
    fill: float
    """The used share of the pool, 0 to 1."""
    filesystem: str | None
    """The UUID of the pool's filesystem; None: unknown."""
    unknown: tuple[str, ...] = ()
    """The errors because of which typical values are used."""


def server_facts(config: Config) -> ServerFacts:
    """Raises UsageError if no host is enabled."""
    unknown: list[str] = []
    names = [host.name for host in config.hosts.values() if host.enabled]
    fleet, balanced, filesystem = Fleet(()), False, None
    try:
        with Catalogue.open_readonly(config.pool.state) as catalogue:
            fleet = learn_fleet(names, catalogue.backups(with_detail=True))
            filesystem = published(catalogue).filesystem
            balanced = bool(filesystem and catalogue.balances(filesystem, 1))
    except OperatorError as error:
        unknown.append(error.message)
        fleet = learn_fleet(names, ())
    settings, fill = VariantSettings(expiry=config.expiry.mount_option), FILL
    try:
        open_pool(config.pool.path)
        filesystem = filesystem_uuid(config.pool.path)
        allocation = read_allocation(config.pool.path)
        fill = min(max(allocation.used / allocation.size, LEAST_FILL), MOST_FILL)
        settings = _as_mounted(config, filesystem, allocation, balanced=balanced)
    except PoolUnusable as error:
        unknown.append(error.message)
    return ServerFacts(fleet, settings, fill, filesystem, tuple(unknown))


def _as_mounted(config: Config, filesystem: str, allocation: Allocation, *, balanced: bool) -> VariantSettings:
    mount = mount_of(config.pool.path)
    copies = [space.factor for space in allocation.spaces if space.type == "metadata"]
    return VariantSettings(
        allocator=allocator(mount),
        expiry=config.expiry.mount_option,
        balance=_balancing(config, allocation) if balanced else None,
        compression=_compression(mount.super_options),
        nodesize=int((SYSFS / filesystem / "nodesize").read_text()),
        metadata="single" if copies and max(copies) < 2 else "dup",
    )


def _balancing(config: Config, allocation: Allocation) -> RehearsedBalance:
    """The budget as a share of the data: with the same bytes, a small pool would be balanced completely."""
    data = sum(space.used for space in allocation.spaces if space.type == "data")
    budget = config.balance.budget
    return RehearsedBalance(config.balance.policy, min(max(budget / data, 0.001), 1.0) if budget and data else _BUDGET)


def _compression(options: Iterable[str]) -> str:
    compressions = [word.partition("=")[2] for word in options if word.startswith(("compress=", "compress-force="))]
    return compressions[-1] if compressions else "none"


@dataclass(frozen=True, slots=True)
class RehearsalScope:
    """The size of a rehearsal."""

    days: int
    """Number of measured nights."""
    seeds: int
    """How many times each variant is run."""
    size: int
    """The most bytes of its pool."""
    age: int = 0
    """Number of nights before the measured ones."""
    heatmaps: bool = field(default=False, kw_only=True)
    """True if each night is drawn as a picture."""


def make_plan(config: Config, facts: ServerFacts, variants: tuple[Variant, ...], scope: RehearsalScope) -> RehearsalPlan:
    """The plan."""
    fitting = _fitting(config, facts, variants, scope)
    return RehearsalPlan(
        fleet=fitting.fleet,
        hosts={host.name: config.hosts[host.name] for host in fitting.fleet.hosts},
        variants=variants,
        days=scope.days,
        seeds=scope.seeds,
        size=fitting.size,
        fraction=fitting.fraction,
        zone=config.pool.zone.key,
        concurrency=config.backup.concurrency,
        max_orphans=config.expiry.max_orphans,
        age=scope.age,
        aged_with=facts.settings.allocator,
        heatmaps=scope.heatmaps,
    )


def _fitting(config: Config, facts: ServerFacts, variants: tuple[Variant, ...], scope: RehearsalScope) -> ScaledFleet:
    """Returns the size for which the most demanding variant leaves enough space."""
    nights = scope.age + scope.days
    kept = max(_kept(config, variant, nights) for variant in variants)
    whole = any((variant.settings.inplace or _widest(config)) != "always" for variant in variants)
    return scale_fleet(facts.fleet, scope.size, facts.fill, nights, kept, whole_files=whole)


def _widest(config: Config) -> str:
    return "always" if all(host.inplace == "always" for host in config.hosts.values()) else "never"


def _kept(config: Config, variant: Variant, nights: int) -> int:
    """Returns the maximum number of older backups of a host after this many nights."""
    policies = {replace(host.retention, **variant.settings.retention) for host in config.hosts.values()} or {Retention()}
    return max(_kept_by(policy, nights) for policy in policies)


def _kept_by(policy: Retention, nights: int) -> int:
    if policy.missing:
        return nights
    long_ago: int = sum(min(getattr(policy, period.name), nights // period.days + 1) for period in PERIODS if period.days > 1)
    # A weekly backup shares less with its neighbours than a daily one does.
    return min(nights, max(policy.daily, policy.min_keep) + 3 * long_ago + round(policy.grace / _DAY) + 1)
