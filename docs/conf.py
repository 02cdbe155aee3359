"""How Sphinx makes pages of this folder: ``sphinx-build -W -n -b html docs docs/_build``. Nothing is loaded from elsewhere."""

import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1] / "btrkeep" / "__init__.py"
_version = re.search(r'^__version__ = "([^"]+)"$', _PACKAGE.read_text(encoding="utf-8"), re.MULTILINE)
assert _version

project = "btrkeep"
author = "the btrkeep authors"
copyright = author
version = release = _version[1]

exclude_patterns = ["_build"]
nitpicky = True
highlight_language = "none"
smartquotes = False  # options begin with two hyphens, and quotes are what is to be typed

html_theme = "alabaster"
html_theme_options = {
    "description": "A backup server on btrfs",
    "page_width": "1200px",
    "body_max_width": "920px",  # a terminal's screen of 100 columns fits
    "show_powered_by": False,
}
html_show_sourcelink = False
