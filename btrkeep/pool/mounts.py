"""Mounts as the kernel lists them: opening a btrfs by any path on it, the command that mounts a pool, and one mount option.

The command is what this server's own configuration has: /etc/fstab, or a mount unit of systemd. The option of btrfs is the one that
we change: ssd, ssd_spread or nossd. It belongs to the superblock, hence to all mounts of the filesystem, while nosuid, nodev,
noatime and similar flags belong to one mount each. mount(2) with MS_REMOUNT sets both kinds and drops those that are not passed.
fspick(2) and fsconfig(2) with FSCONFIG_CMD_RECONFIGURE change only the superblock, and only the named options (Linux 5.2).

Older kernels, by their source: up to 6.7 btrfs has no fs_context of its own, so the kernel's legacy one collects the flags ("ssd"
becomes the text "ssd") and passes them to btrfs_remount(), which parses them on top of the options in force, as for mount(2). In
all versions, the flags of the superblock are not copied into the context that fspick makes, and btrfs takes a missing SB_RDONLY as
a request to become writable: for a read-only filesystem, "ro" is passed along with the option.
"""

import errno
import os
import re
import shlex
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from btrkeep.checkpoints import Checkpoint
from btrkeep.descriptors import ClosingFd
from btrkeep.errors import OperatorError, PoolUnusable
from btrkeep.procfs import Mount, mounts, privilege_hint

# Words per option. "ssd" alone keeps ssd_spread active, "nossd" removes both: btrfs_parse_param in fs/btrfs/super.c.
ALLOCATORS: dict[str, tuple[str, ...]] = {
    "ssd": ("nossd_spread", "ssd"),
    "ssd_spread": ("ssd_spread",),
    "nossd": ("nossd",),
}

# Numbers of include/uapi/asm-generic/unistd.h; x86 has the same numbers since 424 (arch/x86/entry/syscalls/syscall_64.tbl).
_OPEN_TREE, _FSCONFIG, _FSPICK, _MOUNT_SETATTR = 428, 431, 433, 442
# include/uapi/linux/mount.h
_FSPICK_CLOEXEC, _FSPICK_EMPTY_PATH = 0x1, 0x8
_FSCONFIG_SET_FLAG, _FSCONFIG_CMD_RECONFIGURE = 0, 7
_OPEN_TREE_CLONE, _MOUNT_ATTR_RDONLY = 0x1, 0x1
_AT_EMPTY_PATH = 0x1000  # include/uapi/linux/fcntl.h
_MS_REMOUNT, _MS_RELATIME, _MS_STRICTATIME = 0x20, 0x200000, 0x1000000
_MOUNT_FLAGS = {
    "nosuid": 0x2,
    "nodev": 0x4,
    "noexec": 0x8,
    "nosymfollow": 0x100,
    "noatime": 0x400,
    "nodiratime": 0x800,
    "relatime": _MS_RELATIME,
}
_SUPER_FLAGS = {"ro": 0x1, "sync": 0x10, "mand": 0x40, "dirsync": 0x80, "lazytime": 0x2000000}
_REFUSED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def mount_of(path: Path) -> Mount:
    """Returns the mount of `path`; if there are several at one place, the kernel decides. Raises OSError."""
    with _opened(path) as fd:
        return _mount_of_descriptor(fd, path)


def statfs_type(path: Path) -> str:
    """Returns the filesystem's name of the mount that contains `path`. Raises OSError."""
    return mount_of(path).filesystem


def mount_options(path: Path) -> frozenset[str]:
    """Returns the options of the mount and of the filesystem that contain `path`: ro, noatime, nossd, ... Raises OSError."""
    mount = mount_of(path)
    return frozenset((*mount.mount_options, *mount.super_options))


def _opened(path: Path) -> ClosingFd:
    """O_PATH does not open the content: it needs no permission to read, and no disk has to spin up."""
    return ClosingFd(os.open(path, os.O_PATH | os.O_CLOEXEC))


def mount_id(fd: int) -> int:
    """Returns the number of the mount through which a descriptor was opened, as in mountinfo; -1 if the kernel does not
    report it.
    """
    match = re.search(r"^mnt_id:\s*(\d+)$", Path(f"/proc/self/fdinfo/{fd}").read_text(), re.MULTILINE)
    return int(match[1]) if match else -1


def _mount_of_descriptor(fd: int, path: Path) -> Mount:
    number = mount_id(fd)
    for mount in mounts():
        if mount.id == number:
            return mount
    raise FileNotFoundError(errno.ENOENT, "its mount is not in /proc/self/mountinfo", str(path))


def machine_mount(path: Path) -> Mount | None:
    """Returns the mount of `path` in the machine's namespace; None if it cannot be seen from here. Raises OSError.

    systemd gives a unit copies of all mounts with the unit's own flags: nosuid with NoNewPrivileges=, ro with ProtectSystem=strict.
    Later changes in the machine do not reach the copies. The machine's mounts are those of process 1.
    """
    own = mount_of(path)
    try:
        every = [mount for mount in mounts(1) if mount.device == own.device]
    except OSError:  # processes of others may be hidden
        return None
    if not every:  # mounted by the parent, only for this process
        return own
    return next((mount for mount in reversed(every) if (mount.root, mount.target) == (own.root, own.target)), None)


def is_machines(path: Path) -> bool:
    """Returns True if the filesystem of `path` is mounted there in the machine's namespace as well. A unit may see another one,
    such as an empty one with ProtectHome= or PrivateTmp=. Returns False if it cannot be determined, as in a chroot whose root is
    not a mount point.
    """
    try:
        own = mount_of(path)
        return any((mount.device, mount.root, mount.target) == (own.device, own.root, own.target) for mount in mounts(1))
    except OSError:  # processes of others may be hidden
        return False


def allocator(mount: Mount) -> str:
    """Returns ssd, ssd_spread or nossd. Without an option it is nossd, the default of btrfs for rotating devices."""
    return next((word for word in ("ssd_spread", "ssd") if word in mount.super_options), "nossd")


@Checkpoint("mount option switched")
def set_allocator(path: Path, option: str) -> None:
    """Switches the filesystem of `path` to ssd, ssd_spread or nossd, at once and for all its mounts; nothing else changes.

    Needs CAP_SYS_ADMIN. Raises OSError, ValueError for another option.
    """
    words = ALLOCATORS.get(option)
    if words is None:
        raise ValueError(f"{option!r} is not one of {', '.join(ALLOCATORS)}")
    with _opened(path) as fd:
        mount = _mount_of_descriptor(fd, path)
        if mount.filesystem != "btrfs":
            raise OSError(errno.EINVAL, "it is not a btrfs", str(path))
        try:
            reconfigure(fd, words, read_only="ro" in mount.super_options)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            remount(mount, words)


def reconfigure(fd: int, words: tuple[str, ...], *, read_only: bool) -> None:
    """Sets options of the superblock, and nothing else, by fspick(2). `fd` is on the filesystem. Raises OSError."""
    with ClosingFd(_call("fspick", _FSPICK, fd, b"", _FSPICK_CLOEXEC | _FSPICK_EMPTY_PATH)) as context:
        for word in (*words, *(("ro",) if read_only else ())):
            _call("fsconfig", _FSCONFIG, context, _FSCONFIG_SET_FLAG, word.encode(), None, 0)
        _call("fsconfig", _FSCONFIG, context, _FSCONFIG_CMD_RECONFIGURE, None, None, 0)


def read_only_view(fd: int) -> int:
    """Opens the file of `fd` again through a private read-only mount. Raises OSError (ENOSYS before Linux 5.12).

    A process with only that descriptor can change neither content nor owner, mode and attributes of the file, not even as root by
    opening /proc/self/fd/N for writing, which a plain read-only descriptor does not prevent.
    """
    with ClosingFd(_call("open_tree", _OPEN_TREE, fd, b"", _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH)) as tree:
        attributes = struct.pack("4Q", _MOUNT_ATTR_RDONLY, 0, 0, 0)  # struct mount_attr: set, clear, propagation, user namespace
        _call("mount_setattr", _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
        return os.open(f"/proc/self/fd/{tree}", os.O_RDONLY | os.O_CLOEXEC)


def _call(name: str, number: int, *arguments: int | bytes | None) -> int:
    import ctypes  # 5 ms that only commands that change a mount need

    words = [ctypes.c_long(each) if isinstance(each, int) else ctypes.c_char_p(each) for each in arguments]
    done = _syscall()(ctypes.c_long(number), *words)
    if done < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return done


@cache
def _syscall() -> Callable[..., int]:
    import ctypes

    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    return function


def remount(mount: Mount, words: tuple[str, ...]) -> None:
    """Remounts by mount(2), with all present flags, for kernels without fspick. Raises OSError.

    A mount that is itself read-only (a bind mount) cannot be used for it: mount(2) would make the filesystem read-only.
    """
    import ctypes

    if "ro" in mount.mount_options and "ro" not in mount.super_options:
        raise OSError(errno.EROFS, "the mount is read-only, its filesystem is not: name another of its mounts", str(mount.target))
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(remount_flags(mount))
    if libc.mount(None, os.fsencode(mount.target), None, flags, ",".join(words).encode()) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount: {os.strerror(code)}", str(mount.target))


def remount_flags(mount: Mount) -> int:
    """Returns MS_REMOUNT and every present flag. Without an option for access times they are strict, which needs a flag."""
    flags = _MS_REMOUNT
    for option in mount.mount_options:
        flags |= _MOUNT_FLAGS.get(option, 0)
    for option in mount.super_options:
        flags |= _SUPER_FLAGS.get(option, 0)
    return flags if {"noatime", "relatime"}.intersection(mount.mount_options) else flags | _MS_STRICTATIME


@contextmanager
def open_btrfs(path: Path, unusable: type[OperatorError] = PoolUnusable) -> Iterator[int]:
    """Yields a descriptor on the btrfs of `path`, any folder or file. Raises `unusable`.

    Errors in the context while its trees are read are converted, too: missing privilege, or a kernel without support.
    """
    _require_btrfs(path, unusable)
    try:
        with ClosingFd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            yield fd
    except PermissionError:
        raise unusable(f"no permission to read the trees of the btrfs at {path}", privilege_hint()) from None
    except OSError as error:
        message = f"the btrfs at {path} cannot be read: {error.strerror}"
        raise unusable(message, "check the kernel's messages (dmesg)") from None


def _require_btrfs(path: Path, unusable: type[OperatorError]) -> None:
    try:
        kind, mount = path.stat().st_mode, mount_of(path)
    except PermissionError:
        raise unusable(f"{path} may not be read", privilege_hint("CAP_DAC_READ_SEARCH")) from None
    except OSError as error:
        raise unusable(f"{path}: {error.strerror}", "name the mount point of a btrfs: `findmnt -t btrfs` lists them") from None
    if stat.S_ISBLK(kind):
        raise unusable(f"{path} is a device", f"name its mount point: `findmnt {path}` shows it")
    if mount.filesystem != "btrfs":
        raise unusable(f"{path} is on {mount.filesystem}, not on btrfs", "`findmnt -t btrfs` lists what is mounted")
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
        raise unusable(f"{path} is neither a folder nor a file", f"name its folder: {path.parent}")


_FSTAB = Path("/etc/fstab")
_UNITS = (Path("/etc/systemd/system"), Path("/usr/local/lib/systemd/system"), Path("/usr/lib/systemd/system"))
_OCTAL = re.compile(r"\\([0-7]{3})")
_LONGEST_UNIT = 255  # systemd's limit, and that of file names
_PLAIN = re.compile(r"[A-Za-z0-9:_.]")


def mount_pool_words(path: Path) -> str:
    """Returns the advice for a pool at `path` that is not mounted, with the command if there is one."""
    try:
        fstab = _FSTAB.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        fstab = ""
    command = mount_command(path.absolute(), fstab, _has_unit, os.path.ismount)
    return f"mount the pool: `{command}`" if command else "mount the pool"


def _has_unit(name: str) -> bool:
    return len(name) <= _LONGEST_UNIT and any((folder / name).exists() for folder in _UNITS)


def mount_command(path: Path, fstab: str, has_unit: Callable[[str], bool], is_mount: Callable[[Path], bool]) -> str | None:
    """Returns the command for the nearest folder of `path` that fstab or a unit mounts; None if none does, or it is mounted."""
    mountpoints = {_mountpoint(line) for line in fstab.splitlines()}
    for folder in (path, *path.parents[:-1]):
        if is_mount(folder):
            return None
        if folder in mountpoints:
            return f"mount {shlex.quote(str(folder))}"
        if has_unit(unit := unit_name(folder)):
            return f"systemctl start {shlex.quote(unit)}"
    return None


def unit_name(folder: Path) -> str:
    """Returns the name of the unit that mounts a folder, in the form of `systemd-escape --path --suffix=mount`."""
    text = "".join("-" if char == "/" else _escaped(char, first=number == 0) for number, char in enumerate(str(folder).strip("/")))
    return f"{text or '-'}.mount"


def _escaped(char: str, *, first: bool) -> str:
    if _PLAIN.fullmatch(char) and not (first and char == "."):
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def _mountpoint(line: str) -> Path | None:
    """Returns where a line of fstab mounts something: its second field, in which \\040 is a space."""
    fields = line.split()
    if len(fields) < 3 or fields[0].startswith("#") or not fields[1].startswith("/"):
        return None
    return Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[1]))
