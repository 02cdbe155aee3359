"""A virtual machine with btrkeep, whose power can be cut: real systemd as PID 1, on its own (Debian's) kernel.

For features that a container on this kernel lacks: another clock, enforced limits of memory and device policies (cgroup v2),
device mapper. The image is made once; a boot takes five to thirty seconds, does not change it, and sees the packages and units of
this checkout instead of the installed ones. The processor is emulated: /dev/kvm may be there and hang.
"""

import functools
import hashlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.beds import session
from tests.beds.machine import locked, machine, once
from tests.beds.machine import why_not as no_machine
from tests.beds.vm_sleep import wake
from tests.beds.work import work

_TOP = Path(__file__).resolve().parents[2]
_IMAGE = Path(__file__).resolve().parent / "vm_image.sh"
_LONGEST_BOOT = 1800.0  # seconds, by the clock
_SILENCE = 60  # boots
_PAUSE = 0.002
_INSTALL = """\
#!/bin/bash
set -eu
tar --warning=no-timestamp -xf packages.tar -C "$(echo /opt/btrkeep/versions/*/lib/python3*/site-packages)"
[ -d /run/systemd/system ] || exit 0
tar --warning=no-timestamp -xf units.tar -C /usr/local/lib/systemd/system
systemctl daemon-reload
"""
_MASKED = ("systemd-update-utmp", "systemd-random-seed", "systemd-pstore", "systemd-binfmt")
_KERNEL = "console=ttyS0 panic=-1 quiet mitigations=off random.trust_cpu=on systemd.show_status=0 psi=1"


def why_not() -> str:
    """Returns why this machine cannot run a virtual machine, or ""."""
    missing = (name for name in ("qemu-system-x86_64", "cpio") if not shutil.which(name))
    return no_machine() or next((f"{name} is not installed" for name in missing), "")


@functools.cache
def _ground() -> Path:
    """Returns the folder with a kernel and a disk."""
    top = machine()
    with locked("vm"):
        recipe = f"{top.name}{hashlib.sha256(_IMAGE.read_bytes()).hexdigest()}"
        return once("vm", recipe, lambda path: _make(top, path))


def _make(top: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    work(_IMAGE, top, path, timeout=800)


class Vm:
    """A running virtual machine. `said`: the file with the output of its scripts so far."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self._process, self.output_path, self._console, self._asked = process, folder / "said", folder / "console", folder / "qmp"
        self._begun, self._boot = time.monotonic(), 0.0

    def lines(self) -> list[str]:
        """Returns the complete lines."""
        return self.output_path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]

    def wait(self, seconds: float, until: Callable[[list[str]], object]) -> list[str]:
        """Returns the machine's output as soon as the condition is true of it. Fails if it needs more than that many seconds of
        processor time, prints nothing for the time of many boots, or is off.

        So a machine on a busy processor has more time, by the clock, and one whose script hangs ends anyway.
        """
        limit, heard, size, lines = self._spent() + seconds, time.monotonic(), -1, list[str]()
        while True:
            off = self._process.poll() is not None
            if (now := self.output_path.stat().st_size) != size:
                size, lines, heard = now, self.lines(), time.monotonic()
                self._boot = self._boot or (heard - self._begun if size else 0.0)
            if until(lines):
                return lines
            silent = time.monotonic() - heard > (self._boot * _SILENCE or _LONGEST_BOOT)
            is_over = off or silent or self._spent() > limit
            assert not is_over, self._shown(lines)
            time.sleep(_PAUSE)

    def _spent(self) -> float:
        """Returns the processor seconds that it has used; 0 if it is off."""
        if self._process.poll() is not None:
            return 0.0
        return time.clock_gettime(~self._process.pid << 3 | 2)  # clock_getcpuclockid(3), which Python does not have

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stops it during the block: its disks are in the state after a power cut now."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            while not self._is_stopped():
                time.sleep(_PAUSE)
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _is_stopped(self) -> bool:
        """Returns True if each of its threads is stopped; a thread that writes to a disk finishes that first."""
        try:
            return all("\nState:\tT" in path.read_text() for path in Path(f"/proc/{self._process.pid}/task").glob("*/status"))
        except OSError:  # a thread has just ended
            return False

    def wake(self, at: str) -> None:
        """Wakes it at that time of its clock (ISO, UTC), once it is suspended to memory. It must be one that `suspends`."""
        wake(self._asked, at)

    def to_its_end(self, seconds: float) -> str:
        """Returns all its output; fails unless its script succeeded within this many seconds of processor time."""
        lines = self.wait(seconds, lambda lines: lines[-1:] == ["status 0"] and self._process.poll() is not None)
        return "".join(f"{line}\n" for line in lines)

    def _shown(self, lines: Sequence[str]) -> str:
        console = self._console.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([*lines, "--- console", *console[-20:]])


@contextmanager
def running(
    scripts: Path, drives: Sequence[Path] = (), clock: str = "", *, systemd: bool = True, suspends: bool = False
) -> Iterator[Vm]:
    """Boots one that runs main.sh of that folder as root (bash -eu, in /payload, with the files beside it) and then ends.

    `drives`: images of disks, /dev/vdc and so on. `clock`: what it begins with, as 2026-11-20T21:00:00; this machine's otherwise.
    Without `systemd` it boots within a third of the time. `suspends`: it is an older kind of machine, because the usual one can be
    suspended once, and can neither be suspended again nor switch itself off then. At the end of the block its power is cut: data
    not yet written to a drive is lost.
    """
    ground = _ground()
    folder = Path(tempfile.mkdtemp(prefix="vm-", dir=session.folder()))
    try:
        payload = _payload(folder, scripts)
        for name in ("said", "console"):
            (folder / name).touch()
        words = [*_words(ground, folder, [payload, *drives], clock, systemd), "-machine", "pc" if suspends else "q35"]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        try:
            yield Vm(process, folder)
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder)


def _payload(folder: Path, scripts: Path) -> Path:
    """Makes a disk that is a tar: the scripts, and the replacement of the installed packages and units."""
    made, disk = folder / "payload", folder / "payload.tar"
    shutil.copytree(scripts, made)
    (made / "packages.tar").hardlink_to(_packages())
    units = sorted(path.name for path in (_TOP / "systemd").glob("btrkeep*"))
    work("tar", "-C", _TOP / "systemd", "-cf", made / "units.tar", *units)
    (made / "install").write_text(_INSTALL)
    (made / "install").chmod(0o755)
    work("tar", "-C", made, "-cf", disk, ".")
    work("truncate", "--size=%512", disk)
    shutil.rmtree(made)
    return disk


@functools.cache
def _packages() -> Path:
    """Makes a tar of them, compiled: the emulated processor would take half a minute. A Python of another version does not read
    them.
    """
    folder = Path(tempfile.mkdtemp(prefix="packages-", dir=session.folder()))
    for name in ("btrkeep", "backupd", "heatmap", "balancer", "web"):
        shutil.copytree(_TOP / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    words = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", folder, folder)
    work(sys.executable, *words, env={"PYTHONPYCACHEPREFIX": ""})
    made = folder.with_suffix(".tar")
    work("tar", "-C", folder, "-cf", made, ".")
    shutil.rmtree(folder)
    return made


def _words(ground: Path, folder: Path, drives: Sequence[Path], clock: str, systemd: bool) -> Iterator[str]:
    masked = "".join(f" systemd.mask={name}.service" for name in _MASKED) if systemd else " START=/sbin/payload"
    yield from ("setpriv", "--pdeathsig=KILL", "qemu-system-x86_64")
    yield from shlex.split("-accel tcg,thread=multi,tb-size=512 -cpu max -smp 2 -m 1024")
    yield from shlex.split("-nodefaults -display none -monitor none -no-reboot")
    yield from ("-rtc", f"base={clock or 'utc'}", "-kernel", f"{ground / 'vmlinuz'}", "-initrd", f"{ground / 'initrd.img'}")
    yield from ("-append", _KERNEL + masked)
    yield from ("-drive", f"file={ground / 'root.img'},format=raw,if=virtio,snapshot=on,cache=unsafe")
    for path in drives:  # unsafe: this machine keeps running, so the guest's writes survive, and a flush costs nothing
        yield from ("-drive", f"file={path},format=raw,if=virtio,cache=unsafe")
    yield from ("-serial", f"file:{folder / 'console'}", "-serial", f"file:{folder / 'said'}")
    yield from ("-qmp", f"unix:{folder / 'qmp'},server=on,wait=off")
