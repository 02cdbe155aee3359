"""The manual page, the page about free space and its picture describe what the program does."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import click
import numpy as np
import pytest

from balancer.cli import COMMANDS, group
from balancer.cli.score import SORTS
from balancer.cli.score_view import block_groups
from balancer.score import BAD, GIB, SIZES, FreeExtents, tent
from balancer.survey import Survey, surveyed
from btrkeep.errors import Exit
from tests.beds import TOP, work
from tests.beds.leftout import needs_program

MANUAL = TOP / "man" / "btrfs-balancer.8"
PAGE = (TOP / "docs" / "free-space.rst").read_text(encoding="utf-8")
PICTURES = TOP / "docs" / "pictures"


@pytest.fixture(scope="module")
def manual() -> str:
    shown = work("groff", "-man", "-Tutf8", "-P-cbou", "-rLL=200n", MANUAL).stdout
    return re.sub(r"\s+", " ", shown).replace("\u2010", "-")


def options_of(command: click.Command) -> set[str]:
    return {name for param in command.params if isinstance(param, click.Option) for name in param.opts}


def commands() -> dict[str, click.Command]:
    by_name = {name: group.get_command(click.Context(group), name) for name in COMMANDS}
    return {name: command for name, command in by_name.items() if command}


@needs_program("groff")
def test_the_manual_names_every_command_option_and_key(manual: str) -> None:
    for name, command in commands().items():
        assert f" btrfs-balancer {name} " in manual
        for option in options_of(command):
            assert option in manual, f"{name} {option}"
    assert {key for key in SORTS if not re.search(rf"\b{key}\b", manual)} == set()
    lines = {option for command in [group, *commands().values()] for option in options_of(command)} | {"--help"}
    assert set(re.findall(r"--[a-z][a-z-]+", manual)) - lines == set()


@needs_program("groff")
def test_the_manual_has_exit_statuses_that_there_are(manual: str) -> None:
    part = manual[manual.index("EXIT STATUS") : manual.index("ENVIRONMENT")]
    assert {int(number) for number in re.findall(r" (\d+) [a-zA-Z]", part)} == {*map(int, Exit)}


@needs_program("groff")
def test_man_has_nothing_to_complain_about() -> None:
    assert not work("groff", "-man", "-Tutf8", "-ww", MANUAL).stderr


def test_the_options_and_the_limit_that_the_page_names_are_the_programs() -> None:
    lines = {option for command in commands().values() for option in options_of(command)} | {"--help"}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) - lines == set()
    assert f"above {BAD:.0f}" in PAGE


def test_the_json_on_the_page_has_the_fields_that_the_program_prints() -> None:
    example = json.loads(PAGE.split(".. code-block:: json")[1].split("\n\n")[1])
    assert list(example) == ["filesystem", "block_groups", "histogram"]
    (printed,) = block_groups(one_block_group(), np.arange(1), None)
    assert list(example["block_groups"][0]) == list(printed)
    assert example["block_groups"][0]["benefit"] == pytest.approx(3902.359489505608 / (534347776 / GIB))


def one_block_group() -> Survey:
    one_group, nothing = np.ones(1, np.uint64), np.zeros(SIZES, np.int64)
    return surveyed(
        one_group,
        one_group,
        one_group,
        FreeExtents(one_group, one_group, one_group, np.ones(1), nothing, nothing),
        np.ones(1, bool),
    )


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_the_one_that_its_script_draws() -> None:
    drawn = script(PICTURES / "score.py").picture()
    assert drawn == (PICTURES / "score.svg").read_text(encoding="utf-8")
    scores = [float(number) for number in re.findall(r"score (\d+\.\d)", drawn)]
    halves = np.array([512 << 20, 1 << 20], np.uint64)
    assert scores == pytest.approx(tent(halves, np.array([GIB])) * [1, 512], abs=0.05)
    assert scores == [float(number) for number in re.findall(r"score of (\d+\.\d)", PAGE)]
