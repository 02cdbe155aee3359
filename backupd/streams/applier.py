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

It imports nothing of btrkeep but the two modules beside it, because it starts for each source path.
"""

import errno
import fcntl
import json
import os
import stat
import struct
import sys
import time
from array import array

from backupd.streams import stream_format as wire
from backupd.streams.open_folders import Folders, remove_inherited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

CLONE_RANGE, ENCODED_WRITE = 0x4020940D, 0x40809440  # linux/btrfs.h
UNRESVSP = 0x4030582B  # linux/falloc.h: punches a hole, like fallocate(2), which Python does not have
HOLE_ARGUMENTS = struct.Struct("=hh4xqq24x")  # type, SEEK_SET, offset, length
PUNCH_HOLE = 3  # of fallocate(2), with KEEP_SIZE
CLONE_ARGUMENTS = struct.Struct("=qQQQ")  # source descriptor, its offset, length, offset
ENCODED_ARGUMENTS = struct.Struct("=QQqQQQQII64x")  # iovec, count, offset, flags, length, unencoded length and offset, kinds
SERVER_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EUCLEAN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
NOT_CLONED = {errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP}
NOT_AS_IT_IS = {errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP}
"""Of an encoded write: an older kernel, or a pool without checksums."""
XATTR_REFUSED = {errno.EOPNOTSUPP, errno.EINVAL, errno.E2BIG, errno.ERANGE, errno.EPERM}
OWN_FOLDER = b".btrkeep-source"
"""The host's folder of snapshots at the top of the subvolume. It is in each stream, and in no backup unless something is in it."""
COMPRESSION = "btrfs.compression"
ZLIB, ZSTD = 1, 2  # linux/btrfs.h
LONGEST_EXTENT = 1 << 17  # bytes of compressed data, uncompressed
BLOCK = 4096  # the smallest sector of btrfs
MOST_SAMPLES = 3
PROGRESS = 1.0  # seconds


class Applier:
    """Applies commands to a folder, and counts what they change."""

    def __init__(
        self,
        folder: int,
        base: int | None,
        parent: str | None,
        most_names: int | None,
        most_bytes: int | None,
        compression: bytes | None = None,
    ) -> None:
        self.here = Folders(folder)
        self.base = None if base is None else Folders(base)
        self.parent = parent
        self.own: str | None = None
        self.most_names, self.most_bytes = most_names, most_bytes
        self.compression = compression
        self.numbers = dict.fromkeys(
            ("files", "regular", "bytes", "created", "deleted", "transferred", "transferred_bytes", "literal", "matched"), 0
        )
        """Differences for `files`, `regular` and `bytes`; else counts, with the names of rsync's statistics."""
        self.new_bytes = 0
        self.not_kept = 0
        self.samples: list[str] = []
        self._path: bytes | None = None
        self._fd = self._size = self._links = 0
        self._has_data = False
        self._cut: int | None = None  # where `encoded_write` has cut the open file, until the stream does that too
        self._top_times = (0, 0)

    # --- files that are written ---------------------------------------------------------------------------------------------
    def _file(self, path: bytes) -> int:
        """Returns the descriptor of a regular file for writing."""
        if path == self._path:
            return self._fd
        self.close()
        folder, name = self.here.above(path)
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(info.st_mode):
            raise wire.bad(f"{wire.shown(path)} is written, but is not a regular file")
        self._fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        self._path, self._size, self._links, self._has_data = path, info.st_size, info.st_nlink, False
        return self._fd

    def close(self) -> None:
        """Closes the file that is being written, and counts it."""
        if self._path is None:
            return
        size = os.fstat(self._fd).st_size
        os.close(self._fd)
        path, self._path = self._path, None
        if self._cut is not None:  # an inline extent may have others behind it: unchanged ones are not in the stream
            raise wire.StreamError(wire.DOES_NOT_FIT, f"{wire.shown(path)} was cut, but does not end there on the host")
        self.numbers["bytes"] += (size - self._size) * self._links
        if self._has_data:
            self.numbers["transferred"] += 1
            self.numbers["transferred_bytes"] += size

    def _takes(self, size: int) -> None:
        self.new_bytes += size
        if self.most_bytes is not None and self.new_bytes > self.most_bytes:
            raise wire.StreamError(wire.OVER_LIMIT, f"bytes {self.new_bytes}")

    def write(self, path: bytes, attributes: "dict[int, Any]") -> None:
        data, offset = attributes[wire.A_DATA], wire.number(attributes, wire.A_OFFSET)
        file, size = self._file(path), len(data)
        self._takes(size)
        self._write_all(file, memoryview(data), offset)
        self._has_data = True
        self.numbers["literal"] += size

    def _write_all(self, file: int, data: memoryview, offset: int) -> None:
        while data:
            written = os.pwrite(file, data, offset)
            data, offset = data[written:], offset + written

    def encoded_write(self, path: bytes, attributes: "dict[int, Any]") -> None:
        if wire.small(attributes, wire.A_ENCRYPTION):
            raise wire.bad(f"{wire.shown(path)} is encrypted")
        length, whole = wire.number(attributes, wire.A_FILE_LEN), wire.number(attributes, wire.A_UNENCODED_LEN)
        if len(attributes[wire.A_DATA]) >= whole:  # of a small file: some kernels make and send such an extent, but none accepts it
            self._decoded_write(path, attributes, "the data is longer than uncompressed")
            return
        file, data = self._file(path), array("B")
        data.frombytes(attributes[wire.A_DATA])
        self._takes(len(data))
        end = wire.number(attributes, wire.A_OFFSET) + length
        if end % BLOCK and os.fstat(file).st_size > end:  # the kernel only accepts it at the end of a file; see `close`
            os.ftruncate(file, end)
            self._cut = end
        vector = array("Q", (data.buffer_info()[0], len(data)))
        words = ENCODED_ARGUMENTS.pack(
            vector.buffer_info()[0],
            1,
            wire.number(attributes, wire.A_OFFSET),
            0,
            length,
            whole,
            wire.number(attributes, wire.A_UNENCODED_OFFSET),
            wire.small(attributes, wire.A_COMPRESSION),
            0,
        )
        try:
            fcntl.ioctl(file, ENCODED_WRITE, words)
        except OSError as error:
            if error.errno == errno.ENOSPC:  # no free extent is large enough
                self._decoded_write(path, attributes, os.strerror(errno.ENOSPC))
                return
            if error.errno in NOT_AS_IT_IS:
                raise wire.StreamError(wire.NOT_ENCODED, f"{wire.shown(path)}: {error.strerror}") from None
            raise
        self._has_data = True
        self.numbers["literal"] += length

    def _decoded_write(self, path: bytes, attributes: "dict[int, Any]", why: str) -> None:
        """Writes compressed data uncompressed. Asks for a plain stream if it cannot be decoded here."""
        length, whole = wire.number(attributes, wire.A_FILE_LEN), wire.number(attributes, wire.A_UNENCODED_LEN, LONGEST_EXTENT)
        start = wire.number(attributes, wire.A_UNENCODED_OFFSET, LONGEST_EXTENT)
        data = decoded(wire.small(attributes, wire.A_COMPRESSION), bytes(attributes[wire.A_DATA]), whole)
        if data is None or start + length > whole:
            raise wire.StreamError(wire.NOT_ENCODED, f"{wire.shown(path)}: {why}")
        self._takes(length)
        part = memoryview(data.ljust(whole, b"\0"))[start : start + length]
        self._write_all(self._file(path), part, wire.number(attributes, wire.A_OFFSET))
        self._has_data = True
        self.numbers["literal"] += length

    def clone(self, path: bytes, attributes: "dict[int, Any]") -> None:
        """Shares data of a file of this subvolume, or of the parent."""
        file, source_path = self._file(path), attributes[wire.A_CLONE_PATH]
        of, offset = wire.identity(attributes, wire.A_CLONE_UUID, wire.A_CLONE_CTRANSID), wire.number(attributes, wire.A_OFFSET)
        start, length = wire.number(attributes, wire.A_CLONE_OFFSET), wire.number(attributes, wire.A_CLONE_LEN)
        if not length:
            raise wire.bad("an empty range is cloned")
        if of == self.own:
            tree = self.here
        elif self.base and of == self.parent:
            tree = self.base
        else:
            raise wire.bad("data of another subvolume is cloned")
        folder, name = tree.above(source_path)
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise wire.bad(f"{wire.shown(source_path)} is cloned, but is not a regular file")
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        try:
            fcntl.ioctl(file, CLONE_RANGE, CLONE_ARGUMENTS.pack(source, start, length, offset))
        except OSError as error:
            if error.errno not in NOT_CLONED:
                raise
            self._copy(source, start, file, offset, length)
        finally:
            os.close(source)
        self._has_data = True
        self.numbers["matched"] += length

    def _copy(self, source: int, start: int, file: int, offset: int, length: int) -> None:
        while length:
            data = os.pread(source, min(length, 1 << 20), start)
            if not data:
                raise wire.StreamError(wire.DOES_NOT_FIT, "data beyond the end of a file is cloned")
            self._takes(len(data))
            self._write_all(file, memoryview(data), offset)
            start, offset, length = start + len(data), offset + len(data), length - len(data)

    def punch_hole(self, path: bytes, attributes: "dict[int, Any]") -> None:
        if wire.A_FALLOCATE_MODE not in attributes or wire.small(attributes, wire.A_FALLOCATE_MODE) != PUNCH_HOLE:
            raise wire.bad(f"{wire.shown(path)} would reserve space")
        words = HOLE_ARGUMENTS.pack(0, os.SEEK_SET, wire.number(attributes, wire.A_OFFSET), wire.number(attributes, wire.A_SIZE))
        fcntl.ioctl(self._file(path), UNRESVSP, words)

    def truncate(self, path: bytes, attributes: "dict[int, Any]") -> None:
        os.ftruncate(self._file(path), size := wire.number(attributes, wire.A_SIZE))
        self._cut = None if size == self._cut else self._cut

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


def decoded(kind: int, data: bytes, most: int) -> bytes | None:
    """Returns uncompressed data, at most that many bytes; None if it is invalid, or of a kind that cannot be decoded here.

    The library of zstd comes with btrfs-progs. `btrfs receive` uses it for the same purpose.
    """
    if kind == ZLIB:
        import zlib

        try:
            return zlib.decompressobj().decompress(data, most)
        except zlib.error:
            return None
    if kind != ZSTD:
        return None
    import ctypes

    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    for function in (library.ZSTD_findFrameCompressedSize, library.ZSTD_decompress):
        function.restype = ctypes.c_size_t
    size = library.ZSTD_findFrameCompressedSize(data, ctypes.c_size_t(len(data)))  # zeros follow up to the end of a sector
    if size > len(data):  # an error
        return None
    place = ctypes.create_string_buffer(most)
    length = library.ZSTD_decompress(place, ctypes.c_size_t(most), data, ctypes.c_size_t(size))
    return place.raw[:length] if length <= most else None


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
