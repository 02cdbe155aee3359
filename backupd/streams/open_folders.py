"""Opens the folders of a stream's paths below one folder, without following any symlink."""

import os

from backupd.streams.stream_format import LONGEST_NAME, LONGEST_PATH, bad, shown

MOST_FOLDERS = 64  # open at a time
INHERITED = ("system.posix_acl_", "btrfs.")


class Folders:
    """Opens the folders of paths below one folder. Symlinks are never followed."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._open: dict[bytes, int] = {}

    def above(self, path: bytes) -> tuple[int, bytes]:
        """Returns the open folder that contains the last name of a path, and that name.

        The descriptor is valid until `tidy` or `forget`.
        """
        if len(path) > LONGEST_PATH or path.startswith(b"/") or b"\0" in path:
            raise bad(f"a path is not allowed: {shown(path)}")
        above, _, name = path.rpartition(b"/")
        _require_name(name, path)
        folder = self._open.get(above)
        if folder is None:
            folder = self._open[above] = self._opened(above, path)
        return folder, name

    def _opened(self, above: bytes, path: bytes) -> int:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(".", flags, dir_fd=self.root)
        for name in above.split(b"/") if above else ():
            try:
                _require_name(name, path)
                inner = os.open(name, flags, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        return folder

    def tidy(self) -> None:
        """Closes some folders if there are many."""
        if len(self._open) > MOST_FOLDERS:
            self.forget()

    def forget(self) -> None:
        """Closes all folders: their paths may have changed."""
        for folder in self._open.values():
            os.close(folder)
        self._open.clear()


def _require_name(name: bytes, path: bytes) -> None:
    if name in (b"", b".", b"..") or len(name) > LONGEST_NAME:
        raise bad(f"a path is not allowed: {shown(path)}")


def remove_inherited(folder: int, name: bytes) -> None:
    """Removes the ACLs and the compression that a new file has from the top, where its stream makes it under another name. The
    stream has those that it has on the host.
    """
    os.fchdir(folder)
    for attribute in os.listxattr(name, follow_symlinks=False):
        if attribute.startswith(INHERITED):
            os.removexattr(name, attribute, follow_symlinks=False)
