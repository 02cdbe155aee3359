"""Finds calls of `backupd run` for a pool in a command line, as cron, systemd or a script has it. Pure."""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from btrkeep.config.reading import FOLDER

_OPERATORS = frozenset("();<>|&")
_DEEPEST = 4  # a script that calls a script, `sh -c` within it
_BACKUP_UNIT = re.compile(r"btrkeep-backup@([^/]+?)(?:\.service)?")
_GROUP_VALUES = ("--pool", "--config")
_RUN_VALUES = ("--now",)


@dataclass(frozen=True, slots=True)
class RunCall:
    """A call of `backupd run`. `hosts`: those that it names; `everything`: it has --all."""

    hosts: tuple[str, ...] = ()
    everything: bool = False


@dataclass(frozen=True, slots=True)
class CommandReader:
    """Reads command lines for one pool. `script` returns the text of a script, "" for any other file; `parts` the files of a folder
    that run-parts runs.
    """

    pool: str
    file: Path
    script: Callable[[str], str]
    parts: Callable[[str], list[str]]

    def calls(self, command: str, depth: int = 0) -> Iterator[RunCall]:
        """Yields the calls of `backupd run` for this pool."""
        if depth > _DEEPEST:
            return
        for words in _commands(command):
            yield from self._of_words(words, depth)

    def calls_of_script(self, text: str, depth: int = 0) -> Iterator[RunCall]:
        """Yields the calls in the lines of a script, whether or not it comes to each of them."""
        for line in text.replace("\\\n", " ").splitlines():
            if not line.lstrip().startswith("#"):
                yield from self.calls(line, depth)

    def _of_words(self, words: list[str], depth: int) -> Iterator[RunCall]:
        for place, word in enumerate(words):
            name = word.rpartition("/")[2]
            if name == "backupd":
                yield from self._of_backupd(words[place + 1 :])
                return
            if name == "run-parts":
                for folder in words[place + 1 :]:
                    for file in self.parts(folder) if folder.startswith("/") else ():
                        yield from self.calls_of_script(self.script(file), depth + 1)
                return
            if name == "systemctl" and {"start", "restart"} & set(words[place:]):
                units = [match[1] for unit in words[place:] if (match := _BACKUP_UNIT.fullmatch(unit))]
                yield from (RunCall() for pool in units if pool == self.pool and self._is_read_by_units())
                return
            if re.search(r"\s", word) and ("backupd" in word or "/" in word):
                yield from self.calls(word, depth + 1)
            elif word.startswith("/"):
                yield from self.calls_of_script(self.script(word), depth + 1)

    def _of_backupd(self, words: list[str]) -> Iterator[RunCall]:
        pool, file, rest = "main", "", list(words)
        while rest and rest[0].startswith("-"):
            option, _, value = rest.pop(0).partition("=")
            if option in _GROUP_VALUES:
                value = value or (rest.pop(0) if rest else "")
                pool, file = (value, file) if option == "--pool" else (pool, value)
        if not rest or rest.pop(0) != "run" or not self._is_this(pool, file):
            return
        hosts, options = [], set()
        while rest:
            word = rest.pop(0)
            option = word.partition("=")[0]
            if option in _RUN_VALUES and word == option and rest:
                rest.pop(0)
            if word.startswith("-"):
                options.add(option)
            else:
                hosts.append(word)
        if not options & {"--dry-run", "--help"}:
            yield RunCall(tuple(hosts), "--all" in options)

    def _is_this(self, pool: str, file: str) -> bool:
        return Path(file) == self.file.absolute() if file else pool == self.pool and self._is_read_by_units()

    def _is_read_by_units(self) -> bool:
        return self.file == FOLDER / f"{self.pool}.toml"


def _commands(line: str) -> Iterator[list[str]]:
    """Yields the words of each simple command of a line of the shell, without its redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        tokens = list(lexer)
    except ValueError:  # a quote that is open until a later line
        tokens = line.replace('"', " ").replace("'", " ").split()
    words: list[str] = []
    skips = False
    for token in tokens:
        if set(token) <= _OPERATORS and token:
            skips = bool(set(token) & {"<", ">"})
            if skips and words and words[-1].isdecimal():
                words.pop()  # the descriptor of 2>&1
            if not skips:
                yield words
                words = []
        elif skips:
            skips = False
        else:
            words.append(token)
    yield words
