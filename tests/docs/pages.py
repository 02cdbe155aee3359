"""The content of the documentation, as Sphinx itself reads it: sections, tables, blocks of code, literals."""

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from tests.beds.work import work

DOCS = Path(__file__).resolve().parents[2] / "docs"
OURS = (
    "index",
    "getting-started",
    "restricted-keys",
    "how-a-backup-becomes-complete",
    "states-and-exit-codes",
    "retention",
    "json",
    "databases",
    "many-hosts",
    "teams",
    "time-zones",
)


def build(builder: str, folder: Path) -> Path:
    """Builds the documentation; every warning fails. The sources that were read are kept for the next builder."""
    out = folder / builder
    work(sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", builder, "-d", folder / "doctrees", DOCS, out)
    return out


def text_of(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


@dataclass(frozen=True, slots=True)
class Page:
    """A page, or one of its sections with all that is below it."""

    name: str
    root: Element

    @classmethod
    def read(cls, path: Path) -> "Page":
        return cls(path.stem, ET.parse(path).getroot())

    def section(self, title: str) -> "Page":
        elements = [section for section in self.root.iter("section") if text_of(section[0]) == title]
        assert len(elements) == 1, f"{self.name} has {len(elements)} sections {title!r}"
        return Page(f"{self.name}: {title}", elements[0])

    def table(self, number: int = 0) -> list[list[str]]:
        """Returns the rows of a table, without its head."""
        body = list(self.root.iter("tbody"))[number]
        return [[text_of(entry) for entry in row.iter("entry")] for row in body.iter("row")]

    def blocks(self, language: str = "") -> list[str]:
        """Returns the blocks of code in that language, or in all languages."""
        elements = (block for block in self.root.iter("literal_block") if language in ("", block.get("language")))
        return ["".join(block.itertext()) for block in elements]

    def block(self, language: str) -> str:
        (only,) = self.blocks(language)
        return only

    def tables_of_keys(self) -> Iterator[dict]:
        return (tomllib.loads(block) for block in self.blocks("toml"))

    def literals(self) -> list[str]:
        """Returns the texts between double backticks."""
        return [text_of(literal) for literal in self.root.iter("literal")]

    def commands(self) -> list[str]:
        """Returns the calls of backupd in the text and in blocks, as the words after the name."""
        lines = [*self.literals(), *(line for block in self.blocks() for line in block.splitlines())]
        matches = (
            re.fullmatch(r"(?:.* |.*/)?backupd((?: +[^|>#]*)?)(?:[|>#].*)?", line) for line in lines if not line.startswith("ln ")
        )
        return [match[1].strip() for match in matches if match]
