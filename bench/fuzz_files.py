"""Targets of the fuzzer: files of copies, and what other programs say of theirs."""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from bench.fuzz_target import Seeds, Target, scratch_folder
from btrkeep.errors import OperatorError

_ID = "00000000-0000-4000-8000-000000000001"
_NAME = "2026-11-20T220003Z"


# A seed on a disk that was carried


def _seed_seeds() -> Seeds:
    part = {"length": 5, "sha256": hashlib.sha256(b"parts").hexdigest()}
    backups = [["2026-11-20T220003Z", _ID, "complete"]]
    document = {"format": 1, "listed": {"host": "web1", "backups": backups}, "announced": {"size": 5}, "parts": [part]}
    yield json.dumps({"format": 1, "pool": _ID, "version": "1"}).encode() + b"\0" + json.dumps(document).encode() + b"\0parts"
    more = {**document, "parts": [part, {**part, "length": 3}], "listed": {"host": "../x", "backups": [*backups, *backups]}}
    yield json.dumps({"format": 1, "pool": _ID}).encode() + b"\0" + json.dumps(more).encode() + b"\0parts"


def _seed() -> Callable[[bytes], object]:
    """The input is the seed's file, a host's, and a part of that. What the sender answers goes into a file."""
    from backupd.replicate.initial_copy import DESCRIPTION, InitialCopySender, has_host, part_file, unusable_hosts

    folder = scratch_folder()
    host = folder / "web1"
    host.mkdir()
    out = os.open(folder / "out", os.O_RDWR | os.O_CREAT)

    def run(data: bytes) -> None:
        whole, _, rest = data.partition(b"\0")
        of_host, _, part = rest.partition(b"\0")
        (folder / DESCRIPTION).write_bytes(whole)
        (host / DESCRIPTION).write_bytes(of_host)
        part_file(host, 1).write_bytes(part)
        os.ftruncate(out, 0)
        unusable_hosts(folder)
        has_host(host, _ID)
        try:
            sender = InitialCopySender(folder, out)
            sender.verbs["hello"]({})
            sender.verbs["list"]({})
            sender.verbs["send"]({"host": "web1", "uuid": _ID})
        except (OperatorError, FileNotFoundError):
            return

    return run


# Checksums in a backup, which may have come from another pool, and of a host


def _sums_seeds() -> Seeds:
    digest = hashlib.sha256(b"x").hexdigest().encode()
    yield digest + b"  data/etc/passwd\n\\" + digest + b"  data/a\\nb\\\\c\\r\n" + digest + b"  data/\xff\n"
    yield digest + b" *data/x\n" + digest[:-1] + b"  data/x\n\n" + digest.upper() + b"  data/x\n"
    body = struct.pack(">QQQ", 257, 1, 3) + struct.pack(">QI32s", 1 << 50, 1, bytes(32))
    record = body + struct.pack(">I", zlib.crc32(body))
    yield record + b"btrkeep checksums 2\n".ljust(len(record), b"\0") + record * 3


def _sums() -> Callable[[bytes], object]:
    """The input is SHA256SUMS and the two files of a host's checksums; the result is written and read again."""
    from backupd.repo.checksums import CHECKSUMS, CHECKSUMS_LOG, SUMS, Checksums, ReadBefore, key_of, read_sums, write_sums

    folder = scratch_folder()
    head = b"btrkeep checksums 2\n"
    length = 24 + 44 + 4

    def run(data: bytes) -> None:
        (folder / SUMS).write_bytes(data)
        sums = read_sums(folder)
        assert all((path.startswith(b"/") and b"\0" not in path) or b"\0" in data for path in sums)
        write_sums(folder, sums)
        assert read_sums(folder) == sums
        for name, content in ((CHECKSUMS, head.ljust(length, b"\0") + data[length:]), (CHECKSUMS_LOG, data)):
            (folder / name).write_bytes(content)
        key, read_before = key_of(257, 1, 3), ReadBefore(1 << 50, False, bytes(range(32)))
        with Checksums(folder) as checksums:
            checksums.find(key)
            checksums.write({key: read_before}, 1 << 50)
        with Checksums(folder) as again:
            assert again.find(key) == read_before

    return run


# Results of checks, which a pool that was moved here may have from elsewhere


def _look_seeds() -> Seeds:
    at = "2026-11-20T22:00:03Z"
    verified = {
        "begun": at,
        "at": at,
        "read": 3,
        "compared": 2,
        "bytes": 9,
        "whole": at,
        "damages": 2,
        "damaged": ["/a", "/\udce9"],
    }
    compared = {"at": at, "files": 5, "alike": 2, "changed": 1, "differing": 2, "differs": ["/x", "/\udce9"]}
    damaged = {"path": "/x", "start": 4096, "length": 4096, "found_by": "scrub", "found_at": at}
    for number, entry in enumerate((verified, compared, [damaged, {**damaged, "found_by": "device", "path": "/\udce9"}])):
        more = {"next": {"4": {"slice": 2, "after": "/x"}}} if number == 1 else {}
        yield bytes([number]) + json.dumps({"format": 1, **more, "backups": {_NAME: entry}}).encode()


def _look() -> Callable[[bytes], object]:
    """The input is one of the three files. Its entries are added, read by path, and written and read again."""
    from backupd.repo.pool_files import COMPARED, DAMAGED, VERIFIED
    from backupd.repo.verification_files import (
        enter_damages,
        read_compared,
        read_damaged,
        read_verified,
        recall_verifications,
        write_compared,
        write_verified,
    )
    from btrkeep.catalogue import Catalogue
    from btrkeep.pool.marker import Pool

    pool = Pool(scratch_folder(), "main", _ID, rehearsal=False)
    folder = pool.host("web1")
    (folder / _NAME).mkdir(parents=True)
    catalogue = Catalogue.open(pool.path / "state")

    def run(data: bytes) -> None:
        for name in (VERIFIED, COMPARED, DAMAGED):
            (folder / name).unlink(missing_ok=True)
        (folder / (VERIFIED, COMPARED, DAMAGED)[data[0] % 3 if data else 0]).write_bytes(data[1:])
        recall_verifications(pool, catalogue, "web1", {_NAME})
        for damage in catalogue.damages("web1"):
            os.fsencode(damage.path)
        verified, compared = read_verified(folder), read_compared(folder)
        write_verified(folder, verified)
        write_compared(folder, compared)
        assert (read_verified(folder), read_compared(folder)) == (verified, compared)
        enter_damages(pool, catalogue, ["web1"], ())
        damaged = read_damaged(folder, "web1")
        enter_damages(pool, catalogue, ["web1"], ())
        assert read_damaged(folder, "web1") == damaged
        catalogue.change_damages(catalogue.damages("web1"), ())

    return run


# restic's words


def _restic_seeds() -> Seeds:
    snapshot = {"id": "ab" * 32, "hostname": "web1", "tags": ["btrkeep", f"pool:{_ID}", "backup:2026-11-20T220003Z"], "time": "x"}
    yield json.dumps([snapshot, {**snapshot, "tags": None}]).encode() + b"\n"
    yield b'{"message_type":"status","percent_done":0.5,"bytes_done":7}\n{"message_type":"summary","snapshot_id":"abcd"}\n'
    yield b'{"message_type":"error","error":{"message":"no"},"item":"/x"}\nFatal: wrong password ://u:p@h\n{"message":7}\n\xff\n'


def _restic() -> Callable[[bytes], object]:
    """The input is what a restic prints, cut at the first byte's distance: its list, its progress, its errors."""
    from types import SimpleNamespace
    from typing import Any, cast

    from backupd.offsite import restic as module
    from backupd.offsite.repository import snapshots
    from btrkeep.decisions.offsite import newest_in_repository
    from btrkeep.pool.marker import Pool

    folder = scratch_folder()
    (folder / "hosts").mkdir()
    pool = Pool(folder, _ID, "", rehearsal=False)
    settings = cast("Any", SimpleNamespace(name="far", password_file=Path("/x"), repository="/r"))
    secret = "a-very-secret-word"
    restic = module.Restic(settings, Path("/nowhere"), (), {"AWS_SECRET": secret})

    class Listed:
        """Answers as restic does, with lines that were read already."""

        def __init__(self, lines: list[Any]) -> None:
            self.lines = lines

        def ask(self, *_: str) -> module.Answer:
            """Returns the lines, whatever the arguments are."""
            return module.Answer(self.lines, 0)

    def run(data: bytes) -> None:
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        os.write(theirs, data[: 1 << 15])
        os.close(theirs)
        try:
            lines = list(module._lines(ours, lambda: None))
        finally:
            os.close(ours)
        try:
            listed = snapshots(cast("Any", Listed(lines)), pool)
        except module.ResticFailed:
            listed = []
        assert all(type(snapshot.id) is str and snapshot.id.isalnum() for snapshot in listed)
        newest_in_repository(listed, set())
        text = data.decode("utf-8", "replace")
        failure = restic._failure(text.splitlines(), 1)
        assert secret not in failure.message

    return run


# Histories of other programs


def _history_seeds() -> Seeds:
    yield b"\0" + struct.pack("<q", 1_700_000_000) + b"daily.0/web1\nhourly.12/db\nsync/x"
    begun = b"client: web1\nbackup-begin: 2026-11-20 22:00:03\nstatus: success\ntree: /srv web1"
    yield b"\1" + struct.pack("<q", 1_700_000_000) + b"20261120/tree\n20261121/tree\1" + begun
    yield b"\2" + struct.pack("<q", 1_700_000_000) + b"2026-11-20\n2026-11-21T2200\nbackup.0\n20261122_223000"
    yield b"\3" + struct.pack("<q", 0) + b"x\1snapshot_root\t/nowhere\nretain\tdaily\t7"


def _history() -> Callable[[bytes], object]:
    """The input is a kind, a time, names of folders a line each, and the text of a file. What is found is in order."""
    import shutil

    from backupd.run.importing.formats import HostNames, read_dated, read_dirvish, read_rsnapshot
    from btrkeep.units import backup_name

    top = scratch_folder() / "top"

    def run(data: bytes) -> None:
        if len(data) < 9:
            return
        kind, stamp = data[0] % 4, struct.unpack("<q", data[1:9])[0]
        names, _, text = data[9:].partition(b"\1")
        shutil.rmtree(top, ignore_errors=True)
        top.mkdir()
        (top / "dirvish").mkdir()
        (top / "conf").write_bytes(text)
        for name in names.split(b"\n")[:6]:
            parts = [part[:200] for part in name.split(b"/")[:2] if part not in (b"", b".", b"..") and b"\0" not in part]
            folder = top.joinpath(*map(os.fsdecode, parts))
            if folder == top or folder == top / "conf" or (top / "conf") in folder.parents:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            (top / os.fsdecode(parts[0]) / "summary").write_bytes(text)
            _stamp(folder, stamp)
            _stamp(top / os.fsdecode(parts[0]), stamp)
        place, read = (
            (top, read_rsnapshot),
            (top, read_dirvish),
            (top, read_dated),
            (top / "conf", read_rsnapshot),
        )[kind]
        try:
            old_history = read(place, HostNames.parse(("web1",) if kind == 2 else ()))
        except (OperatorError, OSError):
            return
        for host in old_history.hosts:
            times = [backup_name(old_tree.started) for old_tree in old_history.of(host)]
            assert times == sorted(set(times)), times

    return run


def _stamp(folder: Path, seconds: int) -> None:
    try:
        os.utime(folder, (seconds, seconds))
    except (OSError, OverflowError):
        return


TARGETS = {
    "seed-json": Target("a seed on a disk that was carried: seed.json and parts", _seed_seeds, _seed),
    "checksums": Target("SHA256SUMS of a backup, and checksums of a host", _sums_seeds, _sums),
    "looks": Target("verified.json, compared.json, damaged.json", _look_seeds, _look),
    "restic": Target("what restic prints: snapshots, progress, errors", _restic_seeds, _restic),
    "imports": Target("histories of rsnapshot, dirvish and dated folders", _history_seeds, _history),
}
