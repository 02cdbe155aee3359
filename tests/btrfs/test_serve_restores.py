"""Where the root service allows restores: to the original place, and on this machine only as its administrator allows."""

import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from btrkeep.serving.protocol import RequestRefused
from tests.beds import differences, manifest, work
from tests.beds.everything import write
from tests.beds.nights import Nights
from tests.beds.serving import Service, serving

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


@pytest.fixture
def nights(shared_btrfs: Path) -> Nights:
    """A pool whose one host is this machine, backed up once."""
    nights = Nights(shared_btrfs)
    write(nights.source / "www" / "index.html", "welcome")
    write(nights.source / "www" / "inner" / "deep", "deep")
    write(nights.source / "www" / "tool", "tool", 0o4755)
    write(nights.source / "other" / "crontab", "* * * * * root of the backup")
    nights.host("here", nights.source, address=None)
    assert nights.run("here")["here"]["outcome"] == "complete"
    return nights


def wish(nights: Nights, *names: str, **more: object) -> dict[str, object]:
    return {"host": "here", "backup": "latest", "paths": [str(nights.source / name) for name in names], **more}


def finished(service: Service, job: str) -> dict[str, object]:
    for _ in range(600):
        answer = service.agent().ask("job", job=job)
        if answer["state"] in ("done", "failed"):
            return dict(answer)
        time.sleep(0.05)
    raise AssertionError((answer, service.log_text))


def restored(service: Service, words: dict[str, object]) -> dict[str, object]:
    return finished(service, service.agent().ask("restore", **words)["job"])


def refused(service: Service, words: dict[str, object]) -> str:
    messages = []
    for verb in ("preview", "restore"):
        with pytest.raises(RequestRefused) as exception_info:
            service.agent().ask(verb, **words)
        assert exception_info.value.kind == "refused", exception_info.value
        messages.append(f"{exception_info.value.message} {exception_info.value.hint}")
    return messages[0]


def test_of_this_machine_nothing_is_put_back_unless_the_administrator_has_named_a_folder(nights: Nights) -> None:
    www = nights.source / "www"
    before = manifest(www)
    shutil.rmtree(www)
    with serving(nights.config) as service:
        assert "--restore-below" in refused(service, wish(nights, "www"))
    assert not www.exists()
    www.mkdir()
    with serving(nights.config, "--restore-below", str(www)) as service:
        assert "--restore-below" in refused(service, wish(nights, "other"))
        assert "--restore-below" in refused(service, wish(nights, "www", "other/crontab"))
        done = restored(service, wish(nights, "www", overwrite="all"))
        assert done["state"] == "done", str(done)
    assert differences(before, manifest(www)) == []  # its own place: with the setuid bit


def test_what_the_folder_is_in_keeps_its_owner_and_mode_whatever_the_backup_says(nights: Nights) -> None:
    nights.source.chmod(0o711)
    with serving(nights.config, "--restore-below", str(nights.source / "www")) as service:
        (nights.source / "www" / "index.html").unlink()
        done = restored(service, wish(nights, "www/index.html", overwrite="all"))
        assert done["state"] == "done", str(done)
    assert stat.S_IMODE(nights.source.stat().st_mode) == 0o711
    assert (nights.source / "www" / "index.html").read_text() == "welcome"


def failure(service: Service, words: dict[str, object]) -> str:
    done = restored(service, words)
    assert done["state"] == "failed", str(done)
    return str(done["error"])


@contextmanager
def bound(subject: Path, to: Path) -> Iterator[None]:
    work("mount", "--bind", subject, to)
    try:
        yield
    finally:
        work("umount", to)


def test_no_symlink_and_no_mount_in_such_a_folder_leads_out_of_it(nights: Nights) -> None:
    """A folder of the backup was replaced by a way to another folder: a symlink, then a bind mount."""
    www, outside = nights.source / "www", nights.top / "outside"
    write(outside / "kept", "mine")
    outside.chmod(0o700)
    before = manifest(outside)
    with serving(nights.config, "--restore-below", str(www)) as service:
        shutil.rmtree(www / "inner")
        (www / "inner").symlink_to(outside)
        for name in ("www", "www/inner", "www/inner/deep"):
            done = restored(service, wish(nights, name, overwrite="all"))
            assert (done["state"], "symlink" in str(done)) == ("failed", True), str(done)
            assert differences(before, manifest(outside)) == []
        (www / "inner").unlink()
        (www / "inner").mkdir()
        with bound(outside, www / "inner"):
            for name in ("www", "www/inner", "www/inner/deep"):
                done = restored(service, wish(nights, name, overwrite="all"))
                assert (done["state"], "is mounted there" in str(done["lines"])) == ("failed", True), str(done)
                assert differences(before, manifest(outside)) == []
        with pytest.raises(RequestRefused) as wrong:
            service.agent().ask("restore", **wish(nights, "www/../other"))
        assert wrong.value.kind == "usage"


def test_nothing_that_another_user_put_into_the_folder_for_restores_leads_out_of_it(nights: Nights, tmp_path: Path) -> None:
    """It is a folder that all users may write to, such as /var/tmp; the name of the next restore is predictable."""
    tmp_path.chmod(0o1777)
    planted, outside = tmp_path / f"here-{nights.names('here')[-1]}", nights.top / "outside"
    outside.mkdir()
    words = wish(nights, "www", to="folder")
    with serving(nights.config, "--restore-to", str(tmp_path)) as service:
        planted.symlink_to(outside)
        assert "Not a directory" in failure(service, words)
        planted.unlink()
        planted.mkdir()
        os.chown(planted, 65534, 65534)
        assert "belongs to the user nobody" in failure(service, words)
        assert list(planted.iterdir()) == list(outside.iterdir()) == []
        os.chown(planted, 0, 0)
        with bound(outside, planted):
            assert "is mounted there" in failure(service, words)
        assert list(planted.iterdir()) == list(outside.iterdir()) == []
        planted.rmdir()
        done = restored(service, words)
        assert done["state"] == "done", str(done)
    www = planted / str(nights.source / "www")[1:]
    assert (www / "index.html").read_text() == "welcome"
    assert stat.S_IMODE((www / "tool").stat().st_mode) == 0o755  # setuid bits are not restored
    assert stat.S_IMODE(planted.stat().st_mode) == 0o700


def test_another_pool_of_the_server_is_never_restored_into(nights: Nights, tmp_path: Path) -> None:
    """Neither by its path, nor through a folder that it is in, nor by root."""
    second = nights.top / "second"
    work("btrfs", "-q", "subvolume", "create", second)
    config = nights.config.with_name("second.toml")
    write(second / "hosts" / "web1" / "kept", "of the other pool")
    config.write_text(f'[pool]\npath = "{second}"\nstate = "{tmp_path}/state"\n')
    before = manifest(second)
    done = nights.backupd("restore", "here", nights.source / "www", "--to", second / "hosts", check=False)
    assert (done.returncode, "another pool" in done.stderr) == (2, True)
    work("mount", "--bind", second, nights.source / "www" / "inner")
    try:
        done = nights.backupd("restore", "here", nights.source, "--overwrite=all", "--to-host", check=False)
        assert done.returncode == 1
    finally:
        work("umount", nights.source / "www" / "inner")
    assert differences(before, manifest(second)) == []
    with serving(nights.config, "--restore-below", "/") as service:
        words: dict[str, object] = {"host": "here", "backup": "latest", "paths": [str(second)]}
        assert "a folder of btrkeep" in refused(service, words)
