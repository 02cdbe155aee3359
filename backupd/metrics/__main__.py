"""`python -m backupd.metrics docs`: the alert rules, the dashboard and the list of metrics made anew."""

import sys
from pathlib import Path

from backupd.metrics.documents import documents

if len(sys.argv) != 2:
    sys.exit("usage: python -m backupd.metrics docs")
for path, text in documents(Path(sys.argv[1])).items():
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
