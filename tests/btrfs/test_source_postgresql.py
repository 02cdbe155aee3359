"""btrkeep-source with a real PostgreSQL under the load of pgbench: its files start from a session, and its dump can be loaded.

Both are checked by what pgbench keeps equal in each of its transactions.
"""

import json
import re
import subprocess
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.beds.nights import Nights
from tests.beds.source_program import SourceHost
from tests.beds.ssh import Sshd

BINARIES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
SOCKETS = Path("/var/run/postgresql")  # the programs' default, which the dump uses

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.takes(40),
    pytest.mark.skipif(
        BINARIES is None or not (BINARIES / "pgbench").exists(), reason="left out: with PostgreSQL (it is not installed)"
    ),
]
LINES = "two\nlines\r"
# Names of databases and of their files: a connection string, if it is not quoted; one that psql's \connect refuses; the name of the
# file with the roles; and what a file, a shell and SQL could misread.
ODD = {
    "x' host=evil": "x' host=evil.sql",
    LINES: "two%0Alines%0D.sql",
    "globals": "%67lobals.sql",
    '.a\\b/c%d"e$(f)': '%2Ea\\b%2Fc%25d"e$(f).sql',
}
# Each transaction adds one delta to an account, a teller and a branch, and to the history.
SUMS = (
    "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), "
    "(SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history), "
    "(SELECT count(*) FROM pgbench_history)"
)


def as_postgres(*words: str | Path, check: bool = True) -> "subprocess.CompletedProcess[str]":
    assert BINARIES
    program = BINARIES / str(words[0])
    return work(
        "runuser", "-u", "postgres", "--", program if program.exists() else words[0], *words[1:], check=check, cwd=Path("/")
    )


@contextmanager
def cluster(data: Path, port: int) -> Iterator[None]:
    options = f"-k {SOCKETS} -p {port} -c listen_addresses= -c shared_buffers=16MB"
    as_postgres("pg_ctl", "-D", data, "-w", "-l", data.parent / f"log-{port}", "-o", options, "start")
    try:
        yield
    finally:
        as_postgres("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


def query(port: int, text: str, database: str = "bench") -> list[str]:
    return as_postgres("psql", "-p", str(port), "-X", "-A", "-t", "-c", text, database).stdout.strip().split("|")


def test_files_of_a_session_start_and_dumps_load_and_both_are_consistent(sshd: Sshd, btrfs_mount: Path, tmp_path: Path) -> None:
    assert BINARIES
    if (SOCKETS / ".s.PGSQL.5432").exists():
        pytest.skip("left out: with PostgreSQL (another one runs here)")
    SOCKETS.mkdir(exist_ok=True)
    work("chown", "postgres:", SOCKETS)
    btrfs_mount.parent.chmod(0o755)
    data = btrfs_mount / "pg/main"
    data.mkdir(mode=0o700, parents=True)
    work("chown", "postgres:", data, data.parent)  # not the folder above: root writes the dumps into none of another user
    as_postgres("initdb", "-D", data, "-A", "trust")
    config = f"[dump postgresql]\ncommand = postgresql\noutput = {btrfs_mount}/dumps\n"
    host = SourceHost(sshd, f"{config}[dump stream]\ncommand = postgresql\noutput = {btrfs_mount}/streams\nstream = yes\n")
    with cluster(data, 5432):
        for name in ("bench", *ODD):
            quoted = name.replace('"', '""')
            as_postgres("psql", "-h", SOCKETS, "-X", "-c", f'CREATE DATABASE "{quoted}"', "postgres")
        as_postgres("psql", "-h", SOCKETS, "-X", "-c", "CREATE TABLE seven AS SELECT 7 AS n", f"--dbname=dbname='{LINES}'")
        as_postgres("pgbench", "-q", "-i", "-s", "2", "bench")
        load = subprocess.Popen(
            ["runuser", "-u", "postgres", "--", BINARIES / "pgbench", "-c", "4", "-T", "200", "-n", "bench"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            time.sleep(2)
            answer = host.begin(btrfs_mount)
            fetched = host.fetch(answer["session"], btrfs_mount, tmp_path / "to")
            streams = host.fetch_streams(answer["dumps"][1], tmp_path / "streams")
            assert load.poll() is None, "the load ended by itself"
        finally:
            load.kill()
            load.wait()
        host.end(answer["session"])
    assert answer["dumps"][0]["error"] is None
    assert answer["paths"][0]["consistency"] == "snapshot"
    copy = btrfs_mount / "pg/copy"  # which the user postgres can reach
    work("cp", "-a", fetched / "pg/main", copy)
    (copy / "postmaster.pid").unlink()
    with cluster(copy, 5433):
        *sums, transactions = query(5433, SUMS)
        assert len(set(sums)) == 1, sums
        assert int(transactions) > 10
        as_postgres("createdb", "-p", "5433", "loaded")
        as_postgres("createdb", "-p", "5433", "streamed")
        script, counts = btrfs_mount / "script.sql", []
        for folder, database in ((fetched / "dumps", "loaded"), (tmp_path / "streams", "streamed")):
            script.write_text((folder / "bench.sql").read_text().split("\\connect bench\n", 1)[1])
            script.chmod(0o644)
            as_postgres("psql", "-p", "5433", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", script, database)
            *sums, count = query(5433, SUMS, database)
            assert len(set(sums)) == 1, sums
            counts.append(int(count))
        assert 0 < counts[0] <= int(transactions) <= counts[1], "the dump was made before the snapshot, and the stream after it"
        script.write_bytes((fetched / "dumps" / ODD[LINES]).read_bytes())
        as_postgres("createdb", "-p", "5433", "lines")
        as_postgres("psql", "-p", "5433", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", script, "lines")
        assert query(5433, "SELECT n FROM seven", "lines") == ["7"]
    names = ["bench.sql", "globals.sql", "postgres.sql", *ODD.values()]
    assert sorted(path.name for path in (fetched / "dumps").iterdir()) == sorted(names) == streams
    assert not (btrfs_mount / "streams").exists()
    assert host.left(btrfs_mount) == []


def script_of_the_page() -> str:
    section = (TOP / "docs/drills.rst").read_text().split("Loading dumps\n")[1]
    (block,) = re.findall(r"code-block:: sh\n\n((?:   .*\n|\n)+)", section)
    return textwrap.dedent(block)


def test_a_drill_loads_a_dump_with_the_script_of_the_documentation(nights: Nights, btrfs_mount: Path) -> None:
    assert BINARIES
    data, dumps = btrfs_mount / "pg/main", nights.source / "dumps"
    btrfs_mount.parent.chmod(0o755)
    data.mkdir(mode=0o700, parents=True)
    work("chown", "postgres:", data, data.parent)
    as_postgres("initdb", "-D", data, "-A", "trust")
    dumps.mkdir(mode=0o700)
    with cluster(data, 5434):
        for text in ("CREATE ROLE clerk", "CREATE DATABASE shop OWNER clerk"):
            as_postgres("psql", "-p", "5434", "-X", "-c", text, "postgres")
        as_postgres("psql", "-p", "5434", "-X", "-c", "CREATE TABLE orders AS SELECT generate_series(1, 12) AS id", "shop")
        for name, words in (("globals", ("pg_dumpall", "--globals-only")), ("shop", ("pg_dump", "--create", "shop"))):
            (dumps / f"{name}.sql").write_text(as_postgres(words[0], "-p", "5434", *words[1:]).stdout)
    (dumps / "load").write_text(script_of_the_page())
    nights.host("db1", nights.source)
    nights.run()
    nights.tables["drill"] = {"load": [f"{dumps} sh $DUMP/load"]}
    nights.write()
    _, loaded = json.loads(nights.backupd("drill", "db1", "--json").stdout)
    assert (loaded["kind"], loaded["outcome"], loaded["text"]) == ("load", "proven", f"{dumps}: 12 orders")
    (dumps / "shop.sql").write_text((dumps / "shop.sql").read_text().replace("CREATE TABLE public.orders", "CREATE TABEL orders"))
    nights.run("db1")
    done = nights.backupd("drill", "db1@latest", "--json", check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)[1]["text"].startswith(f"{dumps}: exit status 3: psql:"), done.stdout
