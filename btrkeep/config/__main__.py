"""`python -m btrkeep.config FILE`: the list of keys in docs/configuration.rst made anew."""

import sys
from pathlib import Path

from btrkeep.config.reference import refreshed

if len(sys.argv) != 2:
    sys.exit("usage: python -m btrkeep.config docs/configuration.rst")
document = Path(sys.argv[1])
document.write_text(refreshed(document.read_text(encoding="utf-8")), encoding="utf-8")
