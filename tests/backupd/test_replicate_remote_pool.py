"""Another pool's description of a backup before its stream, read from a real pipe: it may contain anything."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backupd.doctor.copy_checks import _of_key
from backupd.replicate.remote_pool import OwnStreams, RemotePool, RemotePoolMissing, unreached_hint
from backupd.replicate.wire import END, PROTOCOL, ConnectionBroken, object_frame, write_all
from btrkeep.decisions.replication import Fetch, RemoteBackup
from btrkeep.units import backup_name, format_size

HELLO = object_frame({"protocol": PROTOCOL, "pool": "p"}) + object_frame({}, END)
FETCH = Fetch(RemoteBackup("2026-03-01T220000Z", "1" * 36, "complete"), None)


@contextmanager
def saying(*objects: dict[str, Any], hello: bytes = HELLO) -> Iterator[RemotePool]:
    """A pool that sends these messages when a backup is requested, after its `hello`."""
    reading, writing = os.pipe()
    heard = os.open("/dev/null", os.O_WRONLY)
    content = hello + b"".join(map(object_frame, objects)) + object_frame({}, END)

    def write() -> None:
        with suppress(BrokenPipeError):  # the reader may stop early
            write_all(writing, content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield RemotePool(OwnStreams(heard, reading), lambda: None)
    finally:
        os.close(reading)
        writer.join()
        for fd in (writing, heard):
            os.close(fd)


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol": PROTOCOL + 1, "pool": "p"},
        {"protocol": str(PROTOCOL), "pool": "p"},
        {"protocol": PROTOCOL},
        {"protocol": PROTOCOL, "pool": 7},
    ],
    ids=str,
)
def test_a_pool_of_another_protocol_is_refused_before_anything_is_requested(fields: dict[str, Any]) -> None:
    hello = object_frame({"version": "9.9"} | fields) + object_frame({}, END)
    with pytest.raises(RemotePoolMissing, match="another protocol") as refused, saying(hello=hello):
        pass
    assert "the same version of btrkeep on both" in refused.value.hint


def test_a_key_with_which_the_other_server_receives_is_named_as_the_cause() -> None:
    """Both servers would send requests, and neither would answer."""
    with (
        pytest.raises(RemotePoolMissing, match="the key starts `receive-only` on the other server") as refused,
        saying(hello=b'{"verb": "hello"}\n'),
    ):
        pass
    assert "two keys for the two directions" in refused.value.hint


@pytest.mark.parametrize(("ending", "levels"), [("exit 255", ["unknown"]), ("exit 1", []), ('sh -c "${@: -1}"', ["warning"])])
def test_whether_a_key_runs_any_command_is_unknown_if_ssh_fails(tmp_path: Path, ending: str, levels: list[str]) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/bash\n{ending}\n")
    ssh.chmod(0o755)
    config: Any = SimpleNamespace(ssh=SimpleNamespace(command=str(ssh), key="key", known_hosts="known"))
    push: Any = SimpleNamespace(kind="push", name="far", address="root@far", port=None, ssh_options=())
    assert [finding.level for finding in _of_key(config, push, "receive-only")] == levels


@pytest.mark.parametrize("size", [1 << 63, 10**400, -1, True, 1.5, "1", None], ids=lambda size: str(size)[:12])
def test_a_size_that_no_filesystem_has_is_none(size: Any) -> None:
    with saying({"notes": {}, "bytes": size, "total": size}) as far:
        announced, pieces = far.fetch("web1", FETCH, 1)
        assert (announced.bytes, announced.total) == (None, None), json.dumps(size)[:40]
        assert list(pieces) == []
        assert format_size(announced.bytes) == "-"


@pytest.mark.slow
def test_who_says_without_end_that_he_waits_is_heard_once_a_second() -> None:
    """Each message would become an event that waits for the terminal and the catalogue."""
    heard = list[str]()
    with saying(*({"waits": f"for {number}"} for number in range(20_000)), {"notes": {}}) as far:
        far.waits = heard.append
        list(far.fetch("web1", FETCH, 1)[1])
    assert heard[0] == "for 0"
    assert len(heard) < 20


def test_a_pool_that_reads_nothing_is_given_up() -> None:
    """The list of common backups is longer than the buffer of a pipe."""
    reading, writing = os.pipe()
    answers, says = os.pipe()
    try:
        write_all(says, HELLO)
        far = RemotePool(OwnStreams(writing, answers), lambda: None, patience=0.5)
        with pytest.raises(ConnectionBroken, match="received nothing"):
            far.note_common("office", {f"host{number}": FETCH.backup.name for number in range(10_000)})
    finally:
        for fd in (reading, writing, answers, says):
            os.close(fd)


HOLD = "h" * (1 << 20)


@pytest.mark.parametrize(
    "more",
    [
        {"was": [HOLD]},
        {"was": ["a"] * 20_000},
        {"copy_of": HOLD},
        {"backups": [["2026-03-01T220000Z", "1" * 36, "complete", [None, HOLD]]]},
    ],
    ids=["names", "short names", "pool", "hold"],
)
def test_a_server_says_so_much_of_its_hosts_and_no_more(more: dict[str, Any]) -> None:
    """All of it is held in memory: each of 200,000 hosts could have that much."""
    hosts = [{"host": f"web{number}", "was": [], "backups": []} | more for number in range(20)]
    with saying(*hosts[:10]) as far:
        assert [host.name for host in far.hosts()] == [host["host"] for host in hosts[:10]]
    with saying(*hosts) as far, pytest.raises(ConnectionBroken, match="endless"):
        list(far.hosts())


@pytest.mark.long
def test_a_server_lists_two_million_backups_and_no_more() -> None:
    day = datetime(2026, 3, 1, tzinfo=UTC)
    backups = [[backup_name(day + timedelta(seconds=number)), "1" * 36, "complete"] for number in range(100_000)]
    hosts = ({"host": f"web{number}", "was": [], "backups": backups} for number in range(21))
    heard = list[int]()
    with saying(*hosts) as far, pytest.raises(ConnectionBroken, match="endless"):
        heard.extend(len(host.backups) for host in far.hosts())
    assert heard == [100_000] * 20


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ssh: connect to host 127.0.0.1 port 22: Connection refused", "start sshd on that server"),
        ("ssh: connect to host backup2 port 22: No route to host", "check that it is on"),
        ("ssh: connect to host backup2 port 22: Connection timed out", "check that it is on"),
        ("ssh: Could not resolve hostname backup2: Name or service not known", "correct the address"),
    ],
)
def test_a_server_that_cannot_be_reached_has_a_hint_about_that_and_not_about_its_key(line: str, hint: str) -> None:
    assert unreached_hint([line]).startswith(hint)
