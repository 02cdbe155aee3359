"""On a telephone each cell shows its column's name, with the same text as the table's head on a wide screen."""

import re
from pathlib import Path

import pytest

import web

TEMPLATES = Path(web.__file__).parent / "templates"


@pytest.mark.slow
def test_the_jobs_table_has_the_same_words_on_a_telephone() -> None:
    text = (TEMPLATES / "jobs/jobs.html").read_text()
    head = re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', text)
    assert re.findall(r'data-label="([^"]+)"', text) == head[1:]
