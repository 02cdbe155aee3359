"""install.sh in a clean Debian 12 and a clean Debian 13: only the packages of every Debian, real packages, real pip.

The long form of test_options.py, which runs the installer on this machine, and of tests/beds/machine.py, which installs in a Debian
that has our Debian packages. Only these tests find packages that install.sh forgets, differences of another release (its Python,
its packages), and wheels that are missing for an installation without a network.
"""

import pytest

from tests.beds.leftout import reason
from tests.beds.steps import Done
from tests.install.trees import run_in, why_not

pytestmark = [
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=reason("in clean trees", why_not())),
]

PROGRAMS = ("backupd", "btrfs-balancer", "btrfs-heatmap")
LOOK = "find / -xdev -path /source -prune -o -path /var/cache -prune -o -path /root/.cache -prune -o -print | sort"
STEPS = {
    "untouched": LOOK,
    "dry": "./install.sh --dry-run",
    "still untouched": LOOK,
    "no network": "unshare --net ./install.sh",
    "nothing": "ls -A /opt/btrkeep /usr/local/sbin /etc/btrkeep",
    "bare": "unshare --net ./install.sh --offline",
    "nothing yet": "ls -A /opt/btrkeep /usr/local/sbin /etc/btrkeep",
    "wheels": "true",
    "tampered": "true",
    "install": "./install.sh",
    "programs": "for program in backupd btrfs-balancer btrfs-heatmap; do $program --help; done; backupd --version",
    "owners": "cd /; /opt/btrkeep/current/bin/python -I -c '"
    "from importlib.metadata import packages_distributions as owners; found = owners();"
    'print({name: found[name] for name in ("btrkeep", "backupd", "heatmap", "balancer", "web")})\'',
    "check": "backupd check",
    "setup": "backupd setup",
    "documents": "printf '[pool]\\npaht = 1\\n' >/tmp/x.toml; backupd --config /tmp/x.toml status || true; "
    "printf '[pool]\\npath = \"/srv\"\\n' >/tmp/x.toml; backupd --config /tmp/x.toml notify --test || true; rm /tmp/x.toml; "
    "cd /usr/local/share; wc -c doc/btrkeep/{index,monitoring,decisions/0013-installation}.html man/man5/btrkeep.toml.5",
    "again": "time -p ./install.sh",
    "bash": "source /usr/local/share/bash-completion/completions/backupd; complete -p backupd; "
    "COMP_WORDS=(backupd ex) COMP_CWORD=1; _backupd_completion backupd; echo ${COMPREPLY[@]}",
    "readable": "find /opt/btrkeep /usr/local /etc/btrkeep ! -perm -o=r ! -type l -printf '%p %m\\n'",
    "leftovers": "ls /opt/btrkeep/versions/*; ls -d /source/build /source/*.egg-info",
    "before": LOOK,
    "uninstall": "./install.sh --uninstall",
    "after": LOOK,
}
# From a folder of packages, one of them modified at first, without a network.
OFFLINE = {
    "wheels": ". scripts/ground.sh; need_apt run; ./install.sh --fetch-wheels /var/cache/wheels",
    "tampered": "cp -r /var/cache/wheels /var/cache/tampered; echo >>/var/cache/tampered/waitress-*.whl; "
    "unshare --net ./install.sh --offline --wheels /var/cache/tampered",
    "install": "unshare --net ./install.sh --offline --wheels /var/cache/wheels",
}
EXPECTED = {"no network": 1, "nothing": 2, "bare": 1, "nothing yet": 2, "check": 4, "setup": 2, "leftovers": 2}


@pytest.mark.parametrize(("suite", "offline"), [("bookworm", True), ("trixie", False)])
def test_in_a_clean_tree_it_installs_runs_and_goes_again(suite: str, offline: bool) -> None:
    steps = STEPS | OFFLINE if offline else STEPS
    by_name = dict(zip(steps, run_in(suite, list(steps.values())), strict=True))
    expected = EXPECTED | {"tampered": int(offline)}
    assert {name: done.status for name, done in by_name.items()} == {name: expected.get(name, 0) for name in steps}, everything(
        by_name
    )
    assert "missing, Debian packages: rsync bubblewrap btrfs-progs" in by_name["bare"].err
    assert by_name["nothing yet"].out == by_name["nothing"].out
    assert ("waitress" in by_name["tampered"].err) == offline
    assert (by_name["dry"].err, by_name["still untouched"].out) == ("", by_name["untouched"].out)
    assert "these packages could not be installed" in by_name["no network"].err
    assert "Nothing else was changed" in by_name["no network"].err
    assert by_name["nothing"].out.replace("/opt/btrkeep:", "").replace("/usr/local/sbin:", "").strip() == ""
    assert by_name["programs"].out.count("Usage: ") == len(PROGRAMS)
    assert by_name["owners"].out.count("['btrkeep']") == 5
    assert "is not a pool" in by_name["check"].out
    assert "--pool-path, --retention, --host" in by_name["setup"].err
    assert "`man btrkeep.toml` explains every key" in by_name["documents"].err
    assert "/usr/local/share/doc/btrkeep/monitoring.html shows some" in by_name["documents"].err
    assert "building the documentation" in by_name["install"].out
    assert "is up to date" in by_name["again"].out
    assert float(by_name["again"].err.split()[1]) < 15
    assert "expire" in by_name["bash"].out.splitlines()[-1].split()
    assert by_name["readable"].out == "/etc/btrkeep/main.toml 600\n"
    assert {"source", "log"}.isdisjoint(by_name["leftovers"].out.split())
    see_what_is_gone(by_name)


def see_what_is_gone(by_name: dict[str, Done]) -> None:
    before, after = (set(by_name[name].out.splitlines()) for name in ("before", "after"))
    assert not after - before
    ours = ("/opt/btrkeep", "/usr/local/sbin/", "/usr/local/lib/", "/usr/local/share/")
    assert [path for path in before - after if not path.startswith(ours)] == []
    assert {"/opt/btrkeep", *(f"/usr/local/sbin/{name}" for name in PROGRAMS)} <= before - after
    assert [path for path in after if "btrkeep" in path and not path.startswith(("/etc/btrkeep", "/var/lib"))] == []


def everything(by_name: dict[str, Done]) -> str:
    return "\n".join(str(done)[:3000] for done in by_name.values())
