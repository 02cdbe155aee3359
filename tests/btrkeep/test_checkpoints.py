"""Changes of state are announced at checkpoints, and tests refer to them only by these names."""

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.beds import work
from tests.beds.cli import TOP

HEARD = """
import sys
heard = []
sys.addaudithook(lambda event, arguments: heard.append(arguments) if event == "btrkeep.checkpoint" else None)
from pathlib import Path
from btrkeep.catalogue import Catalogue
from btrkeep.pool.atomic import link_atomically, write_atomically
top = Path(sys.argv[1])
"""
FUNCTION = re.compile(r"(backupd|balancer|btrkeep|heatmap|web)(\.\w+)*:[A-Za-z_][\w.]*")


def heard(top: Path, code: str) -> str:
    return work(sys.executable, "-c", f"{HEARD}{code}\nprint(*heard)", top, cwd=TOP).stdout.strip()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("write_atomically(top / 'notes.json', '')", "notes.json replaced"),
        ("link_atomically(top / 'latest', 'somewhere')", "latest pointed"),
        ("with Catalogue.open(top) as catalogue:\n    heard.clear()\n    catalogue.set_fact('a', 'b')", "fact written"),
    ],
)
def test_a_change_is_announced_before_it_and_after_it(tmp_path: Path, code: str, name: str) -> None:
    assert heard(tmp_path, code) == f"('before', '{name}') ('after', '{name}')"


def test_a_change_that_fails_has_no_after(tmp_path: Path) -> None:
    code = "try: write_atomically(top / 'missing' / 'notes.json', '')\nexcept FileNotFoundError: pass"
    assert heard(tmp_path, code) == "('before', 'notes.json replaced')"


def test_what_changes_nothing_announces_nothing(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("somewhere")
    assert heard(tmp_path, "link_atomically(top / 'latest', 'somewhere')") == ""


@pytest.mark.slow
def test_no_test_names_a_function_to_be_killed_at() -> None:
    match = [
        f"{path.name}: {node.value}"
        for path in (TOP / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FUNCTION.fullmatch(node.value)
    ]
    assert match == []
