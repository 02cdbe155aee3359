"""Applies one stream of `btrfs send` to a folder: a program of its own, which runs in the cell of rsync.

    applier.py FD FOLDER BASE PARENT MOST_NAMES MOST_BYTES COMPRESSION

FD is an open descriptor with the stream. FOLDER is the writable folder, which has what the parent has; BASE is the same folder in
the previous backup, or "-". PARENT is the identity UUID:CTRANSID of the subvolume to which the stream must be a difference, or "-"
for a complete stream into an empty folder. The next two are limits for new names and new bytes, or "-". COMPRESSION is the property
of the pool's folder, which new files get, or "-".

It prints a JSON object from time to time as a sign of progress, and one with the result at the end. An error is one line on stderr,
and the exit status is its kind.

The stream is hostile. Its paths are relative to FOLDER, and each word of them is checked. They are walked from the open folder with
O_NOFOLLOW, so no symlink and no ".." leads out; only regular files are opened.

It imports nothing of btrkeep but the three modules beside it, because it starts for each source path.
"""

import errno
import json
import os
import stat
import sys
import time

from backupd.streams import stream_format as wire
from backupd.streams.file_writer import FileWriter
from backupd.streams.open_folders import remove_inherited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

SERVER_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EUCLEAN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
XATTR_REFUSED = {errno.EOPNOTSUPP, errno.EINVAL, errno.E2BIG, errno.ERANGE, errno.EPERM}
OWN_FOLDER = b".btrkeep-source"
"""The host's folder of snapshots at the top of the subvolume. It is in each stream, and in no backup unless something is in it."""
COMPRESSION = "btrfs.compression"
MOST_SAMPLES = 3
PROGRESS = 1.0  # seconds


class Applier(FileWriter):
    """Applies commands to a folder, and counts what they change."""

    # --- names --------------------------------------------------------------------------------------------------------------
    def _made(self, regular: int = 0) -> None:
        numbers = self.numbers
        numbers["files"] += 1
        numbers["regular"] += regular
        numbers["created"] += 1
        if self.most_names is not None and numbers["created"] > self.most_names:
            raise wire.StreamError(wire.OVER_LIMIT, f"files {numbers['created']}")

    def _gone(self, info: os.stat_result) -> None:
        self.numbers["files"] -= 1
        self.numbers["deleted"] += 1
        if stat.S_ISREG(info.st_mode):
            self.numbers["regular"] -= 1
            self.numbers["bytes"] -= info.st_size

    def make_file(self, path: bytes, _: "dict[int, Any]") -> None:
        folder, name = self.here.above(path)
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder))
        self._settle(folder, name)
        self._made(1)

    def make_folder(self, path: bytes, _: "dict[int, Any]") -> None:
        folder, name = self.here.above(path)
        os.mkdir(name, 0o700, dir_fd=folder)
        self._settle(folder, name)
        self._made()

    def _settle(self, folder: int, name: bytes) -> None:
        """Gives a new file or folder the properties of the pool in place of those of the top."""
        remove_inherited(folder, name)
        if self.compression:
            os.setxattr(name, COMPRESSION, self.compression, follow_symlinks=False)  # `remove_inherited` is in this folder

    def make_node(self, path: bytes, attributes: "dict[int, Any]") -> None:
        kind = stat.S_IFMT(wire.number(attributes, wire.A_MODE))
        if kind not in (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK):
            raise wire.bad(f"{wire.shown(path)} is an unknown kind of file")
        has_device = kind in (stat.S_IFCHR, stat.S_IFBLK)
        self._make_node(path, kind, wire.number(attributes, wire.A_RDEV, (1 << 32) - 1) if has_device else 0)

    def make_pipe(self, path: bytes, _: "dict[int, Any]") -> None:
        self._make_node(path, stat.S_IFIFO)

    def make_socket(self, path: bytes, _: "dict[int, Any]") -> None:
        self._make_node(path, stat.S_IFSOCK)

    def _make_node(self, path: bytes, kind: int, device: int = 0) -> None:
        folder, name = self.here.above(path)
        os.mknod(name, kind | 0o600, device, dir_fd=folder)
        remove_inherited(folder, name)
        self._made()

    def make_symlink(self, path: bytes, attributes: "dict[int, Any]") -> None:
        target = attributes[wire.A_PATH_LINK]
        if not target or len(target) > wire.LONGEST_PATH or b"\0" in target:
            raise wire.bad(f"{wire.shown(path)} is an invalid symlink")
        folder, name = self.here.above(path)
        os.symlink(target, name, dir_fd=folder)
        self._takes(len(target))
        self._made()

    def rename(self, path: bytes, attributes: "dict[int, Any]") -> None:
        self.close()
        folder, name = self.here.above(path)
        new_folder, new_name = self.here.above(attributes[wire.A_PATH_TO])
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        try:
            replaced = os.stat(new_name, dir_fd=new_folder, follow_symlinks=False)
        except FileNotFoundError:
            replaced = None
        if replaced and replaced.st_ino == info.st_ino:  # rename(2) keeps both names of one inode
            raise FileExistsError(errno.EEXIST, "the new name belongs to the same file")
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)
        if replaced:
            self._gone(replaced)
        if stat.S_ISDIR(info.st_mode):
            self.here.forget()

    def link(self, path: bytes, attributes: "dict[int, Any]") -> None:
        self.close()
        old_folder, old_name = self.here.above(attributes[wire.A_PATH_LINK])
        folder, name = self.here.above(path)
        info = os.stat(old_name, dir_fd=old_folder, follow_symlinks=False)
        os.link(old_name, name, src_dir_fd=old_folder, dst_dir_fd=folder, follow_symlinks=False)
        self._made(int(stat.S_ISREG(info.st_mode)))
        self.numbers["bytes"] += info.st_size if stat.S_ISREG(info.st_mode) else 0

    def unlink(self, path: bytes, _: "dict[int, Any]") -> None:
        self.close()
        folder, name = self.here.above(path)
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        os.unlink(name, dir_fd=folder)
        self._gone(info)

    def remove_folder(self, path: bytes, _: "dict[int, Any]") -> None:
        folder, name = self.here.above(path)
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        os.rmdir(name, dir_fd=folder)
        self._gone(info)
        self.here.forget()

    # --- attributes ---------------------------------------------------------------------------------------------------------
    def _place(self, path: bytes) -> tuple[int, bytes]:
        """Returns the folder and the name; the empty path is the source path itself."""
        return self.here.above(path) if path else (self.here.root, b".")

    def set_xattr(self, path: bytes, attributes: "dict[int, Any]") -> None:
        name, value = _xattr_name(attributes), bytes(attributes[wire.A_XATTR_DATA])
        if len(value) > wire.LONGEST_XATTR:
            raise wire.bad(f"{wire.shown(path)} has an attribute that is too long")
        self._takes(len(value))
        folder, file = self._place(path)
        os.fchdir(folder)  # there is no call with a folder and a name before Linux 6.13
        try:
            os.setxattr(file, name, value, follow_symlinks=False)
        except OSError as error:
            if error.errno not in XATTR_REFUSED:
                raise
            self.not_kept += 1
            if len(self.samples) < MOST_SAMPLES:
                self.samples.append(f"{wire.shown(path)}: {wire.shown(name)}: {error.strerror}")

    def remove_xattr(self, path: bytes, attributes: "dict[int, Any]") -> None:
        folder, file = self._place(path)
        os.fchdir(folder)
        if self.compression and _xattr_name(attributes) == COMPRESSION.encode():
            os.setxattr(file, COMPRESSION, self.compression, follow_symlinks=False)
            return
        try:
            os.removexattr(file, _xattr_name(attributes), follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.ENODATA:  # it was one that could not be kept
                raise

    def chmod(self, path: bytes, attributes: "dict[int, Any]") -> None:
        mode = wire.number(attributes, wire.A_MODE)
        folder, name = self._place(path)
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise wire.bad(f"{wire.shown(path)} is a symlink and gets a mode")
        os.chmod(name, mode & 0o7777, dir_fd=folder)

    def chown(self, path: bytes, attributes: "dict[int, Any]") -> None:
        uid, gid = wire.number(attributes, wire.A_UID, (1 << 32) - 2), wire.number(attributes, wire.A_GID, (1 << 32) - 2)
        folder, name = self._place(path)
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):  # the kernel clears them, and a stream only has new modes
            os.chmod(name, stat.S_IMODE(mode), dir_fd=folder)

    def set_times(self, path: bytes, attributes: "dict[int, Any]") -> None:
        times = wire.moment(attributes[wire.A_ATIME]), wire.moment(attributes[wire.A_MTIME])
        if not path:
            self._top_times = times
        folder, name = self._place(path)
        os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)

    def ignore(self, path: bytes, _: "dict[int, Any]") -> None:
        """Does nothing, like `btrfs receive`."""

    # --- the stream ---------------------------------------------------------------------------------------------------------
    def begin(self, command: int, attributes: "dict[int, Any]") -> None:
        """Takes the first command. The name of the subvolume does not matter."""
        if command != (wire.SNAPSHOT if self.parent else wire.SUBVOL):
            raise wire.StreamError(wire.DOES_NOT_FIT, "the stream is not the requested one")
        self.own = wire.identity(attributes, wire.A_UUID, wire.A_CTRANSID)
        top = os.fstat(self.here.root)
        self._top_times = top.st_atime_ns, top.st_mtime_ns
        if self.compression and not self.parent:
            os.setxattr(self.here.root, COMPRESSION, self.compression)
        if self.parent and (parent := wire.identity(attributes, wire.A_CLONE_UUID, wire.A_CLONE_CTRANSID)) != self.parent:
            raise wire.StreamError(wire.DOES_NOT_FIT, f"the stream is a difference to {parent}, not to {self.parent}")
        if self.parent:  # `finish` removed it from the previous backup
            try:
                os.mkdir(OWN_FOLDER, 0o700, dir_fd=self.here.root)
                self.numbers["files"] += 1
            except FileExistsError:
                pass

    def apply(self, command: int, attributes: "dict[int, Any]") -> None:
        """Applies a command that is not the first or the last one."""
        action = COMMANDS.get(command)
        if action is None:
            raise wire.bad(f"the stream has an unknown command ({command})")
        path = attributes[wire.A_PATH]
        try:
            action(self, path, attributes)
        except OSError as error:
            status = wire.SERVER_FAULT if error.errno in SERVER_ERRORS else wire.DOES_NOT_FIT
            raise wire.StreamError(status, f"{wire.shown(path)}: {error.strerror} (command {command})") from error
        self.here.tidy()
        if self.base:
            self.base.tidy()

    def finish(self) -> None:
        """Ends the stream. Each new file begins with another name at the top, which changes the top's times; the stream has them
        only if they changed on the host. Raises OSError.
        """
        self.close()
        try:
            os.rmdir(OWN_FOLDER, dir_fd=self.here.root)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY):
                raise
        else:
            self.numbers["files"] -= 1
            self.numbers["created"] -= not self.parent
        os.utime(self.here.root, ns=self._top_times)

    def result(self) -> "dict[str, Any]":
        """Returns the JSON object of the result."""
        return {"own": self.own, "numbers": self.numbers, "not_kept": self.not_kept, "samples": self.samples}


def _xattr_name(attributes: "dict[int, Any]") -> bytes:
    name = bytes(attributes[wire.A_XATTR_NAME])
    if not name or len(name) > wire.LONGEST_NAME or b"\0" in name:
        raise wire.bad("the name of an attribute is invalid")
    return name


COMMANDS: "dict[int, Callable[[Applier, bytes, dict[int, Any]], None]]" = {
    3: Applier.make_file,
    4: Applier.make_folder,
    5: Applier.make_node,
    6: Applier.make_pipe,
    7: Applier.make_socket,
    8: Applier.make_symlink,
    9: Applier.rename,
    10: Applier.link,
    11: Applier.unlink,
    12: Applier.remove_folder,
    13: Applier.set_xattr,
    14: Applier.remove_xattr,
    15: Applier.write,
    16: Applier.clone,
    17: Applier.truncate,
    18: Applier.chmod,
    19: Applier.chown,
    20: Applier.set_times,
    23: Applier.punch_hole,
    wire.FILEATTR: Applier.ignore,
    25: Applier.encoded_write,
}


def apply_stream(stream: "BinaryIO", applier: Applier, progress: "Callable[[int], None]") -> None:
    """Applies a whole stream, and requires its end. `progress` is called with the bytes read so far. Raises wire.StreamError."""
    received, reported = 0, time.monotonic()
    for command, attributes, received in wire.read_commands(stream):
        try:
            if applier.own is None:
                applier.begin(command, attributes)
            else:
                applier.apply(command, attributes)
        except KeyError as error:
            raise wire.bad(f"command {command} has no attribute {error.args[0]}") from None
        if (now := time.monotonic()) - reported >= PROGRESS:
            reported = now
            progress(received)
    if applier.own is None:
        raise wire.bad("the stream has no subvolume")
    applier.finish()
    progress(received)


def write_line(fields: "dict[str, Any]") -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def main(words: list[str]) -> int:
    """Returns the exit status."""
    descriptor, folder, base, parent, most_names, most_bytes, compression = words

    def limit(word: str) -> int | None:
        return None if word == "-" else int(word)

    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    os.umask(0)
    try:
        applier = Applier(
            os.open(folder, flags),
            None if base == "-" else os.open(base, flags),
            None if parent == "-" else parent,
            limit(most_names),
            limit(most_bytes),
            None if compression == "-" else compression.encode(),
        )
    except OSError as error:
        sys.stderr.write(f"{error.filename}: {error.strerror}\n")
        return wire.SERVER_FAULT

    def progress(received: int) -> None:
        numbers = applier.numbers
        write_line({"received": received, "literal": numbers["literal"], "names": numbers["created"] + numbers["transferred"]})

    try:
        with os.fdopen(int(descriptor), "rb", buffering=1 << 20) as stream:
            apply_stream(stream, applier, progress)
    except wire.StreamError as error:
        sys.stderr.write(f"{error}\n")
        return error.status
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return wire.SERVER_FAULT
    write_line(applier.result())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
