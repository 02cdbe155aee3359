"""Every page that messages, manual pages, units and templates name exists at the named place.

Otherwise a message sends its reader to a page that an installation does not have.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from btrkeep.config.problems import INSTALLED, page
from tests.beds import TOP, backupd
from tests.docs.pages import DOCS
from tests.test_structure import tracked_files

PACKAGES = ("btrkeep", "backupd", "heatmap", "balancer", "web")
NAMED = re.compile(r"(?<![\w./-])docs/[\w/-]+")
OURS = {path.stem: path.suffix[1:] for path in (TOP / "man").iterdir()}


@cache
def modules() -> list[tuple[Path, ast.Module]]:
    paths = [path for path in tracked_files() if path.suffix == ".py" and path.parts[0] in PACKAGES]
    return [(path, ast.parse((TOP / path).read_text(encoding="utf-8"))) for path in paths]


def hidden(tree: ast.Module) -> Iterator[int]:
    """Yields the ids of texts that are never shown: docstrings, except those of commands, which are their help."""
    for node in ast.walk(tree):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []
        decorated = isinstance(node, ast.FunctionDef) and any(
            "command" in ast.unparse(decorator) for decorator in node.decorator_list
        )
        for statement in body[1:] if decorated else body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield id(statement.value)


@cache
def texts() -> list[tuple[Path, str]]:
    """Returns texts that programs may show: their strings, and all other files that are installed."""
    result = []
    for path, tree in modules():
        unseen = set(hidden(tree))
        constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in unseen)
        result += [(path, node.value) for node in constants if isinstance(node.value, str)]
    for path in tracked_files():
        if path.parts[0] in ("man", "systemd", "web") and path.suffix not in (".py", ".rst", ".svg"):
            result.append((path, (TOP / path).read_text(encoding="utf-8")))
    return result


def imports_page(tree: ast.Module) -> bool:
    result = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "btrkeep.config")
    return any(name.name == "page" for node in result for name in node.names)


@pytest.mark.slow
def test_no_message_names_a_file_that_only_the_source_has() -> None:
    usage = {"btrkeep/config/__main__.py", "backupd/doctor/__main__.py", "backupd/metrics/__main__.py"}  # of developers
    result = {(str(path), name) for path, text in texts() for name in NAMED.findall(text)}
    assert {mention for mention in result if mention[0] not in usage} == set()


def test_every_page_that_is_named_is_there() -> None:
    named = {name for _, text in texts() for name in re.findall(rf"{INSTALLED}/([\w-]+)\.html", text)}
    named |= {name for _, text in texts() for name in re.findall(r"document\(\"([\w-]+)\"\)", text)}
    for tree in (tree for _, tree in modules() if imports_page(tree)):
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "page")
        named |= {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert {"index", "monitoring", "serve", "getting-started", "configuration"} <= named
    assert [name for name in named if not (DOCS / f"{name}.rst").exists()] == []


def test_every_manual_page_of_ours_that_is_named_is_there() -> None:
    named = set()
    for _, text in texts():
        named |= {(name, "") for name in re.findall(r"`man ([\w.-]+)`", text)}
        named |= set(re.findall(r"man:([\w.-]+)\((\d)\)", text))
        named |= {
            (name.replace("\\", ""), number) for name, number in re.findall(r"^\.BR ([\w.\\-]+) \((\d)\)", text, re.MULTILINE)
        }
    ours = {(name, number) for name, number in named if name.startswith(("backupd", "btrkeep", "btrfs-heatmap", "btrfs-balancer"))}
    assert {("btrkeep.toml", ""), ("btrkeep.toml", "5"), ("backupd", "8")} <= ours
    assert [mention for mention in ours if mention[0] not in OURS or mention[1] not in ("", OURS[mention[0]])] == []


def test_a_checkout_names_its_own_files(tmp_path: Path) -> None:
    config = tmp_path / "main.toml"
    config.write_text("[pool]\npaht = '/srv'\n")
    hint = backupd("--config", config, "status", check=False).stderr.splitlines()[-1]
    assert hint.removeprefix("hint: ").startswith(f"{DOCS / 'configuration.rst'} ")
    assert page("monitoring").read_text(encoding="utf-8") == (DOCS / "monitoring.rst").read_text(encoding="utf-8")
