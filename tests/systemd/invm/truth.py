"""The content of two pools, read by this program and SHA-256 alone, compared with their sources.

    truth.py change NUMBER FOLDER...  makes another version of each, and records it
    truth.py trees FIRST TOP          makes two dated trees below TOP, the first of them the FIRSTth, and records them
    truth.py look [HOST NUMBER]       prints errors; of that host only the newest NUMBER backups have to exist

A complete backup has to be read-only and equal to the recorded version, and a backup that was complete before has to exist.
"""

import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

KNOWN, SEEN = Path("/run/known.json"), Path("/run/seen.json")
POOLS = [Path("/srv/backup"), Path("/mnt/second")]


def manifest(top: Path) -> str:
    """Returns the tree below `top`, without link counts, which depend on the disk."""
    lines, inodes = [], dict[int, str]()
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        name = os.fsencode(path.relative_to(top)).hex()
        fields: list[object] = [name, oct(status.st_mode), status.st_uid, status.st_gid]
        if stat.S_ISREG(status.st_mode):
            fields += [status.st_mtime_ns, status.st_size, hashlib.sha256(path.read_bytes()).hexdigest()]
            fields += [inodes.setdefault(status.st_ino, name)]  # the first of its names
        elif stat.S_ISLNK(status.st_mode):
            fields += [os.fsencode(path.readlink()).hex()]
        else:
            fields += [status.st_mtime_ns]
        lines.append(fields)
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def change(number: int, folders: Sequence[Path]) -> None:
    answer = read(KNOWN)
    for folder in folders:
        _change(number, folder)
        answer[(folder / "version").read_text()] = manifest(folder)
    KNOWN.write_text(json.dumps(answer))


def _change(number: int, folder: Path) -> None:
    noise, is_new = random.Random(f"{folder} {number}"), not folder.exists()
    (folder / "small").mkdir(parents=True, exist_ok=True)
    for name in range(30) if is_new else noise.sample(range(30), 5):
        (folder / "small" / str(name)).write_bytes(noise.randbytes(noise.randrange(20000)))
    if is_new:
        (folder / "hard").hardlink_to(folder / "small" / "0")
        (folder / "soft").symlink_to("small")
        (folder / "large").touch()
    with (folder / "large").open("r+b") as file:
        file.truncate(2 << 20)
        file.seek(noise.randrange(1 << 20))
        file.write(noise.randbytes(300_000))
    (folder / "version").write_text(f"{folder} {number}")


def trees(first: int, top: Path) -> None:
    for number in (first, first + 1):
        tree = top / str(date(2026, 6, 1) + timedelta(days=number))
        if before := max(top.glob("2*"), default=None):
            shutil.copytree(before, tree, symlinks=True)
        change(number, [tree])


def complete(pool: Path) -> Iterator[tuple[str, Path]]:
    """Yields the backups that are called complete, by their host."""
    for path in sorted(pool.glob("hosts/*/2*")):
        if (path / "backup.json").exists() and json.loads((path / "backup.json").read_text())["state"] == "complete":
            yield path.parent.name, path


def top_of(backup: Path) -> Path:
    """Returns the folder of the backup that corresponds to the source."""
    paths = [Path(folder) for folder, _, files in os.walk(backup / "data") if "version" in files]
    assert len(paths) == 1, (backup, paths)
    return paths[0]


def wrong_of(path: Path, by_name: dict[str, str], looked: dict[str, list[str]]) -> str:
    """Returns the faults of a backup. A correct backup is read again only if its generation has changed."""
    shown = subprocess.run(["btrfs", "subvolume", "show", path], capture_output=True, text=True, check=True).stdout
    fields = {line.split(":")[0].strip(): line.split(":", 1)[1].strip() for line in shown.splitlines() if ":" in line}
    state = [fields["UUID"], fields["Generation"]]
    if fields["Flags"] != "readonly":
        return f"{path} can be written"
    if looked.get(str(path)) != state:
        top = top_of(path)
        if by_name.get((top / "version").read_text()) != manifest(top):
            return f"{path} differs"
        looked[str(path)] = state
    return ""


def record_backups(host: str = "", number: str = "0") -> None:
    answer, before = read(KNOWN), read(SEEN)
    looked, names = dict(before.get("looked", {})), dict[str, list[str]]()
    for pool in POOLS:
        for of, path in complete(pool):
            names.setdefault(f"{pool}/{of}", []).append(path.name)
            if why := wrong_of(path, answer, looked):
                print_line(f"wrong: {why}")
    for place, old in before.get("names", {}).items():
        may_go = old[: -int(number)] if host and place.endswith(f"/{host}") else []
        for name in set(old) - set(names.get(place, [])) - set(may_go):
            print_line(f"wrong: {place}/{name} is lost")
    SEEN.write_text(json.dumps({"names": names, "looked": looked}))
    print_line(f"complete { ({place: len(lines) for place, lines in names.items()}) }")


def main() -> None:
    how, *words = sys.argv[1:]
    if how == "change":
        change(int(words[0]), [Path(word) for word in words[1:]])
    elif how == "trees":
        trees(int(words[0]), Path(words[1]))
    else:
        record_backups(*words)


main()
