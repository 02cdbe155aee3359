"""A tree that changes between two requests, or during one, never leads the root service out of the backup.

A backup is read-only, and a writable one is not used. Here a process exchanges names in one all the time, for which it is writable
for a moment: a folder for a symlink that leads to a folder of the server, or a file for one that leads to a file there.
"""

import io
import json
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from btrkeep.serving.client import RootServiceClient
from btrkeep.serving.protocol import RequestRefused
from tests.beds import differences, manifest, work
from tests.beds.everything import write
from tests.beds.nights import Nights
from tests.beds.opens import watched
from tests.beds.serving import Service, serving
from tests.beds.swapped import swapping

pytestmark = [pytest.mark.btrfs, pytest.mark.root, pytest.mark.slow]

SECRET = b"what no backup may show"
OWN = b"the host's own"


class Asked:
    """Requests, and whether each was answered or refused. None may show data from outside."""

    def __init__(self, service: Service, inner: Path, first: str) -> None:
        self.service, self.inner, self.first = service, str(inner), first
        self.counts: Counter[str] = Counter()

    def each(self) -> None:
        """Sends every verb that reads files, once."""
        self._ask(lambda: json.dumps(self._agent().ask("browse", **self._backup, path=self.inner)).encode())
        self._ask(lambda: json.dumps(self._agent().ask("browse", **self._backup, path=f"{self.inner}/file")).encode())
        self._ask(lambda: json.dumps(self._agent().ask("versions", host="here", path=f"{self.inner}/file", content=True)).encode())
        both = dict[str, Any](before=self.first, after="latest", content=True)
        self._ask(lambda: json.dumps(self._agent().ask("compare", host="here", path=self.inner, **both)).encode())
        self._ask(lambda: self._download(f"{self.inner}/file", "file"))
        self._ask(lambda: _of_tar(self._download(self.inner, "tar")))
        self._ask(lambda: _of_zip(self._download(self.inner, "zip")))
        self._ask(lambda: _of_tar(self._download(str(Path(self.inner).parent), "tar")))

    @property
    def both_were_met(self) -> bool:
        """Returns True if requests met both states; otherwise the test proves nothing."""
        return bool(self.counts["own"] and self.counts["missing"] + self.counts["usage"] + self.counts["failed"])

    @property
    def _backup(self) -> dict[str, str]:
        return {"host": "here", "backup": "latest"}

    def _agent(self) -> RootServiceClient:
        return self.service.agent(f"user{self.counts.total() // 40}")  # no user may send that many a minute

    def _download(self, path: str, kind: str) -> bytes:
        with self._agent().stream("download", **self._backup, path=path, **{"as": kind}) as stream:
            return b"".join(stream)

    def _ask(self, request: Callable[[], bytes]) -> None:
        try:
            data = request()
        except RequestRefused as refused:
            self.counts[refused.kind] += 1
        else:
            assert SECRET not in data
            assert b"only outside" not in data
            self.counts["own" if OWN in data else "answered"] += 1


def _of_tar(data: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        contents = [file.read() for tar_info in archive if (file := archive.extractfile(tar_info) if tar_info.isfile() else None)]
        return b"".join(contents) + "\n".join(archive.getnames()).encode()


def _of_zip(data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return b"".join(map(archive.read, archive.namelist())) + "\n".join(archive.namelist()).encode()


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    """Two backups of a tree. In the newer one `inner` has a symlink to a folder beside it, and a file one to a file there.

    Their targets are in the same subvolume, beside `data`: elsewhere the device number would reveal them.
    """
    nights = Nights(shared_btrfs)
    write(nights.source / "inner" / "file", OWN.decode())
    nights.host("here", nights.source, address=None)
    nights.run("here")
    time.sleep(1.1)  # a name is a second
    nights.run("here")
    work("btrfs", "property", "set", "-f", nights.backup("here"), "ro", "false")
    write(outside(nights) / "file", SECRET.decode())
    write(outside(nights) / "only outside", SECRET.decode())
    inner = nights.data("here", nights.source) / "inner"
    inner.with_name("other").symlink_to(outside(nights))
    (inner / "other").symlink_to(outside(nights) / "file")
    work("btrfs", "property", "set", nights.backup("here"), "ro", "true")
    return nights


def outside(nights: Nights) -> Path:
    return nights.backup("here") / "outside"


@pytest.mark.parametrize("subject", ["folder", "file"])
def test_no_request_is_led_out_by_what_changes_under_it(nights: Nights, subject: str) -> None:
    inner = nights.data("here", nights.source) / "inner"
    swapped = (inner, inner.with_name("other")) if subject == "folder" else (inner / "file", inner / "other")
    with serving(nights.config) as service, watched(outside(nights) / "file") as opens:
        asked = Asked(service, nights.source / "inner", nights.names("here")[0])
        deadline = time.monotonic() + 100
        with swapping(*swapped, read_only=nights.backup("here")):
            while asked.counts.total() < 80 or not asked.both_were_met:
                asked.each()
                assert time.monotonic() < deadline, asked.counts
        assert opens.count() == 0
        assert service.process.poll() is None
        assert "Traceback" not in service.log_text
    assert asked.counts.keys() <= {"own", "answered", "missing", "usage", "failed"}


def test_what_is_restored_meanwhile_comes_from_the_backup_or_not_at_all(nights: Nights) -> None:
    inner = nights.data("here", nights.source) / "inner"
    before, states = manifest(outside(nights)), Counter[str]()
    with (
        serving(nights.config, "--restore-below", str(nights.source)) as service,
        watched(outside(nights) / "file") as opens,
    ):
        with swapping(inner, inner.with_name("other"), read_only=nights.backup("here")):
            for number in range(6):
                words: dict[str, object] = {
                    "host": "here",
                    "backup": "latest",
                    "paths": [str(nights.source / "inner" / "file")],
                    "overwrite": "all",
                }
                (nights.source / "inner" / "file").write_bytes(b"changed %d" % number)
                states[_restored(service, words)] += 1
                assert (nights.source / "inner" / "file").read_bytes() in (OWN, b"changed %d" % number)
        assert opens.count() == 0
    assert differences(before, manifest(outside(nights))) == []
    assert not (nights.source / "inner").is_symlink()
    assert {path.name for path in (nights.source / "inner").iterdir()} == {"file"}
    assert states


def _restored(service: Service, words: dict[str, object]) -> str:
    try:
        job = service.agent().ask("restore", **words)["job"]
    except RequestRefused as refused:
        return refused.kind
    for _ in range(1200):
        if (state := service.agent().ask("job", job=job)["state"]) in ("done", "failed"):
            return str(state)
        time.sleep(0.05)
    raise AssertionError(service.log_text)
