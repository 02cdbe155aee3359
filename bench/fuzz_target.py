"""The definition of a fuzz target, and the folder that one may use."""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

Seeds = Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """`make` returns the function that is called with each input. `longest`: the maximum bytes of an input."""

    about: str
    seeds: Callable[[], Seeds]
    make: Callable[[], Callable[[bytes], object]]
    longest: int = 4096


def scratch_folder() -> Path:
    """Makes a folder of this process, in memory; `bench.fuzz` removes it."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))
