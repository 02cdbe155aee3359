"""Nothing is removed from a repository while a file of the configuration cannot be read."""

from pathlib import Path
from typing import Any

import pytest

from backupd.offsite.offsite_run import OffsiteRun, OffsiteSummary
from backupd.offsite.restic import Restic
from btrkeep.config import keep_valid, load_usable
from btrkeep.decisions.safety_limits import Forced
from btrkeep.errors import ConfigError
from btrkeep.process.progress import ProgressSinks
from btrkeep.units import parse_time

MAIN = """[pool]
path = "/srv/backup"
state = "{state}"
[offsite.nas]
repository = "/mnt/nas/backup"
password_file = "/etc/btrkeep/offsite.password"
[offsite.nas.retention]
daily = 7
"""


def test_an_unreadable_file_may_have_the_zone_so_no_snapshot_is_removed(tmp_path: Path) -> None:
    main = tmp_path / "main.toml"
    main.write_text(MAIN.format(state=tmp_path))
    keep_valid(load_usable(file=main), parse_time("2026-11-27T22:00:00Z"))
    (tmp_path / "main.d").mkdir()
    (tmp_path / "main.d" / "x.toml").symlink_to("nowhere")
    config = load_usable(file=main)
    nothing: Any = None
    now = parse_time("2026-11-28T22:00:00Z")
    offsite = config.offsites["nas"]
    restic = Restic(offsite, tmp_path, (), {})
    run = OffsiteRun(config, nothing, nothing, offsite, restic, now, ProgressSinks(lambda _: None))
    with pytest.raises(ConfigError):
        run.remove(OffsiteSummary("nas"), Forced(clock=True))
