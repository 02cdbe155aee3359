"""A restore equals the original: everything a tree can contain, after two nights, on every way into the pool."""

import os
import stat
from pathlib import Path

import pytest

from tests.beds import ssh, work
from tests.beds.everything import ODD_NAMES, at, everything, write
from tests.beds.nights import Nights


@pytest.fixture
def tree(nights: Nights) -> Path:
    return everything(nights.source / "srv")


def change(tree: Path) -> None:
    """Changes the files as a day's work would: files are changed, deleted, added, or become another type."""
    modes = tree / "owners_and_modes"
    modes.joinpath("mode4755").chmod(0o700)
    os.chown(modes / "mode0640", 0, 0)
    os.chown(modes / "sticky", 5, 5)
    at(tree / "times" / "1901", -2_170_000_000, 123_456_788)
    at(tree / "times" / "link", 5)
    attributes = tree / "attributes"
    work("setfacl", "-x", "u:1234", "-m", "g:4000000000:rw", attributes / "acl")
    work("setfacl", "-k", attributes / "folder")
    work("setfacl", "-b", attributes / "folder" / "heir")
    os.removexattr(attributes / "xattr", "user.text")
    os.setxattr(attributes / "xattr", "trusted.t", b"other")
    work("setcap", "-r", attributes / "capability")
    work("setcap", "cap_chown+ep", write(attributes / "another", mode=0o755))
    special = tree / "special"
    special.joinpath("char").unlink()
    os.mknod(special / "char", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    special.joinpath("fifo").unlink()
    write(special / "fifo", "a file now")
    special.joinpath("up").unlink()
    (special / "up").mkdir()
    write(special / "up" / "inside")
    special.joinpath("dangling").unlink()
    special.joinpath("dangling").symlink_to("else/where")
    contents = tree / "contents"
    contents.joinpath("again").unlink()
    write(contents / "again", "no link any more")
    with contents.joinpath("sparse").open("r+b") as file:
        file.seek(15_000_000)
        file.write(os.urandom(5000))
    with contents.joinpath("binary").open("r+b") as file:
        file.truncate(123_456)
    work("rm", "-r", contents / "empty-folder")
    write(contents / "empty-folder", "a file now")
    contents.joinpath("below").rename(contents / "moved")
    for name in ODD_NAMES[::2]:
        (tree / "names" / os.fsdecode(name)).rename(tree / "names" / os.fsdecode(b"2" + name[:250]))


@pytest.mark.parametrize("way", ["on this machine", "over the network", "over ssh"])
def test_source_and_backup_are_identical_after_a_first_and_a_second_night(
    nights: Nights, tree: Path, way: str, request: pytest.FixtureRequest
) -> None:
    if way == "over ssh":
        server: ssh.Sshd = request.getfixturevalue("sshd")
        nights.settings("ssh", command="ssh -F none", key=str(server.key), known_hosts=str(server.known_hosts))
        nights.host("web", tree, address=server.address, port=server.port)
    else:
        nights.host("web", tree, address=None if way == "on this machine" else "web")
    first = nights.run("web")["web"]
    assert (first["outcome"], first["warnings"]) == ("complete", [])
    assert nights.differences("web", tree) == []
    kept = nights.names("web")[0]

    change(tree)
    second = nights.run("web")["web"]
    assert (second["outcome"], second["warnings"]) == ("complete", [])
    assert nights.differences("web", tree) == []
    assert nights.differences("web", tree, kept) != []  # the first one is unchanged

    third = nights.run("web")["web"]
    assert nights.differences("web", tree) == []
    assert third["new_bytes"] == 0


def test_the_parents_of_a_source_path_keep_their_owners_and_modes(nights: Nights) -> None:
    www = nights.source / "srv" / "www"
    write(www / "file")
    os.chown(nights.source / "srv", 12, 34)
    nights.source.joinpath("srv").chmod(0o2711)
    nights.host("web", www)
    nights.run("web")
    parent = nights.data("web", nights.source / "srv").stat()
    assert (parent.st_uid, parent.st_gid, stat.S_IMODE(parent.st_mode)) == (12, 34, 0o2711)


def test_other_ways_of_writing_bring_back_the_same(nights: Nights, tree: Path) -> None:
    for inplace in ("large", "never"):
        nights.host(inplace, tree, inplace=inplace)
    nights.run()
    change(tree)
    nights.run()
    assert nights.differences("large", tree) == []
    assert nights.differences("never", tree) == []
