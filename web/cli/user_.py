"""btrkeep-web user: who may log in."""

import sys
from datetime import UTC, datetime

import click

from btrkeep.cli import echo_json, json_option, table
from btrkeep.errors import UsageError, did_you_mean
from btrkeep.units import format_time, printable
from web.access import ROLES
from web.auth.model import User, checked_name, parse_hosts
from web.auth.passwords import hashed
from web.auth.store import Store
from web.cli.own import opened

_ROLES_HELP = "viewer: may look; operator: may start, hold and restore too; admin: may restore into other folders of hosts too."
role_option = click.option("--role", type=click.Choice(ROLES), help=_ROLES_HELP)
hosts_option = click.option("--hosts", metavar="PATTERNS", help="Only these hosts, such as 'web*,db1'; \"all\" lifts the limit.")


@click.group
def command() -> None:
    """Who may log in, and what they may see.

    Passwords are asked for on a terminal, and otherwise read from standard input, one line. They are kept as argon2 hashes in the
    dashboard's own database; run this as root or as the dashboard's user.
    """


@command.command
@click.argument("name")
@role_option
@hosts_option
@click.pass_context
def add(ctx: click.Context, name: str, role: str | None, hosts: str | None) -> None:
    """Let somebody in: as a viewer of all hosts, unless said otherwise."""
    limits = parse_hosts(hosts)
    with opened(ctx) as store:
        if store.user(checked_name(name)):
            raise UsageError(f"there is a user {name} already", f"btrkeep-web user change {name}, or user passwd {name}")
        now = datetime.now(UTC)
        if not store.add_user(User(name, role or "viewer", limits, hashed(_password(name)), now, now)):
            raise UsageError(f"there is a user {name} already")
    click.echo(f"{name} may log in: {_told(role or 'viewer', limits)}", err=True)


@command.command
@click.argument("name")
@click.pass_context
def passwd(ctx: click.Context, name: str) -> None:
    """Give somebody another password. It logs him out everywhere, and forgets failed attempts."""
    with opened(ctx) as store:
        _see(store, name)
        store.set_hash(name, hashed(_password(name)), datetime.now(UTC))
    click.echo(f"{name} has another password, and is logged out everywhere", err=True)


@command.command
@click.argument("name")
@role_option
@hosts_option
@click.pass_context
def change(ctx: click.Context, name: str, role: str | None, hosts: str | None) -> None:
    """Another role, or other hosts. It holds from the next click on."""
    if role is None and hosts is None:
        raise UsageError("nothing to change", "--role or --hosts say what")
    with opened(ctx) as store:
        before = _see(store, name)
        limits = before.hosts if hosts is None else parse_hosts(hosts)
        store.change_user(name, role or before.role, limits, datetime.now(UTC))
    click.echo(f"{name}: {_told(role or before.role, limits)}", err=True)


@command.command
@click.argument("name")
@click.pass_context
def remove(ctx: click.Context, name: str) -> None:
    """Let somebody in no more, and log him out everywhere."""
    with opened(ctx) as store:
        _see(store, name)
        store.remove_user(name)
    click.echo(f"{name} is removed", err=True)


@command.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """All users."""
    with opened(ctx) as store:
        users = store.users()
    if as_json:
        return echo_json([_object(user) for user in users])
    if not users:
        click.echo("nobody may log in yet: btrkeep-web user add NAME", err=True)
        return None
    rows = [[printable(user.name), printable(user.role), hosts_words(user.hosts, "all")] for user in users]
    click.echo(table(rows, ["USER", "ROLE", "HOSTS"]))
    return None


def _object(user: User) -> dict[str, object]:
    hosts = None if user.hosts is None else list(user.hosts)
    return {
        "name": user.name,
        "role": user.role,
        "hosts": hosts,
        "created": format_time(user.created),
        "changed": format_time(user.changed),
    }


def _see(store: Store, name: str) -> User:
    """Raises UsageError when there is no such user."""
    if user := store.user(name):
        return user
    known = [user.name for user in store.users()]
    raise UsageError(f"there is no user {printable(name)}", did_you_mean(name, known, "`btrkeep-web user list` has all of them"))


def _password(name: str) -> str:
    """Never from the command line, which everybody on the machine can read."""
    if sys.stdin.isatty():
        text: str = click.prompt(f"Password for {name}", hide_input=True, confirmation_prompt="The same again", err=True)
        return text
    return sys.stdin.readline().rstrip("\n")


def _told(role: str, hosts: tuple[str, ...] | None) -> str:
    return f"{printable(role)}, {hosts_words(hosts, 'all hosts')}"


def hosts_words(hosts: tuple[str, ...] | None, everything: str) -> str:
    """The patterns as they may be printed: whoever took over the dashboard may have written them."""
    return everything if hosts is None else printable(", ".join(hosts))
