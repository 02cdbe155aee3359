"""Decisions of install.sh: arguments, upgrades, the owners of files. Stand-ins for Python and pip make it take a second."""

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from btrkeep.catalogue.tables import SCHEMA_VERSION
from tests.beds import TOP, work
from tests.beds.anyone import readable, without_rights
from tests.beds.steps import Done
from tests.install.trees import run_here
from tests.test_requirements import pins

INSTALL = TOP / "install.sh"

# Makes an environment whose programs print their names. Its python runs the real one on the checkout.
PYTHON = f"""\
#!/bin/bash
real={shlex.quote(sys.executable)}
case "$*" in
-VV) echo "Python 3.99" ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*"-m sphinx"*)
    [ ! -e /no-sphinx ] || {{ echo "no such builder"; exit 1; }}
    mkdir -p "${{@: -1}}" && for page in docs/*.rst; do echo "$page" >"${{@: -1}}/$(basename "$page" .rst).html"; done
    ;;
*"-m pip install"*"--target"*) ;;
*"-m pip install"*)
    [ ! -e /no-network ] || {{ echo "no such package"; exit 1; }}
    bin=$(dirname "$0")
    for program in backupd btrfs-balancer btrfs-heatmap btrkeep-web; do
        printf '#!/bin/bash\\n[ ! -e /broken ] || exit 1\\necho "%s %s $*"\\n' "$program" "$bin" >"$bin/$program"
        chmod +x "$bin/$program"
    done
    ;;
-I*) shift && PYTHONPATH=/source exec "$real" "$@" ;;
*) exec "$real" "$@" ;;
esac
"""
SET_UP = f"""
cat >/python <<'END'
{PYTHON}END
chmod +x /python
rm -rf /etc/btrkeep /opt/btrkeep /var/lib/btrkeep /var/lib/btrkeep-web /var/lib/btrkeep-login
"""
# Every file that an installation may touch, with its inode and times.
LOOK = r"""mkdir -p /etc/systemd
find /opt/btrkeep /usr/local /etc/btrkeep /etc/systemd -xdev \( -type f -o -type l \) -printf '%p %i %T@ %l\n' 2>/dev/null | sort"""
FEDORA = "rm /etc/os-release; printf 'ID=fedora\\nVERSION_ID=41\\nPRETTY_NAME=\"Fedora Linux 41\"\\n' >/etc/os-release"
WANTS = "/etc/systemd/system/timers.target.wants"
NEWER = "sed -i 's/__version__ = .*/__version__ = \"9.9\"/' btrkeep/__init__.py"


def results_of(*steps: str) -> dict[str, Done]:
    """Executes the steps on this machine, separated from it and without an installation; returns the results by text."""
    done = run_here([SET_UP, *steps], {"PYTHON": "/python"})
    assert done[0].status == 0, str(done[0])
    return {str(number): result for number, result in enumerate(done)}


def all_of(done: dict[str, Done]) -> str:
    return "\n".join(map(str, done.values()))[-8000:]


def outcomes(done: dict[str, Done]) -> list[int]:
    return [result.status for result in done.values()][1:]


def test_help_needs_no_root_and_unknown_words_are_refused() -> None:
    assert "--uninstall" in work(*without_rights(), readable().top / "install.sh", "--help", cwd=Path("/")).stdout
    for words in (
        ["--no-such-thing"],
        ["--enable"],
        ["--web"],
        ["--uninstall", "--rebuild"],
        ["--wheels"],
        ["--fetch-wheels", "x", "--offline"],
        ["--dry-run", "--enable", "../x"],
    ):
        assert work(INSTALL, *words, check=False).returncode in ((1, 2) if "../x" in words else (2,)), words


pytestmark = [pytest.mark.root]


def test_without_root_it_says_so() -> None:
    done = work(*without_rights(), readable().top / "install.sh", check=False, cwd=Path("/"))
    assert (done.returncode, "must run as root" in done.stderr) == (1, True)


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    work("shellcheck", "-x", INSTALL, TOP / "scripts" / "ground.sh", cwd=TOP)


def test_a_dry_run_says_what_an_installation_then_does_and_changes_nothing() -> None:
    done = results_of(
        LOOK,
        "./install.sh --no-packages --dry-run",
        LOOK,
        "./install.sh --no-packages",
        "cat /opt/btrkeep/installed; ls /etc/btrkeep",
    )
    assert outcomes(done) == [0] * 5, str(done["4"])
    assert done["1"].out == done["3"].out
    would = {
        line.split(": ", 1)[1].split(" -> ")[0].split(",")[0] for line in done["2"].out.splitlines() if line.startswith("would ")
    }
    *put, example = done["5"].out.splitlines()
    assert {path for path in would if path.startswith("/usr/local")} == set(put)
    assert ("/etc/btrkeep/main.toml" in would, example) == (True, "main.toml")
    units = [path.name for path in (TOP / "systemd").glob("*.[st][el]*")]
    assert {f"/usr/local/lib/systemd/system/{name}" for name in units if "btrkeep" in name} <= set(put)
    assert {f"/usr/local/share/man/man{path.suffix[1:]}/{path.name}" for path in (TOP / "man").iterdir()} <= set(put)
    assert {f"/usr/local/sbin/{name}" for name in ("backupd", "btrfs-balancer", "btrfs-heatmap", "btrkeep-web")} <= set(put)


def test_again_it_changes_nothing_and_an_upgrade_replaces_what_there_was() -> None:
    done = results_of(
        "./install.sh --no-packages; echo '# mine' >>/etc/btrkeep/main.toml",
        LOOK,
        "./install.sh --no-packages",
        LOOK,
        f"{NEWER}; git rm -q man/backupd.8 2>/dev/null || rm man/backupd.8; ./install.sh --no-packages",
        "ls /opt/btrkeep/versions; backupd x; tail -n 1 /etc/btrkeep/main.toml; ls /usr/local/share/man/man8",
    )
    assert outcomes(done) == [0] * 6, all_of(done)
    assert done["4"].out == done["2"].out
    version, output, configured, *manuals = done["6"].out.splitlines()
    assert version.startswith("9.9-")
    assert output == f"backupd /opt/btrkeep/versions/{version}/bin x"
    assert (configured, "backupd.8" in manuals, "btrfs-balancer.8" in manuals) == ("# mine", False, True)


def test_an_upgrade_that_cannot_be_built_or_does_not_run_leaves_the_old_version_at_work() -> None:
    look = f"{LOOK} | grep -v ^/etc; backupd x"
    done = results_of(
        "./install.sh --no-packages",
        look,
        f"{NEWER}; touch /no-network; ./install.sh --no-packages",
        look,
        "rm /no-network; touch /broken; ./install.sh --no-packages || { rm /broken; false; }",
        look,
        "echo mine >/usr/local/share/man/man8/mine.8; touch man/mine.8; ./install.sh --no-packages",
        "cat /usr/local/share/man/man8/mine.8; backupd x",
    )
    assert outcomes(done) == [0, 0, 1, 0, 1, 0, 1, 0], all_of(done)
    assert done["4"].out == done["6"].out == done["2"].out
    assert "no such package" in done["3"].err
    assert "the installed version is unchanged" in done["3"].err
    assert "the new version does not run" in done["5"].err
    assert "mine.8 already exists, and install.sh did not install it" in done["7"].err
    assert done["8"].out == "mine\n" + done["2"].out.splitlines()[-1] + "\n"


def test_a_version_at_work_stays_until_it_is_done_and_nothing_is_removed_under_it() -> None:
    at_work = (
        'old=$(readlink -f /opt/btrkeep/current); (exec -a "$old/bin/python" sleep 100) </dev/null >/dev/null 2>&1 & echo $! >/pid'
    )
    done = results_of(
        "./install.sh --no-packages",
        at_work,
        f"{NEWER}; ./install.sh --no-packages; ls /opt/btrkeep/versions",
        "./install.sh --uninstall",
        "kill $(cat /pid); sleep 0.2; ./install.sh --no-packages; ls /opt/btrkeep/versions | wc -l",
    )
    assert outcomes(done) == [0, 0, 0, 1, 0], all_of(done)
    assert "is still in use" in done["3"].out
    assert len([line for line in done["3"].out.splitlines() if line[0].isdigit()]) == 2
    assert "btrkeep is running" in done["4"].err
    assert done["5"].out.splitlines()[-1] == "1"


def test_uninstalled_nothing_of_it_is_left_but_data_and_configuration() -> None:
    of_others = "-path '/opt/*/*' ! -path '/opt/btrkeep/*'"
    look = f"find /opt /usr/local /etc /var/lib /var/cache /run -xdev {of_others} -prune -o -print | sort"
    done = results_of(
        look,
        "./install.sh --no-packages && mkdir -p /var/lib/btrkeep/main && touch /var/lib/btrkeep/main/catalogue.sqlite",
        f"touch /etc/btrkeep/id_ed25519; mkdir -p {WANTS}; ln -s /x {WANTS}/btrkeep-backup@main.timer; "
        "mkdir -p /run/btrkeep/jobs/main /var/lib/systemd/timers; "
        "touch /var/lib/systemd/timers/stamp-btrkeep-backup@main.timer",
        "./install.sh --uninstall --dry-run",
        "./install.sh --uninstall",
        look,
        "./install.sh --uninstall",
    )
    assert outcomes(done) == [0, 0, 0, 0, 0, 0, 1], all_of(done)
    assert "would be kept:" in done["4"].out
    assert "is removed" not in done["4"].out
    assert "btrkeep is removed." in done["5"].out
    left = set(done["6"].out.splitlines()) - set(done["1"].out.splitlines())
    left = {path for path in left if "btrkeep" in path or not os.path.lexists(path)}  # other programs write on the machine too
    ours = {path for path in left if "timers.target.wants" not in path and path not in ("/etc/systemd", "/var/lib/systemd/timers")}
    assert ours == {
        "/etc/btrkeep", "/etc/btrkeep/main.toml", "/etc/btrkeep/id_ed25519",
        "/var/lib/btrkeep", "/var/lib/btrkeep-web", "/var/lib/btrkeep-login", "/var/lib/btrkeep/main",
        "/var/lib/btrkeep/main/catalogue.sqlite",
    }  # fmt: skip
    assert not [path for path in left if "btrkeep-backup@main" in path]
    assert {"  /etc/btrkeep", "  /var/lib/btrkeep"} <= set(done["5"].out.splitlines())


def test_installed_again_it_names_the_pools_that_are_configured_and_off() -> None:
    hosts = 'printf \'[pool]\\npath = "/srv"\\n[host.here]\\npaths = ["/etc"]\\n\' >/etc/btrkeep/other.toml'
    done = results_of(
        "./install.sh --no-packages",
        f"{hosts}; ./install.sh --uninstall; ./install.sh --no-packages",
        f"mkdir -p {WANTS}; ln -s /x {WANTS}/btrkeep-backup@other.timer; ./install.sh --no-packages",
    )
    assert outcomes(done) == [0, 0, 0], all_of(done)
    assert "are off: sudo" not in done["1"].out, "the example is not a pool yet"
    (line,) = [line for line in done["2"].out.splitlines() if "are off: sudo" in line]
    assert line.startswith("The timers of the configured pool other are off")
    assert line.endswith("install.sh --enable other")
    assert "are off: sudo" not in done["3"].out


def test_a_pool_and_a_catalogue_in_the_folder_of_the_programs_are_not_uninstalled() -> None:
    done = results_of(
        "./install.sh --no-packages",
        "mkdir -p /opt/btrkeep/pool/hosts /opt/btrkeep/state; touch /opt/btrkeep/pool/hosts/backup /opt/btrkeep/state/catalogue",
        "./install.sh --uninstall",
        "cd /opt/btrkeep; find . -type f; ls",
    )
    assert outcomes(done) == [0, 0, 0, 0], all_of(done)
    assert sorted(done["4"].out.split()) == ["./pool/hosts/backup", "./state/catalogue", "pool", "state"]
    assert "  /opt/btrkeep, because it has other files" in done["3"].out


def test_packages_are_asked_of_apt_and_other_distributions_get_a_clear_line() -> None:
    asks = "mkdir -p /fake; printf '#!/bin/sh\\necho \"$*\" >>/asked\\n[ -e /apt-works ]\\n' >/fake/apt-get; chmod +x /fake/apt-get"
    none = "printf '#!/bin/sh\\n' >/fake/dpkg-query; chmod +x /fake/dpkg-query"
    done = results_of(
        f"{asks}; {none}",
        "PATH=/fake:$PATH ./install.sh",
        "cat /asked; ls /opt/btrkeep",
        "touch /apt-works; PATH=/fake:$PATH ./install.sh",
        f"{FEDORA}; rm -f /usr/bin/apt-get; ./install.sh",
        "./install.sh --no-packages",
    )
    assert outcomes(done) == [0, 1, 0, 0, 1, 0], all_of(done)
    assert "these packages could not be installed: rsync bubblewrap btrfs-progs openssh-client python3-venv" in done["2"].err
    assert "check the network" in done["2"].err
    assert "install -y --no-install-recommends rsync bubblewrap btrfs-progs openssh-client python3-venv" in done["3"].out
    assert "bin" not in done["3"].out.splitlines()
    assert "this is Fedora Linux 41, which has no apt-get; install.sh supports Debian 12 and 13" in done["5"].err
    assert "tested on Debian 12 and 13 only" in done["6"].err


@pytest.mark.skipif(not shutil.which("systemctl"), reason="systemctl is not installed")
def test_without_a_network_it_lists_what_is_missing_and_changes_nothing() -> None:
    """A folder with a file for each pin is accepted; pip checks the content of the files in test_trees.py."""
    pinned = [pin for lock in ("build", "install", "documentation") for pin, _ in pins(lock) if pin.name != "numpy"]
    files = [f"{pin.name.replace('-', '_')}-{next(iter(pin.specifier)).version}-py3.whl" for pin in pinned]
    done = results_of(
        LOOK,
        "./install.sh --offline",
        "./install.sh --offline --wheels /nowhere",
        "mkdir /wheels; ./install.sh --wheels /wheels --dry-run",
        LOOK,
        f"cd /wheels; touch {' '.join(files)}",
        "./install.sh --offline --wheels /wheels",
        "touch /wheels/NumPy-2.4.6-py3.whl /wheels/NumPy-2.5.5-py3.whl; ./install.sh --offline --wheels /wheels",
    )
    assert outcomes(done) == [0, 1, 1, 1, 0, 0, 1, 0], all_of(done)
    assert done["1"].out == done["5"].out
    assert "numpy" in done["2"].err.split()
    assert "--fetch-wheels DIR" in done["2"].err
    assert "the folder /nowhere does not exist" in done["3"].err
    assert "missing, Python packages in /wheels: numpy\n" in done["7"].err
    assert "packages are missing for an installation" in done["7"].err


def test_timers_are_enabled_only_when_asked_and_only_for_a_pool_that_is_configured() -> None:
    wants = f"ls {WANTS} | grep btrkeep || true"
    done = results_of(
        "./install.sh --no-packages --enable main",
        "./install.sh --no-packages",
        wants,
        "./install.sh --no-packages --enable main",
        wants,
        "./install.sh --uninstall",
        wants,
    )
    assert outcomes(done) == [1, 0, 0, 0, 0, 0, 0], all_of(done)
    assert "the pool main is not configured" in done["1"].err
    timers = sorted(path.name.replace("@", "@main") for path in (TOP / "systemd").glob("btrkeep-*@.timer"))
    assert timers
    assert [done[number].out.split() for number in ("3", "5", "7")] == [[], timers, []]


@pytest.mark.skipif(not shutil.which("systemctl"), reason="systemctl is not installed")
def test_the_dashboard_is_told_where_the_state_folder_is_and_what_is_configured_now() -> None:
    ask = (
        "sqlite3 /srv/state/catalogue.sqlite "
        """"select json_extract(value, '$.web.listen') from about where name = 'published'" """
    )
    write = """mkdir -p /etc/btrkeep; printf '[pool]\\npath = "/srv/backup"\\nstate = "/srv/state"\\n[web]\\nlisten = "%s"\\n' """
    done = results_of(
        f"{write} 127.0.0.1:9000 >/etc/btrkeep/main.toml",
        "./install.sh --no-packages; ! ls -A /srv/state",
        "./install.sh --no-packages --web main",
        f"readlink /var/lib/btrkeep/.main; {ask}",
        f"{write} 127.0.0.1:9001 >/etc/btrkeep/main.toml; ./install.sh --no-packages; {ask}",
    )
    assert outcomes(done) == [0] * 5, all_of(done)
    assert "The dashboard of main: http://127.0.0.1:9000" in done["3"].out
    assert done["4"].out.split() == ["/srv/state", "127.0.0.1:9000"]
    assert done["5"].out.splitlines()[-1] == "127.0.0.1:9001"


def test_an_upgrade_migrates_the_catalogue_and_keeps_a_copy_of_the_old_one() -> None:
    folder = "/var/lib/btrkeep/main"
    make = f"from pathlib import Path; from btrkeep.catalogue import Catalogue; Catalogue.open(Path('{folder}')).close()"
    version = "sqlite3 {} 'pragma user_version'"
    newest, following = SCHEMA_VERSION, SCHEMA_VERSION + 1
    copy = f"{folder}/catalogue.sqlite.before-{following:04}"
    add = f"echo 'ALTER TABLE run ADD COLUMN note TEXT;' >btrkeep/catalogue/schema/{following:04}.sql"
    count = f"sed -i 's/^SCHEMA_VERSION = .*/SCHEMA_VERSION = {following}/' btrkeep/catalogue/tables.py"
    done = results_of(
        f"mkdir -p {folder}; PYTHONPATH=/source {shlex.quote(sys.executable)} -c {shlex.quote(make)}",
        version.format(f"{folder}/catalogue.sqlite"),
        "./install.sh --no-packages",
        version.format(f"{folder}/catalogue.sqlite"),
        f"{NEWER}; {add}; {count}; ./install.sh --no-packages",
        version.format(f"{folder}/catalogue.sqlite"),
        version.format(copy),
        f"echo broken >{folder}/catalogue.sqlite; ./install.sh --no-packages; backupd x",
    )
    assert outcomes(done)[:7] == [0] * 7, all_of(done)
    assert [done[number].out.strip() for number in ("2", "4", "6", "7")] == [
        str(each) for each in (newest, newest, following, newest)
    ]
    assert f"migrated the catalogue of main; the previous one: {copy}" in done["5"].out
    assert (done["8"].status, "attention: could not migrate the catalogue of main" in done["8"].err) == (1, True)
    assert "`backupd --pool main rebuild`" in done["8"].err  # there may be other pools


def test_the_documentation_is_where_messages_say_and_goes_with_the_rest() -> None:
    """Also if no HTML can be made of it, which is no reason to fail."""
    asks = f"{shlex.quote(sys.executable)} -P -c 'from btrkeep.config import page; print(page(\"monitoring\"))'"
    named = f"mkdir -p /elsewhere; cp -R btrkeep /elsewhere/; cd /; PYTHONPATH=/elsewhere {asks}"
    manual = "man -M /usr/local/share/man -w 5 btrkeep.toml"
    done = results_of(
        "./install.sh --no-packages",
        named,
        f"cat $({named}); {manual}",
        f"{NEWER}; touch /no-sphinx; ./install.sh --no-packages",
        f"cat $({named}); ls /opt/btrkeep/current/",
        "./install.sh --uninstall",
        "ls -d /usr/local/share/doc/btrkeep /usr/local/share/man/man5",
    )
    assert outcomes(done) == [0, 0, 0, 1, 0, 0, 2], all_of(done)
    assert done["2"].out == "/usr/local/share/doc/btrkeep/monitoring.html\n"
    assert done["3"].out == "docs/monitoring.rst\n/usr/local/share/man/man5/btrkeep.toml.5\n"
    assert "could not make HTML of the documentation, so it is installed as text: no such builder" in done["4"].err
    assert done["5"].out.startswith((TOP / "docs" / "monitoring.rst").read_text(encoding="utf-8"))
    assert {"source", "sphinx", "log"}.isdisjoint(done["5"].out.splitlines())
    assert done["7"].out == ""


def test_on_a_bare_machine_a_dry_run_says_all_without_a_complaint_about_what_would_be_installed() -> None:
    none = "printf '#!/bin/sh\\n' >/fake/dpkg-query; chmod +x /fake/dpkg-query"
    dry = "unset PYTHON; PATH=/fake:$PATH ./install.sh --dry-run"
    done = results_of(
        f"mkdir -p /fake; {none}; rm -f $(type -ap python3); ! python3 -V",
        LOOK,
        dry,
        f"{dry} --no-packages",
        LOOK,
    )
    assert outcomes(done) == [0, 0, 0, 1, 0], all_of(done)
    assert done["3"].err == ""
    first, build, *others = done["3"].out.splitlines()
    assert first.startswith("would install: rsync bubblewrap btrfs-progs openssh-client python3-venv")
    assert build.startswith("would build: /opt/btrkeep/versions/")
    assert others[-1] == "would write: /etc/btrkeep/main.toml, an example"
    assert "found no Python 3.11 or later to build with" in done["4"].err
    assert done["5"].out == done["2"].out
