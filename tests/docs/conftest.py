"""The pages, built once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.pages import Page, build


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("html", tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Page]:
    """`page("json")` is that page."""
    folder = build("xml", tmp_path_factory.mktemp("pages"))
    return lambda name: Page.read(folder / f"{name}.xml")
