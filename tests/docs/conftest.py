"""The pages, built once for all workers, because a build takes as long as twenty tests."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.beds.workers import made_once
from tests.docs.pages import Page, build


@pytest.fixture(scope="session")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built("html", tmp_path_factory)


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Page]:
    """`page("json")` returns that page."""
    folder = _built("xml", tmp_path_factory)
    return lambda name: Page.read(folder / f"{name}.xml")


def _built(builder: str, factory: pytest.TempPathFactory) -> Path:
    return made_once(factory, "documentation", builder, partial(build, builder)) / builder
