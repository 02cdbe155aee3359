"""The resources that a test session owns on this machine: how they are recognised and removed.

Everything that outlives a process is in the session's own folders or points into them, btrkeep-test-PID-START in /dev/shm and in
TMPDIR: images, the loop devices on them, the mounts in them. Processes carry the folder's name in their environment, or, where
they write over it as sshd does, are named by a .pid file in the folder. So cleaning up needs no record of earlier actions: it reads
the kernel's tables. The same code ends a session, and clears away after one that was killed, which is one whose process (of
that number and start time) is gone.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "btrkeep-test-"
MARK = "BTRKEEP_TEST_SESSION"
PLACE = "BTRKEEP_TEST_PLACE"
_NAME = re.compile(re.escape(PREFIX) + r"(\d+)-(\d+)")
_RAM = Path("/dev/shm")
_LONGEST_DETACH = 2.0  # seconds


def places() -> list[Path]:
    """Returns the possible places of session folders: in memory first. The environment may name one other place, as for a session
    in a test.
    """
    if chosen := os.environ.get(PLACE):
        return [Path(chosen)]
    return [place for place in (_RAM, Path(tempfile.gettempdir())) if place.is_dir()]


def start_time(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot; None if it has ended. It distinguishes processes with the same
    pid.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = text.rpartition(")")[2].split()
    return None if state == "Z" else int(fields[18])


def own_name() -> str:
    return f"{PREFIX}{os.getpid()}-{start_time(os.getpid())}"


def is_alive(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and start_time(int(match[1])) == int(match[2])


def folder(room: int = 0) -> Path:
    """Returns this session's folder, in memory if `room` bytes still fit there, else in TMPDIR; it is made if it is missing."""
    fitting = [place for place in places() if shutil.disk_usage(place).free >= room]
    path = (fitting or places()[-1:])[0] / own_name()
    path.mkdir(mode=0o755, exist_ok=True)
    return path


def has_attributes(place: Path) -> bool:
    """Returns True if its files can have attributes of users: in memory only since Linux 6.6."""
    with tempfile.NamedTemporaryFile(dir=place) as file, contextlib.suppress(OSError):
        os.setxattr(file.fileno(), "user.it", b"")
        return True
    return False


def folders_of(name: str) -> list[Path]:
    return [path for place in places() if (path := place / name).is_dir()]


def dead_sessions() -> set[str]:
    """Returns the names of this user's sessions that were killed and whose folders still exist."""
    paths = (path for place in places() for path in place.glob(f"{PREFIX}*"))
    names = {path.name for path in paths if _NAME.fullmatch(path.name) and _is_ours(path)}
    return {name for name in names if not is_alive(name) or _is_orphan(name)}


def _is_orphan(name: str) -> bool:
    """Returns True if a living session was started by one that has ended: a worker of a killed pytest."""
    mark = _mark_of(_pid_of(name))
    return mark is not None and not is_alive(mark)


def _pid_of(name: str) -> int:
    return int(name.removeprefix(PREFIX).partition("-")[0])


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except FileNotFoundError:  # its own session has just removed it
        return False


def mounts_below(path: Path, process: int | str = "self") -> list[Path]:
    """Returns the mount points at or below `path` that a process sees, the innermost first."""
    points = []
    for line in Path(f"/proc/{process}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split()[4])
        if Path(point).is_relative_to(path):
            points.append(Path(point))
    return points[::-1]


def loops_below(path: Path) -> list[str]:
    """Returns the loop devices whose image is below `path`: names such as /dev/loop3."""
    lines = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            image = backing.read_text(encoding="utf-8").strip()
        except OSError:  # detached meanwhile
            continue
        if Path(image).is_relative_to(path):
            lines.append(f"/dev/{backing.parts[3]}")
    return lines


def _is_leaving(device: str) -> bool:
    """Returns True if the kernel detaches a loop device when its last user has closed it."""
    try:
        return (Path("/sys/block") / Path(device).name / "loop/autoclear").read_text(encoding="ascii").strip() == "1"
    except OSError:  # detached meanwhile
        return True


def processes_of(name: str) -> dict[int, str]:
    """Returns processes, other than this one, that were started by that session: number and command line."""
    noted = _noted_pids(name)
    marked = (pid for pid in _pids() if pid != os.getpid() and _mark_of(pid) == name)
    return {pid: _command_line(pid) for pid in [*noted, *marked]}


def _noted_pids(name: str) -> list[int]:
    """Returns those in the session's .pid files whose command line still names its folder: the number may belong to another process
    now.
    """
    notes = [note for path in folders_of(name) for note in path.glob("*/*.pid")]
    numbers = [int(text) for note in notes if (text := note.read_text(encoding="ascii").strip())]
    return [pid for pid in numbers if name in _command_line(pid)]


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def _mark_of(pid: int) -> str | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # deleted, or foreign
        return None
    mark = f"{MARK}=".encode()
    return next((os.fsdecode(word.removeprefix(mark)) for word in environment if word.startswith(mark)), None)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(gone)"


def end_processes(name: str, patience: float) -> list[str]:
    """Waits `patience` seconds for the session's processes to end by themselves; kills those that do not, and names them."""
    deadline = time.monotonic() + patience
    while (left := processes_of(name)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return _kill(left)


def _kill(processes: dict[int, str]) -> list[str]:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"process {pid} was still running: {line}" for pid, line in processes.items()]


def _works_in(pid: int, point: Path) -> bool:
    """Returns True if a process has its folder or an open file below `point`, which prevents unmounting it."""
    links = [Path(f"/proc/{pid}/cwd"), Path(f"/proc/{pid}/root")]
    with contextlib.suppress(OSError):
        links += Path(f"/proc/{pid}/fd").iterdir()
    for link in links:
        with contextlib.suppress(OSError):
            if link.readlink().is_relative_to(point):
                return True
    return False


def remove(path: Path) -> list[str]:
    """Removes `path` with every mount and loop device in it; reports what failed."""
    problems = [problem for point in mounts_below(path) for problem in _unmount(point)]
    for device in loops_below(path):
        _quietly("btrfs", "device", "scan", "--forget", device)
        lines = _quietly("losetup", "--detach", device)
        deadline = time.monotonic() + _LONGEST_DETACH
        while device in loops_below(path) and time.monotonic() < deadline:  # detached with its last user, be that udev
            unmount_copies(path)
            time.sleep(0.05)
        if device in loops_below(path) and not _is_leaving(device):  # another container that boots may hold a copy of the mount
            problems += lines or [f"{device} is still in use"]
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        _open_folders(path)
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        problems.append(f"{path} could not be removed")
    return problems


def _open_folders(path: Path) -> None:
    """Gives this user access to every folder of a tree: some tests of ordinary users leave folders that they may not read."""
    for folder, names, _ in os.walk(path):
        for name in names:
            if not (inner := Path(folder, name)).is_symlink():
                inner.chmod(0o700)


def _unmount(point: Path) -> list[str]:
    """Unmounts; kills those processes of the session that still use the place after a second, and reports that.

    If the place is still busy, it is unmounted lazily, and the device goes with its last user.
    """
    name = next(part for part in reversed(point.parts) if _NAME.fullmatch(part))
    if not _keeps_busy(point, 1):
        return []
    problems = _kill(_own_holders(name, point))
    if output := _keeps_busy(point, 5):
        problems += [*output, *holders(point), *_quietly("umount", "--lazy", str(point))]
    return problems


def holders(point: Path) -> list[str]:
    """Returns the processes that work in a mount, a line each."""
    return [f"process {pid} holds it: {_command_line(pid)}" for pid in _pids() if _works_in(pid, point)]


def with_a_copy(point: Path) -> list[str]:
    """Returns the processes that have the mount in another namespace, a line each."""
    lines = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if f" {point} " in Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="replace"):
                lines.append(f"process {pid} has it mounted: {_command_line(pid)}")
    return lines


def unmount_copies(path: Path) -> None:
    """Unmounts everything at or below `path` in the mount namespaces of other processes.

    Such a namespace has copies of all mounts, and keeps our filesystems in use for as long as its last process lives.
    """
    seen = {Path("/proc/self/ns/mnt").stat().st_ino}
    for pid in _pids():
        with contextlib.suppress(OSError):
            namespace = Path(f"/proc/{pid}/ns/mnt").stat().st_ino
            if namespace not in seen:
                seen.add(namespace)
                for point in mounts_below(path, pid):
                    _quietly("nsenter", f"--mount=/proc/{pid}/ns/mnt", "umount", str(point))


def _own_holders(name: str, point: Path) -> dict[int, str]:
    """Returns the session's processes that work in `point`: marked ones, and those with its folder in their words.

    Our programs start theirs with an environment of their own, so an orphaned rsync carries no mark; its paths give it away.
    """
    lines = {pid: _command_line(pid) for pid in _pids() if pid != os.getpid() and _works_in(pid, point)}
    return {pid: line for pid, line in lines.items() if name in line or _mark_of(pid) == name}


def _keeps_busy(point: Path, seconds: float) -> list[str]:
    """Tries for that long to unmount; returns umount's last message, or "" on success."""
    deadline = time.monotonic() + seconds
    while (output := _quietly("umount", str(point))) and time.monotonic() < deadline:
        if not mounts_below(point):  # another process was faster
            return []
        time.sleep(0.1)
    return output


def _quietly(*argv: str) -> list[str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return [] if done.returncode == 0 else [f"{' '.join(argv)}: {done.stderr.strip()}"]


_elsewhere: set[Path] = set()


def remove_at_end(path: Path) -> None:
    """Records a folder outside of the session's own that a command makes after a failure, and that must be removed."""
    _elsewhere.add(path)


def end_session(name: str, patience: float = 0) -> list[str]:
    """Removes everything that the session `name` owns; reports resources that should already have been removed."""
    problems = end_processes(name, patience)
    for path in folders_of(name):
        problems += [f"{point} was still mounted" for point in mounts_below(path)]
        problems += [f"{device} was still attached" for device in loops_below(path) if not _is_leaving(device)]
        problems += remove(path)
    for path in _elsewhere if name == own_name() else ():
        shutil.rmtree(path, ignore_errors=True)
    return problems


def clear_dead_sessions() -> list[str]:
    """Removes the remains of killed sessions; returns their names."""
    dead = sorted(dead_sessions())
    for name in dead:
        if is_alive(name):
            _kill({_pid_of(name): ""})
        end_session(name)
    return dead
