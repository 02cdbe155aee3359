"""`retention explain` of a host with a mistake in its configuration: which backups an expiry would keep is unknown."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backupd.expire.cli import retention
from btrkeep.catalogue import Catalogue
from btrkeep.config import load_usable
from btrkeep.errors import UsageError
from btrkeep.pool.marker import Pool
from btrkeep.units import parse_time

MAIN = """[pool]
path = "{top}/pool"
state = "{top}/state"
[retention]
daily = 1
[host.web]
paths = ["/etc"]
group = "debian"
"""


def test_a_host_with_a_mistake_is_not_explained_by_the_retention_of_the_others(tmp_path: Path) -> None:
    """It would show backups as due for deletion that its group keeps."""
    (tmp_path / "pool/hosts/web").mkdir(parents=True)
    file = tmp_path / "main.toml"
    file.write_text(MAIN.format(top=tmp_path))
    with Catalogue.open(tmp_path / "state") as catalogue:
        context: Any = SimpleNamespace(
            config=load_usable(file=file), pool=Pool(tmp_path / "pool", "p", "f", False), catalogue=catalogue
        )
        query = retention._RetentionQuery(context, parse_time("2026-11-20T12:00:00Z"), False, "", False)
        with pytest.raises(UsageError, match=r'host\.web\.group = "debian": there is no such group') as refused:
            retention._explain_host(query, "web")
    assert "until then none of its backups is deleted" in refused.value.hint
