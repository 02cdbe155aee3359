"""The readers of foreign bytes, as targets for a fuzzer: for each the initial inputs, and the properties that must hold.

    python -m bench.fuzz_targets NAME CORPUS [options of libFuzzer | FILE ...]

A target takes any bytes. It raises an exception if something is wrong: an unexpected exception, or an invalid answer.
`bench.fuzz` runs them.
"""

import io
import json
import os
import sqlite3
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench import fuzz_files
from bench import fuzz_replicate as replicate_targets
from bench.fuzz_requests import request, request_seeds
from bench.fuzz_target import Seeds, Target, scratch_folder
from btrkeep.errors import OperatorError

if TYPE_CHECKING:
    from tests.web.gate import Gate

# What rsync prints


def _output_seeds() -> Seeds:
    yield b"Number of files: 1,204 (reg: 1,003, dir: 201)\nTotal file size: 77 bytes\n     32,768 100%   31.25MB/s    0:00:00\n"
    yield b"          12  50%    1.00kB/s    0:00:00 (xfr#1, ir-chk=10/12)\rLiteral data: 12 bytes\nMatched data: 0 bytes\n"
    yield b"(Client) Protocol versions: remote=31, negotiated=31\nIO error encountered -- skipping file deletion\n"
    yield b'rsync: [sender] opendir "/a\\#012b" failed: Permission denied (13)\nfile has vanished: "/x"\n'
    yield b'rsync: [receiver] write failed on "/x": No space left on device (28)\nrsync error: some files (code 23) at main.c(1)\n'
    yield b'rsync: [sender] get_xattr_data: lgetxattr("/x","user.a",0) failed: Input/output error (5)\n'


def _output() -> Callable[[bytes], object]:
    from backupd.rsync.messages import Messages, Output
    from btrkeep.units import LARGEST_COUNT

    def run(data: bytes) -> None:
        step = data[0] + 1 if data else 1
        whole, parts, messages, many = Output(), Output(), Messages(), Messages()
        whole.feed(data)
        messages.feed(data)
        for start in range(0, len(data), step):
            parts.feed(data[start : start + step])
            many.feed(data[start : start + step])
        messages.close()
        many.close()
        assert (whole.numbers, whole.protocol, whole.complaints) == (parts.numbers, parts.protocol, parts.complaints)
        assert (messages.counts, messages.samples, list(messages.last), messages.unlisted) == (
            many.counts,
            many.samples,
            list(many.last),
            many.unlisted,
        )
        assert all(0 <= number <= LARGEST_COUNT for number in whole.numbers.values())
        assert all(line.isprintable() for line in messages.last)

    return run


# Records and notes of a pool, which a host may have had a hand in


def _record_seeds() -> Seeds:
    path = {"path": "/etc", "outcome": "complete", "numbers": {"files": 3, "literal": 12}, "warnings": ["w"], "samples": []}
    record = {
        "format": 1,
        "host": "web1",
        "uuid": "00000000-0000-0000-0000-000000000001",
        "state": "complete",
        "started": "2026-11-20T22:00:03Z",
        "finished": "2026-11-20T22:01:00Z",
        "name": "2026-11-20T220003Z",
        "paths": [path],
        "duration": 57.0,
        "attempts": 1,
        "warnings": [],
        "error": None,
        "settings": {"paths": ["/etc"]},
        "seconds": {"rsync": 1.5},
    }
    yield json.dumps(record).encode()
    yield json.dumps({**record, "state": "suspect", "cause": {"code": "shrunk", "files": 3, "before": 9}, "written": 7}).encode()
    yield json.dumps({**record, "written": []}).encode()  # was taken for none, and ended the making of its row


def _record() -> Callable[[bytes], object]:
    from backupd.repo.backup_json import UnreadableRecord, parse
    from backupd.repo.catalogue_row import backup_row
    from btrkeep.backup_states import FINAL
    from btrkeep.catalogue import Catalogue
    from btrkeep.decisions.cause_words import cause_words
    from btrkeep.pool.marker import Pool

    state = scratch_folder()
    catalogue = Catalogue.open(state / "state")
    pool = Pool(state, "main", "00000000-0000-0000-0000-000000000000", rehearsal=False)

    def run(data: bytes) -> None:
        try:
            record = parse(data.decode("utf-8"))
        except (UnreadableRecord, UnicodeDecodeError):
            return
        again = parse(json.dumps(record.to_fields()))
        exact = not record.started.microsecond and not (record.finished and record.finished.microsecond)  # it keeps seconds
        assert not exact or repr(again) == repr(record)  # NaN is not NaN
        if record.cause:
            assert cause_words(record.cause)
        if record.state not in FINAL:
            return  # its row is never read
        row = backup_row(pool, replace(record, host="web1", name="2026-11-20T220003Z"), record.state)
        catalogue.put_backup(row)
        catalogue.drop_backup(row.host, row.name)

    return run


def _notes_seeds() -> Seeds:
    backup = {"hold": {"at": "2026-11-20T22:00:03Z", "until": None, "why": "law"}, "accepted": {"at": "2026-11-20T22:00:03Z"}}
    expired = {
        "expired": {"at": "2026-11-20T22:00:03Z", "why": "daily", "rules": ["daily"], "asked": {"last": True, "at_once": False}}
    }
    yield json.dumps({"format": 1, "backups": {"2026-11-20T220003Z": backup, "2026-11-19T220003Z": expired}}).encode()
    yield json.dumps({"format": 1, "backups": {}, "was": ["old"], "forgotten": {"at": "2026-11-20T22:00:03Z"}}).encode()


def _notes() -> Callable[[bytes], object]:
    from backupd.repo.backup_json import UnreadableRecord
    from backupd.repo.notes_json import NOTES, hold_of, read_notes, text_of

    folder = scratch_folder()

    def run(data: bytes) -> None:
        (folder / NOTES).write_bytes(data)
        try:
            notes = read_notes(folder)
        except UnreadableRecord:
            return
        for name in notes.backups:
            hold_of(notes, name)
            notes.accepted(name)
            notes.after_deletion(name, "2026-11-23T00:00:00Z")
        (folder / NOTES).write_text(text_of(notes), encoding="utf-8")
        assert repr(read_notes(folder)) == repr(notes)

    return run


# The configuration


def _configuration_seeds() -> Seeds:
    pool = b'[pool]\npath = "/srv/b"\nzone = "Europe/Berlin"\n'
    yield pool + b'[retention]\ndaily = 14\nweekly = 12\n[host.a]\naddress = "root@a"\npaths = ["/"]\n'
    yield (
        pool
        + b'[backup]\nattempts = 2\nstall = "5m"\nbandwidth = "9MB"\nwindow = "22:00-06:00"\n'
        + b'[group.linux]\npaths = ["/"]\nexclude = ["/x/**"]\n[host.a]\naddress = "a"\ngroup = "linux"\nmax_new_bytes = "9GB"\n'
    )
    yield (
        pool
        + b'[notify]\nto = ["mailto://root@localhost"]\n[host."b.example"]\naddress = "b"\nport = 22\npaths = ["/etc"]\n'
        + b'[replica.office]\nfrom = "ssh://root@other"\nhosts = ["web*"]\n[ssh]\nkey = "/k"\n'
    )


def _configuration() -> Callable[[bytes], object]:
    from btrkeep.config.reading import load

    folder = scratch_folder()
    file = folder / "main.toml"

    def run(data: bytes) -> None:
        file.write_bytes(data)
        try:
            config = load(file=file)
        except OperatorError:
            return
        assert config.name == "main"

    return run


# A damaged catalogue, and forms, before the dashboard


def _gate(made: Callable[[Path], object]) -> tuple["Gate", Path]:
    """Returns a dashboard with a logged-in operator, and its catalogue."""
    from tests.web.gate import CHEAP, add_user, dashboard
    from tests.web.gate import Gate as Browser
    from web.auth import passwords
    from web.dashboard_settings import Settings

    folder = scratch_folder()
    made(folder / "state")
    settings = Settings("demo", folder / "state", folder / "data", folder / "no.sock", hosts=("backup.example.org",))
    passwords._HASHER = CHEAP
    add_user(settings, "alice")
    gate = Browser(dashboard(settings))
    assert gate.log_in().status_code == 303
    return gate, folder / "state" / "catalogue.sqlite"


def _patch_seeds() -> Seeds:
    yield struct.pack("<IB", 40, 255)
    yield struct.pack("<IB", 16, 3) + struct.pack("<IB", 4096 * 3 + 3, 200)
    yield struct.pack("<IB", 4096 * 7 + 5, 0)
    yield struct.pack("<IB", 47, 255)  # a format that there is not
    yield struct.pack("<IB", 0x0974052D, 0)  # a row without a value that every row has
    yield struct.pack("<IB", 0x3F10, 5)  # a published configuration that is not JSON


def _catalogue() -> Callable[[bytes], object]:
    """The input is a list of positions and of bytes to write there. Each page is served, or shows an error message."""
    from tests.beds.made_catalogue import made_catalogue

    gate, file = _gate(lambda state: made_catalogue(state, 6, 3))
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    original = file.read_bytes()

    def run(data: bytes) -> None:
        damaged = bytearray(original)
        for place, value in struct.iter_unpack("<IB", data[: len(data) // 5 * 5]):
            damaged[place % len(damaged)] = value
        for left in file.parent.glob("catalogue.sqlite-*"):
            left.unlink()
        new = file.with_suffix(".new")
        new.write_bytes(damaged)
        new.replace(file)
        for page in ("/", "/hosts", "/pool", "/log", "/jobs", "/api/v1/hosts"):
            answer = gate.get(page)
            is_allowed = answer.status_code in (200, 404, 503) or "catalogue" in answer.text
            assert is_allowed, (page, answer.status_code, answer.text)

    return run


def _form_seeds() -> Seeds:
    for form in ("accept", "hold", "release", "run", "restore", "password", "tokens"):
        yield form.encode() + b"\0why=because&until=2027-01-01&path=%2Fetc&csrf_token=TOKEN"
    yield b"login\0name=alice&password=%ff&next=//evil"


def _forms() -> Callable[[bytes], object]:
    """The input chooses an address that accepts a form, and is its body: text of a form, or parts with a boundary."""
    from tests.web.gate import made

    gate, _ = _gate(lambda state: made(state.parent))
    rules = sorted(str(rule) for rule in gate.app.url_map.iter_rules() if "POST" in (rule.methods or ()))
    word = gate.token("/account").encode()

    def run(data: bytes) -> None:
        address, _, body = data.partition(b"\0")
        chosen = rules[sum(address) % len(rules)]
        for name, value in (("<host>", "web1"), ("<backup>", "latest"), ("<job>", "x"), ("<name>", "x")):
            chosen = chosen.replace(name, value)
        kind = "multipart/form-data; boundary=a" if b"--a" in body else "application/x-www-form-urlencoded"
        answer = gate.client.post(chosen, data=body.replace(b"TOKEN", word), content_type=kind)
        assert answer.status_code < 500 or answer.status_code in (502, 503), (chosen, answer.status_code)

    return run


# What the kernel gives of trees, and recorded states


def _items_seeds() -> Seeds:
    def item(objectid: int, kind: int, offset: int, payload: bytes) -> bytes:
        return struct.pack("<IBIH", objectid, kind, offset, len(payload)) + payload

    yield item(1, 198, 64, b"\0" * 8) + item(2, 199, 3, b"") + item(9, 200, 16, b"\xf0" * 256)
    yield item(1, 198, 64, b"\0" * 8) + item(2, 200, 3, b"\x55" * 17) + item(40, 199, 5, b"")
    yield item(256, 12, 256, struct.pack("<QH", 2, 3) + b"abc" + struct.pack("<QH", 3, 2) + b"de")


def _items() -> Callable[[bytes], object]:
    """Free space read in bulk equals that read item by item; and names in an item end where it ends."""
    import numpy as np

    from btrkeep.treescan import free_space, links
    from btrkeep.treescan.search import HEADER, TreeSearch

    search = TreeSearch(0, buffer_size=1 << 16)

    def run(data: bytes) -> None:
        at, count, position = search.first_header, 0, 0
        while position + 11 <= len(data):
            objectid, kind, offset, size = struct.unpack_from("<IBIH", data, position)
            payload = data[position + 11 : position + 11 + size]
            kind = 198 + kind % 3 if kind not in (12, 13) else kind
            payload = payload[:256] if kind == 200 else payload if kind in (12, 13) else payload[: 8 * (kind == 198)]
            HEADER.pack_into(search.buffer, at, 7, objectid * 4096, offset * 4096, kind, len(payload))
            search.buffer[at + 32 : at + 32 + len(payload)] = payload
            if kind in (12, 13):
                with suppress(struct.error):  # the kernel never gives half of a name
                    for number, (_, name) in enumerate(links._names(search.buffer, at)):
                        assert number <= len(payload)
                        assert len(name) <= 65535
            position, at, count = position + 11 + size, at + 32 + len(payload), count + 1
        if not count or any(kind in (12, 13) for kind in _kinds(search.buffer, search.first_header, count)):
            return
        quick = free_space._aligned(search, count, 4096)
        slow, last = free_space._unaligned(search, count, 4096)
        if quick is not None:
            assert quick[1] == last
            for column in ("vaddr", "length", "group_vaddr", "group_length"):
                assert np.array_equal(getattr(quick[0], column), getattr(slow, column)), column

    return run


def _kinds(buffer: bytearray, at: int, count: int) -> Iterable[int]:
    for _ in range(count):
        _, _, _, kind, size = struct.unpack_from("=QQQLL", buffer, at)
        yield kind
        at += 32 + size


def _state_seeds() -> Seeds:
    from heatmap.recorded import packed
    from tests.heatmap.states import Pool

    data = packed(Pool((1 << 34,)).state())
    head = struct.unpack_from("<I", data, 12)[0]
    yield data[28 : 28 + head] + b"\0" + zlib.decompress(data[28 + head :])


def _state() -> Callable[[bytes], object]:
    """The input is a head and columns; their lengths and the checksum are right, as in a file that was forged."""
    from heatmap.recorded import FORMAT, MAGIC, Unreadable, packed, unpacked

    def run(data: bytes) -> None:
        head, _, columns = data.partition(b"\0")
        body = zlib.compress(columns, 1)
        lengths = struct.pack("<IQ", len(head), len(body))
        check = zlib.crc32(body, zlib.crc32(head, zlib.crc32(lengths)))
        try:
            state = unpacked(struct.pack("<8sIIQI", MAGIC, FORMAT, len(head), len(body), check) + head + body, "x")
        except Unreadable:
            return
        unpacked(packed(state), "x")

    return run


# Archives of names and attributes that a host has chosen


def _member_seeds() -> Seeds:
    yield b"\1\2\3\4" * 8 + b"etc/passwd\0user.a\0value"
    yield b"\xff" * 32 + b"caf\xe9/two\nlines/\\..\\x" + b"/long" * 60 + b"\0\0"
    yield b"\0" * 32 + b"a" * 100 + b"/b\0user.\xff=\0\xff\0"


def _member() -> Callable[[bytes], object]:
    """Writes one file with its attributes: Python's readers must find the same name and content."""
    from backupd.files import tar_headers, zip_headers
    from backupd.files.tree import Entry

    def run(data: bytes) -> None:
        mode, uid, gid, mtime, size, rest = *struct.unpack("<HIIqB", data[:19].ljust(19, b"\0")), data[19:]
        name, _, attribute = rest.partition(b"\0")
        key, _, value = attribute.partition(b"\0")
        parts = [part for part in name.split(b"/") if part not in (b"", b".", b"..")]
        if not parts or any(len(part) > 255 for part in parts):
            return  # no file has such a name
        name, content = b"/".join(parts), b"x" * size
        entry = Entry(b"/" + name, "file", size, size, mode & 0o7777, uid, gid, mtime, 1, 1, 1)
        xattrs = {os.fsdecode(b"user." + key): value} if key else {}
        text = tar_headers.member(entry, name, xattrs) + content + tar_headers.padding(size) + bytes(1024)
        with tarfile.open(fileobj=io.BytesIO(text)) as tar:
            (only_member,) = tar.getmembers()
            extracted = tar.extractfile(only_member)
            assert extracted
            assert (os.fsencode(only_member.name), only_member.size, extracted.read()) == (name, size, content)
            assert (only_member.uid, only_member.gid, only_member.mode) == (uid, gid, mode & 0o7777)
        member = replace(zip_headers.member(entry, name), packed=False)
        sizes = zip_headers.Sizes(zlib.crc32(content), size, size)
        body = zip_headers.header(member, sizes) + content
        index = zip_headers.record(member, sizes, 0)
        with zipfile.ZipFile(io.BytesIO(body + index + zip_headers.end(1, len(body), len(index)))) as zipped:
            (only,) = zipped.infolist()
            assert zipped.read(only) == content
            assert only.filename == zip_headers.zip_name(name)

    return run


TARGETS = {
    "rsync-output": Target("what rsync prints while it runs", _output_seeds, _output),
    "backup-json": Target("backup.json, and the row that follows from it", _record_seeds, _record),
    "notes-json": Target("notes.json", _notes_seeds, _notes),
    "configuration": Target("a configuration file", _configuration_seeds, _configuration),
    "requests": Target("requests to the root service", request_seeds, request),
    "catalogue": Target("a damaged catalogue, read by the dashboard", _patch_seeds, _catalogue, 60),
    "forms": Target("forms of the dashboard", _form_seeds, _forms, 1024),
    "tree-items": Target("buffers of a tree search", _items_seeds, _items, 8192),
    "recorded-states": Target("recorded states of a filesystem", _state_seeds, _state, 1 << 16),
    "archives": Target("headers of tar and zip", _member_seeds, _member),
    **fuzz_files.TARGETS,
    **replicate_targets.TARGETS,
}


def main() -> None:
    """Fuzzes one target until libFuzzer ends."""
    import atheris

    name, corpus, *options = sys.argv[1:]
    target = TARGETS[name]
    with atheris.instrument_imports(include=["backupd", "btrkeep", "heatmap", "web"]):
        run = target.make()
        seeds = list(target.seeds())
    again = any(map(os.path.isfile, options))  # inputs, each alone: libFuzzer takes files or folders
    for number, seed in enumerate(() if again else seeds):
        (Path(corpus) / f"seed{number}").write_bytes(seed)

    def once(data: bytes) -> None:
        run(data)

    atheris.Setup([sys.argv[0], *(() if again else (corpus,)), f"-max_len={target.longest}", *options], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
