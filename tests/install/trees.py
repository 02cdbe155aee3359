"""Clean Debian systems as folders, made once per machine by mmdebstrap, and steps that are executed in a folder as on a machine.

The tree does not change: the steps write to a layer above it, in memory, which is removed with them. Packages come from the same
sources as on this machine: its apt sources with the release's name put in, its pip configuration, its certificates.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.beds import TOP, session
from tests.beds.steps import Done
from tests.beds.walls import walled
from tests.beds.work import work
from tests.test_structure import tracked_files

CACHE = Path("/var/tmp/btrkeep-tests-trees")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_OPTIONS = ("--variant=minbase", "--aptopt=APT::Install-Recommends false", "--dpkgopt=path-exclude=/usr/share/doc/*")

# Runs in a mount namespace and a pid namespace of its own, as root; both end with it, and all of this with them.
_RUNNER = """\
import json, os, pathlib, subprocess, sys
given = json.load(sys.stdin)
root, place = pathlib.Path(given["root"]), pathlib.Path(given["place"])
def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)
mount("-t", "tmpfs", "tmpfs", place)
for name in ("up", "work", "root"):
    (place / name).mkdir()
mount("-t", "overlay", "overlay", "-o", f"lowerdir={root},upperdir={place}/up,workdir={place}/work", place / "root")
root = place / "root"
for source, target in given["binds"]:
    to = root / target.lstrip("/")
    if pathlib.Path(source).is_dir():
        to.mkdir(parents=True, exist_ok=True)
    else:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.touch()
    mount("--rbind", source, to)
mount("-t", "proc", "proc", root / "proc")
mount("-t", "tmpfs", "tmpfs", root / "run")
told = []
for step in given["steps"]:
    done = subprocess.run(["chroot", root, "bash", "-ec", step], capture_output=True, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, env=given["environment"])
    told.append([step, done.returncode, done.stdout, done.stderr])
print(json.dumps(told))
"""


def why_not() -> str:
    """Returns why this machine cannot make such trees, or ""."""
    if os.geteuid() != 0:
        return "no root"
    return "" if shutil.which("mmdebstrap") else "mmdebstrap is not installed"


def tree(suite: str) -> Path:
    """Returns the folder with a minimal system of that release, and makes it if missing. A second process waits for the first."""
    sources = _sources(suite)
    fingerprint = hashlib.sha256("\0".join((*_OPTIONS, sources)).encode()).hexdigest()[:12]
    path = CACHE / f"{suite}-{fingerprint}"
    CACHE.mkdir(mode=0o755, exist_ok=True)
    with (CACHE / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _make(suite, sources, path)
    return path


def _make(suite: str, sources: str, path: Path) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    for attempt in (1, 2):  # a download may fail once
        shutil.rmtree(unfinished, ignore_errors=True)
        words = ("mmdebstrap", "--quiet", *_OPTIONS, suite, unfinished, *(("-",) if sources else ()))
        done = work(*words, input=sources or None, check=attempt == 2, timeout=500)
        if done.returncode == 0:
            break
    unfinished.rename(path)


def _sources(suite: str) -> str:
    """Returns this machine's apt sources for another release of Debian; "" leaves the choice to mmdebstrap."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', Path("/etc/os-release").read_text(encoding="utf-8"), re.MULTILINE))
    file = Path("/etc/apt/sources.list.d/debian.sources")
    if release.get("ID") != "debian" or not file.exists():
        return ""
    return file.read_text(encoding="utf-8").replace(release["VERSION_CODENAME"], suite)


def run_in(suite: str, steps: Sequence[str]) -> list[Done]:
    """Executes all steps in a fresh system, each with a separate bash that ends at the first failure.

    A copy of the checkout is at /source.
    """
    place = Path(tempfile.mkdtemp(prefix="tree-", dir=session.folder()))
    return _run(tree(suite), place, _binds(suite, place), steps, _environment())


def run_here(steps: Sequence[str], env: Mapping[str, str]) -> list[Done]:
    """Does the same on this machine; changes are discarded after the steps."""
    place = Path(tempfile.mkdtemp(prefix="tree-", dir=session.folder()))
    return _run(Path("/"), place, [(str(_copied_checkout(place)), "/source"), ("/dev", "/dev")], steps, {**_login(), **env})


def _run(root: Path, place: Path, binds: list[tuple[str, str]], steps: Sequence[str], env: Mapping[str, str]) -> list[Done]:
    given = {
        "root": str(root),
        "place": str(place),
        "binds": binds,
        "steps": [f"cd /source\n{step}" for step in steps],
        "environment": env,
    }
    done = work(*walled(sys.executable, "-I", "-c", _RUNNER), input=json.dumps(given), timeout=560)
    return [Done(*row) for row in json.loads(done.stdout)]


def _binds(suite: str, place: Path) -> list[tuple[str, str]]:
    checkout = _copied_checkout(place)
    downloads = CACHE / f"{suite}-downloads"
    for name in ("apt/partial", "pip"):
        (downloads / name).mkdir(parents=True, exist_ok=True)
    paths = [Path("/etc/resolv.conf"), Path("/etc/pip.conf"), *_folders_of_pip()]
    return [
        (str(checkout), "/source"),
        ("/dev", "/dev"),
        (str(downloads / "apt"), "/var/cache/apt/archives"),
        (str(downloads / "pip"), "/root/.cache/pip"),
        *((str(CERTIFICATES), str(target)) for target in (_MACHINES_CERTIFICATES,) if CERTIFICATES.exists()),
        *((str(path), str(path)) for path in paths if path.exists()),
    ]


_MACHINES_CERTIFICATES = Path("/etc/btrkeep-test-certificates.crt")


def _copied_checkout(place: Path) -> Path:
    """Copies the files that git would have: a tree must not get other files of this checkout."""
    target = place.with_name(f"{place.name}-source")
    for path in tracked_files():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / path, target / path)
    return target


def _folders_of_pip() -> list[Path]:
    """Returns folders of this machine that pip's settings in the environment name."""
    words = (Path(word) for name, value in os.environ.items() if name.startswith("PIP_") for word in value.split())
    return [path for path in words if path.is_absolute() and path.is_dir()]


def _environment() -> dict[str, str]:
    """Returns the environment after a login, with this machine's settings for packages."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.lower().endswith("_proxy")}
    certificates = {"PIP_CERT": str(_MACHINES_CERTIFICATES)} if CERTIFICATES.exists() else {}
    return {**kept, **certificates, **_login()}


def _login() -> dict[str, str]:
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }
