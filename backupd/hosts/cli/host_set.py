"""`backupd host set`: keys of a host that is configured are changed in the file that declares it."""

import difflib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from backupd.cli.context import complete_host, completing_config, dry_run_option
from backupd.cli.names import expand_hosts, is_pattern
from backupd.cli.recording import record_change
from backupd.hosts.assigning import KEYS, assigned
from backupd.hosts.files import Files, HostChange, set_hosts
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.progress import prose
from btrkeep.config.problems import show
from btrkeep.config.value_types import FLAG
from btrkeep.errors import Exit, UsageError
from btrkeep.units import counted, printable

_WAY = {"address", "port", "paths", "rsync_path", "ssh_options", "group"}
"""Keys that say how a host is reached, and what is fetched there."""


def complete_assignment(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes keys with their =, then the values of keys that take one of few. bash treats the parts before and after = as
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
    """Completes hosts first, then also assignments."""
    before: tuple[str, ...] = ctx.params.get(param.name or "") or ()
    hosts = complete_host(ctx, param, incomplete) if not any("=" in word for word in before) and "=" not in incomplete else []
    return [*hosts, *(complete_assignment(ctx, param, incomplete) if before else [])]


def _values(ctx: click.Context, name: str) -> list[str]:
    if name == "group" and (config := completing_config(ctx)):
        return list(config.groups)
    return ["true", "false"] if name in KEYS and KEYS[name].kind is FLAG else []


@click.command("set")
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

    HOST may be a pattern, such as 'web*'. VALUE is written as in the configuration, where quotes may be left out: port=2222,
    window=22:00-06:00, enabled=false. The items of a list have blanks between them: 'paths=/etc /srv'. A list takes the place of
    the one before; KEY+=VALUE adds to it: 'exclude+=/srv/cache/*'. retention.daily=30 is a retention of the host's own. `man
    btrkeep.toml` explains every key.

    Comments and order stay. The configuration is checked as a whole first; when something would be wrong, nothing is changed.
    """
    chosen = ctx.find_root().obj
    files = Files.of(chosen["pool"], chosen["config"])
    patterns, assignments = _split(words, unset=bool(unset))
    keys = assigned(assignments, unset)
    is_one = len(patterns) == 1 and not is_pattern(patterns[0])
    names = list(patterns) if is_one else expand_hosts(patterns, files.hosts())
    done = set_hosts(files, names, keys, write=not dry_run)
    for name, change in done.hosts.items():
        if change.keys and not dry_run:
            values = ", ".join(f"{key}={_shown(after)}" for key, (_, after) in change.keys.items())
            record_change(done.config, datetime.now(UTC), "host set", name, values)
    if as_json:
        objects = [_as_object(name, change, written=not dry_run) for name, change in done.hosts.items()]
        echo_json(objects[0] if is_one else objects)
        return Exit.OK
    if is_one:
        _tell_one(names[0], done.hosts[names[0]], dry_run=dry_run)
    else:
        _tell_many(done.hosts, dry_run=dry_run)
    for notice in done.notices:
        prose(f"note: {notice}", "  ", err=True)
    return Exit.OK


def _split(words: Sequence[str], *, unset: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The hosts, which come first, and the assignments. Raises UsageError without a host."""
    number = next((number for number, word in enumerate(words) if "=" in word), len(words) if unset else 1)
    if not number:
        raise UsageError("no host is named", "`backupd host set HOST KEY=VALUE`; 'web*' names several")
    return tuple(words[:number]), tuple(words[number:])


def _as_object(name: str, change: HostChange, *, written: bool) -> dict[str, Any]:
    changes = {key: {"before": before, "after": after} for key, (before, after) in change.keys.items()}
    return {"host": name, "file": str(change.path), "changes": changes, "written": bool(changes) and written}


def _tell_one(name: str, change: HostChange, *, dry_run: bool) -> None:
    if not change.keys:
        prose(f"{name} has all of that already: {change.path} is left as it is", "  ")
    elif dry_run:
        click.echo(_difference(change), nl=False)
    else:
        prose(f"{name} is changed: {change.path}", "  ")
        for key, (before, after) in change.keys.items():
            prose(f"  {key}: {_shown(before)} -> {_shown(after)}", "  ")
        if _WAY & change.keys.keys():
            prose(f"next: `backupd host test {name}`", "  ")


def _tell_many(hosts: Mapping[str, HostChange], *, dry_run: bool) -> None:
    """One line for each host, and the sum."""
    changed = {name: change for name, change in hosts.items() if change.keys}
    for name, change in changed.items():
        values = ", ".join(f"{key}: {_shown(before)} -> {_shown(after)}" for key, (before, after) in change.keys.items())
        prose(f"{name}: {values}", "  ")
    same = len(hosts) - len(changed)
    rest = f"; {counted(same, 'host')} had all of that already" if same else ""
    prose(f"{counted(len(changed), 'host')} {'would be changed' if dry_run else 'changed'}{rest}")
    if not dry_run and any(_WAY & change.keys.keys() for change in changed.values()):
        prose("next: `backupd check --connect`", "  ")


def _difference(change: HostChange) -> str:
    """Returns the changed lines of the file, without the lines around them, which may contain passwords."""
    before, after = change.text.splitlines(), change.text_after.splitlines()
    lines = difflib.unified_diff(before, after, str(change.path), f"{change.path} (changed)", n=0, lineterm="")
    return "".join(f"{line[:1]}{printable(line[1:])}\n" for line in lines)


def _shown(value: Any) -> str:
    return "not set" if value is None else show(value)
