"""The tests that a machine cannot run, the reasons, and the line that reports them."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from tests.beds import TOP, btrfs, gate, ssh


@dataclass(frozen=True, slots=True)
class Need:
    """A marker, the fixtures that require it, the name of its tests in the summary, and why they cannot run ("": they can)."""

    marker: str
    fixtures: frozenset[str]
    words: str
    why_not: Callable[[], str]


NEEDS = (
    Need("btrfs", frozenset({"make_btrfs", "btrfs_mount", "shared_btrfs", "_shared_mount"}), "on a real btrfs", btrfs.why_not),
    Need("ssh", frozenset({"sshd"}), "over ssh", ssh.why_not),
    Need("root", frozenset(), "as root", lambda: "" if os.geteuid() == 0 else "no root"),
)

# Tests that --unit leaves out: by marker, by fixture (a dashboard, a browser), and by folder.
_LONGER = frozenset({*(need.marker for need in NEEDS), "slow", "takes", "long", "alone"})
_SERVED = frozenset({"site", "shop", "browser", "server"})
_ELSEWHERE = frozenset({"btrfs", "docs", "install", "systemd"})


_MARKED = re.compile(r"^pytestmark = (\[[^\]]*\]|.*)", re.MULTILINE)
_LONGER_MARK = re.compile(rf"mark\.({'|'.join(sorted(_LONGER))})\b")


def has_unit(path: Path) -> bool:
    """Returns True if `--unit` searches that folder or module for tests; False if a mark leaves out all of its tests."""
    if path.suffix != ".py":
        return path.name not in _ELSEWHERE
    marked = _MARKED.search(path.read_text(encoding="utf-8"))
    return not (marked and _LONGER_MARK.search(marked[1]))


def has_gate(module: Path) -> bool:
    """Returns True if `--gate` searches that module for tests."""
    return gate.is_named_module(module.relative_to(TOP).as_posix()) or (has_unit(module.parent) and has_unit(module))


def has_long(module: Path) -> bool:
    """Returns True if `--long` searches that module for tests."""
    return "pytest.mark.long" in module.read_text(encoding="utf-8")


def is_unit(item: pytest.Item) -> bool:
    """Returns True if `--unit` runs it. `item` has the markers of its fixtures."""
    is_longer = any(mark.name in _LONGER for mark in item.iter_markers())
    return item.path.parent.name not in _ELSEWHERE and not is_longer and _SERVED.isdisjoint(getattr(item, "fixturenames", ()))


def is_gate(item: pytest.Item) -> bool:
    """Returns True if `--gate` runs it."""
    return is_unit(item) or gate.is_named(item.nodeid)


def passed_before(item: pytest.Item, passed: Collection[str]) -> bool:
    """Returns True if the test is one of `passed`, the tests that `--unit` ran, and would prove no more now. Properties are tried
    with more examples now, and tests that read the list of the session's tests get another list.
    """
    function: Any = getattr(item, "function", None)
    looks_wider = function is None or hasattr(function, "hypothesis") or "request" in signature(function).parameters
    return item.nodeid in passed and not looks_wider


_REASON = re.compile(r"left out: (.+)")


def reason(words: str, why: str) -> str:
    return f"left out: {words} ({why})"


def must_run(skipped: str) -> bool:
    """Returns True if the CI machine has to run the tests that were skipped with this reason."""
    return "not installed" in skipped or any(f"left out: {need.words} (" in skipped for need in NEEDS)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason=reason("as root", "no root"))
"""For a quick test that needs root. The marker `root` would leave it out of `--unit` for root too."""


def needs_program(name: str) -> pytest.MarkDecorator:
    """Skips a test that compares with a program that a machine may lack. CI has it."""
    return pytest.mark.skipif(not shutil.which(name), reason=reason(f"with {name}", f"{name} is not installed"))


def summary(reasons: Iterable[str]) -> str:
    """Returns a line of the skip reasons of all tests that did not run; "" if none was skipped."""
    counts = Counter(match[1] for text in reasons if (match := _REASON.search(text)))
    return "left out: " + ", ".join(f"{count} {words}" for words, count in counts.most_common()) if counts else ""
