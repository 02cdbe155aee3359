"""Rules about the state of the filesystem, about simple quotas, which enforce the quotas of hosts, and about qgroups."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from platform import release

from backupd.actions.quota import costs
from backupd.doctor.doctor_facts import DoctorFacts, DoctorRule, backupd, diagnosis, unless
from btrkeep.decisions import findings as health
from btrkeep.decisions.findings import Finding, FixCommand, Remedy, WriteSysfs
from btrkeep.decisions.pool_health import NO_POLICY, Shortage, shortage
from btrkeep.decisions.scrub import SCRUB_EVERY
from btrkeep.pool.space_by_profile import devices_needed
from btrkeep.units import counted, format_duration

_SIMPLE, _FULL = "squota", "qgroup"
_FEATURE = "simple_quota"


def idle_quotas(quotas: int, mode: str, is_supported: bool) -> str:
    """Returns why quotas of hosts are not enforced; "" if they are, or there are none.

    `is_supported`: the kernel has simple quotas.
    """
    if not quotas or mode == _SIMPLE:
        return ""
    have = f"{counted(quotas, 'host')} {'has a quota' if quotas == 1 else 'have quotas'} without effect"
    return f"{have}: simple quotas are not switched on" + (
        "" if is_supported else ", and this kernel does not support them (Linux 6.7 does)"
    )


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
        "btrfs counts every new extent for the subvolume that it was written for, which costs little (`backupd quota show`)"
        if simple
        else "for each changed extent btrfs searches all snapshots that refer to it: deleting snapshots takes many times as long "
        "and can stop the whole filesystem",
        "limits and counted bytes of qgroups are lost; btrkeep needs none of them (`backupd usage` shows what uses the space)",
        (),
        (FixCommand(("btrfs", "quota", "disable", str(site.pool))),),
    )


def _quotas(facts: DoctorFacts) -> Iterator[Finding]:
    fs, site = facts.filesystem, facts.site
    version, repairs = site.programs
    is_supported = _FEATURE in fs.kernel_features
    if idle := idle_quotas(site.quotas, fs.quota, is_supported):
        first = (
            (f"btrfs quota disable {shlex.quote(str(site.pool))}   # counted bytes and limits of qgroups are lost",)
            if fs.quota == _FULL
            else ()
        )
        enable = (*first, f"{backupd(site, 'quota enable')}   # first with --dry-run")
        yield diagnosis(
            "quotas",
            "warning",
            idle,
            "without simple quotas a host's data is not counted, so its quota has no effect; with them btrfs enforces it",
            "; ".join(costs(release(), version)),
            enable if is_supported else ("# remove `quota` from the configuration, or use a newer kernel",),
        )
    if fs.quota == _SIMPLE and (site.quotas or site.quota_since) and (site.own_balance or fs.reclaim):
        who, timer = "btrfs-balancer" if site.own_balance else "the kernel", f"btrkeep-balance@{site.name}.timer"
        yield diagnosis(
            "quotas",
            "warning",
            f"{who} balances, and the moved data is counted for other hosts",
            "if there is free space between two extents that a balance moves, it counts the first one for the owner of the "
            "second (Linux 6.18). The counted bytes become wrong, and a quota may stop a host because of another host's data",
            "without balancing, free space fragments; without simple quotas, no quota applies",
            (f"{backupd(site, 'quota disable')}   # or: systemctl disable --now {timer}",),
        )
    if _FEATURE in fs.features and not repairs:
        yield diagnosis(
            "quotas",
            "warning",
            f"btrfs-progs {version} cannot check or repair this filesystem, which has had simple quotas",
            "the program that repairs a damaged filesystem must be installed before it is needed",
            "none: a newer btrfs-progs works with older kernels too",
            ("# install btrfs-progs 6.7 or later, from backports or a newer release",),
        )


QUOTA_RULES = (
    DoctorRule(
        "qgroups", ("note", "warning"), "qgroups, or simple quotas that the configuration does not use", _qgroups, fixable=True
    ),
    DoctorRule(
        "quotas",
        ("warning",),
        "quotas that do not apply, or whose counted bytes are wrong; btrfs-progs too old for simple quotas",
        _quotas,
    ),
)


_CHUNK = 64 << 20  # unallocated bytes of a device that suffice for a chunk
MANY_SUBVOLUMES = 100_000
MANY_OF_A_HOST = 300


def _unallocated(facts: DoctorFacts) -> Iterator[Finding]:
    for finding in facts.verdict.of(health.UNALLOCATED):
        yield replace(finding, remedy=_left_remedy(facts) if facts.site.left_devices else _shortage_remedy(facts))


_FIX_ROOM = "doctor --fix room"
_ENDS = "when metadata needs another block group and none can be allocated, all writes fail with ENOSPC"


def _left_remedy(facts: DoctorFacts) -> Remedy:
    why = "without the temporary device the pool cannot be mounted; a stopped `--fix room` left it in the pool"
    return Remedy(why, "low; do not detach the device before this has ended", (backupd(facts.site, _FIX_ROOM),))


def _shortage_remedy(facts: DoctorFacts) -> Remedy:
    pool = shlex.quote(str(facts.site.pool))
    ours, fill = (*_discard(facts), *_expiry(facts, "expire")), _fill(facts)
    match shortage(facts.filesystem.room):
        case Shortage.DATA:
            why = f"{_ENDS}; balance cannot help, because no data block group has free space"
            more = fill or (_add_devices(facts),)
            return Remedy(why, f"{_EXPIRY_RISK}; an added device is permanent", (*ours, *more))
        case Shortage.METADATA:
            why = f"{_ENDS}, even where data has free space. A balance needs metadata itself, and would fail now"
            risk = "do not restart the machine while it runs: it adds a temporary device and removes it again"
            return Remedy(why, risk, (*ours, *(fill or (backupd(facts.site, _FIX_ROOM),))))
        case _:
            balance_by_usage = f"btrfs-balancer run {pool} --policy usage --min-unallocated 0"
            fix_room = f"{backupd(facts.site, _FIX_ROOM)}   # if that does not free enough"
            risk = "low; data in sparsely used block groups is moved together"
            return Remedy(f"{_ENDS}, even where data has free space", risk, (*ours, *(fill or (balance_by_usage, fix_room))))


_EXPIRY_RISK = "expire deletes backups whose grace period has ended"


def _expiry(facts: DoctorFacts, *words: str) -> tuple[str, ...]:
    """Returns these commands of backupd; if nothing expires, a line about the missing configuration."""
    if facts.site.limits.advice == NO_POLICY:
        return (f"# nothing expires before {shlex.quote(str(facts.site.file))} has a [retention]",)
    return tuple(backupd(facts.site, command) for command in words)


def _room(facts: DoctorFacts) -> Iterator[Finding]:
    yield from _too_full(facts, health.ROOM, "below [pool] min_free no transfer starts: hosts that are due wait for free space")


def _used(facts: DoctorFacts) -> Iterator[Finding]:
    yield from _too_full(
        facts, health.USED, "more than [notify] used_limit is used; below [pool] min_free of free space no transfer starts"
    )


def _too_full(facts: DoctorFacts, check: str, why: str) -> Iterator[Finding]:
    for finding in facts.verdict.of(check):
        risk = f"{_EXPIRY_RISK}; a new device is used evenly only after a balance"
        more = _fill(facts) or (_add_devices(facts),)
        ours = (*_discard(facts), *_expiry(facts, "expire --dry-run", "expire"), backupd(facts.site, "usage"))
        yield replace(finding, remedy=Remedy(why, risk, (*ours, *more)))


def _with_space(facts: DoctorFacts) -> dict[int, int]:
    """Returns the devices with space for a new chunk, by number, with their unallocated bytes."""
    return {devid: size for devid, size in facts.filesystem.unallocated.items() if size >= _CHUNK}


def _needed(facts: DoctorFacts) -> int:
    """Returns the number of devices with unallocated space that a new chunk of data needs."""
    profiles = facts.filesystem.profiles.get("data", ()) or facts.filesystem.profiles.get("mixed", ())
    return max(map(devices_needed, profiles), default=1)


def _fill(facts: DoctorFacts) -> tuple[str, ...]:
    """Returns the commands for a pool in which some devices have space, but fewer than the profile needs: a device was added to a
    full mirror.
    """
    space, needed = _with_space(facts), _needed(facts)
    if not 0 < len(space) < needed:
        return ()
    devid, pool = max(space, key=lambda number: space[number]), shlex.quote(str(facts.site.pool))
    new = " ".join(f"/dev/NEW{number or ''}" for number in range(needed - len(space)))
    return (
        f"btrfs-balancer run {pool} --policy usage --fill {devid} --min-unallocated 0   # device {devid} is empty",
        f"# or: btrfs device add {new} {pool}   # a chunk needs space on {counted(needed, 'device')}, here on {len(space)}",
    )


def _add_devices(facts: DoctorFacts) -> str:
    missing = max(1, _needed(facts) - len(_with_space(facts)))
    new = " ".join(f"/dev/NEW{number or ''}" for number in range(missing))
    why = f"{counted(missing, 'device')}: a chunk needs space on that many" if missing > 1 else "or keep fewer backups: [retention]"
    return f"btrfs device add {new} {shlex.quote(str(facts.site.pool))}   # {why}"


def _discard(facts: DoctorFacts) -> tuple[str, ...]:
    """Returns the command that deletes the largest unfinished backup, which cannot be restored from."""
    host = facts.site.unfinished
    return (f"{backupd(facts.site, f'discard {shlex.quote(host)} --dry-run')}   # then without --dry-run",) if host else ()


def _reclaim(facts: DoctorFacts) -> Iterator[Finding]:
    fs, site = facts.filesystem, facts.site
    if not fs.reclaim:
        return
    words = ", ".join(f"{file.name} {value}" for file, value in fs.reclaim.items())
    yield diagnosis(
        "reclaim",
        "warning" if site.own_balance else "note",
        f"the kernel balances data block groups by itself ({words}){', and so does btrfs-balancer' if site.own_balance else ''}",
        "the kernel chooses block groups by how full they are, not by their fragmentation: it moves data unnecessarily, and the "
        "same data as btrfs-balancer",
        "none while btrfs-balancer is used; the change applies until the filesystem is mounted again",
        (),
        tuple(WriteSysfs(file, "0") for file in fs.reclaim),
    )


def _balance(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.filesystem.exclusive_operation != "balance paused":
        return
    pool = shlex.quote(str(facts.site.pool))
    yield diagnosis(
        "balance",
        "warning",
        "a balance is paused",
        "until it is resumed or cancelled, no other balance can run, and no device can be added, removed or replaced",
        "none; data already moved stays in its new place",
        (f"btrfs balance resume {pool}", f"# or: btrfs balance cancel {pool}"),
    )


def _scrub(facts: DoctorFacts) -> Iterator[Finding]:
    scrub, site = facts.scrub, facts.site
    pool = shlex.quote(str(site.pool))
    risk = "none, except the load: it reads everything once. `btrfs scrub cancel` stops it, `btrfs scrub resume` continues it"
    if scrub.uncorrectable:
        yield diagnosis(
            "scrub",
            "error",
            f"scrub has found {scrub.uncorrectable:,} errors that it could not correct",
            "files of backups are damaged; dmesg names them. The next run fetches a file again if `backupd damaged` lists it for "
            "the newest complete backup and the host still has it",
            risk,
            ("dmesg | grep 'unable to fixup'", f"btrfs scrub start -B {pool}"),
        )
    since = scrub.finished or site.created
    if scrub.running or since is None or facts.now - since <= SCRUB_EVERY:
        return
    age = format_duration((facts.now - since).total_seconds())
    state = (
        f"the last complete scrub was {age} ago"
        if scrub.finished
        else f"no scrub was ever completed, although the pool is {age} old"
    )
    yield diagnosis(
        "scrub",
        "warning",
        state + (" (a later one was interrupted)" if scrub.unfinished else ""),
        "nothing else reads old backups: without a scrub, damage is found only when the backup is needed",
        risk,
        (f"btrfs scrub {'resume' if scrub.unfinished else 'start'} {pool}",),
    )


def _subvolumes(facts: DoctorFacts) -> Iterator[Finding]:
    host, most = facts.site.most_backups or ("", 0)
    count = facts.filesystem.subvolumes or 0
    if count > MANY_SUBVOLUMES:
        problem = f"the filesystem has {counted(count, 'subvolume')}"
    elif most > MANY_OF_A_HOST:
        problem = f"{host} has {counted(most, 'backup')}"
    else:
        return
    yield diagnosis(
        "subvolumes",
        "note",
        problem,
        "balance searches every reference to the data it moves, so it becomes slower with each snapshot that shares an extent; "
        "many programs read the whole root tree",
        "a shorter retention deletes backups; check first with --dry-run",
        (backupd(facts.site, "retention explain"), backupd(facts.site, "expire --dry-run")),
    )


def _unseen_scrubs(facts: DoctorFacts) -> str:
    if not facts.scrub.is_known:
        return "the file in which btrfs-progs records its scrubs cannot be read"
    if facts.scrub.finished is None and facts.site.created is None and not facts.scrub.running:
        return "no scrub is recorded here, and pool.json does not have the age of the pool"
    return ""


_BLIND_TO_OPERATION = unless(
    lambda facts: facts.filesystem.exclusive_operation is not None, "the kernel does not report exclusive operations"
)
_BLIND_TO_SUBVOLUMES = unless(
    lambda facts: facts.filesystem.subvolumes is not None, "subvolumes could not be counted: that needs CAP_SYS_ADMIN"
)

RULES = (
    DoctorRule("room", ("error",), "not enough free space for another transfer: less than min_free, or almost none for "
        "metadata", _room),
    DoctorRule("unallocated", ("warning", "error"), "little unallocated space left", _unallocated),
    DoctorRule("used", ("warning",), "more of the pool used than used_limit", _used),
    DoctorRule("scrub", ("warning", "error"), f"no complete scrub for {SCRUB_EVERY.days} days, or errors that it could not correct",
         _scrub, blind=_unseen_scrubs),
    *QUOTA_RULES,
    DoctorRule("reclaim", ("note", "warning"), "the kernel's own reclaim, beside btrfs-balancer", _reclaim, fixable=True),
    DoctorRule("balance", ("warning",), "a paused balance", _balance, blind=_BLIND_TO_OPERATION),
    DoctorRule("subvolumes", ("note",),
         f"more than {MANY_SUBVOLUMES:,} subvolumes, or more than {MANY_OF_A_HOST} backups of a host", _subvolumes,
         blind=_BLIND_TO_SUBVOLUMES),
)  # fmt: skip
