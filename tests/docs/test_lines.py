"""Lines of one length in all .rst files. Truth: docutils, which says what is code and what a text means."""

import re
import sys
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from tests.beds import TOP, work

WIDTH = 132
QUIET = {"report_level": 5, "halt_level": 6, "file_insertion_enabled": False}
LONG = "Words that go on and on, with ``a piece of code`` and *emphasis*, - a dash, 1. a number and more. " * 3
SAMPLE = f"""Title
=====
{LONG}

- {LONG}

  {LONG}
- short

  ::

      {LONG}

1. {LONG}
   goes on

term
    {LONG}

====  ==============================================================================================================================
key   {LONG}
====  ==============================================================================================================================
a     {LONG}
      b
c     d
====  ==============================================================================================================================

.. list-table::

   * - {LONG}
     - x

.. image:: x.png
   :alt: {LONG}
      goes on

.. code-block:: none

   {LONG}
"""


def doctree(text: str) -> nodes.document:
    found: nodes.document = publish_doctree(text, settings_overrides=QUIET)
    return found


def meaning(text: str) -> str:
    return re.sub(r"\s+|colwidth=\S+", " ", doctree(text).pformat())


def sources() -> list[Path]:
    return [TOP / name for name in work("git", "ls-files", "*.rst", cwd=TOP).stdout.splitlines()]


def test_no_line_of_text_is_longer_than_the_others() -> None:
    assert len(sources()) > 30
    too_long = []
    for path in sources():
        text = path.read_text(encoding="utf-8")
        long = [line for line in text.splitlines() if len(line) > WIDTH]
        code = "\n".join(block.astext() for block in doctree(text).findall(nodes.literal_block)) if long else ""
        too_long += [f"{path.relative_to(TOP)}: {line}" for line in long if line.strip() not in code]
    assert too_long == []


@pytest.mark.parametrize("text", [SAMPLE, *(pytest.param(path, id=path.stem) for path in sources()[:3])])
def test_wrapping_changes_no_meaning(tmp_path: Path, text: str | Path) -> None:
    before = text if isinstance(text, str) else text.read_text(encoding="utf-8")
    path = tmp_path / "x.rst"
    path.write_text(before)
    work(sys.executable, TOP / "scripts" / "wrap_rst.py", path)
    after = path.read_text()
    assert meaning(after) == meaning(before)
    code = "\n".join(block.astext() for block in doctree(after).findall(nodes.literal_block))
    assert [line for line in after.splitlines() if len(line) > WIDTH and line.strip() not in code] == []
    work(sys.executable, TOP / "scripts" / "wrap_rst.py", "--check", path)
