"""The hosts' files: made and changed from a seed, so that every run of a bench sees the same ones."""

import random
from collections.abc import Iterator
from pathlib import Path


class Tree:
    """A host's files, `per_folder` in each folder, of 0.5 to 1.5 times the mean size; the content cannot be compressed."""

    def __init__(self, top: Path, files: int, mean: int, per_folder: int, seed: int) -> None:
        self.top = top
        self.mean = mean
        self._random = random.Random(seed)
        self._made = 0
        self.names = [top / f"folder{number // per_folder:04}" / f"file{number:06}" for number in range(files)]
        for folder in sorted({name.parent for name in self.names}):
            folder.mkdir(parents=True)
        for name in self.names:
            name.write_bytes(self._content())

    def _content(self) -> bytes:
        return self._random.randbytes(self._random.randint(self.mean // 2, self.mean * 3 // 2))

    def change(self, count: int) -> None:
        """One day: of twenty changed files sixteen are written over in part, two grow, one is replaced, one gives way to a new one.

        Editors and package managers replace (a new file takes the old one's name); databases and logs are written in place.
        """
        for turn, number in enumerate(self._random.sample(range(len(self.names)), count)):
            kind = turn % 20
            if kind < 16:
                self._write_over(self.names[number])
            elif kind < 18:
                with self.names[number].open("ab") as file:
                    file.write(self._random.randbytes(self.mean // 4))
            elif kind == 18:
                self._replace(self.names[number])
            else:
                self._give_way(number)

    def _write_over(self, name: Path) -> None:
        length = name.stat().st_size
        with name.open("r+b") as file:
            file.seek(self._random.randrange(max(1, length * 3 // 4)))
            file.write(self._random.randbytes(max(1, length // 4)))

    def _replace(self, name: Path) -> None:
        fresh = name.with_name(name.name + ".new")
        fresh.write_bytes(self._content())
        fresh.replace(name)

    def _give_way(self, number: int) -> None:
        self._made += 1
        fresh = self.names[number].with_name(f"new{self._made:06}")
        self.names[number].unlink()
        fresh.write_bytes(self._content())
        self.names[number] = fresh


def forest(top: Path, hosts: int, files: int, mean: int, per_folder: int) -> Iterator[tuple[str, Tree]]:
    """Yields the trees of many hosts, by name."""
    for number in range(hosts):
        name = f"host{number:03}"
        yield name, Tree(top / name, files, mean, per_folder, seed=number)
