"""A Debian with btrkeep installed, as a folder, and boots of it: real systemd as PID 1, in a container on this kernel.

The folder is made once: by mmdebstrap, then by install.sh as the documentation says. A boot does not change it, takes a second, and
sees the packages and units of this checkout instead of the installed ones, so the present code runs.
"""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from btrkeep import __version__
from tests.beds import TOP, session
from tests.beds.anyone import readable
from tests.beds.walls import walled
from tests.beds.work import explain, work

CACHE = Path(f"/var/tmp/btrkeep-tests-{__version__}")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "kmod", "ca-certificates", "python3", "python3-venv", "btrfs-progs", "rsync"),
    *(
        "bubblewrap",
        "restic",
        "openssh-client",
        "openssh-server",
        "util-linux",
        "mount",
        "procps",
        "acl",
        "attr",
        "libcap2-bin",
        "sqlite3",
        "git",
    ),
)
_OPTIONS = (
    *("--quiet", "--variant=minbase", "--aptopt=APT::Install-Recommends false"),
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")),
)
_OURS = ("btrkeep", "backupd", "heatmap", "balancer", "web")
_INSTALL = """\
export HOME=/root LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd /source && ./install.sh --no-packages
"""
_UNIT = """\
[Unit]
After=basic.target dbus.service
Wants=dbus.service
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
StandardOutput=file:/payload/said
StandardError=inherit
TimeoutStartSec=infinity
ExecStart=/bin/bash -c 'cd /payload && bash -eu ./main.sh; echo "status $?"'
"""
# What a boot has no use for, and what would begin by itself.
_MASKED = (
    *(f"{name}.timer" for name in ("apt-daily", "apt-daily-upgrade", "dpkg-db-backup", "e2scrub_all", "fstrim")),
    *(f"{name}.service" for name in ("e2scrub_reap", "console-getty", "ssh", "systemd-logind", "systemd-networkd")),
    "getty.target",
)


@functools.cache
def why_not() -> str:
    """Returns why this machine cannot boot a container, or ""."""
    if os.geteuid() != 0:
        return "no root"
    missing = [name for name in ("mmdebstrap", "systemd-nspawn") if not shutil.which(name)]
    return f"{missing[0]} is not installed" if missing else ""


@contextmanager
def locked(kind: str = "machine") -> Iterator[None]:
    """Lets only one session at a time fill the cache; others wait."""
    CACHE.mkdir(mode=0o755, exist_ok=True)
    with (CACHE / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def debian() -> Path:
    """Returns a Debian without btrkeep, which must not be changed."""
    with locked():
        return _debian()


def _debian() -> Path:
    return once("debian", "\0".join((*_OPTIONS, *PACKAGES, _sources())), _make_debian)


def machine() -> Path:
    """Returns the folder, which is made if it is missing."""
    with locked():
        clean = _debian()
        recipe = b"".join((TOP / name).read_bytes() for name in ("install.sh", "setup.py", "scripts/ground.sh"))
        return once("machine", f"{clean.name}{hashlib.sha256(recipe).hexdigest()}", lambda path: _make_machine(clean, path))


def once(kind: str, recipe: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, made of that recipe when it is not there yet; those of other recipes go. A lock is held meanwhile."""
    path = CACHE / f"{kind}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if not path.exists():
        for older in CACHE.glob(f"{kind}-*"):
            shutil.rmtree(older)
        unfinished = CACHE / f"{kind}-unfinished"
        make(unfinished)
        unfinished.rename(path)
    return path


def _sources() -> str:
    """This machine's apt sources if they are Debian's in one file; otherwise mmdebstrap uses its own."""
    file = Path("/etc/apt/sources.list.d/debian.sources")
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _codename() -> str:
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', Path("/etc/os-release").read_text(encoding="utf-8"), re.MULTILINE))
    return release["VERSION_CODENAME"] if release.get("ID") == "debian" else "bookworm"


def _make_debian(path: Path) -> None:
    sources = _sources()
    words = ("mmdebstrap", *_OPTIONS, f"--include={','.join(PACKAGES)}", _codename(), path, *(("-",) if sources else ()))
    for attempt in (1, 2):  # a download may fail once
        shutil.rmtree(path, ignore_errors=True)
        if work(*words, input=sources or None, check=attempt == 2, timeout=500).returncode == 0:
            break
    (path / "etc" / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")  # without one the first boot asks questions
    for unit in _MASKED:
        (path / "etc/systemd/system" / unit).symlink_to("/dev/null")


def _make_machine(debian: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    work("cp", "-a", debian, path)
    for file in (Path("/etc/resolv.conf"), Path("/etc/pip.conf"), CERTIFICATES):
        if file.exists():
            shutil.copyfile(file, path / file.relative_to("/"))
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.lower().endswith("_proxy")}
    binds = f'mkdir -p "$1/source"; mount --rbind "{TOP}" "$1/source"; mount --rbind /dev "$1/dev"; mount -t proc proc "$1/proc"'
    words = ("bash", "-euc", f'{binds}; exec chroot "$1" bash -ec "$2"', "-", path, _INSTALL)
    done = work(*walled(*words), env=kept, timeout=500)
    assert (path / "usr/local/sbin/backupd").is_symlink(), explain(done)
    shutil.rmtree(path / "etc/btrkeep")


@dataclass(frozen=True, slots=True)
class Booted:
    """A boot that is over: what the script printed, and the folder with the files that it left in /payload."""

    output: str
    payload: Path

    def read(self, name: str) -> str:
        return (self.payload / name).read_text(encoding="utf-8", errors="surrogateescape")

    def fields(self, name: str) -> dict[str, str]:
        """A file of NAME=VALUE lines, as `systemctl show` prints them."""
        return dict(line.split("=", 1) for line in self.read(name).splitlines() if "=" in line)


@contextmanager
def booted(
    files: dict[str, str], binds: Sequence[tuple[Path, str]], timeout: float = 100, network: Path | None = None
) -> Iterator[Booted]:
    """Boots, runs files["main.sh"] (bash -eu, in /payload, with the other files beside it) and powers off.

    `binds`: what of this machine is to be seen where. The clock is this machine's, and cannot be set; memory limits are not held.
    `network`: a network namespace that several machines share; without one each is alone.
    """
    top = machine()
    payload = Path(tempfile.mkdtemp(prefix="boot-", dir=session.folder()))
    (payload / "payload.service").write_text(_UNIT)
    for name, text in files.items():
        (payload / name).write_text(text, encoding="utf-8")
    try:
        with _cgroups(payload.name) as groups:
            command = [*_enter(groups), *_command(top, payload, binds, network, timeout - 10)]
            done = _ended(command, timeout)
        content = (payload / "said").read_text(encoding="utf-8", errors="replace") if (payload / "said").exists() else ""
        shown = (
            f"{content}\n--- console\n{done.stdout.decode(errors='replace')[-3000:]}{done.stderr.decode(errors='replace')[-3000:]}"
        )
        assert content.rstrip().endswith("status 0"), shown
        yield Booted(content, payload)
    finally:
        shutil.rmtree(payload, ignore_errors=True)


def _ended(command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[bytes]:
    """Waits for a machine's end. It is also ended with the waiting process, because a killed `timeout` would leave it running."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as machine:
        try:
            printed, errors = machine.communicate(timeout=timeout)
        except BaseException:
            machine.terminate()  # `timeout` hands it on, and kills five seconds later
            raise
    return subprocess.CompletedProcess(command, machine.returncode, printed, errors)


@contextmanager
def _cgroups(name: str) -> Iterator[list[Path]]:
    """Makes separate cgroups for a boot. Two machines in one cgroup would treat each other's processes as their own."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    tops = [Path(words[1]) for words in mounts if words[2] == "cgroup2" or (words[2] == "cgroup" and "name=systemd" in words[3])]
    groups = [top / name for top in tops]
    for group in groups:
        group.mkdir()
    try:
        yield groups
    finally:
        for group in groups:
            for path in sorted([group, *(path for path in group.rglob("*") if path.is_dir())], reverse=True):
                _remove_cgroup(path)


def _remove_cgroup(path: Path) -> None:
    for _ in range(50):  # the last process has ended, but the kernel may not have noticed yet
        with suppress(OSError):
            path.rmdir()
        if not path.exists():
            return
        time.sleep(0.02)


def _enter(groups: Sequence[Path]) -> Iterator[str]:
    script = 'for group in $1; do echo $$ >"$group/cgroup.procs"; done; shift; exec "$@"'
    yield from ("sh", "-euc", script, "sh", " ".join(map(str, groups)))


def _command(top: Path, payload: Path, binds: Sequence[tuple[Path, str]], network: Path | None, seconds: float) -> Iterator[str]:
    yield from (
        "timeout",
        "--foreground",
        "--kill-after=5",
        str(seconds),
        "systemd-nspawn",
        "--quiet",
        "--register=no",
        "--keep-unit",
    )
    yield from ("--volatile=overlay", f"--directory={top}", "--capability=all")
    yield f"--network-namespace-path={network}" if network else "--private-network"
    yield "--system-call-filter=pidfd_getfd"  # systemd-nspawn refuses it, a real machine does not
    yield "--drop-capability=CAP_SYS_TIME"  # a container shares the machine's clock
    yield "--bind-ro=/sys/fs/btrfs"
    yield f"--bind={payload}:/payload"
    yield f"--bind-ro={payload / 'payload.service'}:/etc/systemd/system/payload.service"
    packages = next((top / "opt/btrkeep/versions").glob("*/lib/python3*/site-packages"))
    inside = f"/{packages.relative_to(top)}"
    code = readable().top  # the dashboard's user reads it too
    yield from (f"--bind-ro={code / name}:{inside}/{name}" for name in _OURS if (packages / name).exists())
    units = [path for path in (TOP / "systemd").iterdir() if path.suffix in (".service", ".socket", ".timer", ".slice")]
    yield from (f"--bind-ro={path}:/usr/local/lib/systemd/system/{path.name}" for path in units)
    yield from (f"--bind={source}:{target}" for source, target in binds)
    yield from ("--boot", "--", "--unit=payload.service")
