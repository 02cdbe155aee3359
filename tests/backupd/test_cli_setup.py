"""`backupd setup`: from a mounted btrfs to the first backup, with questions or options, and again after every interruption."""

import json
import re
import stat
import tempfile
import tomllib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backupd.hosts.cli.setup_pool import machine_zone, suggested_name, suggested_place
from btrkeep.config.sources import name_fault
from tests.beds import TOP, backupd, session, work
from tests.beds.cli import BACKUPD
from tests.beds.ssh import Sshd
from tests.beds.terminal import Terminal, at_a_terminal

pytestmark = [pytest.mark.btrfs, pytest.mark.root]


class Site:
    """Only a configuration with the paths of keys and state, so that nothing of this machine is changed."""

    def __init__(self, top: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="setup-", dir=session.folder()))
        self.pool, self.source = top / "pool", top / "source"
        self.config = self.folder / "main.toml"
        self.key, self.known_hosts = self.folder / "ssh" / "id_ed25519", self.folder / "ssh" / "known_hosts"
        self.config.write_text(
            f'# mine\n[pool]\nstate = "{self.folder}/state"\nmin_free = "0%"\n\n'
            f'[ssh]\nkey = "{self.key}"   # of the test\nknown_hosts = "{self.known_hosts}"\n'
        )
        self.source.mkdir()
        (self.source / "file").write_text("welcome")

    def setup(self, *words: str | Path, status: int = 0) -> Any:
        done = backupd("--config", self.config, "setup", *words, check=False)
        assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def run_at_terminal(self, *words: str) -> Any:
        return at_a_terminal([*BACKUPD, "--config", self.config, "setup", *words], {"PYTHONPATH": str(TOP)})

    def for_pool(self) -> tuple[str | Path, ...]:
        return ("--pool-path", self.pool, "--retention", "daily=3,monthly=2")

    def for_here(self) -> tuple[str | Path, ...]:
        return ("--host", "here", "--this-machine", "--path", self.source)

    def for_web1(self, sshd: Sshd) -> tuple[str | Path, ...]:
        return ("--host", "web1", "--address", sshd.address, "--port", str(sshd.port), "--path", self.source)

    def backups(self, host: str) -> list[Path]:
        folder = self.pool / "hosts" / host
        return sorted(path for path in folder.iterdir() if path.name[0].isdigit()) if folder.exists() else []

    def restored(self, host: str) -> str:
        return (self.backups(host)[-1] / "data" / str(self.source / "file").lstrip("/")).read_text()


@pytest.fixture
def site(shared_btrfs: Path) -> Site:
    return Site(shared_btrfs)


def let_in(sshd: Sshd, line: str) -> None:
    """Does the work of the operator on the host."""
    with (sshd.folder / "authorized_keys").open("a") as file:
        file.write(line + "\n")


def line_in(text: str) -> str:
    (line,) = re.findall(r'^restrict,command="rrsync -ro /" ssh-ed25519 \S+ btrkeep@\S+$', text, re.MULTILINE)
    return str(line)


def host_key_of(sshd: Sshd) -> str:
    """The fingerprint as printed by the host's own ssh-keygen."""
    return work("ssh-keygen", "-lf", sshd.folder / "host_key.pub").stdout.split()[1]


def test_without_a_terminal_everything_that_is_missing_is_named_at_once(site: Site) -> None:
    before = site.config.read_text()
    done = site.setup("--path", "/etc", status=2)
    wanted = "without a terminal these options are needed: --pool-path, --retention, --host, --address or --this-machine"
    assert done.stderr.splitlines()[0] == f"error: {wanted}"
    assert (site.config.read_text(), site.pool.exists()) == (before, False)


def test_with_all_options_this_machine_has_its_first_backup(site: Site) -> None:
    output = site.setup(*site.for_pool(), *site.for_here()).stdout
    assert f"{site.pool} is now a pool, in a new subvolume" in output
    assert "here: complete" in output
    assert site.restored("here") == "welcome"
    assert "UUID" in work("btrfs", "subvolume", "show", site.pool).stdout
    written = tomllib.loads(site.config.read_text())
    assert written["pool"]["path"] == str(site.pool)
    assert written["retention"] == {"daily": 3, "monthly": 2}
    assert tomllib.loads((site.folder / "main.d" / "here.toml").read_text()) == {"host": {"here": {"paths": [str(site.source)]}}}
    assert "# mine\n" in site.config.read_text()
    assert "   # of the test\n" in site.config.read_text()
    assert not site.key.exists(), "nobody is reached over ssh"


def test_run_again_it_changes_nothing_and_makes_no_second_backup(site: Site) -> None:
    site.setup(*site.for_pool(), *site.for_here())
    before = (site.config.read_bytes(), site.backups("here"))
    assert "every enabled host has a complete backup" in site.setup().stdout
    assert (site.config.read_bytes(), site.backups("here")) == before


def test_a_new_host_is_trusted_and_let_in_step_by_step(site: Site, sshd: Sshd) -> None:
    """Without a terminal: each call prints what remains, the next one continues."""
    output = site.setup(*site.for_pool(), *site.for_web1(sshd), status=1).stdout
    assert host_key_of(sshd) in output
    assert not site.known_hosts.exists(), "it was not confirmed"
    assert stat.S_IMODE(site.key.stat().st_mode) == 0o600
    line, key = line_in(output), site.key.read_bytes()
    assert line.split(" ssh-ed25519 ")[1].split()[0] in site.key.with_suffix(".pub").read_text()

    output = site.setup("--accept-host-key", status=1).stdout
    assert work("ssh-keygen", "-lf", site.known_hosts).stdout.split()[1] == host_key_of(sshd)
    assert "the host does not accept the key" in output
    assert (line_in(output), site.key.read_bytes()) == (line, key)
    assert site.backups("web1") == []

    let_in(sshd, line)
    learnt = site.known_hosts.read_bytes()
    site.setup()
    assert site.restored("web1") == "welcome"
    assert (site.key.read_bytes(), site.known_hosts.read_bytes()) == (key, learnt)
    refused = work(*sshd.ssh(site.key), sshd.address, "id", check=False)
    assert refused.returncode != 0, "the line lets it read with rsync and do nothing else"


def test_a_mistyped_address_is_said_with_what_corrects_it(site: Site) -> None:
    """The host is in the configuration by then, and setup continues with it each time."""
    words = (*site.for_pool(), "--host", "web1", "--address", "root@web1.invalid", "--path", site.source)
    output = site.setup(*words, status=1).stderr
    assert "web1.invalid sent no host key" in output
    assert "`backupd host set web1 address=" in output
    backupd("--config", site.config, "host", "set", "web1", "address=root@web2.invalid")
    assert "web2.invalid sent no host key" in site.setup(status=1).stderr


def test_json_says_how_far_it_came(site: Site, sshd: Sshd) -> None:
    done = site.setup(*site.for_pool(), *site.for_web1(sshd), "--accept-host-key", "--no-run", "--json", status=1)
    answer = json.loads(done.stdout)
    assert (answer["host"], answer["pool"], answer["ready"], answer["host_key_known"]) == ("web1", str(site.pool), False, True)
    assert answer["authorized_keys"] == line_in(done.stderr)
    assert [problem["message"].split(":")[0] for problem in answer["problems"] if problem["subject"] == "web1"] == [
        "the host does not accept the key"
    ]
    let_in(sshd, answer["authorized_keys"])
    assert json.loads(site.setup("--json").stdout)["ready"] is True
    assert site.backups("web1") == []


def this_machine() -> str:
    return work("hostname").stdout.strip().split(".")[0]


def answer_all(terminal: Terminal, site: Site, sshd: Sshd) -> str:
    """Answers up to the line for authorized_keys, and returns that."""
    terminal.answer(r"Where should the pool be\? \[.*\]: ", str(site.folder))  # no btrfs: it asks again
    terminal.wait_for("is not on a btrfs")
    terminal.answer(r"Where should the pool be\? \[.*\]: ", str(site.pool))
    terminal.answer("How long are backups kept", "dayly=7")
    terminal.wait_for("is not a retention")
    terminal.answer("How long are backups kept", "daily=7")
    terminal.answer("In which time zone", "Europe/Berln")
    terminal.wait_for('did you mean "Europe/Berlin"')
    terminal.answer("In which time zone", "Europe/Berlin")
    terminal.answer("When may backups run", "22-6")
    terminal.wait_for("expected a window")
    terminal.answer("When may backups run", "22:00-06:00")
    terminal.answer("The host's address", f"-{sshd.address}")
    terminal.wait_for("is not an address")
    terminal.answer("The host's address", sshd.address)
    terminal.answer("The host's ssh port", "65536")
    terminal.wait_for("is not a port")
    terminal.answer("The host's ssh port", str(sshd.port))
    terminal.wait_for(re.escape(f"The host's name for btrkeep [{this_machine()}]"))  # its address is 127.0.0.1
    terminal.answer("The host's name for btrkeep .*: ", "web1")
    terminal.answer("Source paths", "srv")
    terminal.wait_for("expected an absolute path")
    terminal.answer("Source paths", f"'{site.source}'")
    return ""


def test_at_a_terminal_it_asks_shows_the_fingerprint_and_waits_for_the_line(site: Site, sshd: Sshd) -> None:
    with site.run_at_terminal() as terminal:
        answer_all(terminal, site, sshd)
        terminal.wait_for(re.escape(host_key_of(sshd)))
        assert not site.known_hosts.exists()
        terminal.answer("Is the fingerprint the same", "y")
        terminal.wait_for("Enter when the line is added")
        let_in(sshd, line_in(terminal.text))
        terminal.answer("Enter when the line is added", "")
        terminal.answer("Back up web1 now", "")
        assert terminal.ends() == 0, terminal.text
    assert site.restored("web1") == "welcome"
    written = tomllib.loads(site.config.read_text())
    assert written["retention"] == {"daily": 7}
    assert (written["pool"]["zone"], written["backup"]["window"]) == ("Europe/Berlin", "22:00-06:00")
    assert tomllib.loads((site.folder / "main.d" / "web1.toml").read_text())["host"]["web1"]["port"] == sshd.port


def test_a_host_key_that_is_not_the_same_is_not_written_down(site: Site, sshd: Sshd) -> None:
    words = (*site.for_pool(), "--zone", "UTC", "--window", "none", *site.for_web1(sshd))
    with site.run_at_terminal(*map(str, words)) as terminal:
        terminal.answer("Is the fingerprint the same", "n")
        assert terminal.ends() == 1
    assert "the host key was not accepted" in terminal.text
    assert not site.known_hosts.exists()


QUESTIONS = (
    "Where should the pool be", "How long", "In which time zone", "When may", "The host's address", "The host's ssh port",
    "The host's name", "Source paths", "Is the fingerprint the same", "Enter when", "Back up",
)  # fmt: skip


@pytest.mark.slow
def test_interrupted_at_any_question_it_goes_on_when_it_is_run_again(site: Site, sshd: Sshd) -> None:
    """Ctrl-C at each question in turn: every run gets one question further than the one before."""
    key = b""
    for stop in QUESTIONS:
        with site.run_at_terminal() as terminal:
            answers = {
                "Where should the pool be": str(site.pool), "How long": "", "In which time zone": "", "When may": "",
                "The host's address": sshd.address, "The host's ssh port": str(sshd.port), "The host's name": "web1",
                "Source paths": str(site.source), "Is the fingerprint the same": "y", "Enter when": "", "Back up": "",
            }  # fmt: skip
            while True:
                question = terminal.wait_for("|".join(QUESTIONS))[0]
                if question == stop:
                    assert terminal.interrupted() == 130, terminal.text
                    break
                if question == "Enter when":
                    let_in(sshd, line_in(terminal.text))
                terminal.answer(question, answers[question])
        if site.key.exists():
            assert site.key.read_bytes() == (key or site.key.read_bytes())
            key = site.key.read_bytes()
    site.setup()
    assert site.restored("web1") == "welcome"
    assert site.known_hosts.read_text().count("ssh-ed25519") == 1


def test_a_look_before_the_setup_is_no_use_of_the_pool(site: Site) -> None:
    site.config.write_text(site.config.read_text().replace("[pool]", f'[pool]\npath = "{site.pool.parent}/none"'))
    assert backupd("--config", site.config, "check", check=False).returncode == 4
    site.setup(*site.for_pool(), *site.for_here())
    assert tomllib.loads(site.config.read_text())["pool"]["path"] == str(site.pool)


def test_a_pool_that_is_not_mounted_is_not_made_anew(site: Site, tmp_path: Path) -> None:
    site.setup(*site.for_pool(), *site.for_here())
    elsewhere = site.config.read_text().replace(f'path = "{site.pool}"', f'path = "{site.pool.parent}/gone"')
    site.config.write_text(elsewhere)
    done = site.setup(*site.for_pool(), *site.for_here(), status=4)
    assert "mount the pool" in done.stderr
    assert not (site.pool.parent / "gone").exists()


def test_a_configuration_with_a_mistake_is_left_as_it_is(site: Site) -> None:
    text = site.config.read_text() + "[backup]\nconcurency = 3\n"
    site.config.write_text(text)
    done = site.setup(*site.for_pool(), *site.for_here(), status=2)
    assert 'did you mean "concurrency"?' in done.stderr
    assert (site.config.read_text(), site.pool.exists()) == (text, False)


def test_a_key_that_is_there_is_never_overwritten_and_half_a_key_is_completed(site: Site, sshd: Sshd) -> None:
    site.key.parent.mkdir()
    work("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "mine", "-f", site.key)
    key, public = site.key.read_bytes(), site.key.with_suffix(".pub").read_text().split()[1]
    site.key.with_suffix(".pub").unlink()
    site.setup(*site.for_pool(), *site.for_web1(sshd), status=1)
    assert site.key.read_bytes() == key
    assert site.key.with_suffix(".pub").read_text().split()[1] == public
    site.key.with_suffix(".pub").unlink()
    site.key.write_text("no key\n")
    assert "is not a private key" in site.setup(status=1).stderr
    assert site.key.read_text() == "no key\n"


def test_an_unchanged_example_is_no_configuration(site: Site, tmp_path: Path) -> None:
    """install.sh writes an example; init, and setup for another path, replace it."""
    config = tmp_path / "main.toml"
    backupd("--config", config, "init", site.pool.parent / "one")
    assert tomllib.loads(config.read_text())["pool"]["path"] == str(site.pool.parent / "one")
    output = backupd("--config", config, "init", site.pool).stdout
    assert f"{config} is an example" in output
    assert tomllib.loads(config.read_text())["pool"]["path"] == str(site.pool)
    config.write_text(config.read_text().replace("daily = 14", "daily = 15"))
    backupd("--config", config, "init", site.pool.parent / "three")
    assert tomllib.loads(config.read_text())["pool"]["path"] == str(site.pool), "somebody has changed it"


def test_what_it_offers_for_a_pool_it_accepts_and_an_empty_answer_takes_it(site: Site) -> None:
    """It does not offer the example's own path, which is not on a btrfs here, nor a path below the first mount that is
    not a pool.
    """
    site.config.write_text(site.config.read_text().replace("[pool]", f'[pool]\npath = "{site.folder}/backup"'))
    with site.run_at_terminal(*map(str, (*site.for_here(), "--no-run"))) as terminal:
        offered = Path(terminal.wait_for(r"Where should the pool be\? \[(.*)\]: ")[1])
        assert not offered.exists()
        assert work("stat", "-f", "-c", "%T", offered.parent).stdout == "btrfs\n"
        assert terminal.interrupted() == 130
    site.config.write_text(site.config.read_text().replace(f"{site.folder}/backup", str(site.pool)))
    with site.run_at_terminal(*map(str, (*site.for_here(), "--no-run"))) as terminal:
        for question in ("Where should the pool be", "How long", "In which time zone", "When may"):
            terminal.answer(question, "")
        assert terminal.ends() == 0, terminal.text
    assert work("btrfs", "subvolume", "show", site.pool).returncode == 0


def test_places_that_are_taken_read_only_or_no_btrfs_are_not_offered(make_btrfs: Callable[..., Path], tmp_path: Path) -> None:
    first, second = make_btrfs(), make_btrfs()
    (first / "backup").mkdir()
    (first / "backup" / "somebodys").touch()
    assert suggested_place("/proc/x", [tmp_path, first, second]) == f"{first}/btrkeep"
    work("mount", "-o", "remount,ro", first)
    assert suggested_place(None, [first, second]) == f"{second}/backup"
    assert suggested_place(f"{second}/mine", [first, second]) == f"{second}/mine"
    assert suggested_place(None, [tmp_path]) == ""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--this-machine", "--port", "22"], "--port and --this-machine exclude each other"),
        (["--this-machine", "--accept-host-key"], "--accept-host-key and --this-machine exclude each other"),
        (["--this-machine", "--address", "root@a"], "--address and --this-machine exclude each other"),
        (["--zone", "Europe/Berln"], 'did you mean "Europe/Berlin"'),
        (["--window", "22-6"], "expected a window"),
    ],
)
def test_an_option_that_would_be_ignored_or_is_wrong_is_refused_before_anything_is_made(
    site: Site, words: list[str], why: str
) -> None:
    host = () if "--this-machine" in words else ("--this-machine",)
    done = site.setup(*site.for_pool(), "--host", "here", "--path", "/etc", *host, *words, status=2)
    assert why in done.stderr
    assert not site.pool.exists()


def test_options_of_a_host_with_other_values_or_without_a_host_are_refused(site: Site) -> None:
    site.setup(*site.for_pool(), *site.for_here(), "--no-run")
    assert "already configured with other values" in site.setup("--path", "/usr", status=2).stderr
    site.setup("--path", site.source, "--zone", "Europe/Berlin", "--window", "22:00-06:00")
    assert "--host NAME" in site.setup("--path", "/usr", status=2).stderr
    written = tomllib.loads(site.config.read_text())
    assert (written["pool"]["zone"], written["backup"]) == ("Europe/Berlin", {"window": "22:00-06:00"})


def test_the_zone_that_is_offered_is_the_machines() -> None:
    assert datetime.now(ZoneInfo(machine_zone())).strftime("%z") == work("env", "-u", "TZ", "date", "+%z").stdout.strip()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (None, "here"), ("root@web1.example.org", "web1"), ("root@127.0.0.1", None), ("localhost", None), ("root@[::1]", None),
        ("192.0.2.10", "192.0.2.10"), ("root@[2001:db8::1]", "2001-db8-1"),
    ],
)  # fmt: skip
def test_the_name_that_is_offered_is_one(address: str | None, name: str | None) -> None:
    output = suggested_name(address)
    assert output == (name or this_machine())
    assert name_fault(output) == ""
