"""The commands of "Databases" are executed with real databases: a dump is in the backup, and becomes a database again."""

import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beds import session, work
from tests.docs.apart import run_apart, why_not
from tests.docs.pages import Page

Read = Callable[[str], Page]
SERVER = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def script(page: Page, database: str) -> str:
    first, *_ = page.section(database).blocks("sh")
    assert first.startswith("#!/bin/sh\n")
    return first


def to_restore(page: Page, database: str) -> str:
    return page.section(database).blocks("sh")[1]


@pytest.mark.parametrize("database", ["PostgreSQL", "MariaDB and MySQL", "SQLite"])
def test_each_script_is_one_that_a_shell_can_read(page: Read, database: str, tmp_path: Path) -> None:
    path = tmp_path / "dump-databases"
    path.write_text(script(page("databases"), database))
    work("sh", "-n", path)


def write_script(text: str) -> str:
    return f"printf '%s' {shlex.quote(text)} >/usr/local/sbin/dump-databases; chmod 700 /usr/local/sbin/dump-databases"


def prepared(page: Page) -> dict[str, str]:
    """A server with a host db1, which is this machine, and both of the page's keys for db1."""
    section = page.section("The dump as part of the backup")
    prepare, make_key, _ = section.blocks("sh")
    options = section.block("none").partition(" ssh-ed25519 ")[0]
    config = section.block("toml").replace('"/srv", "/var"', '"/var/backups"')
    return {
        "own folders": "mount -t tmpfs -o mode=755 tmpfs /var/backups; mount -t tmpfs tmpfs /usr/local/sbin; "
        'echo "$ADDRESS db1.example.org" >>/etc/hosts',
        "pool": "backupd init /srv/backup; ssh-keygen -q -t ed25519 -N '' -f /etc/btrkeep/id_ed25519",
        "known": "ssh-keyscan -t ed25519 db1.example.org >/etc/btrkeep/known_hosts",
        "a database": "mkdir -p /var/lib/app /var/lib/grafana; "
        "sqlite3 /var/lib/app/app.db 'CREATE TABLE tea (name); INSERT INTO tea VALUES (42);'; "
        "cp /var/lib/app/app.db /var/lib/grafana/grafana.db",
        "script": write_script(script(page, "SQLite")),
        "prepare": prepare,
        "key": make_key,
        "authorize": '(printf "%s " \'restrict,command="rrsync -ro /"\'; cat /etc/btrkeep/id_ed25519.pub; '
        f'printf "%s " {shlex.quote(options)}; cat /etc/btrkeep/id_dump.pub) >$PLACE/authorized_keys',
        "configure": f"printf '%s' {shlex.quote(config)} >>/etc/btrkeep/main.toml",
    }


def sqlite(page: Page) -> dict[str, str]:
    section = page.section("The dump as part of the backup")
    return {
        "changed": "rm /var/backups/databases/*; sqlite3 /var/lib/app/app.db 'INSERT INTO tea VALUES (43)'",
        "run": section.blocks("sh")[2],
        "lose": "echo lost >/var/lib/app/app.db; rm -r /var/backups/databases",
        "back": "backupd restore db1 /var/backups/databases --to /var/backups",
        "restore": to_restore(page, "SQLite"),
        "restored": "sqlite3 /var/lib/app/app.db 'SELECT sum(name) FROM tea'",
        "a database is gone": "rm /var/lib/grafana/grafana.db",
        "refused": "backupd run db1",
    }


def postgresql(page: Page) -> dict[str, str]:
    programs = SERVER[-1].parent
    start = f"{programs}/pg_ctl -D /var/lib/postgresql/data -w -l /var/lib/postgresql/log -o '-c listen_addresses=' start"
    query = "cd /; runuser -u postgres -- psql -AtX"
    return {
        "server": "mkdir -p /run/postgresql; mount -t tmpfs -o mode=1777 tmpfs /run/postgresql; cd /; "
        f"runuser -u postgres -- {programs}/initdb -D /var/lib/postgresql/data >/dev/null; runuser -u postgres -- {start}",
        "shop": f"{query} -c 'CREATE ROLE shop' postgres; runuser -u postgres -- createdb -O shop shop; "
        "runuser -u postgres -- psql -X -c 'CREATE TABLE tea (price int); INSERT INTO tea VALUES (7)' shop",
        "postgres script": write_script(script(page, "PostgreSQL")),
        "postgres run": "mkdir -p -m 700 /var/backups/databases; backupd run db1; backupd browse db1 /var/backups/databases",
        "drop": f"{query} -c 'DROP DATABASE shop' postgres; rm -r /var/backups/databases",
        "postgres back": "backupd restore db1 /var/backups/databases --to /var/backups",
        "postgres restore": to_restore(page, "PostgreSQL"),
        "postgres restored": f"{query} -c 'SELECT price FROM tea' shop; runuser -u postgres -- psql -AtXl | grep ^shop",
        "down": f"cd /; runuser -u postgres -- {programs}/pg_ctl -D /var/lib/postgresql/data stop >/dev/null",
        "postgres refused": "backupd run db1",
    }


@pytest.mark.takes(20)
@pytest.mark.btrfs
@pytest.mark.ssh
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=f"left out: a machine apart ({why_not()})")
def test_who_follows_the_page_has_a_database_back_and_hears_of_a_dump_that_failed(
    page: Read, make_btrfs: Callable[..., Path]
) -> None:
    databases = page("databases")
    steps = prepared(databases) | sqlite(databases) | (postgresql(databases) if SERVER else {})
    place = Path(tempfile.mkdtemp(prefix="apart-", dir=session.folder()))
    results = run_apart([f"cd $PLACE; {step}" for step in steps.values()], make_btrfs(size="1G"), place)
    done = dict(zip(steps, results, strict=True))
    refused = {"refused", "postgres refused"} & set(steps)
    wrong = [str(step) for name, step in done.items() if step.status != (name in refused)]
    assert not wrong, "\n".join(wrong)

    assert {"app.db", "grafana.db"} <= set(done["run"].out.split())
    assert done["restored"].out == "85\n"
    assert "db1: failed" in done["refused"].out
    assert "before failed" in done["refused"].out
    if SERVER:
        assert {"globals.sql", "shop.sql", "postgres.sql"} <= set(done["postgres run"].out.split())
        assert done["postgres restored"].out.startswith("7\nshop|shop|")
        assert "before failed" in done["postgres refused"].out
