"""Wraps the paragraphs of .rst files that have a line of more than 132 characters; nothing else in them is changed.

    scripts/wrap_rst.py [--check] [FILE...]

Without FILE it wraps all .rst files that git tracks. In a simple table the last column is wrapped; blocks of code are not changed.
`--check` only prints the lines that are too long, including those that cannot be wrapped; exit status 1 if there are any.
"""

import argparse
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

WIDTH = 132
_GLUE = "\0"
_ITEM = re.compile(r"\s*(?:(?:[-*]|\d+\.|#\.) +)+")
_BORDER = re.compile(r"\s*=+(?: +=+)+$")
_UNDERLINE = re.compile(r"([=~^\"'*+#-])\1{2,}$")
_LITERAL = re.compile(r"\s*\.\. (?:code-block|code|csv-table|parsed-literal|math|raw|toctree)::")
_DIRECTIVE = re.compile(r"\s*\.\. ")
_OPTION = re.compile(r"\s*:[\w-]+: ")
_MARKER = re.compile(r" (?=(?:[-*+]|\d+\.|#\.|\.\.)(?: |$))")
"""Matches text that would be an item of a list at the start of a line."""


def main(words: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("files", nargs="*", metavar="FILE", type=Path)
    given = parser.parse_args(words)
    status = 0
    for path in given.files or tracked():
        text = path.read_text(encoding="utf-8")
        if given.check:
            for number in too_long(text):
                print(f"{path}:{number}: more than {WIDTH} characters")
                status = 1
        elif (new := wrapped(text)) != text:
            path.write_text(new, encoding="utf-8")
    return status


def tracked() -> list[Path]:
    """Returns the .rst files of this script's checkout that git tracks."""
    top = Path(__file__).resolve().parents[1]
    listed = subprocess.run(["git", "ls-files", "*.rst"], cwd=top, capture_output=True, text=True, check=True).stdout
    return [top / name for name in listed.splitlines()]


def too_long(text: str) -> list[int]:
    """Returns the numbers of the lines that are too long, from 1."""
    return [number for number, line in enumerate(text.splitlines(), 1) if len(line) > WIDTH and line not in _code(text)]


def wrapped(text: str) -> str:
    """Returns the text in lines of at most WIDTH characters, as far as the length of words permits."""
    return "".join(f"{line}\n" for is_text, item in _items(text.splitlines()) for line in (_wrap(item) if is_text else item))


def _code(text: str) -> set[str]:
    return {item[0] for is_text, item in _items(text.splitlines()) if not is_text and len(item[0]) > WIDTH and _indent(item[0])}


def _wrap(item: list[str]) -> list[str]:
    if max(map(len, item)) <= WIDTH:
        return item
    item_mark = _ITEM.match(item[0]) or _OPTION.match(item[0])
    return _lines(item, item_mark[0] if item_mark else " " * _indent(item[0]))


def _lines(item: list[str], begin: str) -> list[str]:
    """Returns the lines of the item: its words after `begin`, wrapped and indented."""
    text = " ".join([item[0][len(begin) :], *(line.strip() for line in item[1:])])
    text = re.sub(r"``[^`]{1,60}``", lambda literal: literal[0].replace(" ", _GLUE), text)
    lines = textwrap.wrap(
        _MARKER.sub(_GLUE, text),
        WIDTH,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines]


def _items(lines: Sequence[str]) -> Iterator[tuple[bool, list[str]]]:
    """Yields paragraphs and items of lists with True, and lines that must not be changed with False."""
    item: list[str] = []
    hanging, literal, in_table, column = 0, -1, False, 0
    for number, line in enumerate(lines):
        if literal >= 0 and line.strip() and _indent(line) <= literal:
            literal = -1
        border = literal < 0 and bool(_BORDER.match(line))
        column = line.rindex(" ") + 1 if border else column
        if literal >= 0 or in_table or border or not line.strip() or _DIRECTIVE.match(line) or _UNDERLINE.match(line):
            if item:
                yield True, item
                item = []
            yield False, _row(line, column, border) if in_table or border else [line]
        elif item and not _ITEM.match(line) and (_indent(line) == hanging or _goes_on(item, line)):
            item.append(line)
        else:
            if item:
                yield True, item
            item_mark = _ITEM.match(line)
            item, hanging = [line], len(item_mark[0]) if item_mark else _indent(line)
        if border:
            in_table = not in_table or bool(number + 1 < len(lines) and lines[number + 1].strip())
        if literal < 0 and (_LITERAL.match(line) or (line.endswith("::") and not _DIRECTIVE.match(line))):
            literal = hanging if item else _indent(line)
    if item:
        yield True, item


def _row(line: str, column: int, border: bool) -> list[str]:
    """Wraps a line of a table whose last column begins at `column`."""
    if len(line) <= WIDTH or border:
        return [line[:WIDTH]]
    return _lines([line], line[:column])


def _goes_on(option: list[str], line: str) -> bool:
    return bool(_OPTION.match(option[0])) and not _OPTION.match(line) and _indent(line) > _indent(option[0])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
