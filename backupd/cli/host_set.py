"""`backupd host set`: keys of a host that is configured are changed in the file that declares it."""

import difflib
from typing import Any

import click

from backupd.cli.context import complete_host, completing_config, dry_run_option
from backupd.hosts.assigning import KEYS, assigned
from backupd.hosts.files import Files, HostChange, set_host
from btrkeep.cli import echo_json, json_option
from btrkeep.cli.progress import prose
from btrkeep.config.problems import show
from btrkeep.config.value_types import FLAG
from btrkeep.errors import Exit
from btrkeep.units import printable

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


def _values(ctx: click.Context, name: str) -> list[str]:
    if name == "group" and (config := completing_config(ctx)):
        return list(config.groups)
    return ["true", "false"] if name in KEYS and KEYS[name].kind is FLAG else []


@click.command("set")
@click.argument("name", shell_complete=complete_host)
@click.argument("words", nargs=-1, metavar="KEY=VALUE...", shell_complete=complete_assignment)
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
def set_command(ctx: click.Context, name: str, words: tuple[str, ...], unset: tuple[str, ...], dry_run: bool, as_json: bool) -> int:
    """Change keys of the host NAME in the file that declares it.

    VALUE is written as in the configuration, where quotes may be left out: port=2222, window=22:00-06:00, enabled=false. The items
    of a list have blanks between them: 'paths=/etc /srv'. A list takes the place of the one before;
    KEY+=VALUE adds to it: 'exclude+=/srv/cache/*'. retention.daily=30 is a retention of the host's own. `man btrkeep.toml` explains
    every key.

    Comments and order stay. The configuration is checked as a whole first; when something would be wrong, nothing is changed.
    """
    chosen = ctx.find_root().obj
    done = set_host(Files.of(chosen["pool"], chosen["config"]), name, assigned(words, unset), write=not dry_run)
    if as_json:
        changes = {key: {"before": before, "after": after} for key, (before, after) in done.keys.items()}
        echo_json({"host": name, "file": str(done.path), "changes": changes, "written": bool(changes) and not dry_run})
        return Exit.OK
    if not done.keys:
        prose(f"{name} has all of that already: {done.path} is left as it is", "  ")
    elif dry_run:
        click.echo(_difference(done), nl=False)
    else:
        prose(f"{name} is changed: {done.path}", "  ")
        for key, (before, after) in done.keys.items():
            prose(f"  {key}: {_shown(before)} -> {_shown(after)}", "  ")
        if _WAY & done.keys.keys():
            prose(f"next: `backupd host test {name}`", "  ")
    for notice in done.notices:
        prose(f"note: {notice}", "  ", err=True)
    return Exit.OK


def _difference(change: HostChange) -> str:
    """Returns the changed lines of the file, without the lines around them, which may contain passwords."""
    before, after = change.text.splitlines(), change.text_after.splitlines()
    lines = difflib.unified_diff(before, after, str(change.path), f"{change.path} (changed)", n=0, lineterm="")
    return "".join(f"{line[:1]}{printable(line[1:])}\n" for line in lines)


def _shown(value: Any) -> str:
    return "not set" if value is None else show(value)
