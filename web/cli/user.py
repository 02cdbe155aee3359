"""btrkeep-web user: who may log in, and all users as JSON, for another server; and btrkeep-web token: tokens for scripts, instead
of a login.
"""

import json
import secrets
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from btrkeep.cli import echo_json, json_option, print_listing
from btrkeep.cli.listings import Column
from btrkeep.errors import UsageError, did_you_mean
from btrkeep.serving.viewer import ROLES, role_of
from btrkeep.units import format_time, printable
from web.auth import TOKEN_PREFIX, LoginSession, Token, User, checked_name, digest, parse_hosts
from web.auth.passwords import hashed
from web.auth.store import Store
from web.cli.as_owner import opened

_ROLES_HELP = "viewer: read only; operator: also start, hold and restore; admin: also restore into other folders of hosts."
T = TypeVar("T")


def name_and_rights(command: Callable[..., T]) -> Callable[..., T]:
    """The argument NAME, and the options --role and --hosts."""
    hosts = click.option("--hosts", metavar="PATTERNS", help="Only these hosts, such as 'web*,db1'; \"all\" lifts the limit.")
    return click.argument("name")(click.option("--role", type=click.Choice(ROLES), help=_ROLES_HELP)(hosts(command)))


@click.group
def user_command() -> None:
    """Manage users: who may log in, and what they may see and do.

    Passwords are prompted for on a terminal, and otherwise read from standard input, one line. They are stored as argon2 hashes in
    the login service's own database; run this as root or as that service's user.
    """


@user_command.command
@name_and_rights
@click.pass_context
def add(ctx: click.Context, name: str, role: str | None, hosts: str | None) -> None:
    """Add a user: a viewer of all hosts unless --role or --hosts is given."""
    limits = parse_hosts(hosts)
    with opened(ctx) as store:
        if store.user(checked_name(name)):
            raise UsageError(f"there is a user {name} already", f"change it: btrkeep-web user change {name}, or user passwd {name}")
        now = datetime.now(UTC)
        if not store.add_user(User(name, role or "viewer", limits, hashed(_password(name)), now, now)):
            raise UsageError(f"there is a user {name} already")
    click.echo(f"{name} may log in: {_rights_words(role or 'viewer', limits)}", err=True)


@user_command.command
@click.argument("name")
@click.pass_context
def passwd(ctx: click.Context, name: str) -> None:
    """Set a new password. Ends all of the user's sessions and clears failed login attempts."""
    with opened(ctx) as store:
        _require_user(store, name)
        store.set_hash(name, hashed(_password(name)), datetime.now(UTC))
    click.echo(f"{name} has a new password, and is logged out everywhere", err=True)


@user_command.command
@name_and_rights
@click.pass_context
def change(ctx: click.Context, name: str, role: str | None, hosts: str | None) -> None:
    """Change a user's role or hosts, with effect from the next request."""
    if role is None and hosts is None:
        raise UsageError("nothing to change", "give --role or --hosts")
    with opened(ctx) as store:
        before = _require_user(store, name)
        limits = before.hosts if hosts is None else parse_hosts(hosts)
        store.change_user(name, role or before.role, limits, datetime.now(UTC))
    click.echo(f"{name}: {_rights_words(role or before.role, limits)}", err=True)


@user_command.command
@click.argument("name")
@click.pass_context
def remove(ctx: click.Context, name: str) -> None:
    """Remove a user and end all of the user's sessions."""
    with opened(ctx) as store:
        _require_user(store, name)
        store.remove_user(name)
    click.echo(f"{name} is removed", err=True)


@user_command.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List all users."""
    with opened(ctx) as store:
        users = store.users()
    print_listing(_COLUMNS, users, as_json=as_json)
    if not users and not as_json:
        click.echo("there is no user yet: btrkeep-web user add NAME", err=True)


@user_command.command
@click.pass_context
def export(ctx: click.Context) -> None:
    """Print all users, sessions and tokens as JSON, with the hashes of passwords: keep it secret."""
    with opened(ctx) as store:
        echo_json(exported(store))


@user_command.command("import")
@click.pass_context
def import_(ctx: click.Context) -> None:
    """Import the output of `user export` from standard input; only into a folder that never had users."""
    with opened(ctx) as store:
        imported(store, sys.stdin.read())


def _require_user(store: Store, name: str) -> User:
    """Raises UsageError when there is no such user."""
    if user := store.user(name):
        return user
    names = [user.name for user in store.users()]
    raise UsageError(f"there is no user {printable(name)}", did_you_mean(name, names, "`btrkeep-web user list` lists all users"))


def _password(name: str) -> str:
    """Reads the password from a terminal or standard input; never from the command line, which every user of the
    machine can read.
    """
    if sys.stdin.isatty():
        text: str = click.prompt(f"Password for {name}", hide_input=True, confirmation_prompt="Repeat the password", err=True)
        return text
    return sys.stdin.readline().rstrip("\n")


def _rights_words(role: str, hosts: tuple[str, ...] | None) -> str:
    return f"{printable(role)}, {'all hosts' if hosts is None else all_or_hosts(hosts)}"


def all_or_hosts(hosts: tuple[str, ...] | None) -> str:
    """Returns the patterns safe for printing: an attacker who controlled the dashboard may have written them."""
    return "all" if hosts is None else printable(", ".join(hosts))


_COLUMNS: tuple[Column[User], ...] = (
    Column("name", lambda user: user.name, "USER"),
    Column("role", lambda user: user.role, "ROLE"),
    Column("hosts", lambda user: user.hosts, "HOSTS", all_or_hosts),
    Column("created", lambda user: user.created),
    Column("changed", lambda user: user.changed),
)


_HASH = "$argon2id$"
_KEY = 32


def exported(store: Store) -> dict[str, Any]:
    """Returns everything except failed attempts and secrets, with the hashes of passwords."""
    users = store.users()
    return {
        "format": 1,
        "users": [
            {
                "name": user.name,
                "role": user.role,
                "hosts": _hosts(user.hosts),
                "hash": user.hash,
                **_times(user, "created", "changed"),
            }
            for user in users
        ],
        "sessions": [
            {
                "key": session.key.hex(),
                "user": session.user,
                "address": session.address,
                "browser": session.browser,
                **_times(session, "created", "seen"),
            }
            for user in users
            for session in store.sessions(user.name)
        ],
        "tokens": [
            {"name": token.name, "role": token.role, "hosts": _hosts(token.hosts), "key": key.hex(), **_times(token, "created")}
            for token, key in store.token_keys()
        ],
    }


def imported(store: Store, text: str) -> None:
    """Imports the users of `exported` into a database that has never had a user. Raises UsageError for anything else."""
    try:
        document = json.loads(text)
        if document["format"] != 1:
            raise ValueError("another format")
        users = [
            User(
                checked_name(fields["name"]),
                role_of(fields["role"]),
                _limits(fields["hosts"]),
                _hash(fields["hash"]),
                *_moments(fields, "changed"),
            )
            for fields in document["users"]
        ]
        sessions = [
            LoginSession(
                _key(fields["key"]), fields["user"], *_moments(fields, "seen"), _text(fields["address"]), _text(fields["browser"])
            )
            for fields in document["sessions"]
        ]
        tokens = [
            (
                Token(
                    checked_name(fields["name"]),
                    role_of(fields["role"]),
                    _limits(fields["hosts"]),
                    datetime.fromisoformat(fields["created"]),
                    None,
                ),
                _key(fields["key"]),
            )
            for fields in document["tokens"]
        ]
        if not store.fill(users, sessions, tokens) and (users or tokens):
            raise UsageError(
                f"{store.path} already has or had users", "import into a new folder, or add users: btrkeep-web user add"
            )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"the input is not a list of users: {printable(str(error))}",
            "give the output of btrkeep-web --users OLD-FOLDER user export",
        ) from None


def _times(item: Any, *names: str) -> dict[str, str]:
    return {name: getattr(item, name).isoformat() for name in names}


def _moments(fields: Mapping[str, Any], second: str) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(fields["created"]), datetime.fromisoformat(fields[second])


def _hosts(hosts: tuple[str, ...] | None) -> list[str] | None:
    return None if hosts is None else list(hosts)


def _limits(hosts: Any) -> tuple[str, ...] | None:
    if hosts is None:
        return None
    limits = [parse_hosts(host) for host in hosts] if isinstance(hosts, list) else []
    # None means "all", which in a list of patterns would be a host's name; a pattern with a comma would be two.
    if not limits or any(limit is None or len(limit) != 1 for limit in limits):
        raise ValueError("a pattern of hosts is not a string")
    return tuple(hosts)


def _hash(text: str) -> str:
    if not text.startswith(_HASH) or not text.isascii():
        raise ValueError("a password hash is not a string")
    return text


def _key(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != _KEY:
        raise ValueError("a digest is not a string")
    return key


def _text(value: str) -> str:
    return printable(value[:300])


@click.group
def token_command() -> None:
    """Manage tokens for scripts: `Authorization: Bearer TOKEN`, for /api and /metrics."""


@token_command.command("add")
@name_and_rights
@click.pass_context
def add_token(ctx: click.Context, name: str, role: str | None, hosts: str | None) -> None:
    """Create a token and print it. Only its digest is stored, so it cannot be shown again."""
    limits, word = parse_hosts(hosts), TOKEN_PREFIX + secrets.token_urlsafe(32)
    with opened(ctx) as store:
        token = Token(checked_name(name), role or "viewer", limits, datetime.now(UTC), None)
        if not store.add_token(token, digest(word)):
            raise UsageError(f"there is a token {name} already", f"remove it first: btrkeep-web token remove {name}")
    click.echo(word)


@token_command.command("remove")
@click.argument("name")
@click.pass_context
def remove_token(ctx: click.Context, name: str) -> None:
    """Revoke a token."""
    with opened(ctx) as store:
        if not store.remove_token(name):
            raise UsageError(f"there is no token {name}", "`btrkeep-web token list` lists all tokens")
    click.echo(f"the token {name} is removed", err=True)


@token_command.command("list")
@json_option
@click.pass_context
def list_tokens(ctx: click.Context, as_json: bool) -> None:
    """List all tokens by name, and when each was last used."""
    with opened(ctx) as store:
        tokens = store.tokens()
    print_listing(_TOKEN_COLUMNS, tokens, as_json=as_json)


_TOKEN_COLUMNS: tuple[Column[Token], ...] = (
    Column("name", lambda token: token.name, "TOKEN"),
    Column("role", lambda token: token.role, "ROLE"),
    Column("hosts", lambda token: token.hosts, "HOSTS", all_or_hosts),
    Column("created", lambda token: token.created),
    Column("used", lambda token: token.used, "LAST USED", lambda used: format_time(used) if used else "never"),
)
