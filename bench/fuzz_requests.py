"""Requests to the root service, which has a pool with a host, two backups and a session for each role.

The pool is a real btrfs where this process is root and may have one; else the service finds a configuration and no pool.
"""

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.fuzz_target import Seeds, scratch_folder

_HOST, _SEEN = "web1", "/etc"
_SLOW = {"doctor", "plan", "extents"}  # they take no text, and read the whole pool


def request_seeds() -> Seeds:
    """Yields a request of each verb with arguments, of each role, and some about another host."""
    backup = {"host": _HOST, "backup": "latest"}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("browse", {**backup, "path": _SEEN, "sort": "size", "descending": True, "offset": 1, "limit": 5}),
        ("versions", {"host": _HOST, "path": "/etc/passwd", "content": True, "seconds": 1}),
        ("compare", {"host": _HOST, "path": _SEEN, "before": "2026", "after": "latest", "content": True}),
        *(("download", {**backup, "path": _SEEN, "as": kind}) for kind in ("tar", "zip", "file")),
        ("hold", {"host": _HOST, "backup": "latest", "why": "court", "until": "2027-01-01T00:00:00Z"}),
        ("release", backup),
        ("accept", {**backup, "why": "moved"}),
        ("run", {"host": _HOST}),
        ("restore", {**backup, "paths": ["/etc/passwd", "/x"], "to": "host:/tmp", "overwrite": "older"}),
        ("restore", {**backup, "paths": ["/etc"], "to": "folder"}),
        ("job", {"job": "20261120T220003Z-0123abcd", "lines": 3}),
        ("jobs", {"limit": 2}),
        ("retention", {"host": _HOST}),
        ("hello", {}),
        ("browse", {**backup, "host": "db", "path": "/"}),
    ]
    for verb, arguments in asked:
        yield json.dumps({"verb": verb, "who": "alice", "arguments": arguments}).encode() + b"\n"
    for number, role in enumerate(("viewer", "operator", "admin")):
        for verb, arguments in asked[number::3]:
            yield json.dumps({"verb": verb, "session": role, "arguments": arguments}).encode() + b"\n"


def request() -> Callable[[bytes], object]:
    """Requires that an answer is one line of JSON, or one line and frames up to the last one, or missing."""
    import logging

    from backupd.serve import request_checks, start_job
    from backupd.serve.answering import answer
    from backupd.serve.service_context import RateLimit, ServiceContext
    from btrkeep.clock import Clock
    from btrkeep.serving.viewer import ROLES, Viewer

    times = iter(range(0, 1 << 60, 3600))
    config, tree = _pool()
    service = ServiceContext("main", config, Clock(), systemd=False, rates=RateLimit(lambda: float(next(times))))
    service.restore_to, service.elsewhere = config.parent / "restored", True
    jobs = service.config().pool.state / "jobs"
    logging.disable(logging.CRITICAL)

    def logged_in(word: str, login: Path) -> Viewer:  # noqa: ARG001 - by the names that it has there
        """Replaces the login service for these sessions."""
        return Viewer("alice", next((role for role in ROLES if role == word), "viewer"), (_HOST,) if word == "viewer" else None)

    def start_nothing(*_: Any) -> None:
        """Replaces the start of processes that execute jobs."""

    for module, name, stand_in in ((request_checks, "_logged_in", logged_in), (start_job, "_start_process", start_nothing)):
        assert hasattr(module, name)
        setattr(module, name, stand_in)

    def run(data: bytes) -> None:
        if any(word.encode() in data for word in _SLOW):
            return
        ours, theirs = socket.socketpair()
        with ours:
            answered: list[bytes] = []
            reader = threading.Thread(target=lambda: answered.extend(_read(ours)))
            with suppress(BrokenPipeError):
                ours.sendall(data.replace(_SEEN.encode(), os.fsencode(tree)))
            ours.shutdown(socket.SHUT_WR)
            reader.start()
            try:
                answer(service, theirs, frozenset((os.getuid(),)))
            finally:
                reader.join()
            require_answer(b"".join(answered))
        for job in jobs.glob("*.json"):  # so that the next is no longer refused
            job.unlink()

    return run


def require_answer(answer_line: bytes) -> None:
    """Requires that the answer follows the protocol: see btrkeep/serving/protocol.py."""
    line, _, rest = answer_line.partition(b"\n")
    if not answer_line:
        return
    answer = json.loads(line)
    assert answer["ok"] in (True, False)
    if "stream" not in answer:
        assert not rest
        return
    place = 0
    while (length := struct.unpack_from(">I", rest, place)[0]) not in (0, 0xFFFFFFFF):
        place += 4 + length
    last = rest[place + 4 :]
    assert json.loads(last)["ok"] is False if length else not last


def _read(connection: socket.socket) -> Iterator[bytes]:
    with suppress(ConnectionResetError):  # it is not obliged to read all
        while piece := connection.recv(1 << 16):
            yield piece


def _pool() -> tuple[Path, Path]:
    """Makes the configuration of a pool; returns it and the path that its host has backed up."""
    from tests.beds import btrfs
    from tests.beds.nights import Nights

    if not btrfs.why_not():
        nights = Nights(btrfs.make("300M"))
        nights.source.mkdir(exist_ok=True)
        tree = nights.source / "etc"
        (tree / "folder").mkdir(parents=True)
        for name in ("passwd", "hosts", "new\nline", "folder/<b>"):
            (tree / name).write_text(name * 10)
        nights.host(_HOST, tree)
        nights.host("db", tree)
        nights.run()
        (tree / "passwd").write_text("changed")
        nights.run()
        return nights.config, tree
    folder = scratch_folder()
    (folder / "main.toml").write_text(
        f'[pool]\npath = "{folder}/pool"\nstate = "{folder}/state"\n[host.{_HOST}]\naddress = "a"\npaths = ["/etc"]\n'
    )
    return folder / "main.toml", Path(_SEEN)
