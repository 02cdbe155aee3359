"""What `backupd check` and `doctor` report of optional steps: a drill, a scrub, verification, the check of a repository."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from backupd.health.status_report import looks_of
from backupd.repo.context import open_configured
from btrkeep.catalogue import Catalogue
from btrkeep.config import Config
from btrkeep.config.reading import backupd_command
from btrkeep.decisions.findings import WARNING, Finding
from btrkeep.decisions.repeated import CHECK, read_steps, repeated_failures, repeated_findings
from btrkeep.errors import OperatorError
from btrkeep.units import counted, format_duration

_VERIFICATION = "verification"


def check_steps(config: Config, now: datetime) -> Iterator[Finding]:
    """Yields a finding for each step that did not come to its end several times in a row, and one for hosts whose data was not read
    for too long. A catalogue that cannot be read has a finding of its own.
    """
    command = backupd_command(config.name, config.file)
    try:
        filesystem = None
        with suppress(OperatorError, OSError):  # the pool has findings of its own
            filesystem = open_configured(config).filesystem
        with Catalogue.open_readonly(config.pool.state) as catalogue:
            failures = repeated_failures(read_steps(catalogue, filesystem), now)
            _, unverified = looks_of(config, catalogue, now)
    except (OperatorError, OSError):
        return
    yield from repeated_findings(failures, command)
    if unverified:
        more = f" and {counted(len(unverified) - 1, 'more host')}" if len(unverified) > 1 else ""
        text = f"no backup of {unverified[0]}{more} was read for {format_duration(config.verify.oldest)}"
        hint = f"is the timer btrkeep-verify@ or btrkeep-scrub@ enabled? {command} verify {unverified[0]}"
        yield Finding(CHECK, WARNING, text, hint, subject=_VERIFICATION)
