"""`backupd quota`: the existing data that each host wrote, and the simple quotas that count it."""

from platform import release
from typing import Any

import click

from backupd.actions.quota import QuotaState, costs, enable, programs, read_state, require_disableable, require_enableable
from backupd.cli.command_context import clock_for, dry_run_option, load_config, pass_context, yes_option
from backupd.cli.names import require_confirmation
from backupd.repo.pool_context import open_configured, require_writable
from btrkeep.cli import json_option, print_answer, print_listing
from btrkeep.cli.listings import Column, objects
from btrkeep.cli.output import print_wrapped
from btrkeep.pool import qgroups
from btrkeep.units import format_share, format_size, local_time

STATES = {qgroups.SIMPLE: "on", qgroups.FULL: "qgroups", qgroups.OFF: "off"}
"""The word for a mode in JSON."""


@click.group("quota", no_args_is_help=True)
def command() -> None:
    """Show how much space each host's backups use. Switch simple quotas, which count it, on or off.

    With simple quotas (Linux 6.7), btrfs counts each extent for the subvolume that first wrote it, as long as any backup has
    it. The sum of a host's backups is its space, which `quota` in the configuration can limit. A balance makes the
    counted bytes wrong. btrkeep never switches simple quotas on by itself.
    """


@command.command("show")
@json_option
@click.pass_context
def show_command(ctx: click.Context, as_json: bool) -> int:
    """Show how much space each host's backups use, and its quota."""
    config = load_config(ctx)
    quota_state = read_state(config, open_configured(config))
    return print_answer(_answer(quota_state), lambda: _show(quota_state), as_json=as_json)


def _show(quota_state: QuotaState) -> None:
    print_listing(_columns(quota_state), _hosts(quota_state))
    print_wrapped(_state_words(quota_state))


@command.command("enable")
@dry_run_option("what it costs")
@yes_option
@json_option
@pass_context
def enable_command(ctx: click.Context, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Enable simple quotas on the whole filesystem of the pool.

    Prints the costs first. Older kernels and btrfs-progs cannot use the filesystem afterwards, not even after simple quotas are
    disabled again.
    """
    config = load_config(ctx)
    pool = open_configured(config)
    clock = clock_for(ctx, pool)
    if qgroups.mode(pool.filesystem) == qgroups.SIMPLE:
        return _print_result(read_state(config, pool), as_json, dry_run, changed=False)
    require_enableable(pool)
    if not as_json or not yes:
        for line in costs(release(), programs()[0]):
            print_wrapped(f"- {line}", err=as_json)
    if dry_run:
        return _print_result(read_state(config, pool), as_json, dry_run, changed=True)
    require_confirmation("simple quotas will be switched on", config.name, yes, as_json)
    require_writable(pool)
    enable(pool, clock.now())
    return _print_result(read_state(config, pool), as_json, dry_run, changed=True)


@command.command("disable")
@dry_run_option("what would be done")
@yes_option
@json_option
@click.pass_context
def disable_command(ctx: click.Context, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Disable simple quotas. All counted bytes are lost, and limits no longer apply.

    Refused if the filesystem has qgroups that do not belong to this pool, because they would be lost too.
    """
    config = load_config(ctx)
    pool = open_configured(config)
    if qgroups.mode(pool.filesystem) == qgroups.OFF:
        return _print_result(read_state(config, pool), as_json, dry_run, changed=False)
    require_disableable(pool)
    if not dry_run:
        require_confirmation("all counted bytes will be lost", config.name, yes, as_json)
        require_writable(pool)
        require_disableable(pool)  # the prompt may have been open for long
        qgroups.disable(pool)
    return _print_result(read_state(config, pool), as_json, dry_run, changed=True)


def _print_result(state: QuotaState, as_json: bool, dry_run: bool, *, changed: bool) -> int:
    answer = {"dry_run": dry_run, "changed": changed and not dry_run, **_answer(state)}
    wanted = "on" if state.mode == qgroups.OFF else "off"
    would = f"would switch simple quotas {wanted}; nothing was changed"
    return print_answer(answer, [would if dry_run and changed else _state_words(state)], as_json=as_json)


def _hosts(state: QuotaState) -> list[str]:
    return sorted({*state.referenced_bytes, *state.limits})


def _columns(state: QuotaState) -> tuple[Column[str], ...]:
    def used(host: str) -> str:
        alive, most = state.referenced_bytes.get(host), state.limits.get(host)
        return format_share(alive / most) if alive is not None and most else "-"

    return (
        Column("host", header="HOST"),
        Column("bytes", state.referenced_bytes.get, "COUNTED", format_size, right=True),
        Column("quota", state.limits.get, "QUOTA", lambda most: format_size(most) if most is not None else "none", right=True),
        Column(header="USED", cell=used, right=True),
    )


def _state_words(state: QuotaState) -> str:
    if state.mode == qgroups.SIMPLE:
        since = f" since {local_time(state.since)}; data written before is not counted" if state.since else ""
        return f"simple quotas are on{since}"
    if state.mode == qgroups.FULL:
        return "qgroups are switched on, not simple quotas: nothing is counted for hosts, and no quota applies"
    idle = ", so no quota applies" if state.limits else ""
    stays = "; older kernels still cannot mount the filesystem" if state.ever_on else ""
    return f"simple quotas are off{idle}{stays}"


def _answer(state: QuotaState) -> dict[str, Any]:
    hosts = list(objects(_columns(state), _hosts(state)))
    return {"state": STATES[state.mode], "since": state.since, "ever_on": state.ever_on, "hosts": hosts}
