"""`backupd host`: hosts are added to the configuration, changed and taken out of it, shown, and tried."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backupd.cli.context import complain_of_faults, complete_host
from backupd.cli.names import expand_hosts, is_pattern
from backupd.cli.recording import record_change
from backupd.hosts.assigning import ListedHost, read_host_list
from backupd.hosts.cli.host_set import set_command
from backupd.hosts.cli.questions import Prompter
from backupd.hosts.files import Files, add_host, add_hosts, remove_hosts
from btrkeep.cli import echo_json, json_option, table
from btrkeep.cli.given_path import GivenPath
from btrkeep.cli.progress import prose
from btrkeep.config import Config, HostConfig
from btrkeep.decisions.findings import Finding
from btrkeep.errors import ConfigError, Exit, OperatorError, UsageError, did_you_mean, quoted
from btrkeep.units import counted, printable

if TYPE_CHECKING:
    from backupd.hosts.cli.reach import ReachResult


def files_of(ctx: click.Context) -> Files:
    """Returns where the configuration named by --pool or --config is stored."""
    chosen = ctx.find_root().obj
    return Files.of(chosen["pool"], chosen["config"])


def keys_of(address: str | None, port: int | None, group: str | None, paths: tuple[str, ...]) -> dict[str, Any]:
    """Returns the keys of a host's section from the options."""
    given = {"group": group, "address": address, "port": port, "paths": list(paths)}
    return {key: value for key, value in given.items() if value not in (None, [])}


@click.group("host", no_args_is_help=True)
def command() -> None:
    """Add hosts to the configuration; change, remove, list and test them.

    Each added host gets its own file, such as /etc/btrkeep/main.d/web1.toml. The whole configuration is checked before a file is
    replaced, and comments are kept.
    """


command.add_command(set_command)


@command.command("add")
@click.argument("name", required=False)
@click.option(
    "--from",
    "source",
    type=GivenPath(allow_dash=True),
    metavar="FILE",
    help="Add the hosts of a list, one a line: NAME KEY=VALUE... as for `host set`. The other options hold for all of them.",
)
@click.option("--address", metavar="ADDRESS", help="How ssh reaches it, such as root@web1.example.org. Without it: this machine.")
@click.option("--port", type=click.IntRange(1, 65535), help="The port of its ssh, when it is not 22.")
@click.option("--path", "paths", multiple=True, metavar="PATH", help="A source path; may be given several times.")
@click.option("--group", metavar="GROUP", help="The group whose settings it inherits.")
@click.option("--accept-host-key", is_flag=True, help="Trust the host's key without asking. You have compared its fingerprint.")
@json_option
@click.pass_context
def add_command(
    ctx: click.Context,
    name: str | None,
    source: str | None,
    address: str | None,
    port: int | None,
    paths: tuple[str, ...],
    group: str | None,
    accept_host_key: bool,
    as_json: bool,
) -> int:
    """Add the host NAME, and test whether it can be reached.

    With --from all hosts of a list are added, or none. They are not tested; `backupd check --connect` does that.

    Shows the host's key before it is trusted, and the line for the host that lets our key in. Exit status 1 when the host is added
    but not reached yet.
    """
    if (name is None) == (source is None):
        raise UsageError("name a host, or a list of hosts with --from", "`backupd host add --help` explains both")
    if source is not None:
        if accept_host_key:
            raise UsageError("--accept-host-key is for one host", "leave it out; `backupd host test HOST` shows each key")
        return _add_list(files_of(ctx), source, keys_of(address, port, group, paths), as_json=as_json)
    assert name is not None
    prompter, files = Prompter.here(as_json), files_of(ctx)
    path = add_host(files, name, keys_of(address, port, group, paths))
    prompter.say(f"{name} is added: {path}")
    config = files.load_usable()
    record_change(config, datetime.now(UTC), "host add", name)
    found, why = _reached(prompter, config, config.hosts[name], accept_host_key)
    if as_json:
        echo_json({"host": name, "file": str(path), "authorized_keys": found.line, "reached": not why and found.good})
    if why:
        raise why
    show_findings(prompter, found.findings)
    if not found.good:
        if found.host_key_known:  # else the command above accepts the key, and tests
            prompter.say(f"next: do that, then `backupd host test {name}` tests it again")
        return Exit.ATTENTION
    prompter.say(f"next: `backupd run {name}`, or let the night do it")
    return Exit.OK


def _add_list(files: Files, source: str, common: dict[str, Any], *, as_json: bool) -> int:
    """Adds the hosts of a list. Raises UsageError, which names each wrong line."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{source} cannot be read: {error}", "name a file with a host a line: NAME KEY=VALUE...") from None
    listed = read_host_list(text, source, files.hosts())
    try:
        paths = add_hosts(files, {name: common | host.keys for name, host in listed.items()})
    except ConfigError as error:
        raise _located_in(source, files, listed, error) from None
    config = files.load_usable()
    for name in paths:
        record_change(config, datetime.now(UTC), "host add", name, f"from {source}")
    if as_json:
        echo_json([{"host": name, "file": str(path)} for name, path in paths.items()])
        return Exit.OK
    prose(f"{counted(len(paths), 'host')} added, a file for each in {files.folder}")
    prose("next: `backupd check --connect` tests them")
    return Exit.OK


def _located_in(source: str, files: Files, listed: Mapping[str, ListedHost], error: ConfigError) -> ConfigError:
    """Returns the error with the lines of the list in place of those of the hosts' files, which were not written."""
    lines = {f"{files.own_file(name)}": host.line for name, host in listed.items()}
    located = []
    for problem in error.located:
        file, _, rest = problem.partition(":")
        number, colon, reason = rest.partition(":")
        located.append(f"{source}:{lines[file]}:{reason}" if file in lines and colon and number.isdigit() else problem)
    return ConfigError(error.problems, error.hint, located)


def _reached(prompter: Prompter, config: Config, host: HostConfig, accept: bool) -> "tuple[ReachResult, OperatorError | None]":
    """Returns how the host was reached; or, because it is in the configuration in any case, the error."""
    from backupd.hosts.cli.reach import (  # here and below: completing a host's name has no need of what tests hosts
        ReachResult,
        reach,
    )

    try:
        return reach(prompter, config, host, accept=accept), None
    except OperatorError as error:
        return ReachResult(None, False, ()), error


def show_findings(prompter: Prompter, findings: tuple[Finding, ...]) -> None:
    """The table of `check`, in text only."""
    if findings and not prompter.as_json:
        from backupd.doctor.cli.check import show

        show(findings)


@command.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_host)
@json_option
@click.pass_context
def remove_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> int:
    """Remove each host NAME from the configuration, all or none. Their backups stay.

    These never expire then, since no policy applies to a host that is not configured. `backupd forget NAME` gives up all of them.

    NAME may be a pattern, such as 'web*'.
    """
    files = files_of(ctx)
    paths = remove_hosts(files, expand_hosts(names, files.hosts()))
    config = files.load_usable()
    for name in paths:
        record_change(config, datetime.now(UTC), "host remove", name)
    if as_json:
        rows = [{"host": name, "file": str(path), "file_removed": not path.exists()} for name, path in paths.items()]
        is_list = len(names) > 1 or is_pattern(names[0])
        echo_json(rows if is_list else rows[0])
        return Exit.OK
    for name, path in paths.items():
        removed = "" if path.exists() else ", and so was the file"
        prose(f"{name} is no longer backed up: its section was removed from {path}{removed}")
    if len(paths) == 1:
        prose(f"its backups stay, all of them; `backupd forget {next(iter(paths))}` gives them up")
    else:
        prose(f"{counted(len(paths), 'host')} removed; their backups stay, all of them; `backupd forget NAME` gives up a host's")
    return Exit.OK


@command.command("list")
@json_option
@click.pass_context
def list_command(ctx: click.Context, as_json: bool) -> int:
    """List the configured hosts, and the file of each."""
    files = files_of(ctx)
    config = files.load_usable()
    complain_of_faults(config.faults)
    where = files.hosts()
    rows = [_as_object(host, where[host.name]) for host in config.hosts.values()]
    if as_json:
        echo_json(rows)
    elif rows:
        click.echo(table([_as_row(row) for row in rows], ["HOST", "ADDRESS", "GROUP", "PATHS", "FILE"], spare=["GROUP"]))
    elif not config.excluded:
        prose(f"no host is configured in {files.main}; `backupd host add NAME` adds one")
    return Exit.ATTENTION if config.faults else Exit.OK


def _as_object(host: HostConfig, file: Path) -> dict[str, Any]:
    return {
        "host": host.name,
        "address": host.address,
        "port": host.port,
        "group": host.group,
        "enabled": host.enabled,
        "paths": list(host.paths),
        "file": str(file),
    }


def _as_row(row: dict[str, Any]) -> list[str]:
    where = "(this machine)" if row["address"] is None else row["address"] + (f" port {row['port']}" if row["port"] else "")
    off = "" if row["enabled"] else " (not enabled)"
    return [row["host"] + off, where, row["group"] or "-", printable(" ".join(row["paths"])), printable(Path(row["file"]).name)]


@command.command("test")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_host)
@json_option
@click.pass_context
def test_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> int:
    """Test whether each host NAME can be reached and its source paths be listed, enabled or not. Changes nothing.

    NAME may be a pattern, such as 'web*'.

    Exit status 1 when something is wrong.
    """
    config = files_of(ctx).load_usable()
    complain_of_faults(config.faults)
    hosts = expand_hosts(names, config.hosts)
    for name in hosts:
        if name in config.excluded:
            raise ConfigError([config.excluded[name].fault], "mend that line")
        if name not in config.hosts:
            hint = did_you_mean(name, config.hosts, "`backupd host list` shows those that are")
            raise UsageError(f"no host {quoted(name)} is configured", hint)
    from backupd.doctor.cli.check import report

    return report(try_hosts(config, [config.hosts[name] for name in hosts]), as_json)


def try_hosts(config: Config, hosts: Sequence[HostConfig]) -> list[Finding]:
    """Returns the problems of these hosts, those that are reached over ssh at the same time; each finding once."""
    if len(hosts) == 1:
        return list(try_host(config, hosts[0]))
    remote = {host.name: replace(host, enabled=True) for host in hosts if host.address}
    found = [finding for host in hosts if not host.address for finding in try_host(config, host)]
    if remote:
        import asyncio

        from backupd.doctor.checks import check_all
        from backupd.doctor.host_checks import check_hosts

        first = next(iter(remote.values()))
        found += [finding for finding in check_all(config, first) if finding.about in ("ssh key", "known_hosts")]
        found += asyncio.run(check_hosts(replace(config, hosts=remote)))
    return list(dict.fromkeys(found))


def try_host(config: Config, host: HostConfig) -> tuple[Finding, ...]:
    """Returns the problems of this host, or one line that says that there are none."""
    from backupd.doctor.checks import check_all

    found = tuple(finding for finding in check_all(config, host) if finding.about in (host.name, "ssh key", "known_hosts"))
    if host.address:
        from backupd.hosts.cli.reach import probe

        return (*found, *probe(config, host))
    return found or (Finding("source", "ok", "all of its paths are folders of this machine", subject=host.name),)
