"""Our command and its peer, knorrie's btrfs-heatmap as in Debian; and the results of both."""

import json
import subprocess
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from heatmap.cli import group
from tests.beds import work
from tests.beds.cli import command

PEER = Path("/usr/bin/btrfs-heatmap")
DEBIANS_PYTHON = "/usr/bin/python3"
Words = tuple[str, ...]


def heatmap(*words: str | Path, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Executes `btrfs-heatmap WORDS` as a separate process; `check` expects exit status 0."""
    return command("heatmap", *words, check=check, env=env)


@dataclass
class Drew:
    """A picture, u8[h, w, 3], and the output; for the peer also the exception that ended it."""

    image: NDArray[Any] | None
    output: str
    failed: str = ""


def pixels(path: Path) -> NDArray[Any]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


# One process for many pictures: most of the peer's time would be that of starting.
_DRIVER = """
import contextlib, importlib.machinery, importlib.util, io, json, sys
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("peer", "/usr/bin/btrfs-heatmap")
peer = importlib.util.module_from_spec(importlib.util.spec_from_loader("peer", loader))
loader.exec_module(peer)
for words in json.loads(sys.argv[1]):
    sys.argv, said, failed = words, io.StringIO(), ""
    with contextlib.redirect_stdout(said):
        try:
            peer.main()
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
    print(json.dumps([said.getvalue(), failed]))
"""


def peer(wishes: Sequence[Words], folder: Path, python: str = DEBIANS_PYTHON) -> list[Drew]:
    """Returns the peer's picture for each of these lists of arguments, without -o."""
    folder.mkdir()
    commands = [["btrfs-heatmap", *words, "-o", str(folder / f"{number}.png")] for number, words in enumerate(wishes)]
    lines = work(python, "-c", _DRIVER, json.dumps(commands)).stdout.splitlines()
    drew = []
    for number, line in enumerate(lines):
        answer, failed = json.loads(line)
        path = folder / f"{number}.png"
        drew.append(Drew(None if failed else pixels(path), answer.replace(str(path), "PICTURE"), failed))
    return drew


def ours(words: Words, path: Path) -> Drew:
    """Returns the same with btrkeep's program, in this process."""
    output = StringIO()
    with redirect_stdout(output):
        group.main([*words, "-o", str(path)], prog_name="btrfs-heatmap", standalone_mode=False)
    return Drew(pixels(path), output.getvalue().replace(str(path), "PICTURE"))
