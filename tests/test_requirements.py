"""scripts/requirements pins all packages that setup.py requires, each with a checksum; the bill of materials lists the same.

Otherwise install.sh installs versions that no test has run with, or packages that were not compared with their checksums.
"""

import ast
import json
import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.beds import TOP

LOCKS = TOP / "scripts" / "requirements"
OLDEST = {"python_version": "3.11", "python_full_version": "3.11.2", "implementation_name": "cpython"}


def pins(name: str) -> list[tuple[Requirement, list[str]]]:
    """Returns the requirements of a lock file, each with its checksums."""
    text = (LOCKS / f"{name}.txt").read_text().replace("\\\n", " ")
    lines = [line.split(" --hash=") for line in text.splitlines() if line and not line.startswith("#")]
    return [(Requirement(line[0]), [part.strip() for part in line[1:]]) for line in lines]


def demanded(keyword: str) -> list[Requirement]:
    """Returns the requirements in setup.py's `keyword`; of extras_require those of "dev"."""
    call = next(
        node
        for node in ast.walk(ast.parse((TOP / "setup.py").read_text()))
        if isinstance(node, ast.keyword) and node.arg == keyword
    )
    value = ast.literal_eval(call.value)
    return [Requirement(text) for text in (value["dev"] if isinstance(value, dict) else value)]


@pytest.mark.parametrize("name", ["build", "install", "documentation", "development"])
def test_every_package_is_pinned_to_one_version_and_its_checksums(name: str) -> None:
    for pin, checksums in pins(name):
        assert re.fullmatch(r"==[^*,]+", str(pin.specifier)), pin
        assert pin.url is None, pin
        assert checksums, pin
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", checksum) for checksum in checksums), pin


@pytest.mark.parametrize(
    ("name", "keyword"), [("install", "install_requires"), ("development", "install_requires"), ("development", "extras_require")]
)
def test_what_setup_asks_for_is_pinned_to_a_version_that_it_allows(name: str, keyword: str) -> None:
    """After a change of setup.py, scripts/lock.sh writes the pins again."""
    pinned = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin, _ in pins(name)}
    assert demanded(keyword)
    for requirement in demanded(keyword):
        assert canonicalize_name(requirement.name) in pinned, f"{requirement} is not pinned"
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


def test_tests_run_with_the_versions_that_are_installed() -> None:
    tested = {str(pin) for pin, _ in pins("development")}
    assert {str(pin) for pin, _ in pins("install")} <= tested


def test_the_bill_of_materials_lists_what_is_installed() -> None:
    listed = {
        (canonicalize_name(component["name"]), component["version"])
        for component in json.loads((LOCKS / "sbom.cdx.json").read_text())["components"]
    }
    on_oldest = [pin for name in ("build", "install") for pin, _ in pins(name) if not pin.marker or pin.marker.evaluate(OLDEST)]
    assert listed == {(canonicalize_name(pin.name), next(iter(pin.specifier)).version) for pin in on_oldest}
