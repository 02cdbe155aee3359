"""A host of a replica with a mistake in its configuration still belongs to that replica: another replica has another retention."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backupd.replicate.fetch_plan import other_replica
from btrkeep.config import keep_valid, load_usable
from btrkeep.decisions.replication import ReplicaMark

MAIN = '[pool]\npath = "/srv/backup"\nstate = "{state}"\n[replica.all]\nfrom = "/mnt/other"\n'
LONG = '[replica.long]\nfrom = "/mnt/other"\nhosts = ["db*"]\n'


@pytest.mark.parametrize(
    ("drop_in", "owner"),
    [
        (LONG, "long"),
        (f"{LONG}every = 3\n", "long"),  # left out
        (f"{LONG}every =\n", "long"),
        (None, "long"),  # a dangling link: it may have had any section
        (LONG.replace("db", "web"), None),  # it no longer wants the host
        ("", None),
    ],
)
def test_a_host_is_not_taken_from_a_replica_whose_section_has_a_mistake(
    tmp_path: Path, drop_in: str | None, owner: str | None
) -> None:
    main, file = tmp_path / "main.toml", tmp_path / "main.d" / "x.toml"
    main.write_text(MAIN.format(state=tmp_path))
    keep_valid(load_usable(file=main), datetime.now(UTC))
    file.parent.mkdir()
    if drop_in is None:
        file.symlink_to("nowhere")
    else:
        file.write_text(drop_in)
    context: Any = SimpleNamespace(config=load_usable(file=main), now=datetime.now(UTC))
    assert other_replica(context, "db1", ReplicaMark("pool", "long"), ReplicaMark("pool", "all")) == owner
