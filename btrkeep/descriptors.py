"""Closes file descriptors, as contextlib.closing closes objects."""

import os


class ClosingFd:
    """Gives the descriptor to a `with`, and closes it at the end."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
