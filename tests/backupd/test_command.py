"""The command line of rsync, as a tuple and as a real rsync, shell, rrsync and ssh interpret it."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backupd.rsync import command
from backupd.rsync.bandwidth import Bucket, prepare
from backupd.rsync.command import LARGE, passes, probe_command, rsync_command, ssh_command
from btrkeep.config import HostConfig, SshSettings
from tests.backupd.pulls import FAKESSH, arrived, pull, restricted, run
from tests.beds import work
from tests.beds.ssh import Sshd

INPLACE = ("always", "large", "never")
WITH_RRSYNC = pytest.mark.skipif(not shutil.which("rrsync"), reason="left out: through rrsync (it is not installed)")


# Options that are never used

NEVER = re.findall(r"``(-[\w-]+)``", str(command.__doc__).split("Never:")[1])
NEVER_SHORT = {name[1:] for name in NEVER if not name.startswith("--")} | {"F", "s", "z"}
NEVER_LONG = {name for name in NEVER if name.startswith("--")} | {"--secluded-args", "--protect-args", "--compress", "--old-args"}

_words = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r"), min_size=1, max_size=12)
_patterns = st.lists(
    _words.map(lambda word: word if word[:2] not in ("+ ", "- ", "! ") and word != "!" else f"x{word}"), max_size=3
)
HOSTS = st.builds(
    HostConfig,
    name=st.just("web1"),
    address=st.sampled_from((None, "root@web1.example.org", "[fe80::1]")),
    port=st.sampled_from((None, 2222)),
    rsync_path=st.sampled_from((None, "sudo rsync")),
    ssh_options=st.sampled_from(((), ("ProxyJump=gate.example.org",))),
    inplace=st.sampled_from(INPLACE),
    stall=st.floats(min_value=0.001, max_value=1e8),
    exclude=_patterns.map(tuple),
    self_excluded=_patterns.map(tuple),
    one_file_system=st.booleans(),
)
PATHS = st.lists(_words.filter(lambda word: "/" not in word and word not in (".", "..")), max_size=3).map(
    lambda parts: "/" + "/".join(parts)
)


def every_command(host: HostConfig, path: str, buckets: tuple[Bucket, ...] = ()) -> list[tuple[bool, tuple[str, ...]]]:
    """Returns all commands for a source path, each with whether the working subvolume was made from a snapshot."""
    return [
        (based, rsync_command(host, SshSettings(), path, "/srv/backup/x", one_pass, buckets))
        for based in (False, True)
        for one_pass in passes(host.inplace, based=based)
    ]


def options(words: tuple[str, ...]) -> list[str]:
    """Returns the words that rsync reads as options: neither their values nor the words after them."""
    values = {place + 1 for place, word in enumerate(words) if word in ("--rsh", "--rsync-path")}
    return [word for place, word in enumerate(words[1:-2], 1) if place not in values]


def test_the_list_of_what_is_never_asked_for_is_read_from_where_it_is_explained() -> None:
    assert {"--ignore-errors", "--max-delete", "-s", "-z", "--trust-sender"} <= set(NEVER)


@given(HOSTS, PATHS, st.booleans())
def test_whatever_is_configured_no_dangerous_option_is_given(host: HostConfig, path: str, limited: bool) -> None:
    buckets = (Bucket(Path("/srv/backup/.btrkeep/bandwidth/pool"), 1_000_000),) if limited else ()
    for _, words in every_command(host, path, buckets):
        given_options = options(words)
        assert all(word.startswith("--") for word in given_options)
        assert not {word.split("=")[0] for word in given_options} & NEVER_LONG
        rules = [word for word in given_options if word.startswith("--filter")]
        assert all(re.match(r"--filter=[+-] .", rule, re.DOTALL) for rule in rules)  # no merge files, nothing per folder
        assert not any(word.startswith("-") for word in words[-2:])


@given(HOSTS, PATHS)
def test_sparse_is_for_an_empty_subvolume_and_in_place_for_a_snapshot(host: HostConfig, path: str) -> None:
    for based, words in every_command(host, path):
        assert ("--sparse" in words) is not based
        assert ("--inplace" in words) <= based
        assert ("--inplace" in words) == ("--no-whole-file" in words)
        assert not {"--inplace", "--partial"} <= set(words)


@pytest.mark.parametrize("inplace", INPLACE)
@pytest.mark.parametrize("based", [False, True])
def test_the_other_side_is_asked_for_no_compression_and_no_hidden_arguments(tmp_path: Path, inplace: str, based: bool) -> None:
    """The arguments on the remote side: rsync's own bundle of short options."""
    shell = tmp_path / "ssh"
    shell.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\nexec {shlex.quote(str(FAKESSH))} "$@"\n', encoding="utf-8")
    shell.chmod(0o755)
    (tmp_path / "source").mkdir()
    pull(tmp_path / "source", tmp_path / "backup", based=based, shell=shell, inplace=inplace)
    for line in (tmp_path / "asked").read_text(encoding="utf-8").splitlines():
        bundle = re.search(r"--server --sender -(\w+)e\.", line)
        assert bundle
        assert not set(bundle[1]) & NEVER_SHORT
        assert not any(word in line for word in NEVER_LONG)


# Source paths

NAMES = (
    "plain", "a  b", " lead", "trail ", "*", "a*b", "a?b", "[x]", "]x[", "[!x]", "back\\slash", "\\", "end\\", "b\\*s", "b\\[q]",
    "\\\\two", "it's", '"quoted"', "$HOME", "$(id)", "`id`", "a;b", "a&b", "a|b", "a<b>c", "(a)", "{a,b}", "~", "~root", "!x",
    "#x", "--delete", "=x", "^x", "@x", "%x", "a:b", "+ x", "- x", "a\tb", "Umlaut ä", "\udcff\udcfe",
)  # fmt: skip
DECOYS = ("a", "ab", "axb", "x", "b", "a b c", "plain2", "backslash", "bxs", "bq", "HOME", "wrong", "q", "two")
GLOBBED = ("*", "a*b", "a?b", "[x]", "[!x]")  # names that, read as a pattern, match a decoy


def field_of(tmp_path: Path, name: str) -> Path:
    """Makes a folder of that name with one file, beside others that a wrong interpretation of the name would find."""
    for other in DECOYS:
        (tmp_path / "source" / other).mkdir(parents=True)
        (tmp_path / "source" / other / "wrong").write_text("wrong", encoding="utf-8")
    wanted = tmp_path / "source" / name
    wanted.mkdir()
    (wanted / "right").write_text("right", encoding="utf-8")
    return wanted


def only(path: Path) -> set[bytes]:
    return {os.fsencode(path).lstrip(b"/")}


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_the_right_folder_arrives_and_nothing_else_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    wanted = field_of(tmp_path, name)
    pulled = pull(wanted, tmp_path / "backup")
    assert (pulled.exit_code, arrived(tmp_path / "backup")) == (0, only(wanted / "right"))
    (wanted / "right").rename(wanted / "new")
    pulled = pull(wanted, tmp_path / "backup", based=True)
    assert (pulled.exit_code, arrived(tmp_path / "backup")) == (0, only(wanted / "new"))


@pytest.mark.slow
@pytest.mark.parametrize("limited", [False, True], ids=["direct", "within a budget"])
def test_a_folder_of_this_machine_arrives_whatever_it_is_called(tmp_path: Path, limited: bool) -> None:
    """Without a shell, and through the local shell of the bandwidth relay."""
    buckets = [prepare(tmp_path / "bandwidth", "pool", 10**9)] if limited else []
    for number, name in enumerate(NAMES if not limited else NAMES[::3]):
        wanted, backup = field_of(tmp_path / str(number), name), tmp_path / str(number) / "backup"
        backup.mkdir()
        [one_pass] = passes("always", based=False)
        done = run(
            rsync_command(HostConfig("here", paths=(str(wanted),)), SshSettings(), str(wanted), str(backup), one_pass, buckets)
        )
        assert (name, done.exit_code, arrived(backup)) == (name, 0, only(wanted / "right"))


@pytest.mark.slow
@WITH_RRSYNC
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_restricted_key_sends_the_right_folder_or_nothing(tmp_path: Path, name: str) -> None:
    """rrsync removes backslashes and expands wildcards itself, so such names cannot be passed to it: then nothing may arrive."""
    wanted = field_of(tmp_path, name)
    pulled = pull(wanted, tmp_path / "backup", shell=restricted(tmp_path / "ssh"))
    if name in GLOBBED:
        assert pulled.exit_code
        assert arrived(tmp_path / "backup") == set()
    else:
        assert (pulled.exit_code, arrived(tmp_path / "backup")) == (0, only(wanted / "right"))


@pytest.mark.slow
@WITH_RRSYNC
def test_a_restricted_key_is_enough_for_every_pass_and_for_the_probe(tmp_path: Path) -> None:
    wanted, shell = field_of(tmp_path, "plain"), restricted(tmp_path / "ssh")
    (wanted / "large").write_bytes(os.urandom(LARGE))
    for inplace in INPLACE:
        for based in (False, True):
            pulled = pull(wanted, tmp_path / "backup", shell=shell, based=based, inplace=inplace, one_file_system=True)
            assert (pulled.exit_code, pulled.counts()) == (0, {})
    assert arrived(tmp_path / "backup") == only(wanted / "right") | only(wanted / "large")
    probe = run(probe_command(HostConfig("web1", address="peer"), SshSettings(command=str(shell)), str(wanted)))
    assert probe.exit_code == 0
    names = [line.split()[-1] for line in probe.stdout.splitlines()]
    assert names[-3:] == [str(wanted).encode().strip(b"/") + below for below in (b"", b"/large", b"/right")]


def test_the_probe_of_a_source_that_is_missing_fails(tmp_path: Path) -> None:
    host, ssh = HostConfig("web1", address="peer"), SshSettings(command=shlex.quote(str(FAKESSH)))
    assert run(probe_command(host, ssh, str(tmp_path))).exit_code == 0
    assert run(probe_command(host, ssh, str(tmp_path / "missing"))).exit_code == 23
    assert run(probe_command(host, ssh, "/")).exit_code == 0


def test_a_source_that_is_a_single_file_arrives_under_its_absolute_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content", encoding="utf-8")
    (tmp_path / "beside").write_text("content", encoding="utf-8")
    assert pull(tmp_path / "file", tmp_path / "backup").exit_code == 0
    assert arrived(tmp_path / "backup") == only(tmp_path / "file")


def test_a_source_that_is_a_symlink_is_followed_and_those_below_it_are_kept(tmp_path: Path) -> None:
    wanted = field_of(tmp_path, "plain")
    (wanted / "inner").symlink_to("right")
    (tmp_path / "link").symlink_to(wanted)
    pull(tmp_path / "link", tmp_path / "backup")
    assert arrived(tmp_path / "backup") == only(tmp_path / "link" / "right")
    assert (tmp_path / "backup" / str(tmp_path / "link" / "inner").lstrip("/")).is_symlink()


# Filters: rsync's own transfer rooted at / is the truth

PATTERNS = (
    "{top}/srv/cache", "{top}/srv/cache/", "{top}/*/cache/*", "{top}/srv/*/tmp", "{top}/**/deep", "{top}/srv/***", "{top}", "*",
    "*.bak", "cache", "**/cache/*", "srv/cache", "/srv/cache", "lost+found", "{top}/srv/[cw]*", "?ack\\slash", "back\\slash",
    "with blank ",
)  # fmt: skip
TREE = (
    "srv/cache/a", "srv/cache/b.bak", "srv/www/tmp/c", "srv/www/index.bak", "srv/www/index", "srv/www/deep/d", "srv/back\\slash",
    "srv/lost+found/e", "srv/with blank ", "srv/with blank", "home/u/cache/f", "home/u/g", "home/cache", "home/deep/h",
)  # fmt: skip
SOURCES = (("",), ("/srv", "/home"), ("/srv/www", "/srv/cache", "/home/u"))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_the_same_whichever_source_path_it_meets(tmp_path: Path, pattern: str) -> None:
    top = tmp_path / "host"
    for name in TREE:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name, encoding="utf-8")
    exclude = pattern.format(top=top)
    for number, sources in enumerate([f"{top}{source}" for source in each] for each in SOURCES):
        backup = tmp_path / f"backup{number}"
        for source in sources:  # the backup of the night before, when nothing was left out
            shutil.copytree(source, backup / source.lstrip("/"))
            done = pull(source, backup, based=True, exclude=(exclude,))
            assert (done.exit_code, done.stderr) == (0, b"")
        everything = rooted_at_the_root(top, tmp_path / f"truth{number}", exclude, sources)
        inside = tuple(os.fsencode(source).lstrip(b"/") + b"/" for source in sources)
        assert (sources, arrived(backup)) == (sources, {name for name in everything if name.startswith(inside)})


def rooted_at_the_root(top: Path, destination: Path, exclude: str, sources: list[str]) -> set[bytes]:
    """Returns the names that a transfer of / brings with that pattern; outside of `top` only its parent folders.

    A source path is transferred even if the pattern matches it: only its content is left out.
    """
    destination.mkdir()
    way = [str(folder) for folder in reversed(top.parents) if str(folder) != "/"]
    wanted = [
        str(folder) for source in sources for folder in reversed((Path(source, "x")).parents) if len(str(folder)) >= len(str(top))
    ]
    rules = [
        *(f"+ {folder}" for folder in (*way, *wanted)),
        f"- {exclude}",
        f"+ {top}",
        *(f"- {folder.rstrip('/')}/*" for folder in ("/", *way)),
    ]
    work("rsync", "-a", *(f"--filter={rule}" for rule in rules), "/", f"{destination}/")
    return arrived(destination)


def test_what_one_source_path_leaves_out_is_not_deleted_where_another_fetched_it(tmp_path: Path) -> None:
    outer, inner = tmp_path / "host" / "a", tmp_path / "host" / "b"
    for folder in (outer, inner):
        folder.mkdir(parents=True)
        (folder / "file").write_text("content", encoding="utf-8")
    for _ in range(2):
        for folder in (inner, outer):
            pull(folder, tmp_path / "backup", based=True, exclude=(str(inner),))
    assert arrived(tmp_path / "backup") == only(outer / "file") | only(inner / "file")


def test_what_a_local_source_must_leave_out_is_left_out_before_anything_else_is_read(tmp_path: Path) -> None:
    wanted = field_of(tmp_path, "plain")
    (wanted / "pool").mkdir()
    (wanted / "pool" / "file").write_text("endless", encoding="utf-8")
    host = HostConfig("here", paths=(str(wanted),), self_excluded=(str(wanted / "pool"),), exclude=())
    [one_pass] = passes("always", based=False)
    done = run(rsync_command(host, SshSettings(), str(wanted), str(tmp_path / "backup"), one_pass))
    assert done.exit_code == 0
    assert arrived(tmp_path / "backup") == only(wanted / "right")


@pytest.mark.parametrize("address", [None, "root@web1"])
def test_snapshots_that_are_kept_for_streams_are_in_no_backup(tmp_path: Path, address: str | None) -> None:
    """Another server keeps them here; each would be one more complete copy of the subvolume, every night."""
    wanted = field_of(tmp_path, "plain")
    kept = wanted / ".btrkeep-source" / "office=1a2b3c=20261130T092400Z-a1b2c3"
    for folder in (kept, kept.parent / "own"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("text", encoding="utf-8")
    host = HostConfig("here", address=address, paths=(str(wanted),), exclude=())
    words = [word for word in command.filters(host, str(wanted)) if "btrkeep-source" in word]
    done = work("rsync", "-a", *words, f"{wanted}/", tmp_path / "copy")
    assert done.returncode == 0
    assert [path.name for path in (tmp_path / "copy" / ".btrkeep-source").iterdir()] == ["own"]


# Passes


def test_large_files_are_written_in_place_and_small_ones_anew_each_exactly_once(tmp_path: Path) -> None:
    sizes = {"one": 1, "below": LARGE - 1, "at": LARGE, "above": LARGE + 1}
    source, backup = tmp_path / "source", tmp_path / "backup"
    source.mkdir()
    for name, size in sizes.items():
        (source / name).write_bytes(os.urandom(size))
    pull(source, backup, inplace="large")
    path = backup / str(source).lstrip("/")
    before = {name: (path / name).stat().st_ino for name in sizes}
    for name, size in sizes.items():
        (source / name).write_bytes(os.urandom(size))
    written = []
    for one_pass in passes("large", based=True):
        host = HostConfig("web1", address="peer", paths=(str(source),), inplace="large")
        ended = run(rsync_command(host, SshSettings(command=shlex.quote(str(FAKESSH))), str(source), str(backup), one_pass))
        written.append(ended.output.numbers["transferred"])
    assert written == [2, 2]
    assert {name: (path / name).stat().st_ino == before[name] for name in sizes} == {
        "one": False, "below": False, "at": True, "above": True,
    }  # fmt: skip
    assert not work("diff", "-r", source, path).stdout


def test_what_is_gone_is_deleted_in_each_way_of_writing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for inplace in INPLACE:
        source.mkdir()
        (source / "stays").write_text("x", encoding="utf-8")
        (source / "large").write_bytes(os.urandom(LARGE))
        pull(source, tmp_path / inplace, inplace=inplace)
        assert len(arrived(tmp_path / inplace)) == 2
        (source / "large").unlink()
        pull(source, tmp_path / inplace, inplace=inplace, based=True)
        assert arrived(tmp_path / inplace) == only(source / "stays")
        shutil.rmtree(source)


# ssh


def effective(host: HostConfig, ssh: SshSettings) -> dict[str, str]:
    """Returns ssh's own interpretation of our options: `ssh -G`."""
    words = ssh_command(host, ssh)
    output = work(words[0], "-F", "none", *words[1:], "-G", "web1.example.org").stdout
    return dict(reversed([line.partition(" ")[::2] for line in output.splitlines()]))


SETTINGS = SshSettings(key=Path("/etc/btrkeep/id"), known_hosts=Path("/etc/btrkeep/known"))


def test_ssh_asks_nothing_trusts_no_new_host_and_notices_a_dead_line() -> None:
    options = effective(HostConfig("web1", address="web1"), SETTINGS)
    assert {
        "batchmode": "yes",
        "identitiesonly": "yes",
        "identityfile": "/etc/btrkeep/id",
        "userknownhostsfile": "/etc/btrkeep/known",
        "stricthostkeychecking": "true",
        "connecttimeout": "20",
        "serveraliveinterval": "30",
        "serveralivecountmax": "6",
        "controlmaster": "false",
        "forwardagent": "no",
        "forwardx11": "no",
        "requesttty": "false",
        "compression": "no",
        "permitlocalcommand": "no",
        "port": "22",
    }.items() <= options.items()


GENEROUS = """\
LocalForward {folder}/forwarded 127.0.0.1:22
RemoteForward {folder}/back {folder}/here
DynamicForward 127.0.0.1:{port}
ForwardAgent yes
ForwardX11 yes
Tunnel yes
PermitLocalCommand yes
LocalCommand touch {folder}/started
RemoteCommand id
ControlMaster auto
ControlPath {folder}/master
StrictHostKeyChecking no
UserKnownHostsFile {folder}/known
KnownHostsCommand /bin/true
VerifyHostKeyDNS yes
NoHostAuthenticationForLocalhost yes
UpdateHostKeys yes
AddKeysToAgent yes
GSSAPIDelegateCredentials yes
BatchMode no
RequestTTY force
"""
"""A configuration of ssh's that lets hosts do what they like, and has ssh do more than to carry rsync."""


def test_a_generous_configuration_of_ssh_changes_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(GENEROUS.format(folder=tmp_path, port=1), encoding="utf-8")
    words = ssh_command(HostConfig("web1", address="web1"), SETTINGS)

    def made_of(config: str) -> dict[str, str]:
        output = work(words[0], "-F", config, *words[1:], "-G", "web1.example.org").stdout
        return dict(line.partition(" ")[::2] for line in output.splitlines())

    generous, without = made_of(str(tmp_path / "config")), made_of("none")
    changed = {name for name in {*generous, *without} if generous.get(name) != without.get(name)}
    assert changed <= {"localforward", "remoteforward", "dynamicforward", "localcommand"}
    assert (generous["clearallforwardings"], generous["permitlocalcommand"]) == ("yes", "no")  # so these four have no effect


def test_a_host_gets_nothing_but_rsync_whatever_ssh_is_configured_to_forward(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(GENEROUS.format(folder=tmp_path, port=9), encoding="utf-8")
    host = HostConfig("web1", address=sshd.address, port=sshd.port)
    ssh = SshSettings(key=sshd.key, known_hosts=sshd.known_hosts, command=f"ssh -F {tmp_path}/config")
    before = set(tmp_path.iterdir())
    done = work(*ssh_command(host, ssh), sshd.address, f"ls -A {tmp_path}")
    assert set(done.stdout.split()) == {path.name for path in before}  # neither socket, there or here, while it is connected
    assert set(tmp_path.iterdir()) == before


def test_a_hosts_own_port_and_options_win() -> None:
    host = HostConfig("web1", address="web1", port=2222, ssh_options=("ConnectTimeout=7", "ProxyJump=gate.example.org"))
    options = effective(host, SETTINGS)
    assert (options["port"], options["connecttimeout"], options["proxyjump"]) == ("2222", "7", "gate.example.org")


def test_the_command_of_ssh_may_have_words_of_its_own() -> None:
    assert ssh_command(HostConfig("web1", address="web1"), SshSettings(command="ssh -4"))[:2] == ("ssh", "-4")


def test_a_remote_shell_whose_path_has_a_space_carries_a_transfer(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    shell = tmp_path / "a folder" / "ssh"
    shell.symlink_to(FAKESSH)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("content")
    assert pull(tmp_path / "source", tmp_path / "backup", shell=shell).exit_code == 0
    assert (tmp_path / "backup" / str(tmp_path).strip("/") / "source" / "file").read_text() == "content"


def test_rsync_and_our_options_meet_a_real_server(sshd: Sshd, tmp_path: Path) -> None:
    wanted = field_of(tmp_path, "it's [odd] & $HOME")
    host = HostConfig("web1", address=sshd.address, port=sshd.port, paths=(str(wanted),))
    ssh = SshSettings(key=sshd.key, known_hosts=sshd.known_hosts, command="ssh -F none")
    (tmp_path / "backup").mkdir()
    for based in (False, True):
        [one_pass] = passes("always", based=based)
        done = run(rsync_command(host, ssh, str(wanted), str(tmp_path / "backup"), one_pass))
        assert (done.exit_code, done.counts()) == (0, {})
    assert arrived(tmp_path / "backup") == only(wanted / "right")
