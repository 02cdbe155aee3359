"""`backupd promote` takes over hosts whose backups were fetched from another pool; `backupd demote` fetches them again."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import click

from backupd.cli.command_context import dry_run_option, opened, pass_context, yes_option
from backupd.cli.names import complete_host_of_pool, hosts_named, require_confirmation
from backupd.cli.recording import record
from backupd.expire.host_backups import read_hosts
from backupd.replicate.cli.replicate import chosen_replicas, complete_replica
from backupd.replicate.fetch_plan import mark_of, wants
from backupd.replicate.remote_pool import RemotePoolMissing, connected, send_command
from backupd.replicate.wire import RemoteHost
from backupd.repo.common_backups import common_with, drop_common, write_common
from backupd.repo.final_backups import final_backups
from backupd.repo.leftovers import discard_received
from backupd.repo.notes_json import DEMOTED, effective_state, read_notes, write_notes
from backupd.repo.pool_context import PoolContext, writing
from backupd.repo.pool_files import hosts_of
from backupd.repo.publish import publish_copies
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.output import print_wrapped
from btrkeep.config.config_model import ReplicaSettings
from btrkeep.config.problems import page
from btrkeep.decisions.replication import HostFetches, LocalBackup, Obstacle, demotion_obstacle, obstacle_words
from btrkeep.decisions.retention_words import explain
from btrkeep.errors import OperatorError, UsageError
from btrkeep.pool.locks import take_lock
from btrkeep.process.threads import raise_limit
from btrkeep.units import counted, format_time


@click.command("promote")
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=complete_host_of_pool)
@click.option("--replica", "name", metavar="NAME", shell_complete=complete_replica, help="Only hosts that this replica fetches.")
@dry_run_option("which hosts would be taken over")
@yes_option
@json_option
@pass_context
def promote_command(ctx: click.Context, hosts: tuple[str, ...], name: str | None, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Take over each HOST that was fetched from another pool: from now on, this server backs it up.

    Use it when the other backup server is lost. A HOST may be a pattern, such as '*' for all hosts fetched from any pool; with
    several replicas, --replica chooses one. The next run of a host continues from the newest copy, so existing data is not
    transferred again. Its backups are no longer fetched. Add its configuration, [host.HOST], yourself.
    """
    with opened(ctx, writes=not dry_run) as context:
        marks = {host: mark for host in hosts_of(context.pool) if (mark := mark_of(read_notes(context.pool.host(host))))}
        copies = [host for host, mark in marks.items() if name in (None, mark.replica)]
        chosen = hosts_named(hosts, copies, f"is fetched by replica {name}" if name else "is fetched from another pool")
        missing = [host for host in chosen if host not in context.config.every_host]
        if dry_run:
            return _print_promoted(chosen, missing, "would be promoted", as_json=as_json, dry_run=True)
        require_confirmation(
            f"{counted(len(chosen), 'host')} will be backed up here and no longer be fetched", chosen[0], yes, as_json
        )
        since = format_time(context.clock.now())
        with writing(context.pool):
            for host in chosen:
                with take_lock(context.pool.host_lock(host), "backupd promote", since):
                    discard_received(context.pool, host)
                    folder = context.pool.host(host)
                    notes = read_notes(folder)
                    if notes.replica:  # first, so that after a kill it can be promoted again
                        drop_common(context.pool, str(notes.replica.get("name")), [host])
                    write_notes(folder, replace(notes, replica=None))
                    record(context.pool, context.clock.now(), "promote", host)
            publish_copies(context.pool, context.catalogue)
        left = sorted({mark.replica for host, mark in marks.items() if host not in chosen})
        idle = sorted({marks[host].replica for host in chosen} & set(context.config.replicas) - set(left))
    status = _print_promoted(chosen, missing, "promoted", as_json=as_json, dry_run=False)
    if idle and not as_json:
        names = ", ".join(f"[replica.{replica}]" for replica in idle)
        file = context.config.file
        print_wrapped(
            f"{names} no longer fetches anything: while the other server is lost, remove it from {file}, or it is reported as "
            "failing"
        )
    return status


def _print_promoted(chosen: list[str], missing: list[str], outcome: str, *, as_json: bool, dry_run: bool) -> int:
    text = [f"{counted(len(chosen), 'host')} {outcome}: {', '.join(chosen)}"]
    if missing:
        text.append(
            f"not configured yet: {', '.join(missing)}. Add them with `backupd host add NAME`, or copy the first server's "
            "configuration files"
        )
    return print_answer({"dry_run": dry_run, "hosts": chosen, "unconfigured": missing}, text, as_json=as_json)


@click.command("demote")
@click.argument("name", shell_complete=complete_replica)
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=complete_host_of_pool)
@dry_run_option("which hosts would be fetched, and which of their backups only this pool has")
@yes_option
@json_option
@pass_context
def demote_command(ctx: click.Context, name: str, hosts: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool) -> int:
    """Fetch each HOST from the pool of the replica NAME from now on, and no longer back it up here.

    Use it after `promote`: this server was away, and the other server made the backups. From now on, the retention of the
    replica decides what is kept here, instead of that of the host. `replicate` then fetches the backups made there, as
    differences.

    A HOST may be a pattern, such as '*'; hosts that the other pool does not back up are then unchanged. The command refuses if this
    pool and the other pool share no backup of a host, or if the other server does not back up a named host. Backups that only this
    pool has are listed; they are not sent to the other pool.
    """
    with opened(ctx, writes=not dry_run) as context:
        replica = chosen_replicas(context, name)[0]
        if replica.is_pushed:
            hint = (
                f"if this server can connect to the other server, set `from` of [replica.{name}] to its address "
                f"({page('second-copy')})"
            )
            raise UsageError(f"{name} is sent from the other server, so this server cannot list its backups", hint)
        own = [host for host in hosts_of(context.pool) if read_notes(context.pool.host(host)).replica is None]
        problem = f"is backed up here and fetched by replica {name}"
        mine = [host for host in own if wants(replica, host)]
        if not mine:
            hint = f"`backupd replicate {name}` fetches its backups: `demote` is only needed for a host with backups here"
            raise UsageError(f"no host {problem}", hint)
        chosen = hosts_named(hosts, mine, problem)
        since = format_time(context.clock.now())
        only_here: dict[str, list[str]] = {}
        common = common_with(context.pool, replica.name)
        with ExitStack() as held:
            try:
                far = held.enter_context(connected(send_command(context.config, replica, [])))
            except RemotePoolMissing as error:
                raise OperatorError(f"{name}: {error.message.rstrip('.')}; nothing was changed", error.hint) from None
            if far.id == context.pool.id:
                raise OperatorError("the other pool is the same pool", "name the replica of another pool")
            remote_hosts = {host.name: host for host in far.hosts() if host.name in chosen}
            stay = {host: why for host in chosen if host not in hosts and (why := _not_theirs(host, remote_hosts.get(host)))}
            if not (chosen := [host for host in chosen if host not in stay]):
                host, why = next(iter(stay.items()))
                raise OperatorError(f"{host}: {why}", "nothing was changed")
            configured = [host for host in chosen if host in context.config.every_host]
            if words := _expiring(context, replica, chosen):
                print_wrapped(words, err=as_json)
            if not dry_run:
                require_confirmation(f"{counted(len(chosen), 'host')} will no longer be backed up here", chosen[0], yes, as_json)
                held.enter_context(writing(context.pool))
                raise_limit()
                for host in chosen:
                    held.enter_context(take_lock(context.pool.host_lock(host), "backupd demote", since))
            for host in chosen:  # check all of them before changing the first
                only_here[host], common[host] = _require_demotable(context, host, remote_hosts.get(host))
            if dry_run:
                return _print_demoted(chosen, configured, only_here, stay, as_json=as_json, dry_run=True)
            write_common(context.pool, replica.name, common)  # in both pools, before either expires the next parent
            far.note_common(replica.name, common)
            for host in chosen:
                folder = context.pool.host(host)
                mark = {"pool": far.id, "name": replica.name, "at": since, DEMOTED: True}
                write_notes(folder, replace(read_notes(folder), replica=mark))
                record(context.pool, context.clock.now(), "demote", host)
            publish_copies(context.pool, context.catalogue)
    return _print_demoted(chosen, configured, only_here, stay, as_json=as_json, dry_run=False)


def _print_demoted(
    chosen: Sequence[str],
    configured: Sequence[str],
    only_here: Mapping[str, Sequence[str]],
    stay: Mapping[str, str],
    *,
    as_json: bool,
    dry_run: bool,
) -> int:
    def text() -> Iterator[str]:
        yield from (f"{host} is not demoted: {why}" for host, why in stay.items())
        yield f"{counted(len(chosen), 'host')} {'would be ' if dry_run else ''}demoted: {', '.join(chosen)}"
        for host, names in ((host, ", ".join(names)) for host, names in only_here.items() if names):
            yield f"{host}: the other pool does not have {names}; this pool keeps them as long as its retention requires"
        if configured:
            yield f"still configured: {', '.join(configured)}; not backed up here again until `backupd promote`"

    answer = {"dry_run": dry_run, "hosts": chosen, "configured": configured, "only_here": only_here, "stay": stay}
    return print_answer(answer, text(), as_json=as_json)


def _not_theirs(host: str, far: RemoteHost | None) -> str:
    """Returns the reason why the other pool does not back the host up; "" if it does."""
    if not far or not far.backups:
        return obstacle_words(HostFetches(host, obstacle=Obstacle.NOT_THERE))
    return "the other pool has copies of it, and does not back it up" if far.copy_of else ""


def _expiring(context: PoolContext, replica: ReplicaSettings, hosts: Sequence[str]) -> str:
    """Formats how many backups the new retention would not keep; "" if it keeps all."""
    zone, moment = context.config.pool.zone, context.clock.now()
    explained_hosts = [
        explain(host_backups, replica.retention, zone, moment)
        for host_backups in read_hosts(context.pool, context.catalogue, context.config, hosts)
    ]
    count, going = (
        sum(len(explained.decisions) for explained in explained_hosts),
        sum(not each.keep for explained in explained_hosts for each in explained.decisions),
    )
    return f"the retention of replica {replica.name} keeps {count - going} of {counted(count, 'backup')} here" if going else ""


def _require_demotable(context: PoolContext, host: str, far: RemoteHost | None) -> tuple[list[str], str]:
    """Returns the backups that only this pool has, oldest first, and the newest common one, by name.

    Raises OperatorError if the host cannot be demoted.
    """
    if context.pool.working(host).exists():
        raise OperatorError(
            f"{host} has an unfinished backup", f"`backupd run {host}` finishes it, `backupd discard {host}` deletes it"
        )
    notes, unread = read_notes(context.pool.host(host)), list[str]()
    here = [
        LocalBackup(final_backup.path.name, final_backup.record.uuid, effective_state(final_backup.record, notes))
        for final_backup in final_backups(context.pool, host, unread)
    ]
    for name in unread:
        print_wrapped(f"{host}: {name} cannot be read, so it is skipped; `backupd damaged {host}` lists the damage", err=True)
    far_backups = far.backups if far else ()
    if obstacle := demotion_obstacle(far_backups, here, is_copy_there=bool(far and far.copy_of)):
        raise OperatorError(
            f"{host}: {obstacle_words(HostFetches(host, obstacle=obstacle[0], text=obstacle[1]))}", "nothing was changed"
        )
    remote_uuids = {backup.uuid for backup in far_backups}
    return sorted(near_backup.name for near_backup in here if near_backup.uuid not in remote_uuids), max(
        near_backup.name for near_backup in here if near_backup.uuid in remote_uuids
    )
