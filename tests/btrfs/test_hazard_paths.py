"""Source paths and exclude patterns: missing, excluded, changed from night to night, and planted by a host."""

import os
from pathlib import Path

import pytest

from tests.beds import manifest, work
from tests.beds.nights import Nights

NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups rsync"


def grow(top: Path, *names: str) -> Path:
    for name in names or ("one", "two/deep"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(f"content of {name}\n")
    return top


# --- missing


def see_failed(nights: Nights, broken: Path, good: Path) -> None:
    """Requires that the newest backup is final as failed, has the files that could be fetched, and is not a base."""
    assert nights.record("web")["state"] == nights.listed("web")[0]["state"] == "failed"
    assert nights.subvolume("web")["Flags"] == "readonly"
    assert nights.differences("web", good) == []
    outcomes = {path["path"]: path["outcome"] for path in nights.record("web")["paths"]}
    assert outcomes == {str(broken): "broken", str(good): "complete"}
    assert str(broken) in nights.listed("web")[0]["error"]


@pytest.mark.parametrize("address", ["web", None], ids=["over the network", "on this machine"])
def test_a_missing_source_path_fails_the_backup_but_other_paths_and_hosts_are_fetched(nights: Nights, address: str | None) -> None:
    path, gone = grow(nights.source / "there"), grow(nights.source / "a-gone")
    other = grow(nights.source / "other")
    nights.settings("backup", concurrency=1)
    nights.host("web", gone, path, address=address)
    nights.host("zzz", other, address=address)
    nights.run()
    good = nights.names("web")[0]
    gone.rename(nights.source / "aside")
    grow(path, "three")
    results = nights.run(status=1)
    assert {name: result["outcome"] for name, result in results.items()} == {"web": "failed", "zzz": "complete"}
    assert "is missing" in results["web"]["error"]
    see_failed(nights, gone, path)
    assert nights.status("web")["state"] == "failing"

    (nights.source / "aside").rename(gone)
    assert nights.run("web")["web"]["outcome"] == "complete"
    assert nights.record("web")["base"] == nights.grew_from("web") == good  # not the failed one
    assert nights.differences("web", gone) == []
    assert nights.status("web")["state"] == "ok"


def test_a_source_path_that_is_a_file_is_fetched_and_fails_the_backup_when_it_is_missing(nights: Nights) -> None:
    path, other = grow(nights.source, "file") / "file", grow(nights.source / "there")
    nights.host("web", path, other)
    nights.run("web")
    assert nights.data("web", path).read_text() == "content of file\n"
    assert nights.run("web")["web"]["new_bytes"] == 0
    path.unlink()
    assert nights.run("web", status=1)["web"]["outcome"] == "failed"
    see_failed(nights, path, other)


def test_a_source_path_that_was_a_folder_and_became_a_file_is_suspect(nights: Nights) -> None:
    path = grow(nights.source / "path", *(f"file{number}" for number in range(20)))
    nights.host("web", path)
    nights.run("web")
    work("rm", "-r", path)
    path.write_text("no folder")
    assert nights.run("web", status=1)["web"]["outcome"] == "suspect"


def test_a_source_path_that_may_not_be_entered_fails_the_backup(nights: Nights, public_folder: Path) -> None:
    path, other = grow(public_folder / "path"), grow(public_folder / "there")
    nights.host("web", path, other, rsync_path=NOBODY)
    nights.run("web")
    path.chmod(0)
    assert nights.run("web", status=1)["web"]["outcome"] == "failed"
    see_failed(nights, path, other)


def test_a_source_path_of_which_only_a_parent_is_missing_fails_the_backup(nights: Nights) -> None:
    path, other = grow(nights.source / "parent" / "path"), grow(nights.source / "there")
    nights.host("web", path, other)
    nights.run("web")
    (nights.source / "parent").rename(nights.source / "aside")
    assert nights.run("web", status=1)["web"]["outcome"] == "failed"
    see_failed(nights, path, other)


# --- exclude patterns


def names_in(nights: Nights, path: Path) -> set[str]:
    return {os.fsdecode(name) for name in manifest(nights.data("web", path)) if name}


@pytest.mark.parametrize("address", ["web", None], ids=["over the network", "on this machine"])
def test_an_absolute_pattern_means_the_same_for_every_source_path(nights: Nights, address: str | None) -> None:
    srv, home = nights.source / "srv", nights.source / "home"
    for path in (srv, home):
        grow(path, "cache/x", "www/cache/x", "keep/x", "thing.tmp", "srv/cache/x")
    nights.host("web", srv, home, address=address, exclude=[f"{srv}/cache", f"{home}/www/cache", "*.tmp", f"{home}/keep/*"])
    nights.run("web")
    everything = {"cache", "cache/x", "www", "www/cache", "www/cache/x", "keep", "keep/x", "srv", "srv/cache", "srv/cache/x"}
    assert names_in(nights, srv) == everything - {"cache", "cache/x"}
    assert names_in(nights, home) == everything - {"www/cache", "www/cache/x", "keep/x"}

    # the same patterns with one path above both: the same files, and nothing of them is transferred again
    nights.host("web", nights.source, address=address, exclude=nights.tables["host"]["web"]["exclude"])
    assert nights.run("web")["web"]["new_bytes"] == 0
    assert names_in(nights, srv) == everything - {"cache", "cache/x"}
    assert names_in(nights, home) == everything - {"www/cache", "www/cache/x", "keep/x"}


def test_what_is_newly_excluded_leaves_the_next_backup_and_no_other_path_loses_anything(nights: Nights) -> None:
    srv, home = grow(nights.source / "srv", "a/x", "b/x"), grow(nights.source / "home", "a/x", "b/x")
    nights.host("web", srv, home)
    nights.run("web")
    nights.host("web", srv, home, exclude=[f"{srv}/a"])
    nights.run("web")
    assert names_in(nights, srv) == {"b", "b/x"}
    assert names_in(nights, home) == {"a", "a/x", "b", "b/x"}
    assert nights.data("web", srv / "a" / "x", nights.names("web")[0]).exists()


def test_excluding_one_source_path_by_a_pattern_of_a_path_above_does_not_delete_what_it_fetched(nights: Nights) -> None:
    srv, home = grow(nights.source / "srv"), grow(nights.source / "home")
    nights.host("web", srv, home, exclude=[str(home), f"{nights.source}/*"])  # named as a source, so it is wanted
    for _ in range(2):
        nights.run("web")
        assert nights.differences("web", srv) == []
        assert nights.differences("web", home) == []


def test_a_path_with_odd_characters_is_fetched_and_patterns_do_not_misread_it(nights: Nights) -> None:
    odd = grow(nights.source / "a [b] 'c' \"d\" $e #f; *".replace("*", "\\g"), "x", "y.tmp")
    nights.host("web", odd, exclude=["*.tmp"])
    for _ in range(2):
        nights.run("web")
        assert names_in(nights, odd) == {"x"}


# --- the configuration changes


def test_a_path_that_left_the_configuration_leaves_the_next_backup(nights: Nights) -> None:
    first, second = grow(nights.source / "one"), grow(nights.source / "two")
    nights.host("web", first, second)
    nights.run("web")
    nights.host("web", second)
    nights.run("web")
    assert nights.differences("web", second) == []
    assert {path.name for path in nights.data("web", nights.source).iterdir()} == {"two"}
    assert nights.data("web", first, nights.names("web")[0]).exists()


def test_a_path_may_change_to_one_below_it_and_back(nights: Nights) -> None:
    srv = grow(nights.source / "srv", "www/x", "mail/x", "y")
    www = srv / "www"
    nights.host("web", srv)
    nights.run("web")
    nights.host("web", www)
    assert nights.run("web")["web"]["new_bytes"] == 0
    assert nights.differences("web", www) == []
    assert {path.name for path in nights.data("web", srv).iterdir()} == {"www"}
    nights.host("web", srv)
    nights.run("web")
    assert nights.differences("web", srv) == []


# --- what a host plants


@pytest.fixture
def outside(nights: Nights) -> Path:
    """A folder into which nothing may be written: beside the pool, reached by an absolute symlink."""
    outside = nights.top / "outside"
    grow(outside, "www/precious", "precious")
    return outside


@pytest.mark.parametrize("first", [".", "srv"], ids=["the root", "srv"])
def test_a_symlink_planted_where_a_parent_folder_must_be_is_not_followed(nights: Nights, outside: Path, first: str) -> None:
    """Earlier, everything was a source path, and the host made /srv (or /srv/www) a link; now only /srv/www is a source path."""
    root = nights.source / "root"
    planted = root / "srv" if first == "." else root / "srv" / "www"
    grow(root, "etc/x", "srv/y")
    if first == ".":
        work("rm", "-r", planted)
    planted.symlink_to(outside)
    nights.host("web", root / first)
    nights.run("web")
    assert nights.data("web", planted).is_symlink()
    before = manifest(outside)

    planted.unlink()
    grow(root / "srv" / "www", "evil")
    nights.host("web", root / "srv" / "www")
    nights.run("web")
    assert manifest(outside) == before
    assert not nights.data("web", root / "srv").is_symlink()
    assert nights.differences("web", root / "srv" / "www") == []


def test_a_symlink_planted_by_one_path_of_a_run_is_not_followed_by_the_next_one(nights: Nights, outside: Path) -> None:
    """The host answers for /srv/a with a link instead of /srv, which is also a parent of the next path /srv/b."""
    srv = nights.source / "srv"
    grow(srv, "a/x", "b/evil")
    nights.host("web", srv / "a", srv / "b")
    nights.run("web")
    before = manifest(outside)
    aside = nights.source / "aside"
    grow(outside, "a/x")
    before = manifest(outside)
    swap = f"mv {srv} {aside} && ln -s {outside} {srv}"
    back = f"rm {srv} && mv {aside} {srv}"
    liar = nights.top / "liar"
    liar.write_text(
        "#!/bin/sh\n"
        f'case "$*" in */srv/a/*) {swap}; set -- $(echo "$@" | sed "s,/srv/a/$,/srv,"); "$@"; code=$?; {back}; exit $code;; esac\n'
        'exec "$@"\n'
    )
    liar.chmod(0o755)
    nights.host("web", srv / "a", srv / "b", rsync_path=f"{liar} rsync")
    nights.backupd("run", "web", check=False)
    assert manifest(outside) == before
    assert not os.path.lexists(outside / "b")


def test_a_symlinked_source_path_is_followed(nights: Nights) -> None:
    real = grow(nights.source / "real")
    (nights.source / "link").symlink_to("real")
    nights.host("web", nights.source / "link")
    for _ in range(2):
        nights.run("web")
        assert nights.differences("web", real.parent / "link") == []
        assert (nights.data("web", nights.source / "link") / "one").read_text() == "content of one\n"
