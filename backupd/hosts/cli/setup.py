"""`backupd setup`: from nothing to the first backup. Each step first checks whether it is done, so it can be run again
at any time.
"""

from dataclasses import dataclass
from typing import Any

import click

from backupd.cli.command_context import opened
from backupd.doctor.checks import check_all
from backupd.hosts.cli.host import files_of, keys_of, show_findings, try_host
from backupd.hosts.cli.questions import Prompter, ask_until_valid, require_options, words
from backupd.hosts.cli.reach import ReachResult, reach
from backupd.hosts.cli.setup_pool import PoolOptions, pool_is_set_up, set_up_pool, suggested_name
from backupd.hosts.config_files import Files, add_host
from btrkeep.cli import json_option, print_answer
from btrkeep.cli.arguments import from_options
from btrkeep.config import Config, HostConfig
from btrkeep.config.problems import InvalidValue, RefusedItems
from btrkeep.config.sources import parse_address, parse_sources, require_host_name
from btrkeep.decisions.due import latest
from btrkeep.decisions.findings import Finding, check_as_json
from btrkeep.errors import Exit, UsageError

_REST = "run `backupd setup` again when this is fixed: it continues where it stopped"
_PATHS = "give absolute paths separated by spaces, such as /etc /srv/www"


@dataclass(frozen=True, slots=True)
class FirstHostOptions:
    """The options about the first host; None: not given."""

    host: str | None
    """Its name."""
    address: str | None
    """Its ssh address."""
    this_machine: bool
    """True if it is this machine."""
    port: int | None
    """Its ssh port."""
    paths: tuple[str, ...]
    """The source paths; empty: not given."""


@click.command("setup")
@click.option(
    "--pool-path",
    "path",
    metavar="PATH",
    help="The pool: a folder on a mounted btrfs, created as a subvolume if it does not exist.",
)
@click.option(
    "--retention", metavar="RULES", help="How long backups are kept: daily=14,weekly=13,monthly=12; `all` keeps them for ever."
)
@click.option("--zone", metavar="ZONE", help="The pool's time zone, for days and nights, such as Europe/Berlin. [default: UTC]")
@click.option(
    "--window",
    metavar="WINDOW",
    help="When backups may run, such as 22:00-06:00, or none for any time.  [default: none]",
)
@click.option("--host", metavar="NAME", help="The first host's name.")
@click.option("--address", metavar="ADDRESS", help="The first host's ssh address, such as root@web1.example.org.")
@click.option("--this-machine", is_flag=True, help="The first host is this machine.")
@click.option("--port", type=click.IntRange(1, 65535), help="The first host's ssh port, if not 22.")
@click.option("--path", "paths", multiple=True, metavar="PATH", help="A source path of the host; may be given several times.")
@click.option(
    "--accept-host-key", is_flag=True, help="Trust the host's key without asking, because you have compared its fingerprint."
)
@click.option("--no-run", is_flag=True, help="Stop before the first backup. So does --json.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, accept_host_key: bool, no_run: bool, as_json: bool, **options: Any) -> int:
    """Create a pool, add the first host, and make its first backup.

    Asks for values that no option gives; without a terminal all must be given. Completed steps are skipped, so it can be
    interrupted at any time and run again.

    Exit status 1 if a step remains; it is printed.
    """
    prompter, files = Prompter.here(as_json), files_of(ctx)
    given, pool = from_options(FirstHostOptions, options), PoolOptions(**options)
    _refuse_unused_options(given, accept_host_key)
    _require_options(prompter, files, given, pool)
    prompter.heading("The pool")
    config = set_up_pool(prompter, files, pool)
    prompter.heading("The first host")
    config, first = _first_host(ctx, prompter, files, config, given)
    if first is None:
        prompter.say("every enabled host has a complete backup")
        return _all_done(prompter, config)
    reach_result = reach(prompter, config, first, accept=accept_host_key)
    findings = _checked(prompter, config, first, reach_result)
    ready = reach_result.good and not any(finding.level == "error" for finding in findings)
    print_answer(_answer(config, first, reach_result, findings, ready), (), as_json=as_json)
    if not ready:
        prompter.say(f"\nNot ready for a backup yet; {_REST}")
        return Exit.UNUSABLE if any(finding.unusable for finding in findings) else Exit.ATTENTION
    return Exit.OK if no_run or as_json else _first_backup(ctx, prompter, config, first)


def _refuse_unused_options(given: FirstHostOptions, accept_host_key: bool) -> None:
    """Raises UsageError for an option that has no effect because of another option."""
    if not given.this_machine:
        return
    over_ssh = (("--address", given.address), ("--port", given.port), ("--accept-host-key", accept_host_key))
    for name, value in over_ssh:
        if value:
            raise UsageError(f"{name} and --this-machine exclude each other", "leave one out: this machine is reached without ssh")


def _require_options(prompter: Prompter, files: Files, given: FirstHostOptions, pool: PoolOptions) -> None:
    """Raises UsageError without a terminal if required options are missing; it names all of them."""
    missing = []
    config = pool_is_set_up(files)
    if config is None:
        missing += [name for name, value in (("--pool-path", pool.path), ("--retention", pool.retention)) if value is None]
    if config is None or not config.hosts or (given.host and given.host not in config.hosts):
        where = given.address or given.this_machine
        needed = (("--host", given.host), ("--address or --this-machine", where), ("--path", given.paths))
        missing += [name for name, value in needed if not value]
    require_options(prompter, missing)


def _first_host(
    ctx: click.Context, prompter: Prompter, files: Files, config: Config, given: FirstHostOptions
) -> tuple[Config, HostConfig | None]:
    """Returns the host that needs its first backup; None if all have one and no other was named."""
    if given.host in config.hosts:
        first = config.hosts[str(given.host)]
        _require_unchanged(first, given)
        prompter.say(f"{first.name} is configured in {files.hosts()[first.name]}")
        return config, first
    if config.hosts and not given.host:
        with opened(ctx) as context:
            facts = context.catalogue.host_facts(latest(context.clock.now()))
        done = {name for name, host_facts in facts.items() if host_facts.last_complete}
        without = [each for each in config.hosts.values() if each.enabled and each.name not in done]
        if without:
            _require_unchanged(without[0], given)
        elif given.address or given.this_machine or given.port or given.paths:
            raise UsageError("every host has a complete backup, and a new host needs a name", "give it with --host NAME")
        return config, without[0] if without else None
    name, keys = _asked_host(prompter, given)
    path = add_host(files, name, keys)
    prompter.say(f"{name} is added: {path}")
    config = files.load()
    return config, config.hosts[name]


def _require_unchanged(host: HostConfig, given: FirstHostOptions) -> None:
    wanted: dict[str, Any] = keys_of(given.address, given.port, None, given.paths)
    current = {"address": host.address, "port": host.port, "paths": list(host.paths)}
    if any(current[key] != value for key, value in wanted.items()) or (given.this_machine and host.address):
        raise UsageError(
            f"the host {host.name} is already configured with other values",
            f"`backupd host set {host.name} KEY=VALUE` changes it; --host NAME names another one; or leave the options out",
        )


def _asked_host(prompter: Prompter, given: FirstHostOptions) -> tuple[str, dict[str, Any]]:
    address, port = given.address, given.port
    if address is None and not given.this_machine:
        question = "The host's address, such as root@web1.example.org" + ("" if port else " (this: this machine)")
        address = ask_until_valid(prompter, None, question, "" if port else "this", lambda text: _address(text, port))
    if address and port is None and prompter.asks:
        port = ask_until_valid(prompter, None, "The host's ssh port", "22", _port)
    name = ask_until_valid(prompter, given.host, "The host's name for btrkeep", suggested_name(address), _name)
    paths = given.paths or ask_until_valid(prompter, None, "Source paths, separated by spaces", "/etc", _paths)
    return name, keys_of(address, port, None, paths)


def _address(text: str, port: int | None) -> str | None:
    if text == "this" and port is None:
        return None
    if text == "this":
        raise UsageError(
            "--port needs an address: this machine is reached without ssh", "give an address, or start again without --port"
        )
    try:
        return parse_address(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not an address: {error}", "give USER@HOST, such as root@web1.example.org") from None


def _port(text: str) -> int | None:
    """Returns the port, None for ssh's default."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise UsageError(f"{text!r} is not a port", "give a number from 1 to 65535")
    return int(text) if int(text) != 22 else None


def _name(text: str) -> str:
    require_host_name(text)
    return text


def _paths(text: str) -> tuple[str, ...]:
    try:
        return parse_sources(words(text))
    except RefusedItems as refused:
        item, reason = refused.items[0]
        raise UsageError(f"{item!r}: {reason}", _PATHS) from None
    except InvalidValue:
        raise UsageError("no path was given", _PATHS) from None


def _checked(prompter: Prompter, config: Config, host: HostConfig, result: ReachResult) -> tuple[Finding, ...]:
    """Returns the findings of `check` for the pool and this host, including those made while connecting to it."""
    findings = (*check_all(config, host), *(result.findings if host.address else try_host(config, host)))
    findings = tuple(dict.fromkeys(findings))
    prompter.heading("Is everything in order?")
    show_findings(prompter, findings)
    return findings


def _first_backup(ctx: click.Context, prompter: Prompter, config: Config, host: HostConfig) -> int:
    from backupd.run.cli.run import command as run_command  # slow: asyncio, NumPy and all of rsync's modules

    prompter.heading("The first backup")
    if prompter.asks and not prompter.agrees(f"Back up {host.name} now? The first backup transfers all files.", default=True):
        prompter.say(f"`backupd run {host.name}` makes the first backup")
        return Exit.OK
    status: int = ctx.invoke(run_command, hosts=(host.name,), everything=False, catch_up=False, dry_run=False, as_json=False)
    if status == Exit.OK:
        _all_done(prompter, config)
    else:
        prompter.say(f"\n`backupd log {host.name}` shows more; {_REST}")
    return status


def _all_done(prompter: Prompter, config: Config) -> int:
    prompter.say(f"\nThe pool {config.name} is set up. `backupd status` shows its hosts, `backupd host add` adds another.")
    prompter.say(
        f"To back up every night: `sudo ./install.sh --enable {config.name}`, in the folder that btrkeep was installed from."
    )
    return Exit.OK


def _answer(config: Config, host: HostConfig, result: ReachResult, findings: tuple[Finding, ...], ready: bool) -> dict[str, object]:
    return {
        "pool": str(config.pool.path),
        "config": str(config.file),
        "host": host.name,
        "authorized_keys": result.line,
        "authorized_keys_restore": result.restoring,
        "host_key_known": result.host_key_known,
        "ready": ready,
        "problems": [check_as_json(finding) for finding in findings if finding.level in ("warning", "error")],
    }
