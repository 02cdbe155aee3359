"""Offsite copies in a local S3 endpoint, also with object lock, whose versions cannot be deleted. The long forms."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beds import TOP, work
from tests.btrfs.test_offsite import KEY, Offsite, far, fill

pytestmark = [pytest.mark.btrfs, pytest.mark.timeout(1800)]  # pip fetches 400 MB
__all__ = ["far"]

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": KEY}


@contextmanager
def s3(folder: Path) -> Iterator[str]:
    """An S3 endpoint, moto's, and the command `aws`, in an environment of its own that pip makes there: 400 MB."""
    work(sys.executable, "-m", "venv", folder)
    work(folder / "bin/pip", "-q", "install", "moto[server]", "awscli", timeout=900)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([folder / "bin/moto_server", "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        with socket.socket() as trial:
            while trial.connect_ex(("127.0.0.1", port)):
                assert time.monotonic() < end
                time.sleep(0.1)
        yield f"s3:http://127.0.0.1:{port}/copies"
    finally:
        server.kill()
        server.wait()


def credentials_of(far: Offsite) -> Path:
    """Writes the file of credentials that the service reads."""
    return far.secret("environment", "".join(f"{name}={value}\n" for name, value in CREDENTIALS.items()))


@contextmanager
def locked_bucket(far: Offsite) -> Iterator[str]:
    """An endpoint with a bucket whose versions are locked for 30 days, and a repository in it."""
    with s3(far.away / "moto") as url:
        work(far.away / "moto/bin/python", "-c", LOCKED, "make", endpoint_of(url), env=CREDENTIALS)
        far.settings(repository=url, environment_file=str(credentials_of(far)))
        far.offsite("init", "far")
        yield url


def endpoint_of(url: str) -> str:
    return url.removeprefix("s3:").removesuffix("/copies")


@pytest.mark.long
def test_object_storage_takes_it_and_gives_it_back(far: Offsite) -> None:
    fill(far.night.source)
    with s3(far.away / "moto") as url:
        far.settings(repository=url, environment_file=str(credentials_of(far)))
        far.offsite("init", "far")
        for day in (1, 2):
            far.backup(f"2026-03-0{day}T22:00:00Z")
            far.run("--now", f"2026-03-0{day}T23:00:00Z")
        far.offsite("check", "--sample", "100%")
        words = (
            "restic",
            "--repo",
            url,
            "--password-file",
            str(far.password),
            "restore",
            "latest",
            "--target",
            str(far.away / "back"),
        )
        subprocess.run(words, check=True, env={**os.environ, **CREDENTIALS}, stdout=subprocess.DEVNULL)
    shown = far.away / "back/btrkeep/data" / str(far.night.source).lstrip("/")
    assert work("rsync", "-n", "-aHAXci", "--delete", f"{far.night.source}/", f"{shown}/").stdout == ""


LOCKED = """
import boto3, sys
s3 = boto3.client("s3", endpoint_url=sys.argv[2], region_name="us-east-1")
if sys.argv[1] == "make":
    s3.create_bucket(Bucket="copies", ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 30}}
    s3.put_object_lock_configuration(Bucket="copies", ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule})
else:
    for one in s3.list_object_versions(Bucket="copies")["Versions"]:
        try:
            s3.delete_object(Bucket="copies", Key=one["Key"], VersionId=one["VersionId"])
        except s3.exceptions.ClientError as error:
            print(error.response["Error"]["Code"])
        else:
            print("deleted", one["Key"])
    s3.put_object(Bucket="copies", Key="config", Body=b"garbage", ChecksumAlgorithm="SHA256")
"""


UNTIL = """
import boto3, sys
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1")
for one in s3.list_object_versions(Bucket="copies")["Versions"]:
    until = s3.head_object(Bucket="copies", Key=one["Key"], VersionId=one["VersionId"])["ObjectLockRetainUntilDate"]
    print((until - one["LastModified"]).days, one["Key"])
"""


def renewing() -> str:
    """Returns the lines of docs/offsite.rst that renew the locks."""
    text = (TOP / "docs/offsite.rst").read_text()
    return text[text.index("      until=$(date") :].partition("\n\n")[0]


@pytest.mark.long
def test_the_lines_of_the_documentation_renew_the_locks_of_all_but_restic_s_own(far: Offsite) -> None:
    fill(far.night.source)
    with locked_bucket(far) as url:
        endpoint, python = endpoint_of(url), far.away / "moto/bin/python"
        far.backup("2026-03-01T22:00:00Z")
        far.run("--now", "2026-03-01T23:00:00Z")
        path = f"{far.away / 'moto/bin'}:{os.environ['PATH']}"
        by_name = {**CREDENTIALS, "PATH": path, "AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
        work("sh", "-c", renewing(), env=by_name)
        rows = [line.split() for line in work(python, "-c", UNTIL, endpoint, env=CREDENTIALS).stdout.splitlines()]
    assert {key.partition("/")[0] for _, key in rows} >= {"config", "data", "index", "snapshots"}
    assert {int(days) for days, key in rows if not key.startswith("locks/")} <= {59, 60}
    assert {int(days) for days, key in rows if key.startswith("locks/")} <= {29, 30}


@pytest.mark.long
def test_objects_deleted_with_the_servers_key_come_back_from_a_bucket_with_object_lock(far: Offsite) -> None:
    """restic writes to such a bucket, forgets and prunes there. Every version stays, and rclone can read an earlier state."""
    fill(far.night.source)
    with locked_bucket(far) as url:
        endpoint, python = endpoint_of(url), far.away / "moto/bin/python"
        for day in (1, 2):
            far.backup(f"2026-03-0{day}T22:00:00Z")
            far.run("--now", f"2026-03-0{day}T23:00:00Z")
        time.sleep(1.5)
        before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        time.sleep(1.5)
        words = ("restic", "--repo", url, "--password-file", far.password, "--no-cache")
        ids = [row["id"] for row in json.loads(work(*words, "snapshots", "--json", env=CREDENTIALS).stdout)]
        work(*words, "forget", *ids, "--prune", env=CREDENTIALS)
        lines = set(work(python, "-c", LOCKED, "attack", endpoint, env=CREDENTIALS).stdout.splitlines())
        assert lines == {"AccessDenied"}
        assert work(*words, "snapshots", env=CREDENTIALS, check=False).returncode != 0
        remote = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": endpoint, "ACCESS_KEY_ID": "testing", "SECRET_ACCESS_KEY": KEY}
        by_name = {"RCLONE_CONFIG": "/dev/null", **{f"RCLONE_CONFIG_FAR_{name}": text for name, text in remote.items()}}
        by_name |= {"AWS_CA_BUNDLE": ""}  # with one of a proxy rclone refuses every S3
        work("rclone", "copy", "--s3-version-at", before, "far:copies", far.away / "copy", env=by_name)
    plain = ("restic", "--repo", far.away / "copy", "--password-file", far.password, "--no-cache")
    work(*plain, "check", "--read-data")
    work(*plain, "restore", "latest", "--target", far.away / "back")
    shown = far.away / "back/btrkeep/data" / str(far.night.source).lstrip("/")
    assert work("rsync", "-n", "-aHAXci", "--delete", f"{far.night.source}/", f"{shown}/").stdout == ""
