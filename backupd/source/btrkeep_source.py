#!/usr/bin/python3 -I
"""btrkeep-source: gives a backup server snapshots of this host to read, and nothing else.

It is the forced command of the server's key (`restrict,command="btrkeep-source --server NAME"`), and comes to a host as this file
alone: Python 3.6 and its standard library. The host's administrator writes in /etc/btrkeep-source.conf what the server may read.

A server asks with SSH_ORIGINAL_COMMAND:

`btrkeep-source begin [--] PATH...` runs the dumps and takes a snapshot of each filesystem below the paths: a session.
`btrkeep-source rsync SESSION --server --sender OPTIONS . PATH...` reads from it. rsync runs in a mount namespace of its own, in
    which the snapshots are in the places of the filesystems. Without a session, `rsync --server --sender ...` reads the live files.
`btrkeep-source dump NAME FILE` writes one file of a dump that is a stream (docs/decisions/0093-dumps-as-streams.rst).
`btrkeep-source end SESSION` removes the snapshots; so do the next `begin` of this server, and a timer.
`btrkeep-source check [--] [PATH...]` reports what `begin` would do.
`btrkeep-source send-begin --for KEEPER... [--have ID]... [--keep RULES] [--send [--plain]] -- PATH...` runs the dumps, then takes a
    read-only snapshot of each subvolume for a stream, which stays for the next one. Of those of this KEEPER (whose backups; 8
    hexadecimal digits), only the first one of the --have is kept beside it, the parent, and what --keep asks for and `history` in
    the configuration allows, such as daily=7,weekly=4. --send: the only path's stream follows.
`btrkeep-source send [--plain] [--parent ID] ID PATH` writes the stream of such a snapshot (`btrfs send`). --plain: uncompressed.

A host that the server cannot reach starts its own backup: `btrkeep-source call SERVER` (docs/decisions/0095-hosts-that-call.rst).

The environment and all words of a request are hostile. No shell sees them, except the dumps' own commands, which the administrator
writes.
"""

import argparse
import array
import binascii
import configparser
import contextlib
import errno
import fcntl
import fnmatch
import json
import os
import re
import select
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

TYPE_CHECKING = False
if TYPE_CHECKING:  # ctypes, datetime and socket load much, and not every request needs them
    import socket

FORMAT = 1
VERSION = "1"
CONFIG = "/etc/btrkeep-source.conf"
STATE = "/run/btrkeep-source"
DUMPS = "/var/lib/btrkeep-source/dumps"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HIDDEN = ".btrkeep-source"  # the folder of our snapshots at the top of a btrfs subvolume
NEVER = (".snapshots", HIDDEN)  # nested subvolumes below these names are others' snapshots, and ours
PREFIX = "btrkeep-source-"  # of LVM volumes and ZFS snapshots
MOST_NESTED = 2000
MOST_INNER = 4000  # filesystems and subvolumes below the paths; a server reads no more of them
MOST_PATHS = 2000
SERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
SESSION = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,49})-(\d{8}T\d{6}Z)-[0-9a-f]{6}")
PATIENCE = 10  # seconds in which a network filesystem or FUSE has to answer
OLDEST_OF_OTHERS = 7 * 86400  # seconds: sessions of another system on the same filesystem
LONGEST = 120  # seconds for a command of LVM or ZFS, and to wait for a lock

# linux/btrfs.h
SUBVOL_GETFLAGS, SNAP_CREATE_V2, SNAP_DESTROY = 0x80089419, 0x50009417, 0x5000940F
GET_SUBVOL_ROOTREF, INO_LOOKUP, INO_LOOKUP_USER, TREE_SEARCH = 0xD000943D, 0xD0009412, 0xD000943E, 0xD0009411
GET_SUBVOL_INFO, SEND = 0x81F8943C, 0x40489426
SUBVOL_RDONLY, SUBVOLUME_TOP, ROOT_TREE, INODE_ITEM, ROOT_REF, FILEID_BTRFS = 2, 256, 1, 1, 156, 0x4D
EXTENT_DATA = 108
# sys/mount.h, sched.h, sys/prctl.h, linux/capability.h
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 1, 32, 4096, 16384, 1 << 18, 1 << 21
MNT_DETACH, CLONE_NEWNS, PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 2, 0x20000, 1, 24
CAP_FSETID, CAP_MKNOD, CAP_SETFCAP = 4, 27, 31
ST_RELATIME = 4096

PSEUDO = frozenset(
    "proc sysfs devtmpfs devpts cgroup cgroup2 mqueue debugfs tracefs securityfs bpf hugetlbfs configfs pstore efivarfs "
    "binfmt_misc rpc_pipefs fusectl nsfs autofs selinuxfs nfsd".split()
)
REMOTE = frozenset("nfs nfs4 cifs smb3 ceph 9p afs lustre virtiofs fuse".split())
VOLATILE = frozenset(("tmpfs", "ramfs"))
RUNTIME = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/etc/ld.so.cache")  # what rsync needs to start


class RefusedRequest(Exception):
    """Ends the request; its text is the one line that the server gets."""


# --- configuration --------------------------------------------------------------------------------------------------------------
class Dump(NamedTuple):
    """A section [dump NAME]."""

    name: str
    command: str
    """postgresql, mysql, sqlite FILE, or a line for sh."""
    output: str
    """Absolute path: a folder for the first three, else the file of the standard output."""
    required: bool
    timeout: int
    """Seconds."""
    stream: bool = False
    """True if the server fetches it while it is made, and this host stores none of it."""


class DumpPart(NamedTuple):
    """One file of a dump."""

    path: str
    """Absolute."""
    command: List[str]
    """The program whose output it is."""
    owner: Optional[Tuple[int, int]] = None
    """The user and group that run it; None: those of this program."""


class SourceConfig:
    """/etc/btrkeep-source.conf. Times are in seconds."""

    def __init__(self) -> None:
        self.allow = ["/"]
        self.methods = ["btrfs", "lvm", "zfs"]
        self.most = 2
        self.history = 0
        self.oldest = 86400
        self.lvm_size = "10%"
        self.may_be_live = ["/boot", "/boot/*", "/efi"]
        self.dumps: List[Dump] = []
        self.restore_allow: List[str] = []
        self.restore_setuid = self.restore_devices = self.restore_links = False
        self.call_key = "/etc/ssh/ssh_host_ed25519_key"
        self.call_ssh: List[str] = []
        self.call_sshd: List[str] = []


def read_config(path: str) -> SourceConfig:
    """Returns the configuration, or the defaults if there is none. Raises RefusedRequest for an unknown key, because it may be a
    typing error in one that protects files."""
    config = SourceConfig()
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), default_section="")
    try:
        with open(path, "rb") as file:
            owner = os.fstat(file.fileno())
            if owner.st_uid not in (0, os.geteuid()) or owner.st_mode & 0o022:
                raise RefusedRequest(f"{path} can be changed by other users; run `chown root {path}; chmod 644 {path}`")
            parser.read_string(os.fsdecode(file.read()), path)  # as the paths of a request, whatever the locale is
    except FileNotFoundError:
        return config
    except (OSError, configparser.Error, UnicodeError) as error:
        raise RefusedRequest(f"{path} cannot be read ({error}); correct it") from error
    try:
        for section in parser.sections():
            keys = dict(parser.items(section))
            if section.startswith("dump "):
                config.dumps.append(_dump(section[5:].strip(), keys))
            else:
                _section(config, section, keys)
            if keys:
                raise ValueError(f"[{section}] has no key {min(keys)}")
    except (KeyError, ValueError) as error:
        raise RefusedRequest(f"{path}: {error.args[0]}; correct it") from error
    return config


def _section(config: SourceConfig, section: str, keys: Dict[str, str]) -> None:
    """Moves the values of a section from `keys` to the configuration."""
    if section == "paths":
        config.allow = _folders(keys.pop("allow", "/"))
    elif section == "snapshots":
        config.methods = keys.pop("methods", " ".join(config.methods)).split()
        if not set(config.methods) <= {"btrfs", "lvm", "zfs"}:
            raise ValueError("methods may be btrfs, lvm and zfs")
        most = keys.pop("most", str(config.most))
        if not re.fullmatch(r"[1-9]\d{0,3}", most):
            raise ValueError(f"most is a number, not {most}")
        config.most = int(most)
        history = keys.pop("history", str(config.history))
        if not re.fullmatch(r"\d{1,3}", history):
            raise ValueError(f"history is a number up to 999, not {history}")
        config.history = int(history)
        config.oldest = _seconds(keys.pop("oldest", "1d"))
        config.lvm_size = keys.pop("lvm_size", config.lvm_size)
        if not re.fullmatch(r"\d+(%|[KMGTkmgt])", config.lvm_size):
            raise ValueError("lvm_size must be like 10% (of the volume) or 5G")
        config.may_be_live = keys.pop("may_be_live", " ".join(config.may_be_live)).split()
    elif section == "restore":
        config.restore_allow = _folders(keys.pop("allow", ""))
        config.restore_setuid = _yes(keys.pop("setuid", "no"))
        config.restore_devices = _yes(keys.pop("devices", "no"))
        config.restore_links = _yes(keys.pop("links", "no"))
    elif section == "call":
        config.call_key = keys.pop("key", config.call_key)
        config.call_ssh = shlex.split(keys.pop("ssh_options", ""))
        config.call_sshd = shlex.split(keys.pop("sshd_options", ""))
    else:
        raise ValueError(f"there is no section [{section}]")


def _dump(name: str, keys: Dict[str, str]) -> Dump:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,50}", name) or name.startswith("."):
        raise ValueError(f"the name of [dump {name}] may have letters, digits, '.', '_' and '-'")
    if "command" not in keys:
        raise ValueError(f"[dump {name}] has no command")
    output = keys.pop("output", name)
    required = _yes(keys.pop("required", "yes"))
    stream = _yes(keys.pop("stream", "no"))
    output = os.path.join(DUMPS, output)
    timeout = _seconds(keys.pop("timeout", "1h"))
    return Dump(name, keys.pop("command"), normal(output) if stream else output, required, timeout, stream)


def _folders(text: str) -> List[str]:
    """Returns the paths, one a line."""
    paths = [line.strip() for line in text.splitlines() if line.strip()]
    for path in paths:
        if not path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{path} is not an absolute path")
    return [normal(path) for path in paths]


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)([smhd])", text.strip())
    if not match:
        raise ValueError(f"{text} is not a time such as 30m, 12h or 1d")
    return int(match.group(1)) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match.group(2)]


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"{text} is neither yes nor no")
    return text == "yes"


# --- paths and mounts -----------------------------------------------------------------------------------------------------------
def normal(path: str) -> str:
    """Returns the path without doubled slashes, dots and a slash at its end."""
    return "/" + os.path.normpath("/" + path).strip("/")


def is_below(path: str, folder: str) -> bool:
    """True also if they are equal."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def as_text(path: str) -> str:
    """Returns a path for JSON: UTF-8 whatever the locale is, with lone surrogates for other bytes."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


class MountEntry(NamedTuple):
    """A line of /proc/self/mountinfo."""

    number: int
    parent: int
    device: str
    """MAJOR:MINOR."""
    root: str
    """The folder of the filesystem that is mounted."""
    point: str
    read_only: bool
    """This mount, or the whole filesystem."""
    kind: str
    source: str
    stable: bool
    """True if the filesystem is read-only everywhere."""


def parse_mounts(text: str) -> List[MountEntry]:
    """Parses /proc/self/mountinfo."""
    mounts = []
    for line in filter(None, text.split("\n")):
        before, _, after = line.partition(" - ")
        fields, (kind, source, options) = before.split(" "), after.split(" ")[:3]
        root, point, source = (re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), word)
                               for word in (fields[3], fields[4], source))  # fmt: skip
        stable = "ro" in options.split(",")
        read_only = stable or "ro" in fields[5].split(",")
        mounts.append(MountEntry(int(fields[0]), int(fields[1]), fields[2], root, point, read_only, kind, source, stable))
    return mounts


def with_folders_above(path: str) -> Iterator[str]:
    """Yields an absolute path in its normal form, and each folder above it."""
    while path != "/":
        yield path
        path = os.path.dirname(path)
    yield "/"


def visible(mounts: Sequence[MountEntry]) -> List[MountEntry]:
    """Returns the mounts that a path reaches, outer ones first: not those with another mount over them.

    There may be thousands, and users make some of them with FUSE: no recursion, and no loop over pairs.
    """
    numbers = {mount.number: mount for mount in mounts}
    children: Dict[int, Dict[str, Set[int]]] = {}
    """By the number of the parent, and the mount point."""
    for mount in mounts:
        if mount.parent != mount.number:
            children.setdefault(mount.parent, {}).setdefault(mount.point, set()).add(mount.number)
    covered: Dict[int, bool] = {}

    def is_covered(mount: MountEntry) -> bool:
        """True if another mount is over a folder above its mount point: it has the same parent then."""
        way: List[MountEntry] = []
        above: Optional[MountEntry] = mount
        while above and above.number not in covered:
            covered[above.number] = False
            way.append(above)
            above = numbers.get(above.parent)
        for each in reversed(way):
            beside = children.get(each.parent, {})
            is_under = any(beside.get(point, set()) - {each.number} for point in with_folders_above(each.point))
            covered[each.number] = is_under or covered.get(each.parent, False)
        return covered[mount.number]

    def is_shown(mount: MountEntry) -> bool:
        return not is_covered(mount) and mount.point not in children.get(mount.number, {})

    shown = {mount.point: mount for mount in mounts if is_shown(mount)}
    shown.setdefault("/", MountEntry(0, 0, "0:0", "/", "/", False, "unknown", "none", False))
    return sorted(shown.values(), key=lambda mount: (mount.point.rstrip("/").count("/"), mount.point))


def read_mounts() -> List[MountEntry]:
    with open("/proc/self/mountinfo", "rb") as file:
        return visible(parse_mounts(os.fsdecode(file.read())))


def holder(mounts: Iterable[MountEntry], path: str) -> MountEntry:
    """Returns the mount that a path is on."""
    return max((mount for mount in mounts if is_below(path, mount.point)), key=lambda mount: len(mount.point))


def is_remote(mount: MountEntry) -> bool:
    return mount.kind in REMOTE or mount.kind.startswith("fuse.")


def has_folder(root: int, path: str) -> bool:
    """Whether a path below the folder `root` is a folder, and goes through no symlink."""
    try:
        fd = open_below(root, path)
    except OSError:
        return False
    try:
        return stat.S_ISDIR(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def open_below(root: int, path: str) -> int:
    """Opens a path below the folder `root` without following any symlink, for use as a mount's end."""
    fd = os.open(".", os.O_PATH | os.O_DIRECTORY, dir_fd=root)
    for name in filter(None, path.split("/")):
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotADirectoryError(errno.ENOTDIR, "is or goes through a symlink or file", path)
        try:
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotADirectoryError(errno.ENOTDIR, "is a symlink", path)
    return fd


def unanswering(points: Iterable[str]) -> List[str]:
    """Returns the mount points whose filesystem does not answer within some seconds, such as a FUSE whose program hangs.

    A process that waits for it cannot be killed. So it is another one, which nothing waits for, and which holds nothing open.
    """
    asked = sorted(set(points))
    if not asked:
        return []
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            waiting = {_ask(point): point for point in asked}
            deadline = time.monotonic() + PATIENCE
            while waiting and time.monotonic() < deadline:
                done = os.waitpid(-1, os.WNOHANG)[0]
                if not waiting.pop(done, ""):
                    time.sleep(0.02)
            os.write(writer, bytes(point in waiting.values() for point in asked))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(between, 0)
    return [point for number, point in enumerate(asked) if answer[number : number + 1] == b"\1"]


def _ask(point: str) -> int:
    """Starts a process that ends when a filesystem has answered."""
    pid = os.fork()
    if pid == 0:
        try:
            os.closerange(0, 1 << 16)
            os.lstat(point)
            os.statvfs(point)
        finally:
            os._exit(0)
    return pid


# --- programs -------------------------------------------------------------------------------------------------------------------
def run(argv: Sequence[str]) -> str:
    """Runs a program and returns its output. Raises OSError with its last line of error."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise OSError(errno.ETIMEDOUT, "%s did not end within %d seconds" % (argv[0], LONGEST)) from None
    if process.returncode:
        raise OSError(errno.EIO, last_line(err) or "%s failed with status %d" % (argv[0], process.returncode))
    return os.fsdecode(out)


def last_line(output: bytes) -> str:
    lines = os.fsdecode(output).strip().splitlines()
    return one_line(lines[-1]) if lines else ""


def one_line(text: str) -> str:
    """Returns a text without control characters, of at most 500 characters."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "?", text)[:500]


def reason_of(error: OSError) -> str:
    """Returns the reason why a snapshot is not possible."""
    if error.errno == errno.ENOSPC:
        return "the filesystem is full"
    if error.errno == errno.ETXTBSY:
        return "an active swap file is in the subvolume; move it to a subvolume of its own"
    return one_line(error.strerror or str(error))


# --- btrfs ----------------------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """A folder, opened for ioctl without following symlinks."""
    top = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        end = open_below(top, path)
        try:
            fd = os.open("/proc/self/fd/%d" % end, os.O_RDONLY | os.O_DIRECTORY)
        finally:
            os.close(end)
    finally:
        os.close(top)
    try:
        yield fd
    finally:
        os.close(fd)


def nested_subvolumes(fd: int) -> List[str]:
    """Returns the subvolumes directly in the one of `fd`, as paths relative to that folder."""
    paths, least = [], 0
    while True:
        answer = bytearray(struct.pack("=Q4088x", least))
        is_more = False
        try:
            fcntl.ioctl(fd, GET_SUBVOL_ROOTREF, answer)
        except OSError as error:
            if error.errno != errno.EOVERFLOW:
                raise
            is_more = True
        (least,) = struct.unpack_from("=Q", answer)
        for number in range(answer[4088]):
            tree, folder = struct.unpack_from("=QQ", answer, 8 + 16 * number)
            name = bytearray(struct.pack("=QQ4080x", folder, tree))
            try:
                fcntl.ioctl(fd, INO_LOOKUP_USER, name)
            except OSError as error:
                # Not below this folder, deleted, or with a path so long that rsync cannot read it either.
                if error.errno in (errno.EACCES, errno.ENOENT, errno.ENAMETOOLONG):
                    continue
                raise
            above, last = bytes(name[272:]).split(b"\0")[0], bytes(name[16:272]).split(b"\0")[0]
            paths.append(os.fsdecode(above + last))
        if not is_more:
            return paths
        if len(paths) > MOST_NESTED:
            raise OSError(errno.EOVERFLOW, "there are more than %d nested subvolumes" % MOST_NESTED)


def is_read_only_subvolume(fd: int) -> bool:
    flags = bytearray(8)
    fcntl.ioctl(fd, SUBVOL_GETFLAGS, flags)
    return bool(struct.unpack("=Q", flags)[0] & SUBVOL_RDONLY)


def hidden_folder(top: int) -> int:
    """Opens the folder of our snapshots at the top of a subvolume. Raises OSError if it is missing or a user made it."""
    fd = os.open(HIDDEN, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    owner = os.fstat(fd)
    if owner.st_uid != os.geteuid() or owner.st_mode & 0o077:
        os.close(fd)
        raise OSError(errno.EPERM, f"the folder {HIDDEN} is not root's own; remove it")
    return fd


def has_own_folder(point: str) -> bool:
    """False also if a user made a folder of that name: then it is shown and backed up like any other."""
    try:
        with opened(point) as top:
            os.close(hidden_folder(top))
    except OSError:
        return False
    return True


def take_btrfs(piece: Dict[str, Any]) -> None:
    with opened(piece["folder"]) as top, opened(piece["of"]) as source:
        with contextlib.suppress(FileExistsError):
            os.mkdir(HIDDEN, 0o700, dir_fd=top)
        folder = hidden_folder(top)
        try:
            words = struct.pack("=qQQ32x4040s", source, 0, SUBVOL_RDONLY, piece["name"].encode())
            fcntl.ioctl(folder, SNAP_CREATE_V2, bytearray(words))
        finally:
            os.close(folder)


def remove_btrfs(piece: Dict[str, Any]) -> None:
    remove_btrfs_snapshots(piece["folder"], [piece["name"]])


def remove_btrfs_snapshots(point: str, names: Sequence[str]) -> None:
    """Removes snapshots of a subvolume and those nested in it. There may be thousands: the trees of btrfs are read once for all.

    A folder is opened by its number, as file servers do, so that its owner cannot move it away.
    """
    folders: Dict[Tuple[int, int], int] = {}
    try:
        with opened(point) as top:
            try:
                places = own_snapshots(top)
                for name in names:
                    if name in places and places[name] not in folders:
                        tree, number = places[name]
                        handle = struct.pack("=IiQQI", 20, FILEID_BTRFS, number, tree, 0)
                        folders[tree, number] = _call("open_by_handle_at", top, handle, os.O_RDONLY | os.O_DIRECTORY)
            except PermissionError:  # in a container
                with contextlib.suppress(OSError):
                    folders[0, 0] = hidden_folder(top)
                places = dict.fromkeys(names, (0, 0))
            except OSError:  # a user has put something else in its place, in which root deletes nothing: it may contain subvolumes
                return  # of other users
            for name in names:
                folder = folders.get(places.get(name, (0, 0)))
                if folder is not None:
                    with contextlib.suppress(FileNotFoundError):
                        fcntl.ioctl(folder, SNAP_DESTROY, bytearray(struct.pack("=q4088s", 0, name.encode())))
            with contextlib.suppress(OSError):
                os.rmdir(HIDDEN, dir_fd=top)
    except (FileNotFoundError, NotADirectoryError):  # the filesystem is no longer mounted
        pass
    finally:
        for folder in folders.values():
            os.close(folder)


def own_snapshots(top: int) -> Dict[str, Tuple[int, int]]:
    """Returns the snapshots that are in folders of a subvolume which only root can write: by name, the numbers of the subvolume and
    the folder. It reads the trees of btrfs, in which a rename changes neither. Raises OSError."""
    answer, snapshots = bytearray(struct.pack("=QQ4080x", 0, SUBVOLUME_TOP)), {}
    is_own: Dict[int, bool] = {}
    fcntl.ioctl(top, INO_LOOKUP, answer)
    (tree,) = struct.unpack_from("=Q", answer)
    for _, content in tree_items(top, ROOT_TREE, tree, ROOT_REF):
        folder, _, length = struct.unpack_from("=QQH", content)
        name = os.fsdecode(content[18 : 18 + length])
        if SESSION.fullmatch(name.rpartition(".")[0]) or KEPT.fullmatch(name):
            if folder not in is_own:
                inodes = [struct.unpack_from("=III", inode, 44) for _, inode in tree_items(top, tree, folder, INODE_ITEM)]
                is_own[folder] = any(owner == os.geteuid() and not mode & 0o077 for owner, _, mode in inodes)
            if is_own[folder]:
                snapshots[name] = (tree, folder)
    return snapshots


def tree_items(fd: int, tree: int, number: int, kind: int) -> Iterator[Tuple[int, bytes]]:
    """Yields offset and content of the items of one kind that a tree of btrfs has for an object. Needs root. Raises OSError."""
    least, most = 0, (1 << 64) - 1
    while True:
        answer = bytearray(struct.pack("=7Q4I4024x", tree, number, number, least, most, 0, most, kind, kind, 1000, 0))
        fcntl.ioctl(fd, TREE_SEARCH, answer)
        (count,) = struct.unpack_from("=I", answer, 64)
        at = 104
        for _ in range(count):
            _, _, least, _, size = struct.unpack_from("=QQQII", answer, at)
            yield least, bytes(answer[at + 32 : at + 32 + size])
            at += 32 + size
        if not count or least == most:
            return
        least += 1


def snapshots_in(point: str) -> List[str]:
    """Returns the names of our snapshots of a subvolume and those nested in it. Raises OSError if they cannot be read."""
    with opened(point) as top:
        try:
            return list(own_snapshots(top))
        except PermissionError:  # in a container
            folder = hidden_folder(top)
        try:
            return os.listdir(folder)
        finally:
            os.close(folder)


# --- LVM and ZFS ----------------------------------------------------------------------------------------------------------------
def logical_volume(mount: MountEntry) -> Optional[Dict[str, str]]:
    """Returns what lvs reports of the volume that a filesystem is on; None if it is on none. Raises OSError if that is unknown."""
    try:
        with open(f"/sys/dev/block/{mount.device}/dm/uuid") as file:
            if not file.read().startswith("LVM-"):
                return None
        with open(f"/sys/dev/block/{mount.device}/dm/name") as file:
            device = "/dev/mapper/" + file.read().strip()
    except FileNotFoundError:
        return None
    (report,) = _lvs("vg_name,lv_name,segtype,pool_lv,lv_size", device)
    return report


def _lvs(columns: str, *volumes: str) -> List[Dict[str, str]]:
    words = ["lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", columns]
    rows = json.loads(run(words + list(volumes)))["report"][0]["lv"]
    return [dict(row) for row in rows]


def take_lvm(piece: Dict[str, Any]) -> None:
    words = ["lvcreate", "--quiet", "--yes", "--snapshot", "--name", piece["name"]]
    if piece["method"] == "lvm-thin":
        words += ["--setactivationskip", "n"]
    elif piece["size"].endswith("%"):
        words += ["--extents", piece["size"] + "ORIGIN"]
    else:
        words += ["--size", piece["size"]]
    run([*words, "{}/{}".format(piece["group"], piece["of"])])


def lvm_device(piece: Dict[str, Any]) -> str:
    return "/dev/mapper/{}-{}".format(piece["group"].replace("-", "--"), piece["name"].replace("-", "--"))


def is_full(piece: Dict[str, Any]) -> bool:
    """True if a classic snapshot had no space for what changed, so that it can no longer be read."""
    if piece["method"] != "lvm":
        return False
    try:
        (row,) = _lvs("lv_attr", "{}/{}".format(piece["group"], piece["name"]))
    except (OSError, ValueError):
        return False
    return row["lv_attr"][4:5] in ("I", "S")


def remove_lvm(piece: Dict[str, Any]) -> None:
    name = "{}/{}".format(piece["group"], piece["name"])
    if any(row["lv_name"] == piece["name"] for row in _lvs("lv_name", piece["group"])):
        run(["lvremove", "--quiet", "--yes", name])


def take_zfs(piece: Dict[str, Any]) -> None:
    run(["zfs", "snapshot", "{}@{}".format(piece["of"], piece["name"])])


def remove_zfs(piece: Dict[str, Any]) -> None:
    name = "{}@{}".format(piece["of"], piece["name"])
    if name in run(["zfs", "list", "-H", "-t", "snapshot", "-o", "name", "-d", "1", piece["of"]]).split("\n"):
        run(["zfs", "destroy", name])


TAKE = {"btrfs": take_btrfs, "lvm": take_lvm, "lvm-thin": take_lvm, "zfs": take_zfs}
REMOVE = {"btrfs": remove_btrfs, "lvm": remove_lvm, "lvm-thin": remove_lvm, "zfs": remove_zfs}


# --- the plan of a session ------------------------------------------------------------------------------------------------------
class SnapshotPlan:
    """The snapshots that `begin` makes. A piece is one snapshot: a method, a name, and its place."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.pieces: Dict[str, Dict[str, Any]] = {}
        """By the key of the filesystem or subvolume."""
        self.places: List[Dict[str, Any]] = []
        """Each place of a filesystem or subvolume below the paths: `point`, `key` of its piece or None, `folder` of it, `reason` if
        it is live, and `counts`: False if it does not matter for consistency."""

        self.reason = ""
        """Why no snapshot can be taken at all, or ""."""
        self.walked: Set[str] = set()
        """The mount points of btrfs in which all nested subvolumes are known."""

    def add(self, point: str, key: Optional[str], folder: str = "", reason: str = "") -> None:
        place = {"point": point, "key": key, "folder": folder, "reason": reason, "counts": True}
        self.places.append(place)

    def piece(self, key: str, **values: Any) -> str:
        """Adds a snapshot unless it is planned already; returns its key."""
        name = "%s%s.%d" % ("" if values["method"] == "btrfs" else PREFIX, self.session, len(self.pieces))
        if key not in self.pieces:
            self.pieces[key] = dict(values, name=name, taken=None)
        return key


def make_plan(mounts: Sequence[MountEntry], paths: Sequence[str], config: SourceConfig, session: str) -> SnapshotPlan:
    """Plans the snapshots for the paths. Changes nothing."""
    plan, wanted = SnapshotPlan(session), {name for path in paths for name in (path, os.path.realpath(path))}
    tops = btrfs_tops(mounts) if "btrfs" in config.methods else {}
    holders = {holder(mounts, path).point for path in wanted}
    for mount in mounts:
        is_wanted = mount.point in holders or any(is_below(mount.point, path) for path in wanted)
        if not is_wanted or mount.kind in PSEUDO:
            continue
        before = len(plan.places)
        try:
            reason = _plan_mount(plan, mount, mounts, wanted, config, tops)
        except (OSError, ValueError, KeyError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else "its volume cannot be read"
        if reason:
            plan.places = [place for place in plan.places if place["point"] != mount.point]
            plan.add(mount.point, None, "", reason)
        if mount.kind in VOLATILE or is_remote(mount) or any(fnmatch.fnmatchcase(mount.point, each) for each in config.may_be_live):
            for place in plan.places[before:]:
                place["counts"] = False
    used = {place["key"] for place in plan.places}
    plan.pieces = {key: piece for key, piece in plan.pieces.items() if key in used}
    return plan


def btrfs_tops(mounts: Sequence[MountEntry]) -> Dict[int, MountEntry]:
    """Returns a writable mount of each subvolume whose top folder is mounted, by its device number."""
    tops = {}
    for mount in mounts:
        if mount.kind == "btrfs" and not mount.read_only:
            with contextlib.suppress(OSError):
                status = os.stat(mount.point)
                if status.st_ino == SUBVOLUME_TOP:
                    tops[status.st_dev] = mount
    return tops


def _plan_mount(
    plan: SnapshotPlan,
    mount: MountEntry,
    mounts: Sequence[MountEntry],
    wanted: Set[str],
    config: SourceConfig,
    tops: Dict[int, MountEntry],
) -> str:
    """Plans one mount; returns the reason why it can only be read live, or ""."""
    if mount.stable:
        plan.add(mount.point, None)
        return ""
    if mount.kind == "btrfs" and "btrfs" in config.methods:
        return _plan_btrfs(plan, mount, mounts, wanted, tops)
    if mount.kind == "zfs" and "zfs" in config.methods:
        if mount.root != "/":
            return "a folder of a ZFS dataset is mounted here"
        plan.add(mount.point, plan.piece(mount.source, method="zfs", of=mount.source, mount=mount.point))
        return ""
    if mount.kind in ("ext2", "ext3", "ext4", "xfs") and "lvm" in config.methods:
        volume = logical_volume(mount)
        if volume is None:
            return f"{mount.kind} on a plain partition"
        method = "lvm-thin" if volume["pool_lv"] else "lvm"
        place = {"group": volume["vg_name"], "of": volume["lv_name"], "size": config.lvm_size, "kind": mount.kind}
        plan.add(mount.point, plan.piece(mount.device, method=method, mount=mount.point, **place), mount.root.strip("/"))
        return ""
    return f"{mount.kind} has no snapshots"


def _plan_btrfs(
    plan: SnapshotPlan, mount: MountEntry, mounts: Sequence[MountEntry], wanted: Set[str], tops: Dict[int, MountEntry]
) -> str:
    with opened(mount.point) as fd:
        status = os.fstat(fd)
        top = tops.get(status.st_dev)
        if status.st_ino == SUBVOLUME_TOP and is_read_only_subvolume(fd):
            plan.add(mount.point, None)
            return ""
        if top is None:
            return "the subvolume is mounted nowhere writable and whole"
        folder = os.path.relpath(mount.root, top.root)
        key = plan.piece(str(status.st_dev), method="btrfs", folder=top.point, of=top.point, mount=mount.point)
        plan.add(mount.point, key, "" if folder == "." else folder)
    _plan_nested(plan, mount, mount.point, top.point, mounts, wanted)
    plan.walked.add(mount.point)
    return ""


def _plan_nested(
    plan: SnapshotPlan, mount: MountEntry, above: str, top: str, mounts: Sequence[MountEntry], wanted: Set[str]
) -> None:
    """Plans the subvolumes in the one at `above` which have no mount of their own. `top`: where the snapshots are."""
    with opened(above) as fd:
        names = nested_subvolumes(fd)
    for name in names:
        path = normal(above + "/" + name)
        is_wanted = any(is_below(path, each) or is_below(each, path) for each in wanted)
        if not is_wanted or set(NEVER) & set(path[len(mount.point) :].split("/")) or holder(mounts, path) is not mount:
            continue
        try:
            with opened(path) as fd:
                is_read_only, device = is_read_only_subvolume(fd), os.fstat(fd).st_dev
        except OSError as error:  # a user renames it just now
            plan.add(path, None, "", reason_of(error))
            continue
        if is_read_only:
            plan.add(path, None)
            continue
        key = plan.piece(str(device), method="btrfs", folder=top, of=path, mount=path)
        plan.add(path, key)
        if len(plan.pieces) > MOST_NESTED:
            raise OSError(errno.EOVERFLOW, "there are more than %d nested subvolumes" % MOST_NESTED)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _plan_nested(plan, mount, path, top, mounts, wanted)


def take(plan: SnapshotPlan) -> None:
    """Takes the snapshots. A place whose snapshot fails becomes live."""
    for key, piece in list(plan.pieces.items()):
        try:
            TAKE[piece["method"]](piece)
            piece["taken"] = moment()
        except OSError as error:
            for place in plan.places:
                if place["key"] == key:
                    place.update(key=None, folder="", reason=reason_of(error))
            with contextlib.suppress(OSError):
                REMOVE[piece["method"]](piece)
            del plan.pieces[key]


def drop_moved(plan: SnapshotPlan) -> None:
    """Makes nested subvolumes live that a user renamed or deleted between two snapshots: the outer one has no folder for them."""
    for place in plan.places:
        outer = [each for each in plan.places if each is not place and is_below(place["point"], each["point"])]
        above = max(outer, key=lambda each: len(each["point"]), default=None)
        piece = plan.pieces.get(above["key"]) if above and place["key"] else None
        if above and piece and piece["method"] == "btrfs":
            within = above["folder"] + "/" + os.path.relpath(place["point"], above["point"])
            with opened("{}/{}/{}".format(piece["folder"], HIDDEN, piece["name"])) as fd:
                if not has_folder(fd, within):
                    place.update(key=None, folder="", reason="it was renamed or deleted while the snapshots were taken")


def parsed_time(text: str) -> float:
    """Returns the time of 20261130T201500Z. Raises ValueError."""
    import datetime as dt

    month, day, hour, minute, second = (int(text[at : at + 2]) for at in (4, 6, 9, 11, 13))
    return dt.datetime(int(text[:4]), month, day, hour, minute, second, tzinfo=dt.timezone.utc).timestamp()


def moment() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + ".%03dZ" % (now % 1 * 1000)


def places_of(plan: SnapshotPlan, mounts: Sequence[MountEntry], path: str) -> List[Dict[str, Any]]:
    """Returns the places below a path, and the one that it is on."""
    places: Dict[str, Dict[str, Any]] = {}
    for name in {path, os.path.realpath(path)}:
        above = [place for place in plan.places if is_below(name, place["point"])]
        deepest = max(above, key=lambda place: len(place["point"]), default=None)
        if deepest and len(deepest["point"]) >= len(holder(mounts, name).point):
            places[deepest["point"]] = deepest
        places.update((place["point"], place) for place in plan.places if is_below(place["point"], name))
    return list(places.values())


def live_reasons(plan: SnapshotPlan, path: str, places: Sequence[Dict[str, Any]]) -> List[str]:
    """Returns why a path is read live; an empty list if it is a snapshot."""
    if not os.path.lexists(path):
        return ["it does not exist"]
    if plan.reason:
        return [plan.reason]
    reasons = ["{}: {}".format(place["point"], place["reason"]) for place in places if place["reason"] and place["counts"]]
    if not reasons and all(place["reason"] for place in places):
        reasons = ["{}: {}".format(place["point"], place["reason"]) for place in places] or ["it is on a pseudo filesystem"]
    return reasons


def consistency(plan: SnapshotPlan, mounts: Sequence[MountEntry], path: str) -> Dict[str, Any]:
    """Returns the answer about one path."""
    places = places_of(plan, mounts, path)
    live = live_reasons(plan, path, places)
    reason = as_text(live[0] + (" (and %d more)" % (len(live) - 1) if len(live) > 1 else "")) if live else None
    methods = sorted({plan.pieces[place["key"]]["method"] for place in places if place["key"]})
    return {"path": as_text(path), "consistency": "live" if live else "snapshot", "methods": methods, "reason": reason}


def inner_filesystems(plan: SnapshotPlan, mounts: Sequence[MountEntry], paths: Sequence[str]) -> Optional[List[Dict[str, Any]]]:
    """Returns the mounts and nested subvolumes below the paths: those that rsync with --one-file-system excludes. None: unknown."""
    shown = [mount for mount in mounts if mount.kind not in PSEUDO]
    holders = {holder(mounts, path).point for path in paths}
    inner = {mount.point: mount for mount in shown if any(is_below(mount.point, path) and mount.point != path for path in paths)}
    unknown = [mount for mount in shown if mount.point in {*inner, *holders} and mount.kind == "btrfs"]
    if any(os.path.realpath(path) != path for path in paths) or any(mount.point not in plan.walked for mount in unknown):
        return None
    answers = [{"path": as_text(point), "type": mount.kind, "bytes": used_bytes(mount)} for point, mount in inner.items()]
    nested = {place["point"] for place in plan.places} - {mount.point for mount in shown}
    answers += [
        {"path": as_text(point), "type": "subvolume", "bytes": None}
        for point in sorted(nested)
        if any(is_below(point, path) and point != path for path in paths)
    ]
    return answers if len(answers) <= MOST_INNER else None


def used_bytes(mount: MountEntry) -> Optional[int]:
    """Returns the bytes in use of a filesystem that is mounted whole; None: unknown. FUSE and a server may not answer."""
    if mount.root != "/" or is_remote(mount):
        return None
    try:
        status = os.statvfs(mount.point)
    except OSError:
        return None
    return (status.f_blocks - status.f_bfree) * status.f_frsize


# --- sessions -------------------------------------------------------------------------------------------------------------------
class Sessions:
    """The folder with the records of sessions: NAME.json, and NAME.lock, which each rsync of the session holds."""

    def __init__(self, folder: str, config: SourceConfig) -> None:
        self.folder = folder
        self.config = config

    def prepare(self) -> None:
        os.makedirs(self.folder, 0o700, exist_ok=True)
        status = os.lstat(self.folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise RefusedRequest(f"{self.folder} is not root's own folder; remove it")

    def path(self, name: str, ending: str) -> str:
        return os.path.join(self.folder, name + ending)

    def names(self) -> List[str]:
        ends = (name[:-5] for name in os.listdir(self.folder) if name.endswith(".json"))
        return sorted(name for name in ends if SESSION.fullmatch(name))

    @contextlib.contextmanager
    def locked(self, name: str = "all", longest: float = LONGEST) -> Iterator[None]:
        """Only one process at a time begins or removes sessions, or makes a dump."""
        fd = os.open(self.path(name, ".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            deadline = time.monotonic() + longest
            while not _locks(fd, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise RefusedRequest("another request has kept this host busy for %d seconds; try again later" % longest)
                time.sleep(0.05)
            yield
        finally:
            os.close(fd)

    def write(self, record: Dict[str, Any]) -> None:
        new = self.path("session", ".new")
        with open(new, "w") as file:
            json.dump(record, file)
        os.rename(new, self.path(record["session"], ".json"))

    def read(self, name: str) -> Dict[str, Any]:
        try:
            with open(self.path(name, ".json")) as file:
                return dict(json.load(file))
        except FileNotFoundError:
            raise RefusedRequest(f"the session {name} is gone; begin another one") from None

    def remove(self, name: str, patience: Optional[float]) -> Optional[List[str]]:
        """Removes a session and returns the mount points whose snapshot overflowed; None if an rsync uses it. With `patience`, it
        waits that many seconds for these, and then ends them. Raises OSError if a snapshot could not be removed."""
        lock = os.open(self.path(name, ".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if not _locks(lock, fcntl.LOCK_EX) and not (patience is not None and self._end_readers(name, lock, patience)):
                return None
            full = []
            if os.path.exists(self.path(name, ".json")):
                pieces = self.read(name)["pieces"]
                full = [as_text(piece["mount"]) for piece in pieces if is_full(piece)]
                self._remove_pieces(pieces)
                stop_timer(name)
            os.unlink(self.path(name, ".lock"))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name, ".json"))  # last: a session without it is forgotten
            return full
        finally:
            os.close(lock)

    def _remove_pieces(self, pieces: Sequence[Dict[str, Any]]) -> None:
        """Removes snapshots. A volume is in use for a moment after its last reader has ended."""
        groups: Dict[str, List[Dict[str, Any]]] = {}  # of a btrfs, all; of LVM and ZFS, each
        for piece in pieces:
            groups.setdefault(piece["folder"] if piece["method"] == "btrfs" else piece["name"], []).append(piece)
        deadline, left = time.monotonic() + 5, list(groups.values())
        while left:
            error = None
            for group in list(left):
                try:
                    if group[0]["method"] == "btrfs":
                        remove_btrfs_snapshots(group[0]["folder"], [piece["name"] for piece in group])
                    else:
                        REMOVE[group[0]["method"]](group[0])
                    left.remove(group)
                except OSError as problem:
                    error = problem
            if error and time.monotonic() > deadline:
                raise error
            if error:
                time.sleep(0.2)

    def _end_readers(self, name: str, lock: int, patience: float) -> bool:
        """Ends the session's rsync processes, as a lost connection would."""
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            for pid in self._readers(name) if number else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + (patience if not number else 5)
            while time.monotonic() < deadline:
                if _locks(lock, fcntl.LOCK_EX):
                    return True
                time.sleep(0.05)
        return _locks(lock, fcntl.LOCK_EX)

    def _readers(self, name: str) -> List[int]:
        pids = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                links = {os.readlink(f"/proc/{entry}/fd/{fd}") for fd in os.listdir(f"/proc/{entry}/fd")}
                if any(link.endswith(f"/{name}.lock") for link in links) and int(entry) != os.getpid():
                    pids.append(int(entry))
        return pids

    def tidy(self, server: Optional[str]) -> List[str]:
        """Removes this server's sessions that no rsync uses, and all that are too old; returns problems."""
        problems = []
        for name in self.names():
            is_old = time.time() - start_of(name) > self.config.oldest
            if is_old or owner_of(name) == server:
                try:
                    self.remove(name, 0 if is_old else None)
                except OSError as error:
                    problems.append(f"{name}: {reason_of(error)}")
        return problems

    def remove_orphans(self, server: Optional[str], mounts: Iterable[MountEntry]) -> None:
        """Removes snapshots of which no session is recorded: /run is empty after a reboot. Without a server: old ones of all."""
        recorded, own = set(self.names()), tag_of(self.folder)

        def is_orphan(session: str) -> bool:
            if not SESSION.fullmatch(session) or session in recorded or server not in (None, owner_of(session)):
                return False
            age = time.time() - start_of(session)
            if session[-6:-4] != own:
                return age > max(OLDEST_OF_OTHERS, self.config.oldest)
            return bool(server) or age > self.config.oldest

        kinds = {mount.kind for mount in mounts}
        for mount in mounts:
            if mount.kind == "btrfs" and "btrfs" in self.config.methods and not mount.read_only:
                with contextlib.suppress(OSError):
                    orphans = [name for name in snapshots_in(mount.point) if is_orphan(name.rpartition(".")[0])]
                    if orphans:
                        remove_btrfs_snapshots(mount.point, orphans)
        with contextlib.suppress(OSError, ValueError, KeyError):
            if "lvm" in self.config.methods and any(os.path.exists(f"/sys/dev/block/{mount.device}/dm") for mount in mounts):
                for row in _lvs("vg_name,lv_name"):
                    if row["lv_name"].startswith(PREFIX) and is_orphan(row["lv_name"][len(PREFIX) :].rpartition(".")[0]):
                        remove_lvm({"group": row["vg_name"], "name": row["lv_name"]})
        with contextlib.suppress(OSError):
            if "zfs" in self.config.methods and "zfs" in kinds:
                for line in run(["zfs", "list", "-H", "-t", "snapshot", "-o", "name"]).split("\n"):
                    dataset, _, name = line.partition("@")
                    if name.startswith(PREFIX) and is_orphan(name[len(PREFIX) :].rpartition(".")[0]):
                        remove_zfs({"of": dataset, "name": name})


def tag_of(state: str) -> str:
    """Returns two hexadecimal digits for the sessions that are recorded in a folder of this system: a container may have the same
    filesystem and the same --server, and its records are elsewhere."""
    machine = b""
    with contextlib.suppress(OSError), open("/etc/machine-id", "rb") as file:
        machine = file.read()
    return "%02x" % (binascii.crc32(machine + os.fsencode(state)) & 0xFF)


def _locks(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def owner_of(session: str) -> str:
    match = SESSION.fullmatch(session)
    return match.group(1) if match else ""


def start_of(session: str) -> float:
    """Returns the time of a session's start."""
    match = SESSION.fullmatch(session)
    try:
        return parsed_time(match.group(2)) if match else 0.0
    except ValueError:  # such as 20261399T250000Z, which this program never writes
        return float("inf")


def start_timer(session: str, after: int, arguments: Sequence[str]) -> None:
    """Lets systemd remove the session if nothing else does. Without systemd, the next `begin` does it."""
    if os.path.isdir("/run/systemd/system") and shutil.which("systemd-run"):
        words = ["systemd-run", "--quiet", "--collect", f"--unit={PREFIX}{session}", "--on-active=%d" % after]
        with contextlib.suppress(OSError):
            run([*words, sys.executable, "-I", os.path.abspath(__file__), *list(arguments), "clean"])


def stop_timer(session: str) -> None:
    if os.path.isdir("/run/systemd/system") and shutil.which("systemctl"):
        with contextlib.suppress(OSError):
            run(["systemctl", "--quiet", "stop", f"{PREFIX}{session}.timer"])


# --- dumps ----------------------------------------------------------------------------------------------------------------------
def part_of_others(path: str) -> str:
    """Returns the first part of the way to a path, also through symlinks, that another user owns or can change; or "". Such a user
    can replace it by a symlink while root works below it."""
    current, rest, links = "/", path.split("/")[::-1], 0
    while True:
        try:
            status = os.lstat(current)
        except FileNotFoundError:
            return ""
        is_link = stat.S_ISLNK(status.st_mode)
        is_open = not is_link and status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if is_open or status.st_uid not in (0, os.geteuid()):
            return current
        if is_link:
            links += 1
            if links > 40:
                raise OSError(errno.ELOOP, "too many symlinks", path)
            target = os.readlink(current)
            rest += target.split("/")[::-1]
            current = "/" if target.startswith("/") else os.path.dirname(current)
        elif rest:
            current = os.path.normpath(os.path.join(current, rest.pop()))
        else:
            return ""


def require_own(path: str) -> None:
    part = "" if os.geteuid() else part_of_others(path)
    if part:
        raise OSError(errno.EPERM, "another user can change this folder or file, so root does not use it", part)


def make_dump(dump: Dump) -> Dict[str, Any]:
    """Runs one dump and replaces its output when it has succeeded; returns the answer about it."""
    answer: Dict[str, Any] = {"name": dump.name, "path": as_text(dump.output), "seconds": 0.0, "bytes": 0, "error": None}
    answer.update(status=None, required=dump.required)
    start, new = time.monotonic(), dump.output + ".new"
    try:
        _make_folders(dump)
        _delete(new)
        kind, _, rest = dump.command.partition(" ")
        if kind == "sqlite":
            os.mkdir(new, 0o700)
            dump_sqlite(new, rest.strip(), start + dump.timeout)
        elif kind in DATABASES:
            os.mkdir(new, 0o700)
            for part in DATABASES[kind](new, start + dump.timeout):
                _into(part.path, part.command, start + dump.timeout)
        else:
            _into(new, ["/bin/sh", "-c", dump.command], start + dump.timeout)
        answer["bytes"] = _bytes_of(new)
        if os.path.isdir(dump.output) and not os.path.islink(dump.output):
            _delete(dump.output + ".old")
            os.rename(dump.output, dump.output + ".old")
        os.rename(new, dump.output)
        _delete(dump.output + ".old")
        answer["status"] = 0
    except subprocess.CalledProcessError as error:
        answer["status"], answer["error"] = error.returncode, as_text(error.output)
    except OSError as error:
        answer["status"], answer["error"] = 1, as_text(one_line(str(error)))
    if answer["status"]:
        _delete(new)
    answer["seconds"] = round(time.monotonic() - start, 3)
    return answer


def _make_folders(dump: Dump) -> None:
    """Makes the folders above the output."""
    is_ours = dump.output.startswith(DUMPS + "/")
    require_own(os.path.dirname(dump.output))
    for folder in (os.path.dirname(DUMPS), DUMPS) if is_ours else (os.path.dirname(dump.output),):
        if not os.path.isdir(folder):
            os.makedirs(folder)
            os.chmod(folder, 0o711 if is_ours else 0o700)  # an owner of a database writes below it


def stream_parts(dump: Dump, deadline: float) -> Iterable[DumpPart]:
    """Yields the files of a dump that is a stream."""
    kind, _, rest = dump.command.partition(" ")
    if kind == "sqlite":
        return [sqlite_text(dump.output, rest.strip())]
    if kind in DATABASES:
        return DATABASES[kind](dump.output, deadline)
    return [DumpPart(dump.output, ["/bin/sh", "-c", dump.command])]


def answer_stream(dump: Dump) -> Dict[str, Any]:
    """Returns the answer to `begin` about a dump that is a stream: its files in `streams`. A server that does not know these sees a
    dump that failed."""
    answer: Dict[str, Any] = {"name": dump.name, "path": as_text(dump.output), "seconds": 0.0, "bytes": 0}
    answer["required"] = dump.required
    try:
        _make_folders(dump)
        # Nothing is in this folder here. With a new time it is not one whose filesystem is not mounted.
        os.utime(os.path.dirname(dump.output))
        paths = [as_text(part.path) for part in stream_parts(dump, time.monotonic() + LONGEST)]
        return dict(
            answer, status=None, error="its stream was not fetched; the run ended first, or the server is too old", streams=paths
        )
    except subprocess.CalledProcessError as error:
        return dict(answer, status=error.returncode, error=as_text(error.output))
    except OSError as error:
        return dict(answer, status=1, error=as_text(one_line(str(error))))


def postgresql_parts(folder: str, deadline: float) -> Iterator[DumpPart]:
    """Yields globals.sql, and NAME.sql for each database, as pg_dump prints it."""
    user = [] if os.geteuid() else ["runuser", "-u", "postgres", "--"]
    yield DumpPart(folder + "/globals.sql", [*user, "pg_dumpall", "--globals-only"])
    # A database whose deletion was interrupted has the limit -2, and accepts no connection.
    query = "SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate AND datconnlimit <> -2 ORDER BY 1"
    for name in _names([*user, "psql", "-X", "-A", "-t", "-0", "-c", query, "postgres"], deadline, "\0"):  # may have newlines
        # --dbname takes a connection string: quoted, so that a database's name is not read as one.
        quoted = "dbname='{}'".format(name.replace("\\", "\\\\").replace("'", "\\'"))
        # psql cannot connect to a name with a line break by a line in a script, so pg_dump refuses to write one.
        create = [] if re.search(r"[\r\n]", name) else ["--create"]
        file = "%67lobals" if name == "globals" else _file_name(name)
        yield DumpPart(folder + "/" + file + ".sql", [*user, "pg_dump", *create, "--dbname=" + quoted])


def mysql_parts(folder: str, deadline: float) -> Iterator[DumpPart]:
    """Yields NAME.sql for each database of MySQL or MariaDB, in one transaction each."""
    is_mariadb = shutil.which("mariadb-dump") is not None
    client, dumper = ("mariadb", "mariadb-dump") if is_mariadb else ("mysql", "mysqldump")
    words = "--single-transaction --quick --routines --events --triggers --skip-dump-date --order-by-primary".split()
    for escaped in _names([client, "--batch", "--skip-column-names", "-e", "SHOW DATABASES"], deadline):
        name = re.sub(r"\\([nt0\\])", lambda match: {"n": "\n", "t": "\t", "0": "\0"}.get(match.group(1), "\\"), escaped)
        # "#mysql50#" begins the names of folders that are no databases, such as lost+found of a filesystem.
        if name in ("information_schema", "performance_schema", "sys") or name.startswith("#mysql50#"):
            continue
        more = ["--flush-privileges"] if name == "mysql" else []  # a server that loads it uses its users at once
        yield DumpPart(folder + "/" + _file_name(name) + ".sql", [dumper, *words, *more, "--databases", "--", name])


DATABASES = {"postgresql": postgresql_parts, "mysql": mysql_parts}


COPY_SQLITE = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=60).backup(sqlite3.connect(sys.argv[2]))"


def dump_sqlite(folder: str, file: str, deadline: float) -> None:
    """Copies an SQLite database with its own backup function, in one step, so that a writer cannot make it start again.

    It runs as the owner of the file, who could otherwise let root open other files as its journal.
    """
    owner = _owner_of(file)
    copy, log = os.path.join(folder, os.path.basename(file)), folder + "/.log"
    if sys.version_info >= (3, 7):
        words = [sys.executable, "-I", "-c", COPY_SQLITE, file, copy]
    else:
        words = ["sqlite3", "-bail", "-cmd", ".timeout 60000", file, ".backup '{}'".format(copy.replace("'", "''"))]
    if owner:
        os.chown(folder, *owner)
    _into(log, words, deadline, owner)
    if owner:
        os.chown(folder, 0, 0)
    os.unlink(log)


# Both pragmas are lost otherwise. A text may have bytes that are no UTF-8.
TEXT_OF_SQLITE = """import sqlite3, sys
base, out = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None), sys.stdout.buffer
base.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
base.execute("BEGIN")

for name in ("user_version", "application_id"):
    out.write(b"PRAGMA %s=%d;\\n" % (name.encode(), base.execute("PRAGMA " + name).fetchone()[0]))

for line in base.iterdump():
    out.write(line.encode("utf-8", "surrogateescape") + b"\\n")
"""


def sqlite_text(folder: str, file: str) -> DumpPart:
    """Returns the part that is an SQLite database as SQL, of one moment: a copy of its pages would need a file here."""
    command = [sys.executable, "-I", "-c", TEXT_OF_SQLITE, file]
    return DumpPart(os.path.join(folder, os.path.basename(file) + ".sql"), command, _owner_of(file))


def _owner_of(file: str) -> Optional[Tuple[int, int]]:
    """Returns the user and group of a database, who could otherwise let root open other files as its journal; None without root."""
    status = os.stat(file)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", file)
    if not status.st_uid:  # a user's symlink may lead here now, and to a database of his own in a moment
        require_own(file)
    return (status.st_uid, status.st_gid) if not os.geteuid() else None


def _names(argv: Sequence[str], deadline: float, separator: str = "\n") -> List[str]:
    return [name for name in os.fsdecode(_run_dump(argv, deadline, subprocess.PIPE)).split(separator) if name]


def _file_name(name: str) -> str:
    return re.sub(r"[/%\x00-\x1f]|^\.", lambda match: f"%{ord(match.group(0)):02X}", name)


def _into(path: str, argv: Sequence[str], deadline: float, owner: Optional[Tuple[int, int]] = None) -> None:
    """Runs a program with its output in a new file. Raises as `_run_dump`."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        _run_dump(argv, deadline, file.fileno(), owner)


def _run_dump(argv: Sequence[str], deadline: float, out: Optional[int], owner: Optional[Tuple[int, int]] = None) -> bytes:
    """Runs a program of a dump. Raises CalledProcessError with its last line of error as `output`.

    `out`: the descriptor of its output; PIPE: it is returned; None: that of this program, whose reader ends both. `owner`: the user
    and group that it runs as.
    """

    def prepare() -> None:
        if owner:
            os.setgroups([])
            os.setgid(owner[1])
            os.setuid(owner[0])
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends when this program is killed

    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, cwd="/", start_new_session=True, preexec_fn=prepare
    )
    if out is None:
        threading.Thread(target=_end_with_reader, args=(process,), daemon=True).start()
    try:
        output, err = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
        error = last_line(err)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that left the group may keep the pipes open
            process.communicate(timeout=PATIENCE)
        process.wait()
        error = "it took longer than its timeout"
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, argv[0], error or "status %d" % process.returncode)
    return output or b""


def _end_with_reader(process: "subprocess.Popen[bytes]") -> None:
    """Ends a program when the connection is lost: it may print nothing for hours, and would not notice."""
    lost = select.poll()
    lost.register(1, 0)
    lost.poll()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _delete(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _bytes_of(path: str) -> int:
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path))


# --- the words of an rsync ------------------------------------------------------------------------------------------------------
_LETTERS = re.compile(r"-(?=.)[ADEHIJNORSUWXcdghlmnopqrtuvxyz]*(e\d*\.[A-Za-z0-9]*)?")
_NUMBERED = re.compile(r"-[B@]-?\d+")
_NUMBER, _WORDS, _SIZE = r"-?\d+", r"[A-Za-z0-9,._-]+", r"[A-Za-z0-9.+-]+"
READ_OPTIONS: Dict[str, Optional[str]] = {
    **dict.fromkeys(
        "append dirs existing fuzzy ignore-existing ignore-missing-args ignore-times inplace list-only size-only".split()
    ),
    **dict.fromkeys("group hard-links links munge-links numeric-ids owner perms recursive safe-links specials times".split()),
    **dict.fromkeys("msgs2stderr new-compress no-msgs2stderr old-compress one-file-system open-noatime stats use-qsort".split()),
    **dict.fromkeys("no-W no-implied-dirs no-r no-relative no-specials".split()),
    **dict.fromkeys("timeout checksum-seed compress-level compress-threads block-size modify-window".split(), _NUMBER),
    **dict.fromkeys("checksum-choice compress-choice iconv info stderr".split(), _WORDS),
    **dict.fromkeys("bwlimit max-size min-size max-alloc".split(), _SIZE),
    "skip-compress": r"[A-Za-z0-9./-]+",
    "log-format": r"[A-Za-z0-9%|]+",
}
"""The long options that an rsync may have which only reads, with a pattern of the value, or None. Not those that follow links
(copy-links), read devices, name files (log-file, write-batch), delete files, or take other words from the connection.
"""
NAMES: Dict[str, Optional[str]] = {"files-from": "-", "from0": None}
"""A sender may also take names of files from the connection, for `verify --against-source`. rsync makes them relative, without any
`..`. A name may lead through a symlink; but if not all paths are allowed, rsync sees only those that are. Without root, and where
no mounts are possible, such an rsync is refused. A list on this host (`--files-from=FILE`) stays refused: nothing needs it.
"""
WRITE_OPTIONS = dict(READ_OPTIONS, partial=None, fsync=None, preallocate=None)
"""The same for a restore. It deletes nothing, and uses no folder besides its target."""


def rsync_words(words: Sequence[str], is_sender: bool) -> Tuple[List[str], List[str]]:
    """Returns the options and the paths of `--server [--sender] OPTIONS . PATH...`. Raises RefusedRequest for all else."""
    start = ["--server", "--sender"] if is_sender else ["--server"]
    if list(words[: len(start)]) != start or (not is_sender and words[1:2] == ["--sender"]):
        raise RefusedRequest("this key only %s files with rsync" % ("reads" if is_sender else "restores"))
    rest, allowed = list(words[len(start) :]), dict(READ_OPTIONS, **NAMES) if is_sender else WRITE_OPTIONS
    if "." not in rest:
        raise RefusedRequest("the rsync request has no paths")
    dot = rest.index(".")
    options, paths = rest[:dot], rest[dot + 1 :]
    for option in options:
        if _LETTERS.fullmatch(option) or _NUMBERED.fullmatch(option):
            continue
        name, is_given, value = option[2:].partition("=")
        if not option.startswith("--") or name not in allowed:
            raise RefusedRequest(f"the rsync option {one_line(option)} is not allowed")
        pattern = allowed[name]
        if bool(is_given) != (pattern is not None) or (pattern and not re.fullmatch(pattern, value)):
            raise RefusedRequest(f"the rsync option {one_line(option)} has a value that is not allowed")
    if not paths or (not is_sender and len(paths) != 1):
        raise RefusedRequest("the rsync request has no path, or too many")
    for path in paths:
        checked_path(path)
    return options, paths


def checked_path(path: str) -> str:
    """Returns a path of a request in its normal form."""
    if not path.startswith("/"):
        raise RefusedRequest(f"{one_line(path)} is not an absolute path")
    if ".." in path.split("/"):
        raise RefusedRequest(f"{one_line(path)} has .. in it")
    return normal(path)


def require_allowed(path: str, allowed: Sequence[str], hint: str) -> None:
    if not any(is_below(path, folder) for folder in allowed):
        raise RefusedRequest(f"{one_line(path)} is not one of the allowed paths; {hint}")


# --- the view in which rsync runs -----------------------------------------------------------------------------------------------
def prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _call(name: str, *arguments: Any) -> int:
    import ctypes

    answer = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return int(answer)


def mount_at(source: Optional[str], target: str, kind: Optional[str], flags: int, data: str = "") -> None:
    import ctypes

    texts = [os.fsencode(text) if text is not None else None for text in (source, target, kind)]
    _call("mount", texts[0], texts[1], texts[2], ctypes.c_ulong(flags), os.fsencode(data) if data else None)


def bind(source: str, root: str, point: str, recursive: bool = False, read_only: bool = True) -> None:
    """Shows `source` at `point` below the folder `root`; follows no symlink on either side."""
    top, view = os.open("/", os.O_PATH), os.open(root, os.O_PATH)
    fds = [top, view]
    try:
        fds += [open_below(top, source), open_below(view, point)]
        flags = MS_BIND | (MS_REC if recursive else 0)
        mount_at("/proc/self/fd/%d" % fds[2], "/proc/self/fd/%d" % fds[3], None, flags)
        if read_only:
            # `view` may be the mount that is covered now.
            new = os.open(root, os.O_PATH)
            fds.append(new)
            fds.append(open_below(new, point))
            shown = "/proc/self/fd/%d" % fds[-1]
            kept = os.statvfs(shown).f_flag
            flags = kept & (2 | 4 | 8 | 1024 | 2048) | (MS_RELATIME if kept & ST_RELATIME else 0)  # nosuid, nodev, noexec, noatime
            mount_at(None, shown, None, MS_BIND | MS_REMOUNT | MS_RDONLY | flags)
    finally:
        for fd in fds:
            os.close(fd)


def can_mount() -> str:
    """Returns the reason why no view can be made, or ""."""
    if os.geteuid():
        return "btrkeep-source runs without root"
    pid = os.fork()
    if pid == 0:
        try:
            own_mounts()
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    status = os.WEXITSTATUS(os.waitpid(pid, 0)[1])
    return f"mounts are not possible here: {os.strerror(status)}" if status else ""


def own_mounts() -> None:
    _call("unshare", CLONE_NEWNS)
    mount_at(None, "/", None, MS_REC | MS_PRIVATE)


def dead_mounts(mounts: Iterable[MountEntry], shown: Sequence[str], requested: Sequence[str], is_one: bool) -> List[str]:
    """Returns the mount points that do not answer, of those that a view would show. Raises RefusedRequest if the requested paths
    contain one, unless rsync stays on one filesystem (`is_one`)."""
    dead = unanswering(mount.point for mount in mounts if is_remote(mount) and _is_shown(mount, shown))
    for point in dead:
        if any(is_below(path, point) or (is_below(point, path) and not is_one) for path in requested):
            hint = "unmount it on the host, or set one_file_system for the host on the backup server"
            raise RefusedRequest(f"the filesystem at {one_line(point)} does not answer; {hint}")
    return dead


def enter_view(
    state: str, record: Optional[Dict[str, Any]], allowed: Sequence[str], dead: Sequence[str] = (), read_only: bool = True
) -> None:
    """Moves this process to a root folder with the host's files in their places: the snapshots of a session, and only the allowed
    paths. No link leads out of it. `dead`: mount points that do not answer, and are shown as empty folders."""
    stage = os.path.join(state, "view")
    os.makedirs(stage, 0o700, exist_ok=True)
    own_mounts()
    mounts = read_mounts()
    mount_at("tmpfs", stage, "tmpfs", 0, "mode=755,size=4m")
    full, root = stage + "/full", stage + "/root"
    for folder in (full, root, stage + "/empty"):
        os.mkdir(folder, 0o755)
    paths = record["paths"] if record else allowed
    places = {place["point"]: place for place in record["places"]} if record else {}
    # /dev has to be shown where /dev/shm is.
    shown = {point for mount in mounts if _is_shown(mount, paths) for point in with_folders_above(mount.point)}
    kinds = {mount.point: mount.kind for mount in mounts if mount.point in shown}
    _build(stage, full, places, kinds, set(dead), read_only)
    if list(allowed) != ["/"]:
        _limit(full, root, allowed, read_only)
        full = root
    os.chdir(full)
    try:
        _call("pivot_root", b".", b".")
        _call("umount2", b".", MNT_DETACH)
    except (OSError, AttributeError):  # the root is the initial RAM disk
        os.chroot(".")
    os.chdir("/")


def _is_shown(mount: MountEntry, paths: Sequence[str]) -> bool:
    """Only the filesystems of these paths and of rsync: others could not be unplugged while it runs, or may hang."""
    return mount.kind not in PSEUDO and any(
        is_below(mount.point, path) or is_below(path, mount.point) for path in [*paths, *RUNTIME]
    )


def _build(
    stage: str, full: str, places: Dict[str, Dict[str, Any]], kinds: Dict[str, str], dead: Set[str], read_only: bool
) -> None:
    """Shows the host's files at `full`. `places`: those of the session; `kinds`: the filesystems that are mounted now, by point."""
    for point in sorted({*places, *kinds}, key=lambda point: (point.rstrip("/").count("/"), point)):
        if any(above in dead for above in with_folders_above(point)):
            if point in dead:
                with contextlib.suppress(OSError):
                    bind(stage + "/empty", full, point)
            continue
        place = places.get(point)
        try:
            source = _source(stage, place["piece"], place["folder"]) if place and place["piece"] else point
            bind(source, full, point, read_only=read_only)
        except OSError as error:
            # What was mounted after the snapshot was taken has no folder in it, and a user's FUSE is closed even to root.
            # A subvolume without a mount may be deleted, or replaced.
            is_needed = place and (place["piece"] or (place["counts"] and error.errno not in (errno.ENOENT, errno.ENOTDIR)))
            if point == "/" or is_needed:
                raise
        if kinds.get(point, "btrfs") == "btrfs" and has_own_folder(full + point.rstrip("/")):
            with contextlib.suppress(OSError):
                bind(stage + "/empty", full, point.rstrip("/") + "/" + HIDDEN)


def _source(stage: str, piece: Dict[str, Any], folder: str) -> str:
    """Returns the folder with a snapshot's files; mounts the snapshot if necessary."""
    if piece["method"] == "btrfs":
        source = "{}/{}/{}".format(piece["folder"], HIDDEN, piece["name"])
        with opened(source) as fd:
            if os.fstat(fd).st_ino != SUBVOLUME_TOP or not is_read_only_subvolume(fd):
                raise RefusedRequest("the snapshot of {} was replaced; begin another session".format(piece["mount"]))
    elif piece["method"] == "zfs":
        source = "{}/.zfs/snapshot/{}".format(piece["mount"], piece["name"])
        os.listdir(source)  # lets the kernel mount it
    else:
        source = "{}/lvm-{}-{}".format(stage, piece["group"], piece["of"])
        if not os.path.isdir(source):
            os.mkdir(source)
            mount_at(lvm_device(piece), source, piece["kind"], MS_RDONLY, "nouuid" if piece["kind"] == "xfs" else "")
    return source + "/" + folder


def _limit(full: str, root: str, allowed: Sequence[str], read_only: bool) -> None:
    """Shows only the allowed paths of `full` at `root`, and what rsync needs to start."""
    bind(root, root, "/", read_only=False)
    folders = [(root, os.lstat(full))]
    for path in RUNTIME:
        if os.path.islink(full + path):
            os.symlink(os.readlink(full + path), root + path)
        elif os.path.lexists(full + path):
            _place(full, root, path, folders, True)
    for path in allowed:
        try:
            _place(full, root, path, folders, read_only)
        except OSError as error:
            if read_only and error.errno == errno.ENOENT:
                continue  # nothing can be read there: a folder of dumps before the first one, or of a disk that was removed
            raise RefusedRequest(f"the allowed path {path} cannot be used ({error.strerror}); correct the configuration") from error
    for folder, status in reversed(folders):
        if any(is_below(folder[len(root) :] or "/", path) for path in allowed):
            continue  # an allowed folder is shown over it, as /etc over the one for ld.so.cache
        os.chown(folder, status.st_uid, status.st_gid)
        os.chmod(folder, stat.S_IMODE(status.st_mode))
        os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))
    mount_at(None, root, None, MS_BIND | MS_REMOUNT | MS_RDONLY)


def _place(full: str, root: str, path: str, folders: List[Tuple[str, os.stat_result]], read_only: bool) -> None:
    """Makes the folders above a path with the attributes that they have in `full`, and shows the path there."""
    above, parts = "", path.strip("/").split("/")
    for name in parts[:-1]:
        above += "/" + name
        status = os.lstat(full + above)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it goes through a symlink; write the path that it leads to", path)
        if not os.path.isdir(root + above):
            os.mkdir(root + above, 0o755)
            folders.append((root + above, status))
    status = os.lstat(full + path)
    if not os.path.lexists(root + path):
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(root + path, 0o755)
        else:
            os.close(os.open(root + path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    bind(full + path, root, path, recursive=True, read_only=read_only)


# --- streams --------------------------------------------------------------------------------------------------------------------
# A server with `engine = "send"` gets what changed in a subvolume since a snapshot that it also has. These snapshots are in the
# hidden folder at the top of their subvolume, as SERVER=KEEPER=TIME-HEX. They stay there for the next stream: at most two of each
# keeper, and its history. A keeper is one host entry of one pool, so that two of them with the same --server do not remove each
# other's.
KEPT = re.compile(r"(?P<server>[A-Za-z0-9][A-Za-z0-9._-]{0,49})=(?P<keeper>[0-9a-f]{8})=(?P<time>\d{8}T\d{6}Z)-[0-9a-f]{6}")
KEEPER = re.compile(r"[0-9a-f]{8}")
MOST_KEEPERS = 4  # of one server, for one subvolume
IDENTITY = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d{1,20}:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OLDEST_KEPT = 30 * 86400  # seconds: of a path that is no longer backed up
MOST_NAMED = 100  # nested subvolumes in an answer
PERIODS = {"daily": "%Y-%m-%d", "weekly": "%G-%V", "monthly": "%Y-%m", "yearly": "%Y"}  # of a history, in this host's time zone
RULES = re.compile(r"(daily|weekly|monthly|yearly)=\d{1,6}(,(daily|weekly|monthly|yearly)=\d{1,6}){0,3}")
SEND_VERSION, SEND_COMPRESSED = 8, 16  # linux/btrfs.h
SEND_ARGUMENTS = struct.Struct("=qQQQQI28x")  # descriptor, number of clone sources, their address, parent's tree, flags, version
F_SETPIPE_SZ = 1031  # linux/fcntl.h


class SubvolumeInfo(NamedTuple):
    """What the kernel reports of a subvolume."""

    tree: int
    uuid: str
    parent: str
    """The UUID of the subvolume of which it is a snapshot."""
    identity: str
    """UUID:CTRANSID:OWN. The first two are in a stream of it: the UUID is that of the original if the subvolume was received. They
    may come again with other data if the host is restored from an image, its own UUID does not."""


def subvolume_info(fd: int) -> SubvolumeInfo:
    answer = bytearray(504)
    fcntl.ioctl(fd, GET_SUBVOL_INFO, answer)
    (tree,) = struct.unpack_from("=Q", answer)
    own, parent, received, ctransid = struct.unpack_from("=16s16s16sQ", answer, 296)
    identity = "{}:{}:{}".format(uuid_text(received if any(received) else own), ctransid, uuid_text(own))
    return SubvolumeInfo(tree, uuid_text(own), uuid_text(parent), identity)


def uuid_text(number: bytes) -> str:
    """Returns a UUID as text. The library's module for it loads 20 others."""
    digits = number.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def stream_version() -> int:
    """Returns the newest version of the stream that this kernel sends and servers know; before Linux 6.0 there was only one."""
    try:
        with open("/sys/fs/btrfs/features/send_stream_version") as file:
            return min(2, int(file.read()))
    except (OSError, ValueError):
        return 1


def is_whole_subvolume(fd: int) -> bool:
    """Whether a folder is the top of a subvolume of btrfs that can have snapshots in it."""
    if os.fstat(fd).st_ino != SUBVOLUME_TOP:
        return False
    try:
        return not is_read_only_subvolume(fd)
    except OSError:
        return False


def kept_snapshots(top: int, server: str) -> Dict[str, SubvolumeInfo]:
    """Returns the snapshots of a subvolume that are kept for a server, by name, the newest first."""
    try:
        folder = hidden_folder(top)
    except FileNotFoundError:
        return {}
    kept, of = {}, subvolume_info(top).uuid
    try:
        for name in sorted(os.listdir(folder), reverse=True):
            match = KEPT.fullmatch(name)
            if not match or match.group("server") != server:
                continue
            with contextlib.suppress(OSError), open_kept(folder, name) as fd:  # an administrator may have put other files there
                info = subvolume_info(fd)
                if os.fstat(fd).st_ino == SUBVOLUME_TOP and info.parent == of and is_read_only_subvolume(fd):
                    kept[name] = info
    finally:
        os.close(folder)
    return kept


@contextlib.contextmanager
def open_kept(folder: int, name: str) -> Iterator[int]:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def keeper_of(name: str) -> str:
    return name.split("=")[1]


def time_of(name: str) -> str:
    return name.split("=")[2].partition("-")[0]


def require_different(paths: Sequence[str]) -> None:
    """Refuses two paths of one subvolume, as bind mounts give them: each would delete the other's snapshot."""
    by_device: Dict[int, str] = {}
    for path in paths:
        other = by_device.setdefault(os.stat(path).st_dev, path)
        if other != path:
            raise RefusedRequest(
                f"{one_line(path)} is the same subvolume as {one_line(other)}; keep one of them in the host's paths"
            )


def history_of(names: Sequence[str], rules: str) -> Set[str]:
    """Returns the snapshots that the rules keep: of each of the newest days (weeks, ...) with one, the first.

    Nothing is counted from now, so a wrong clock and a host that is no longer backed up lose none.
    """
    history: Set[str] = set()
    if not rules:
        return history
    times = sorted((_time_in(time_of(name)), name) for name in names)
    for rule in rules.split(","):
        period, _, count = rule.partition("=")
        first: Dict[str, str] = {}
        for when, name in times:
            if when < float("inf"):
                first.setdefault(time.strftime(PERIODS[period], time.localtime(when)), name)
        newest_first = list(reversed(list(first.values())))
        history.update(newest_first[: int(count)])
    return history


def keep_snapshot(path: str, server: str, asked: "StreamWords", most: int) -> Dict[str, Any]:
    """Takes the snapshot of a subvolume for a stream, and removes those of this keeper that are neither the parent nor history;
    returns the answer about the path.

    Of the history, `most` snapshots stay, the newest.
    """
    with opened(path) as top:
        nested = [name for name in nested_subvolumes(top) if not set(NEVER) & set(name.split("/"))]
        kept = kept_snapshots(top, server)
        names = {info.identity: name for name, info in kept.items()}
        parent = next((each for each in asked.identities if each in names), None)
        if len({asked.keepers[-1], *map(keeper_of, kept)} - set(asked.keepers[:-1])) > MOST_KEEPERS:
            raise RefusedRequest(
                f"{one_line(path)} already has snapshots for {MOST_KEEPERS} other backups of {server}; delete those in "
                f"{one_line(os.path.join(path, HIDDEN))} that no server needs: btrfs subvolume delete"
            )
        taken = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = "{}={}={}-{}".format(server, asked.keepers[-1], taken, os.urandom(3).hex())
        own = [each for each in kept if keeper_of(each) in asked.keepers]
        history = sorted(history_of([*own, name], asked.rules) - {name, names[parent] if parent else ""}, key=time_of, reverse=True)
        others = set(own) - set(history[:most]) - {names[parent] if parent else ""}
        for each in others:
            with contextlib.suppress(OSError):  # a stream of it is still being read
                remove_btrfs({"folder": path, "name": each})
        if len(set(kept_snapshots(top, server)) & others) > 0:
            raise RefusedRequest(f"another stream of {path} is still being sent to {server}; wait for its end")
        take_btrfs({"folder": path, "of": path, "name": name})
        info = kept_snapshots(top, server)[name]
    answer = {"path": as_text(path), "id": info.identity, "parent": parent, "taken": moment()}
    left_out = [as_text(name) for name in sorted(nested)[:MOST_NAMED]]
    nested_words = {"left_out": left_out, "left_out_count": len(nested)}
    counts = {"history": len(history[:most]), "not_kept": len(history[most:])}
    return dict(answer, above=folders_above(path), **counts, **nested_words)


def folders_above(path: str) -> List[List[Any]]:
    """Returns the folders above a path, outer ones first, without the root: path, mode, user, group, time in nanoseconds."""
    folders = []
    for folder in reversed(list(with_folders_above(os.path.dirname(path)))[:-1]):
        status = os.lstat(folder)
        folders.append([as_text(folder), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns])
    return folders


def remove_old_kept(
    mounts: Iterable[MountEntry], server: Optional[str], keepers: Sequence[str] = (), paths: Sequence[str] = ()
) -> None:
    """Removes kept snapshots, of that server or of all, of paths that a keeper has not backed up for long; except those of these
    keepers in these paths."""
    asked = {os.stat(path).st_dev for path in paths}  # a subvolume may be at several paths
    for mount in mounts:
        if mount.kind != "btrfs" or mount.read_only:
            continue
        folders = [mount.point]
        with contextlib.suppress(OSError), opened(mount.point) as top:  # a subvolume need not be mounted itself
            nested = [name for name in nested_subvolumes(top) if not set(NEVER) & set(name.split("/"))]
            folders += [os.path.join(mount.point, name) for name in nested]
        for folder in folders:
            with contextlib.suppress(OSError):
                _remove_old_kept_of(folder, server, keepers if os.stat(folder).st_dev in asked else ())


def _remove_old_kept_of(folder: str, server: Optional[str], keepers: Sequence[str]) -> None:
    names = sorted(filter(KEPT.fullmatch, snapshots_in(folder)))
    newest: Dict[str, float] = {}
    for name in names:
        newest[name.rpartition("=")[0]] = _time_in(time_of(name))
    for name in names:
        is_asked = server in (None, name.split("=")[0]) and keeper_of(name) not in keepers
        if is_asked and time.time() - newest[name.rpartition("=")[0]] > OLDEST_KEPT:
            remove_btrfs({"folder": folder, "name": name})


def _time_in(text: str) -> float:
    try:
        return parsed_time(text)
    except ValueError:  # such as 20261399T250000Z, which this program never writes
        return float("inf")


def has_short_inline(fd: int, since: int) -> bool:
    """Whether a file of one block, changed since that transaction, is longer than its compressed inline data, as by fallocate(2).
    Linux sends such data compressed and the file's size not at all, so the received file would be too short."""
    block, most = os.fstatvfs(fd).f_bsize, (1 << 64) - 1
    number, kind, least = SUBVOLUME_TOP, INODE_ITEM, 0
    of = size = 0  # of the last file
    while True:
        answer = bytearray(struct.pack("=7Q4I4024x", 0, number, most, least, most, since, most, kind, EXTENT_DATA, 1000, 0))
        fcntl.ioctl(fd, TREE_SEARCH, answer)
        (count,) = struct.unpack_from("=I", answer, 64)
        if not count:
            return False
        at = 104
        for _ in range(count):
            _, number, least, kind, length = struct.unpack_from("=QQQII", answer, at)
            if kind == INODE_ITEM:
                (size,), of = struct.unpack_from("=Q", answer, at + 32 + 16), number
            elif kind == EXTENT_DATA and number == of and size <= block:
                _, data, is_compressed, is_on_disk = struct.unpack_from("=QQB3xB", answer, at + 32)
                if is_compressed and not is_on_disk and data < size:
                    return True
            at += 32 + length
        number, kind, least = (number, kind, least + 1) if least < most else (number, kind + 1, 0)


def write_stream(path: str, server: str, identity: str, parent: Optional[str], plain: bool) -> None:
    """Writes the stream of a kept snapshot to standard output. The kernel writes command by command, so a pipe gathers them."""
    with opened(path) as top:
        kept = {info.identity: (name, info) for name, info in kept_snapshots(top, server).items()}
        for each in filter(None, (identity, parent)):
            if each not in kept:
                raise RefusedRequest(f"the snapshot {each} of {path} is gone; begin again")
        folder = hidden_folder(top)
        with open_kept(folder, kept[identity][0]) as source:
            os.close(folder)
            since = int(parent.split(":")[1]) if parent else 0
            version = 1 if plain or (stream_version() > 1 and has_short_inline(source, since)) else stream_version()
            trees = array.array("Q", [kept[parent][1].tree] if parent else [])
            reading, writing = os.pipe()
            with contextlib.suppress(OSError):  # a limit of the user
                fcntl.fcntl(writing, F_SETPIPE_SZ, 1 << 20)
            child = os.fork()
            if not child:
                os.close(reading)  # otherwise the kernel would not notice the end of the reader
                os._exit(_send(source, writing, trees, version))
            os.close(writing)
    try:
        _pass_on(reading)
    finally:
        os.close(reading)  # the kernel ends with EPIPE
        _, status = os.waitpid(child, 0)
    if status:
        error = os.strerror(status >> 8) if status >> 8 else "signal %d" % (status & 127)
        raise RefusedRequest(f"{path} cannot be sent ({error}); see the kernel's messages (dmesg)")


def _send(source: int, out: int, trees: "array.array[int]", version: int) -> int:
    """Lets the kernel write a stream; returns 0 or the number of the error."""
    flags = SEND_VERSION | SEND_COMPRESSED if version > 1 else 0
    tree = trees[0] if trees else 0
    try:
        fcntl.ioctl(source, SEND, SEND_ARGUMENTS.pack(out, len(trees), trees.buffer_info()[0], tree, flags, version))
        return 0
    except OSError as error:
        return min(error.errno or 255, 255)


def _pass_on(reading: int) -> None:
    while True:
        data = os.read(reading, 1 << 20)
        if not data:
            return
        is_short = len(data) < 1 << 16
        while data:
            data = data[os.write(1, data) :]
        if is_short:
            time.sleep(0.001)  # more commands come together then


class StreamWords(NamedTuple):
    """The words of a request for streams."""

    identities: List[str]
    """After --have or --parent."""
    keepers: List[str]
    """After --for: the last one is that of new snapshots; the others are those of a host entry that was renamed."""
    rules: str
    """After --keep, or ""."""
    options: Set[str]
    """Those without a value."""
    rest: List[str]


def stream_words(words: Sequence[str]) -> StreamWords:
    identities, keepers, rules, options, rest = [], [], "", set(), list(words)
    while rest and rest[0].startswith("--"):
        option = rest.pop(0)
        if option == "--":
            break
        if option in ("--plain", "--send"):
            options.add(option)
        elif option in ("--have", "--parent") and rest and IDENTITY.fullmatch(rest[0]):
            identities.append(rest.pop(0))
        elif option == "--for" and rest and KEEPER.fullmatch(rest[0]):
            keepers.append(rest.pop(0))
        elif option == "--keep" and rest and RULES.fullmatch(rest[0]):
            rules = rest.pop(0)
        else:
            raise RefusedRequest(f"{one_line(option)} is not an option of this request")
    return StreamWords(identities, keepers, rules, options, rest)


# --- requests -------------------------------------------------------------------------------------------------------------------
class Host:
    """What a request works with: the server that asks, and this host's configuration and sessions."""

    def __init__(self, server: str, config_path: str, state: str) -> None:
        self.server = server
        self.config_path = config_path
        self.config = read_config(config_path)
        self.state = os.path.realpath(state)
        self.sessions = Sessions(self.state, self.config)

    def paths(self, words: Sequence[str]) -> List[str]:
        paths = [checked_path(word) for word in (words[1:] if words[:1] == ["--"] else words)]
        if len(paths) > MOST_PATHS:
            raise RefusedRequest("a request may have %d paths, not %d" % (MOST_PATHS, len(paths)))
        mounts = read_mounts() if paths else []
        for point in unanswering(mount.point for mount in {holder(mounts, path) for path in paths} if is_remote(mount)):
            raise RefusedRequest(f"the filesystem at {one_line(point)} does not answer; unmount it on the host")
        for path in paths:
            hint = f"change allow in [paths] of {self.config_path}"
            require_allowed(path, self.config.allow, hint)
            require_allowed(os.path.realpath(path), self.config.allow, hint)
        return paths

    def begin(self, words: Sequence[str]) -> Dict[str, Any]:
        paths = self.paths(words)
        if not paths:
            raise RefusedRequest("begin needs the paths of the backup")
        started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        session = "{}-{}-{}{}".format(self.server, started, tag_of(self.state), os.urandom(2).hex())
        dumps = self._dumps(paths)
        missing = can_mount()
        if os.geteuid():
            return self._answer(session, _live_plan(session, missing), read_mounts(), paths, dumps)
        self.sessions.prepare()
        with self.sessions.locked():
            mounts = read_mounts()
            problems = self.sessions.tidy(self.server)
            holders = [
                mount for mount in mounts if any(is_below(mount.point, path) or is_below(path, mount.point) for path in paths)
            ]
            self.sessions.remove_orphans(self.server, holders)
            own = [name for name in self.sessions.names() if owner_of(name) == self.server]
            if len(own) >= self.config.most:
                hint = problems[0] if problems else "rsync still reads from them; wait for these runs"
                raise RefusedRequest("%s has %d sessions on this host already (%s)" % (self.server, len(own), hint))
            plan = _live_plan(session, missing) if missing else make_plan(mounts, paths, self.config, session)
            self._write(plan, paths, missing)  # before: a snapshot without a record would stay
            take(plan)
            with contextlib.suppress(OSError):
                drop_moved(plan)
            self._write(plan, paths, missing)
            open(self.sessions.path(session, ".lock"), "a").close()
        start_timer(session, self.config.oldest + 60, ["--config", self.config_path, "--state", self.state])
        return self._answer(session, plan, mounts, paths, dumps)

    def _write(self, plan: SnapshotPlan, paths: Sequence[str], missing: str) -> None:
        places = [dict(place, piece=plan.pieces.get(place["key"])) for place in plan.places]
        real = [os.path.realpath(path) for path in paths]
        record = {"session": plan.session, "paths": list(paths) + real, "view": not missing}
        self.sessions.write(dict(record, pieces=list(plan.pieces.values()), places=places))

    def _answer(
        self, session: str, plan: SnapshotPlan, mounts: Sequence[MountEntry], paths: Sequence[str], dumps: List[Dict[str, Any]]
    ) -> Dict[str, Any]:
        others = {mount.point for mount in mounts if mount.kind != "btrfs"}  # such as a FUSE that hangs
        folders = (place["point"] for place in plan.places if place["point"] not in others and has_own_folder(place["point"]))
        own = [point.rstrip("/") + "/" + HIDDEN for point in folders]  # the server excludes these
        return {
            "format": FORMAT,
            "session": session,
            "paths": [consistency(plan, mounts, path) for path in paths],
            "filesystems": [
                {"mount": as_text(piece["mount"]), "method": piece["method"], "taken": piece["taken"]}
                for piece in plan.pieces.values()
            ],
            "dumps": dumps,
            "own": [as_text(folder) for folder in own],
            "inner": inner_filesystems(plan, mounts, paths),
        }

    def _dumps(self, paths: Sequence[str]) -> List[Dict[str, Any]]:
        answers = []
        for dump in self.config.dumps:
            if any(is_below(dump.output, path) and (dump.output != path or not dump.stream) for path in paths):
                if dump.stream:
                    answers.append(answer_stream(dump))
                elif not os.geteuid():
                    self.sessions.prepare()
                    with self.sessions.locked("dump-" + dump.name, dump.timeout):
                        answers.append(make_dump(dump))
                else:
                    answers.append(make_dump(dump))
            else:
                error = f"it was not run: no path of this backup contains {dump.output}; add it to the host's paths"
                answer = {"name": dump.name, "path": as_text(dump.output), "status": None, "seconds": 0.0, "bytes": 0}
                answers.append(dict(answer, error=error, required=dump.required))
        return answers

    def send_begin(self, words: Sequence[str]) -> Dict[str, Any]:
        """Takes the snapshots for streams."""
        asked = stream_words(words)
        paths = self.paths(asked.rest)
        if not paths or not asked.keepers:
            raise RefusedRequest("send-begin needs --for and the paths of the backup")
        if "--send" in asked.options and len(paths) > 1:
            raise RefusedRequest("send-begin --send needs a single path")
        self._require_streams(paths)
        require_different(paths)
        dumps = self._dumps(paths)
        for dump in dumps:
            if dump.pop("streams", None) is not None:
                dump["error"] = 'a dump with stream = yes needs engine = "rsync" on the backup server'
        self.sessions.prepare()
        with self.sessions.locked():
            self._remove_old_kept(asked.keepers, paths)
            answers = [keep_snapshot(path, self.server, asked, self.config.history) for path in paths]
        answer = {"format": FORMAT, "stream": stream_version(), "paths": answers, "dumps": dumps}
        if "--send" in asked.options:
            print(json.dumps(answer), flush=True)
            write_stream(paths[0], self.server, answers[0]["id"], answers[0]["parent"], "--plain" in asked.options)
            sys.exit(0)
        return answer

    def _remove_old_kept(self, keepers: Sequence[str], paths: Sequence[str]) -> None:
        """Does that once a day for each server: it reads all subvolumes of the host."""
        stamp = self.sessions.path("kept-" + self.server, ".read")
        with contextlib.suppress(OSError):
            if 0 <= time.time() - os.stat(stamp).st_mtime < 86400:
                return
        remove_old_kept(read_mounts(), self.server, keepers, paths)
        os.close(os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        os.utime(stamp)

    def send(self, words: Sequence[str]) -> None:
        """Writes a stream, and ends this program."""
        asked = stream_words(words)
        parents, rest = asked.identities, asked.rest
        if len(rest) != 2 or not IDENTITY.fullmatch(rest[0]) or len(parents) > 1:
            raise RefusedRequest("send needs the identity of a snapshot and its path")
        (path,) = self.paths(rest[1:])
        self._require_streams([path])
        write_stream(path, self.server, rest[0], parents[0] if parents else None, "--plain" in asked.options)
        sys.exit(0)

    def _require_streams(self, paths: Sequence[str]) -> None:
        reason = next(filter(None, map(self._why_not_sent, paths)), None)
        if reason:
            raise RefusedRequest(reason)

    def _why_not_sent(self, path: str) -> Optional[str]:
        """Returns why a path cannot be sent as a stream; None: it can."""
        if os.geteuid():
            return "only root can send a subvolume; use sudo"
        if "btrfs" not in self.config.methods:
            return f"streams are not allowed; add btrfs to methods in [snapshots] of {self.config_path}"
        try:
            with opened(path) as fd:
                is_possible = is_whole_subvolume(fd)
        except OSError as error:
            return f"{one_line(path)} cannot be sent: {reason_of(error)}"
        return None if is_possible else f"{one_line(path)} is not a writable subvolume of btrfs; back it up with rsync"

    def dump(self, words: Sequence[str]) -> None:
        """Writes one file of a dump that is a stream, and ends this program with 0 only if all of it was written."""
        name, path = words if len(words) == 2 else ("", "")
        dump = next((each for each in self.config.dumps if each.name == name and each.stream), None)
        if dump is None:
            raise RefusedRequest(f"there is no dump {one_line(name)} with stream = yes in {self.config_path}")
        require_allowed(dump.output, self.config.allow, f"change allow in [paths] of {self.config_path}")
        with contextlib.ExitStack() as held:
            if not os.geteuid():
                self.sessions.prepare()
                held.enter_context(self.sessions.locked(f"dump-{name}={self.server}", 10))  # another server must not wait for it
            deadline = time.monotonic() + dump.timeout
            try:
                part = next((each for each in stream_parts(dump, deadline) if as_text(each.path) == as_text(path)), None)
                if part is None:
                    raise RefusedRequest(f"the dump {name} has no file {one_line(path)}; its database was deleted")
                _run_dump(part.command, deadline, None, part.owner)
            except subprocess.CalledProcessError as error:
                raise RefusedRequest(error.output) from error
        sys.exit(0)

    def end(self, words: Sequence[str]) -> Dict[str, Any]:
        session = self._own_session(words[:1])
        if os.geteuid() or not os.path.isdir(self.state):
            return {"format": FORMAT, "removed": 0, "full": []}
        with self.sessions.locked():
            is_recorded = os.path.exists(self.sessions.path(session, ".json"))
            full = self.sessions.remove(session, 10)
            if full is None:
                raise RefusedRequest(f"rsync processes of the session {session} do not end; the next begin removes it")
        return {"format": FORMAT, "removed": int(is_recorded), "full": full}

    def _own_session(self, words: Sequence[str]) -> str:
        session = words[0] if words else ""
        if not SESSION.fullmatch(session) or owner_of(session) != self.server:
            raise RefusedRequest("{} is not a session of {}".format(one_line(session) or "nothing", self.server))
        return session

    def check(self, words: Sequence[str]) -> Dict[str, Any]:
        paths, mounts, plan = self._planned(words)
        dumps = [{"name": dump.name, "path": as_text(dump.output), "required": dump.required} for dump in self.config.dumps]
        names = self.sessions.names() if os.path.isdir(self.state) and not os.geteuid() else []
        return {
            "format": FORMAT,
            "version": VERSION,
            "server": self.server,
            "paths": [consistency(plan, mounts, path) for path in paths],
            "streams": [[as_text(path), self._why_not_sent(path)] for path in paths],
            "history": self.config.history,
            "dumps": dumps,
            "restore": [as_text(path) for path in self.config.restore_allow],
            "rsync": shutil.which("rsync"),
            "sessions": [name for name in names if owner_of(name) == self.server],
        }

    def _planned(self, words: Sequence[str]) -> Tuple[List[str], List[MountEntry], SnapshotPlan]:
        """Returns the checked paths, the mounts, and the plan of a session."""
        paths = self.paths(words) or self.config.allow
        mounts, missing = read_mounts(), can_mount()
        return paths, mounts, _live_plan("", missing) if missing else make_plan(mounts, paths, self.config, "check")

    def table(self, words: Sequence[str]) -> str:
        """Returns the answer to `check` for the host's administrator."""
        paths, mounts, plan = self._planned(words)
        rows, live = [("PATH", "READ FROM", "WHY")], []
        for path in paths:
            answer = consistency(plan, mounts, path)
            reasons = live_reasons(plan, path, places_of(plan, mounts, path))
            live += reasons
            read_from = (
                "live" if reasons else "snapshot" + (" ({})".format(", ".join(answer["methods"])) if answer["methods"] else "")
            )
            rows.append((path, read_from, reasons[0] if reasons else ""))
            rows += [("", "", reason) for reason in reasons[1:]]
        widths = [max(len(one_line(row[column])) for row in rows) for column in (0, 1)]
        lines = ["%-*s  %-*s  %s" % (widths[0], one_line(row[0]), widths[1], row[1], one_line(row[2])) for row in rows]
        lines.append("")
        for dump in self.config.dumps:
            missing = "" if any(is_below(dump.output, path) for path in paths) else "; not in these paths"
            lines.append("dump %s: %s%s" % (dump.name, one_line(dump.output), missing))
        lines.append("restores: " + (" ".join(map(one_line, self.config.restore_allow)) or "none ([restore] has no folder)"))
        lines.append("rsync: " + (shutil.which("rsync") or "not installed; install it"))
        if live and self.config.methods:
            lines += ["", "What to do:"]
            if "it does not exist" in live:
                lines.append("- Correct the paths that do not exist.")
            if plan.reason:
                lines.append("- Run this as root, also by the server's key. A container must allow mounts.")
            elif set(live) != {"it does not exist"}:
                lines += [
                    "- Move live files to btrfs or LVM, or dump the databases in them, or",
                    "- if a filesystem need not be of the same moment, add its mount point to",
                    f"  may_be_live in [snapshots] of {one_line(self.config_path)}, or",
                    '- read them live, with snapshots = "auto" on the backup server.',
                ]
        return "\n".join(line.rstrip() for line in lines)

    def clean(self) -> Dict[str, Any]:
        """Removes what is older than `oldest`, of all servers."""
        self.sessions.prepare()
        with self.sessions.locked():
            before = len(self.sessions.names())
            problems = self.sessions.tidy(None)
            mounts = [mount for mount in read_mounts() if not is_remote(mount)]
            self.sessions.remove_orphans(None, mounts)
            remove_old_kept(mounts, None)
            removed = before - len(self.sessions.names())
        if problems:
            raise RefusedRequest("; ".join(problems))
        return {"format": FORMAT, "removed": removed}

    def read(self, words: Sequence[str], session: Optional[str]) -> None:
        """Becomes the rsync that sends files."""
        options, paths = rsync_words(words, is_sender=True)
        record = None
        for path in paths:
            require_allowed(normal(path), self.config.allow, f"change allow in [paths] of {self.config_path}")
        if session is not None and not os.geteuid():
            name = self._own_session([session])
            self._hold(name)
            record = self.sessions.read(name)
            for path in paths:
                require_allowed(normal(path), record["paths"], "begin a session with it")
            record = record if record["view"] else None
        elif session is not None:
            self._own_session([session])
        program = rsync_program()
        if record or self.config.allow != ["/"]:
            is_one = any(re.match("--one-file-system$|-[A-Za-df-z]*x", option) for option in options)
            shown = record["paths"] if record else self.config.allow
            dead = dead_mounts(read_mounts(), shown, [normal(path) for path in paths], is_one)
            self._enter(record, self.config.allow, dead)
        for path in paths:
            require_allowed(os.path.realpath(path), self.config.allow, "it is a symlink")
        become([program, "--server", "--sender", *options, "--", ".", *paths])

    def _hold(self, name: str) -> None:
        """Locks the session for as long as this process lives, whatever program it becomes."""
        try:
            fd = os.open(self.sessions.path(name, ".lock"), os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise RefusedRequest(f"the session {name} is gone; begin another one") from None
        if not _locks(fd, fcntl.LOCK_SH):
            raise RefusedRequest(f"the session {name} is being removed; begin another one")
        os.set_inheritable(fd, True)

    def _enter(self, record: Optional[Dict[str, Any]], allowed: Sequence[str], dead: Sequence[str], read_only: bool = True) -> None:
        if os.geteuid():
            raise RefusedRequest("only root can be limited to {}; use sudo, or allow = /".format(" ".join(allowed)))
        self.sessions.prepare()
        try:
            enter_view(self.state, record, allowed, dead, read_only)
        except OSError as error:
            raise RefusedRequest(
                f"the files cannot be shown to rsync: {one_line(str(error))}; see `btrkeep-source check`"
            ) from error

    def restore(self, words: Sequence[str]) -> None:
        """Becomes the rsync that writes files, below the allowed folders only."""
        config = self.config
        if not config.restore_allow:
            raise RefusedRequest(f"restores are not allowed; write allow in [restore] of {self.config_path}")
        if words[:1] != ["rsync"]:
            raise RefusedRequest("this key only restores files with rsync")
        options, paths = rsync_words(words[1:], is_sender=False)
        target = normal(paths[0])
        if not any(is_below(target, folder) or is_below(folder, target) for folder in config.restore_allow):
            raise RefusedRequest(
                "{} is not below {}, where restores are allowed".format(one_line(target), ", ".join(config.restore_allow))
            )
        program = rsync_program()
        if config.restore_allow != ["/"]:
            dead = dead_mounts(read_mounts(), config.restore_allow, [target], False)
            self._enter(None, config.restore_allow, dead, read_only=False)
        elif os.geteuid():
            raise RefusedRequest("restores need root; use sudo")
        if not config.restore_setuid:
            # Without --perms, or while --inplace writes, a setuid file would get other content and keep the bit.
            options += ["--perms", "--chmod=u-s,g-s"]
            for capability in (CAP_SETFCAP, CAP_FSETID):
                prctl(PR_CAPBSET_DROP, capability)
        if not config.restore_devices:
            prctl(PR_CAPBSET_DROP, CAP_MKNOD)
        if not config.restore_links:
            options.append("--safe-links")
        become([program, "--server", *options, "--", ".", *paths])


# --- a host that calls ----------------------------------------------------------------------------------------------------------
CALL_OPTIONS = (
    "BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=20", "ServerAliveInterval=30",
    "ServerAliveCountMax=6", "ControlMaster=no", "ControlPath=none", "ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no",
    "Tunnel=no", "PermitLocalCommand=no", "RemoteCommand=none", "RequestTTY=no", "Compression=no",
)  # fmt: skip
CALLED_OPTIONS = (
    "PasswordAuthentication=no", "KbdInteractiveAuthentication=no", "ChallengeResponseAuthentication=no", "LoginGraceTime=0",
)  # fmt: skip
"""Of the sshd that a server reaches: only keys log in, else a server could guess passwords where no port is open. The third one is
needed before OpenSSH 8.7. The last one, because a server may read for minutes what a power cut left, before it logs in."""
LONGEST_ANSWER = 4096  # bytes
FLAGS = ("--json", "--scheduled")
LONGEST_WAIT = 7 * 86400  # seconds until the next call, whatever the server says


def call(host: Host, server: str, scheduled: bool) -> int:
    """Lets the server back up this host over a connection that this host opens. Returns the exit status.

    `scheduled`: does nothing before the time that the server has named. The server speaks ssh with an sshd of this host over the
    standard input and output of `ssh SERVER`, so the keys and forced commands of this host apply.
    """
    if not re.fullmatch(r"[A-Za-z0-9\[][A-Za-z0-9@.:/_%\[\]-]{0,250}", server):
        raise RefusedRequest("name the backup server: `btrkeep-source call root@backup.example.org`")
    if os.geteuid():
        raise RefusedRequest("call needs root, because sshd does")
    sshd = shutil.which("sshd")
    if sshd is None or shutil.which("ssh") is None:
        raise RefusedRequest("sshd or ssh is not installed; install the ssh server, which need not listen")
    host.sessions.prepare()
    name = re.sub(r"[^A-Za-z0-9.-]", "_", server)
    appointment = os.path.join(host.state, "call-" + name)
    with host.sessions.locked("calling-" + name, 0):  # a server that hangs, or makes a long backup, must not keep others waiting
        if scheduled and time.time() < _appointed(appointment):
            return 0
        import socket

        ours, theirs = socket.socketpair()
        options = [word for option in CALL_OPTIONS for word in ("-o", option)]
        argv = ["ssh", *host.config.call_ssh, "-i", host.config.call_key, *options, "--", server, "call"]
        own = {name: value for name, value in os.environ.items() if name != "LC_ALL"}  # ssh may send LC_ALL to the server
        with ours, subprocess.Popen(argv, stdin=theirs.fileno(), stdout=theirs.fileno(), env=own) as ssh:
            theirs.close()
            try:
                answer, answered = _call_answer(ours), time.time()
                if answer["connect"]:
                    os.makedirs("/run/sshd", 0o755, exist_ok=True)  # for sshd's separation of privileges; a service makes it
                    only_keys = [word for option in CALLED_OPTIONS for word in ("-o", option)]
                    subprocess.call([sshd, "-i", *host.config.call_sshd, *only_keys], stdin=ours.fileno(), stdout=ours.fileno())
                ours.close()  # ends ssh
                status = ssh.wait()
            except BaseException:
                ssh.kill()
                raise
        is_good = status == 0
        _appoint(appointment, answered + answer["again" if is_good else "retry"])
        print("{}; next call in {} minutes".format(one_line(answer["text"]), answer["again" if is_good else "retry"] // 60))
        if not is_good:
            raise RefusedRequest(f"the backup did not become complete (exit status {status}); the server's log has the reason")
    return 0


def _call_answer(connection: "socket.socket") -> Dict[str, Any]:
    """Reads the line of JSON with which the server answers, and no byte more. All of it is checked."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > LONGEST_ANSWER:
            raise RefusedRequest("the server did not answer; its authorized_keys needs the line of this host's key, see the manual")
        line += byte
    try:
        answer = json.loads(line.decode("ascii"))
        times = {key: max(60, min(int(answer[key]), LONGEST_WAIT)) for key in ("again", "retry")}
        return {"connect": answer["connect"] is True, "text": str(answer["text"])[:300], **times}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise RefusedRequest("the answer is not that of a backup server; check the line of this host's key there") from None


def _appointed(path: str) -> float:
    """Returns when the server wants the next call; 0 if that is unknown, or if a clock was wrong."""
    try:
        when = os.stat(path).st_mtime
    except OSError:
        return 0
    return when if when < time.time() + LONGEST_WAIT else 0


def _appoint(path: str, when: float) -> None:
    """Stores the time as that of an empty file."""
    open(path, "a").close()
    os.utime(path, (when, when))


def _live_plan(session: str, reason: str) -> SnapshotPlan:
    plan = SnapshotPlan(session)
    plan.reason = reason
    return plan


def rsync_program() -> str:
    program = shutil.which("rsync")
    if program is None:
        raise RefusedRequest("rsync is not installed on this host; install it")
    return program


def become(argv: List[str]) -> None:
    os.umask(0o022)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a program inherits that
    try:
        os.execv(argv[0], argv)
    except OSError as error:
        raise RefusedRequest(f"{argv[0]} cannot be started ({error.strerror})") from error


def answer_request(host: Host, words: Sequence[str]) -> Dict[str, Any]:
    """Does what a server asks for; returns the answer, unless it becomes rsync."""
    actions: Dict[str, Callable[..., Dict[str, Any]]] = {"begin": host.begin, "end": host.end, "check": host.check}
    actions["send-begin"] = host.send_begin
    if words[:1] == ["rsync"]:
        host.read(words[1:], None)
    if words[:2] == ["btrkeep-source", "rsync"] and len(words) > 2:
        host.read(words[3:], words[2])
    if words[:2] == ["btrkeep-source", "send"]:
        host.send(words[2:])
    if words[:2] == ["btrkeep-source", "dump"]:
        host.dump(words[2:])
    if words[:1] == ["btrkeep-source"] and words[1:2] and words[1] in actions:
        return actions[words[1]](words[2:])
    if not words:
        raise RefusedRequest("a login is not allowed with this key; on the host, use `btrkeep-source --help`")
    raise RefusedRequest("%s is not allowed with this key; it only reads files with rsync" % one_line(words[0]))


def clean_environment() -> Optional[str]:
    """Replaces the environment, which comes from the server in part; returns the request."""
    request = os.environ.get("SSH_ORIGINAL_COMMAND")
    os.environ.clear()
    os.environ.update(PATH=PATH, LC_ALL="C.UTF-8")
    os.environ["HOME"] = os.path.expanduser("~")  # by the list of users now
    return request


def main(arguments: Sequence[str]) -> int:
    request = clean_environment()
    os.umask(0o077)
    parser = argparse.ArgumentParser(
        prog="btrkeep-source", description="Gives a backup server snapshots of this host to read. See btrkeep-source(8).",
        allow_abbrev=False, epilog="Without a command, it does what SSH_ORIGINAL_COMMAND asks for.")  # fmt: skip
    parser.add_argument("--server", default="backup", metavar="NAME", help="the backup server that has the key")
    parser.add_argument("--config", default=CONFIG, metavar="FILE", help="the configuration, instead of %(default)s")
    parser.add_argument("--state", default=STATE, metavar="FOLDER", help="where sessions are recorded, instead of %(default)s")
    parser.add_argument("--json", action="store_true", help="check prints JSON also on a terminal")
    parser.add_argument("--version", action="version", version="btrkeep-source " + VERSION)
    parser.add_argument("--scheduled", action="store_true", help="call only if the time that the server has named has come")
    parser.add_argument("command", nargs="?", choices=("check", "clean", "begin", "end", "restore", "call"), help="see the manual")
    parser.add_argument("words", nargs="*", help="the paths for check and begin, the session for end, or the server for call")
    # argparse takes no option between the command and its words.
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(sorted(arguments[:end], key=lambda word: word not in FLAGS) + list(arguments[end:]))
    try:
        if not SERVER.fullmatch(options.server):
            raise RefusedRequest("--server takes letters, digits, '.', '_' and '-'")
        host = Host(options.server, options.config, os.path.abspath(options.state))
        if options.command == "restore":
            host.restore(request_words(request))
            return 1
        if options.command == "call":
            return call(host, " ".join(options.words), options.scheduled)
        if options.command == "clean":
            answer = host.clean()
        elif options.command:
            answer = answer_request(host, ["btrkeep-source", options.command, *options.words])
        else:
            answer = answer_request(host, request_words(request))
        if options.command == "check" and (options.json or sys.stdout.isatty()):
            return show_check(host, options.words, answer, options.json)
        print(json.dumps(answer))
    except RefusedRequest as error:
        print("btrkeep-source: " + one_line(str(error)), file=sys.stderr)
        return 1
    except OSError as error:
        print("btrkeep-source: " + one_line(str(error)), file=sys.stderr)
        return 1
    return 0


def show_check(host: Host, words: Sequence[str], answer: Dict[str, Any], as_json: bool) -> int:
    """Prints the answer to a `check` typed on the host; returns 1 if a path is live although snapshots are wanted.

    Without a terminal and --json it is a server that asks, by a key that may run any command: its answer is always JSON, and 0.
    """
    text = json.dumps(answer) if as_json else host.table(words)
    encoding = sys.stdout.encoding or "ascii"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
    is_live = any(path["consistency"] == "live" for path in answer["paths"])
    return int(not answer["rsync"] or (is_live and bool(host.config.methods)))


def request_words(request: Optional[str]) -> List[str]:
    try:
        return shlex.split(request or "")
    except ValueError:
        raise RefusedRequest("the request has an open quote") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
