"""btrkeep-source with a real PostgreSQL under the load of pgbench: its files start from a session, and its dump can be loaded.

Both are checked by what pgbench keeps equal in each of its transactions.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.source_program import SourceHost
from tests.beds.ssh import Sshd

BINARIES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
SOCKETS = Path("/var/run/postgresql")  # the programs' default, which the dump uses

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.takes(40),
    pytest.mark.skipif(
        BINARIES is None or not (BINARIES / "pgbench").exists(), reason="left out: with PostgreSQL (no server and pgbench here)"
    ),
]
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
    host = SourceHost(sshd, f"[dump postgresql]\ncommand = postgresql\noutput = {btrfs_mount}/dumps\n")
    odd = "x' host=evil"  # a connection string, if it is not quoted
    with cluster(data, 5432):
        for name in ("bench", odd):
            as_postgres("createdb", "-h", SOCKETS, name)
        as_postgres("pgbench", "-q", "-i", "-s", "2", "bench")
        load = subprocess.Popen(
            ["runuser", "-u", "postgres", "--", BINARIES / "pgbench", "-c", "4", "-T", "200", "-n", "bench"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            time.sleep(2)
            answer = host.begin(btrfs_mount)
            fetched = host.fetch(answer["session"], btrfs_mount, tmp_path / "to")
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
        text = (fetched / "dumps/bench.sql").read_text().split("\\connect bench\n", 1)[1]
        script = btrfs_mount / "script.sql"
        script.write_text(text)
        script.chmod(0o644)
        as_postgres("psql", "-p", "5433", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", script, "loaded")
        *sums, of_dump = query(5433, SUMS, "loaded")
        assert len(set(sums)) == 1, sums
        assert 0 < int(of_dump) <= int(transactions), "the dump was made before the snapshot"
    assert sorted(path.name for path in (fetched / "dumps").iterdir()) == ["bench.sql", "globals.sql", "postgres.sql", f"{odd}.sql"]
    assert host.left(btrfs_mount) == []
