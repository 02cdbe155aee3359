"""`python -m btrkeep.config FILE`: the list of keys in docs/configuration.rst or man/btrkeep.toml.5 made anew."""

import sys
from pathlib import Path

from btrkeep.config import manual, reference

if len(sys.argv) != 2:
    sys.exit("usage: python -m btrkeep.config docs/configuration.rst|man/btrkeep.toml.5")
document = Path(sys.argv[1])
refreshed = reference.refreshed if document.suffix == ".rst" else manual.refreshed
document.write_text(refreshed(document.read_text(encoding="utf-8")), encoding="utf-8")
