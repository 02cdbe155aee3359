"""btrkeep-web token: tokens for scripts, in place of a login."""

import secrets
from datetime import UTC, datetime

import click

from btrkeep.cli import echo_json, json_option, table
from btrkeep.errors import UsageError
from btrkeep.units import format_time, printable
from web.auth import TOKEN_PREFIX, Token, checked_name, digest, parse_hosts
from web.cli.as_owner import opened
from web.cli.user_ import hosts_words, name_and_rights


@click.group
def command() -> None:
    """Manage tokens for scripts: `Authorization: Bearer TOKEN`, for /api and /metrics."""


@command.command
@name_and_rights
@click.pass_context
def add(ctx: click.Context, name: str, role: str | None, hosts: str | None) -> None:
    """Create a token and print it. Only its digest is stored, so it cannot be shown again."""
    limits, word = parse_hosts(hosts), TOKEN_PREFIX + secrets.token_urlsafe(32)
    with opened(ctx) as store:
        token = Token(checked_name(name), role or "viewer", limits, datetime.now(UTC), None)
        if not store.add_token(token, digest(word)):
            raise UsageError(f"there is a token {name} already", f"remove it first: btrkeep-web token remove {name}")
    click.echo(word)


@command.command
@click.argument("name")
@click.pass_context
def remove(ctx: click.Context, name: str) -> None:
    """Revoke a token."""
    with opened(ctx) as store:
        if not store.remove_token(name):
            raise UsageError(f"there is no token {name}", "`btrkeep-web token list` has all of them")
    click.echo(f"the token {name} is removed", err=True)


@command.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List all tokens by name, and when each was last used."""
    with opened(ctx) as store:
        tokens = store.tokens()
    if as_json:
        return echo_json([_object(token) for token in tokens])
    rows = [[printable(token.name), printable(token.role), hosts_words(token.hosts, "all"), _used(token)] for token in tokens]
    if rows:
        click.echo(table(rows, ["TOKEN", "ROLE", "HOSTS", "LAST USED"]))
    return None


def _used(token: Token) -> str:
    return format_time(token.used) if token.used else "never"


def _object(token: Token) -> dict[str, object]:
    return {
        "name": token.name,
        "role": token.role,
        "hosts": None if token.hosts is None else list(token.hosts),
        "created": format_time(token.created),
        "used": format_time(token.used) if token.used else None,
    }
