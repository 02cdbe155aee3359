"""What a target of the fuzzer is."""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

Seeds = Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """`make` gives what is called with each input. `longest`: bytes of one."""

    about: str
    seeds: Callable[[], Seeds]
    make: Callable[[], Callable[[bytes], object]]
    longest: int = 4096


def own_folder() -> Path:
    """A folder of this process, in memory; `bench.fuzz` removes it."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))
