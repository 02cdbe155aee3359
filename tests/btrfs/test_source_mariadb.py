"""btrkeep-source with a real MariaDB under a writing load: its files start from a session, and its dump loads into an empty server.

Both are checked by what each transaction of the load keeps equal.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.source_program import SourceHost
from tests.beds.ssh import Sshd
from tests.beds.watch import wait_for

SOCKET = Path("/run/mysqld/mysqld.sock")  # the programs' default, which the dump uses
USER = "nobody"  # the package with the server's programs alone makes no user

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.takes(30),
    pytest.mark.skipif(
        not all(map(shutil.which, ("mariadbd", "mariadb-install-db", "mariadb-dump"))),
        reason="left out: with MariaDB (mariadb-server-core or mariadb-client is not installed)",
    ),
]
ODD = "a`b\nc\\t' -- x"  # which the client escapes, and shells, files and comments could misread
BANK = """
CREATE DATABASE bank; USE bank;
CREATE TABLE account (id INT PRIMARY KEY, money INT) ENGINE=InnoDB;
INSERT INTO account VALUES (1, 0), (2, 0);
CREATE TABLE entry (id INT AUTO_INCREMENT PRIMARY KEY, text VARCHAR(500)) ENGINE=InnoDB;
CREATE TABLE booked (id INT PRIMARY KEY) ENGINE=InnoDB;
CREATE VIEW total AS SELECT sum(money) AS money FROM account;
CREATE PROCEDURE answer() SELECT 42;
CREATE TRIGGER entered AFTER INSERT ON entry FOR EACH ROW INSERT INTO booked VALUES (NEW.id);
CREATE EVENT later ON SCHEDULE EVERY 1 YEAR DO SELECT 1;
CREATE USER clerk@localhost IDENTIFIED BY 'secret';
GRANT SELECT ON bank.* TO clerk@localhost;
"""
LOAD = (
    "START TRANSACTION; UPDATE account SET money = money + 1 WHERE id = 1; INSERT INTO entry (text) VALUES (repeat(uuid(), 12)); "
    "UPDATE account SET money = money - 1 WHERE id = 2; COMMIT;"
)
# Each transaction adds one to the first account, takes it from the second, and adds an entry, which the trigger books.
SUMS = (
    "SELECT (SELECT money FROM total), (SELECT money FROM account WHERE id = 1), (SELECT count(*) FROM entry), "
    "(SELECT count(*) FROM booked)"
)


@contextmanager
def server(data: Path, socket: Path) -> Iterator[None]:
    words = ["--no-defaults", f"--datadir={data}", f"--socket={socket}", f"--pid-file={data}/pid", f"--user={USER}"]
    words += ["--skip-networking", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--skip-log-bin"]
    with (data.parent / f"{data.name}.log").open("w") as log:
        process = subprocess.Popen(["mariadbd", *words], stdout=log, stderr=log)
    try:
        wait_for(lambda: process.poll() is not None or is_up(socket))
        assert process.poll() is None, (data.parent / f"{data.name}.log").read_text()
        yield
    finally:
        process.terminate()
        process.wait()


def is_up(socket: Path) -> bool:
    return work("mariadb-admin", "--no-defaults", f"--socket={socket}", "ping", check=False).returncode == 0


def sql(text: str, database: str = "", socket: Path = SOCKET) -> list[str]:
    words = ["mariadb", "--no-defaults", f"--socket={socket}", "--batch", "--skip-column-names", "-e", text]
    return work(*words, *([f"--database={database}"] if database else [])).stdout.split()


def make_data(folder: Path) -> Path:
    folder.mkdir()
    work("chown", USER, folder)
    words = ("--no-defaults", "--skip-test-db", "--auth-root-authentication-method=socket", f"--datadir={folder}", f"--user={USER}")
    work("mariadb-install-db", *words)
    return folder


def require_equal_sums(socket: Path) -> int:
    """Returns the number of transactions."""
    total, *numbers = map(int, sql(SUMS, "bank", socket))
    assert total == 0
    assert len(set(numbers)) == 1, numbers
    return numbers[0]


def test_files_of_a_session_start_and_dumps_load_and_both_are_consistent(sshd: Sshd, btrfs_mount: Path, tmp_path: Path) -> None:
    if SOCKET.exists():
        pytest.skip("left out: with MariaDB (another one runs here)")
    SOCKET.parent.mkdir(exist_ok=True)
    work("chown", USER, SOCKET.parent)
    btrfs_mount.parent.chmod(0o755)
    data = make_data(btrfs_mount / "main")
    (data / "lost+found").mkdir(mode=0o700)  # as if a filesystem were mounted here
    config = f"[dump mysql]\ncommand = mysql\noutput = {btrfs_mount}/dumps\n"
    host = SourceHost(sshd, f"{config}[dump stream]\ncommand = mysql\noutput = {btrfs_mount}/streams\nstream = yes\n")
    quoted = ODD.replace("`", "``")
    with server(data, SOCKET):
        sql(BANK)
        sql(f"CREATE DATABASE `{quoted}`; CREATE TABLE `{quoted}`.t AS SELECT 7 AS n")
        load = subprocess.Popen(["sh", "-c", f'yes "{LOAD}" | mariadb --no-defaults --socket={SOCKET} bank'])
        try:
            wait_for(lambda: int(sql("SELECT count(*) FROM entry", "bank")[0]) > 100)
            answer = host.begin(btrfs_mount)
            fetched = host.fetch(answer["session"], btrfs_mount, tmp_path / "to")
            streams = host.fetch_streams(answer["dumps"][1], tmp_path / "streams")
            assert load.poll() is None, "the load ended by itself"
        finally:
            sql("SHUTDOWN")  # which ends the load too
            load.wait()
        host.end(answer["session"])
    assert answer["dumps"][0]["error"] is None
    assert answer["paths"][0]["consistency"] == "snapshot"
    odd = "a`b%0Ac\\t' -- x.sql"
    assert sorted(path.name for path in (fetched / "dumps").iterdir()) == streams == [odd, "bank.sql", "mysql.sql"]
    assert not (btrfs_mount / "streams").exists()
    other = btrfs_mount / "other.sock"
    btrfs_mount.chmod(0o777)
    copy = btrfs_mount / "copy"
    work("cp", "-a", fetched / "main", copy)
    with server(copy, other):
        of_snapshot = require_equal_sums(other)
        work("mariadb-check", "--no-defaults", f"--socket={other}", "--all-databases")
    with server(make_data(btrfs_mount / "loaded"), other):
        for name in (odd, "bank.sql", "mysql.sql"):
            work("sh", "-c", 'exec mariadb --no-defaults --socket="$1" <"$2"', "-", other, fetched / "dumps" / name)
        assert 100 < require_equal_sums(other) <= of_snapshot, "the dump was made before the snapshot"
        for name in streams:
            work("sh", "-c", 'exec mariadb --no-defaults --socket="$1" <"$2"', "-", other, tmp_path / "streams" / name)
        assert require_equal_sums(other) >= of_snapshot, "the stream was made after the snapshot"
        assert sql("CALL answer()", "bank", other) == ["42"]
        assert sql("SELECT name FROM mysql.event", "", other) == ["later"]
        assert sql(f"SELECT n FROM `{quoted}`.t", "", other) == ["7"]
        grants = work(
            "mariadb", "--no-defaults", f"--socket={other}", "--user=clerk", "--password=secret", "-e", "SHOW GRANTS", check=False
        )
        assert "GRANT SELECT ON `bank`.*" in grants.stdout, grants
    assert host.left(btrfs_mount) == []
