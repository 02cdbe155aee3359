"""`backupd host`: adds hosts to the configuration; changes, removes, lists and tests them."""

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backupd.cli.command_context import complain_of_faults, complete_host, completing_config, dry_run_option
from backupd.cli.names import expand_hosts
from backupd.cli.recording import record_change
from backupd.hosts.assigning import KEYS, ListedHost, parse_assignments, read_host_list
from backupd.hosts.cli.questions import Prompter
from backupd.hosts.config_files import Files, HostChange, add_host, add_hosts, remove_hosts, set_hosts
from backupd.repo.pool_files import is_pattern
from btrkeep.cli import json_option, print_answer, print_listing
from btrkeep.cli.arguments import GivenPath
from btrkeep.cli.listings import Column
from btrkeep.cli.output import print_wrapped
from btrkeep.config import Config, HostConfig
from btrkeep.config.config_model import not_configured
from btrkeep.config.problems import show
from btrkeep.decisions.findings import Finding
from btrkeep.errors import ConfigError, Exit, OperatorError, UsageError
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


@command.command("add")
@click.argument("name", required=False)
@click.option(
    "--from",
    "source",
    type=GivenPath(allow_dash=True),
    metavar="FILE",
    help="Add the hosts of a list, one on each line: NAME KEY=VALUE... as for `host set`. The other options apply to all of them.",
)
@click.option("--address", metavar="ADDRESS", help="The host's ssh address: root@web1.example.org. Without it: this machine.")
@click.option("--port", type=click.IntRange(1, 65535), help="The host's ssh port, if not 22.")
@click.option("--path", "paths", multiple=True, metavar="PATH", help="A source path; may be given several times.")
@click.option("--group", metavar="GROUP", help="The group whose settings the host inherits.")
@click.option(
    "--accept-host-key", is_flag=True, help="Trust the host's key without asking, because you have compared its fingerprint."
)
@json_option
@click.pass_context
def add_command(
    ctx: click.Context, /, name: str | None, source: str | None, accept_host_key: bool, as_json: bool, **keys: Any
) -> int:
    """Add the host NAME, and test whether it can be reached.

    With --from all hosts of a list are added, or none. They are not tested; `backupd check --connect` does that.

    Shows the host's key before it is trusted, and the lines that permit the backup key and the restore key on the host. Exit
    status 1 if the host is added but cannot be reached yet.
    """
    if (name is None) == (source is None):
        raise UsageError("name a host, or a list of hosts with --from", "`backupd host add --help` explains both")
    if source is not None:
        if accept_host_key:
            raise UsageError("--accept-host-key is for one host", "leave it out; `backupd host test HOST` shows each key")
        return _add_list(files_of(ctx), source, keys_of(**keys), as_json=as_json)
    assert name is not None
    prompter, files = Prompter.here(as_json), files_of(ctx)
    path = add_host(files, name, keys_of(**keys))
    prompter.say(f"{name} is added: {path}")
    config = files.load_usable()
    record_change(config, datetime.now(UTC), "host add", name)
    reach_result, why = _reached(prompter, config, config.hosts[name], accept_host_key)
    answer = {
        "host": name,
        "file": str(path),
        "authorized_keys": reach_result.line,
        "authorized_keys_restore": reach_result.restoring,
        "reached": not why and reach_result.good,
    }
    print_answer(answer, (), as_json=as_json)
    if why:
        raise why
    show_findings(prompter, reach_result.findings)
    if not reach_result.good:
        if reach_result.host_key_known:  # otherwise the command above accepts the key and tests the host
            prompter.say(f"next: correct these problems, then run `backupd host test {name}`")
        return Exit.ATTENTION
    prompter.say(f"next: run `backupd run {name}`, or wait for the next night")
    return Exit.OK


def _add_list(files: Files, source: str, common: dict[str, Any], *, as_json: bool) -> int:
    """Adds the hosts of a list. Raises UsageError, which names each wrong line."""
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{source} cannot be read: {error}", "name a file with one host on each line: NAME KEY=VALUE...") from None
    listed = read_host_list(text, source, files.hosts())
    try:
        paths = add_hosts(files, {name: common | host.keys for name, host in listed.items()})
    except ConfigError as error:
        raise _located_in(source, files, listed, error) from None
    config = files.load_usable()
    for name in paths:
        record_change(config, datetime.now(UTC), "host add", name, f"from {source}")
    answer = [{"host": name, "file": str(path)} for name, path in paths.items()]
    added = f"{counted(len(paths), 'host')} added, a file for each in {files.folder}"
    return print_answer(answer, (added, "next: `backupd check --connect` tests them"), as_json=as_json)


def _located_in(source: str, files: Files, listed: Mapping[str, ListedHost], error: ConfigError) -> ConfigError:
    """Returns the error with the lines of the list instead of those of the hosts' files, which were not written."""
    lines = {f"{files.own_file(name)}": host.line for name, host in listed.items()}
    located = []
    for problem in error.located:
        file, _, rest = problem.partition(":")
        number, colon, reason = rest.partition(":")
        located.append(f"{source}:{lines[file]}:{reason}" if file in lines and colon and number.isdigit() else problem)
    return ConfigError(error.problems, error.hint, located)


def _reached(prompter: Prompter, config: Config, host: HostConfig, accept: bool) -> "tuple[ReachResult, OperatorError | None]":
    """Returns how the host was reached, or the error: the host is in the configuration in both cases."""
    from backupd.hosts.cli.reach import (  # here and below: completion of host names does not need it
        ReachResult,
        reach,
    )

    try:
        return reach(prompter, config, host, accept=accept), None
    except OperatorError as error:
        return ReachResult(None, None, False, ()), error


def show_findings(prompter: Prompter, findings: tuple[Finding, ...]) -> None:
    """Prints the table of `check`, only as text."""
    if findings and not prompter.as_json:
        from backupd.doctor.cli.check import show

        show(findings)


@command.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_host)
@json_option
@click.pass_context
def remove_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> int:
    """Remove each host NAME from the configuration, all or none. Their backups stay.

    They never expire then, because no policy applies to unconfigured hosts. `backupd forget NAME` lets all of them expire.

    NAME may be a pattern, such as 'web*'.
    """
    files = files_of(ctx)
    paths = remove_hosts(files, expand_hosts(names, files.hosts()))
    config = files.load_usable()
    for name in paths:
        record_change(config, datetime.now(UTC), "host remove", name)
    rows = [{"host": name, "file": str(path), "file_removed": not path.exists()} for name, path in paths.items()]
    is_list = len(names) > 1 or is_pattern(names[0])
    return print_answer(rows if is_list else rows[0], _removed_lines(paths), as_json=as_json)


def _removed_lines(paths: Mapping[str, Path]) -> Iterator[str]:
    for name, path in paths.items():
        removed = "" if path.exists() else "; the file was then empty and was deleted"
        yield f"{name} is no longer backed up: its section was removed from {path}{removed}"
    if len(paths) == 1:
        yield f"all its backups stay; `backupd forget {next(iter(paths))}` lets them expire"
    else:
        yield f"{counted(len(paths), 'host')} removed; all their backups stay; `backupd forget NAME` lets those of a host expire"


@command.command("list")
@json_option
@click.pass_context
def list_command(ctx: click.Context, as_json: bool) -> int:
    """List the configured hosts, and the file of each."""
    files = files_of(ctx)
    config = files.load_usable()
    complain_of_faults(config.faults)
    where = files.hosts()
    columns: tuple[Column[HostConfig], ...] = (
        Column("host", header="HOST", cell=_host_words, json=lambda host: host.name),
        Column("address", header="ADDRESS", cell=_address_words, json=lambda host: host.address),
        Column("port", lambda host: host.port),
        Column("group", lambda host: host.group, "GROUP", lambda group: group or "-", spare=True),
        Column("enabled", lambda host: host.enabled),
        Column("paths", lambda host: host.paths, "PATHS", lambda paths: printable(" ".join(paths))),
        Column("file", lambda host: str(where[host.name]), "FILE", lambda file: printable(Path(file).name)),
    )
    empty = "" if config.excluded else f"no host is configured in {files.main}; `backupd host add NAME` adds one"
    print_listing(columns, list(config.hosts.values()), as_json=as_json, empty=empty)
    return Exit.ATTENTION if config.faults else Exit.OK


def _host_words(host: HostConfig) -> str:
    return host.name + ("" if host.enabled else " (not enabled)")


def _address_words(host: HostConfig) -> str:
    if host.address is None:
        return "(this machine)"
    return host.address + (f" port {host.port}" if host.port else "")


@command.command("test")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_host)
@json_option
@click.pass_context
def test_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> int:
    """Test whether each host NAME can be reached and its source paths can be listed, whether it is enabled or not. Changes nothing.

    NAME may be a pattern, such as 'web*'.

    Exit status 1 if a test failed.
    """
    config = files_of(ctx).load_usable()
    complain_of_faults(config.faults)
    hosts = expand_hosts(names, config.hosts)
    for name in hosts:
        if name in config.excluded:
            raise ConfigError([config.excluded[name].fault], "correct that line")
        if name not in config.hosts:
            raise not_configured(name, config.hosts)
    from backupd.doctor.cli.check import report

    return report(try_hosts(config, [config.hosts[name] for name in hosts]), as_json)


def try_hosts(config: Config, hosts: Sequence[HostConfig]) -> list[Finding]:
    """Returns the problems of these hosts, each finding once; hosts reached over ssh are tested at the same time."""
    if len(hosts) == 1:
        return list(try_host(config, hosts[0]))
    remote = {host.name: replace(host, enabled=True) for host in hosts if host.address}
    findings = [finding for host in hosts if not host.address for finding in try_host(config, host)]
    if remote:
        import asyncio

        from backupd.doctor.checks import check_all
        from backupd.doctor.host_checks import check_hosts

        first = next(iter(remote.values()))
        findings += [finding for finding in check_all(config, first) if finding.about in _KEY_FILES]
        findings += asyncio.run(check_hosts(replace(config, hosts=remote)))
    return list(dict.fromkeys(findings))


def try_host(config: Config, host: HostConfig) -> tuple[Finding, ...]:
    """Returns the problems of this host, or one line that there are none."""
    from backupd.doctor.checks import check_all

    findings = tuple(finding for finding in check_all(config, host) if finding.about in (host.name, *_KEY_FILES))
    if host.address:
        from backupd.hosts.cli.reach import probe

        return (*findings, *probe(config, host))
    return findings or (Finding("source", "ok", "all of its paths are folders of this machine", subject=host.name),)


_KEY_FILES = ("ssh key", "restore key", "known_hosts")
"""What the findings about the files of ssh are about."""
_WAY = {"address", "port", "paths", "rsync_path", "ssh_options", "group"}
"""Keys about the connection and the paths of a host."""


def complete_assignment(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes keys with their =, then the values of keys that accept only a few. bash treats the parts before and after = as
    words.
    """
    before: tuple[str, ...] = ctx.params.get(param.name or "") or ()
    name, equals, text = incomplete.partition("=")
    if len(before) > 1 and before[-1] == "=":
        return [value for value in _values(ctx, before[-2]) if value.startswith(incomplete)]
    if equals:
        return [f"{name}={value}" for value in _values(ctx, name) if value.startswith(text)]
    return [f"{key}=" for key in KEYS if key.startswith(incomplete)]


def complete_words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes hosts first, then assignments too."""
    before: tuple[str, ...] = ctx.params.get(param.name or "") or ()
    hosts = complete_host(ctx, param, incomplete) if not any("=" in word for word in before) and "=" not in incomplete else []
    return [*hosts, *(complete_assignment(ctx, param, incomplete) if before else [])]


def _values(ctx: click.Context, name: str) -> list[str]:
    if name == "group" and (config := completing_config(ctx)):
        return list(config.groups)
    return list(KEYS[name].kind.words) if name in KEYS else []


@command.command("set")
@click.argument("words", nargs=-1, required=True, metavar="HOST... KEY=VALUE...", shell_complete=complete_words)
@click.option(
    "--unset",
    multiple=True,
    metavar="KEY",
    shell_complete=lambda _ctx, _param, incomplete: [key for key in KEYS if key.startswith(incomplete)],
    help="Remove the key, so that the value of the group or the pool applies; may be given several times.",
)
@dry_run_option("what would change in the file")
@json_option
@click.pass_context
def set_command(ctx: click.Context, words: tuple[str, ...], unset: tuple[str, ...], dry_run: bool, as_json: bool) -> int:
    """Change keys of each HOST in the file that declares it.

    HOST may be a pattern, such as 'web*'. Write VALUE as in the configuration; quotes may be left out: port=2222,
    window=22:00-06:00, enabled=false. Separate the items of a list by spaces: 'paths=/etc /srv'. A list replaces the
    previous one; KEY+=VALUE adds to it: 'exclude+=/srv/cache/*'. retention.daily=30 sets the host's own retention. `man
    btrkeep.toml` explains every key.

    Comments and order stay. The whole configuration is checked first; if it would be invalid, nothing is changed.
    """
    files = files_of(ctx)
    patterns, assignments = _split(words, unset=bool(unset))
    keys = parse_assignments(assignments, unset)
    is_one = len(patterns) == 1 and not is_pattern(patterns[0])
    names = list(patterns) if is_one else expand_hosts(patterns, files.hosts())
    done = set_hosts(files, names, keys, write=not dry_run)
    for name, change in done.hosts.items():
        if change.keys and not dry_run:
            values = ", ".join(f"{key}={_shown(after)}" for key, (_, after) in change.keys.items())
            record_change(done.config, datetime.now(UTC), "host set", name, values)
    answers = [_change_fields(name, change, written=not dry_run) for name, change in done.hosts.items()]

    def show() -> None:
        if is_one:
            _print_change(names[0], done.hosts[names[0]], dry_run=dry_run)
        else:
            _print_changes(done.hosts, dry_run=dry_run)
        for notice in done.notices:
            print_wrapped(f"note: {notice}", "  ", err=True)

    return print_answer(answers[0] if is_one else answers, show, as_json=as_json)


def _split(words: Sequence[str], *, unset: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the hosts, which come first, and the assignments. Raises UsageError without a host."""
    number = next((number for number, word in enumerate(words) if "=" in word), len(words) if unset else 1)
    if not number:
        raise UsageError("name a host", "`backupd host set HOST KEY=VALUE`; 'web*' names several")
    return tuple(words[:number]), tuple(words[number:])


def _change_fields(name: str, change: HostChange, *, written: bool) -> dict[str, Any]:
    changes = {key: {"before": before, "after": after} for key, (before, after) in change.keys.items()}
    return {"host": name, "file": str(change.path), "changes": changes, "written": bool(changes) and written}


def _print_change(name: str, change: HostChange, *, dry_run: bool) -> None:
    if not change.keys:
        print_wrapped(f"{name} already has these values: {change.path} is unchanged", "  ")
    elif dry_run:
        click.echo(_difference(change), nl=False)
    else:
        print_wrapped(f"{name} is changed: {change.path}", "  ")
        for key, (before, after) in change.keys.items():
            print_wrapped(f"  {key}: {_shown(before)} -> {_shown(after)}", "  ")
        if _WAY & change.keys.keys():
            print_wrapped(f"next: `backupd host test {name}`", "  ")


def _print_changes(hosts: Mapping[str, HostChange], *, dry_run: bool) -> None:
    """Prints one line for each host, and the totals."""
    changed = {name: change for name, change in hosts.items() if change.keys}
    for name, change in changed.items():
        values = ", ".join(f"{key}: {_shown(before)} -> {_shown(after)}" for key, (before, after) in change.keys.items())
        print_wrapped(f"{name}: {values}", "  ")
    same = len(hosts) - len(changed)
    rest = f"; {counted(same, 'host')} already had these values" if same else ""
    print_wrapped(f"{counted(len(changed), 'host')} {'would be changed' if dry_run else 'changed'}{rest}")
    if not dry_run and any(_WAY & change.keys.keys() for change in changed.values()):
        print_wrapped("next: `backupd check --connect`", "  ")


def _difference(change: HostChange) -> str:
    """Returns the changed lines of the file, without the lines around them, which may contain passwords."""
    before, after = change.text.splitlines(), change.text_after.splitlines()
    lines = difflib.unified_diff(before, after, str(change.path), f"{change.path} (changed)", n=0, lineterm="")
    return "".join(f"{line[:1]}{printable(line[1:])}\n" for line in lines)


def _shown(value: Any) -> str:
    return "not set" if value is None else show(value)
