"""An empty catalogue, copied from one that was made once."""

import functools
import shutil
import tempfile
from pathlib import Path

from btrkeep.catalogue import Catalogue
from tests.beds import session

_FILE = "catalogue.sqlite"


def with_catalogue(state: Path) -> Path:
    """`state`, with an empty catalogue where there was none: a copy of one that Catalogue.open has made, with its modes."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (state / _FILE).exists():
        shutil.copy(_template() / _FILE, state / _FILE)
    return state


@functools.cache
def _template() -> Path:
    """Made once by each worker, and never opened again: it is in one file, without a journal."""
    state = Path(tempfile.mkdtemp(prefix="template-", dir=session.folder()))
    Catalogue.open(state).close()
    assert [path.name for path in state.iterdir() if path.name.startswith(_FILE)] == [_FILE]
    return state
