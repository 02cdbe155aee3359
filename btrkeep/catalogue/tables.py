"""The catalogue's tables, as they are now. How an older file gets there is in migrations/; a test holds the two together.

`host` has one row for each host that ever had a backup or a run. It lets the newest row of each host be found by one index seek per
host, however long the history has grown.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

from btrkeep.catalogue.columns import Document, Lines, Moment, Name, Rows, Words
from btrkeep.catalogue.model import BACKUP_STATES, EXPIRY_OUTCOMES, RUN_OUTCOMES
from btrkeep.catalogue.model_balance import BALANCE_OUTCOMES, STEP_OUTCOMES
from btrkeep.catalogue.model_sample import SPANS

SCHEMA_VERSION = "0005"
"""The newest migration. Versions are numbers of four digits, so that text order is their order."""


def _one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})", name=column)


metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_key",
        "fk": "%(table_name)s_of_%(referred_table_name)s",
        "ck": "%(table_name)s_%(constraint_name)s_known",
    }
)

about = Table(
    "about",
    metadata,
    Column("name", Words, primary_key=True),
    Column("value", Words, nullable=False),
)

host = Table("host", metadata, Column("name", Words, primary_key=True))

backup = Table(
    "backup",
    metadata,
    Column("host", Words, ForeignKey("host.name"), primary_key=True),
    Column("name", Name, primary_key=True),
    Column("path", Words, nullable=False),
    Column("state", Text, nullable=False),
    Column("started", Moment, nullable=False),
    Column("finished", Moment),
    Column("duration", Float),
    Column("files", BigInteger),
    Column("bytes", BigInteger),
    Column("new_bytes", BigInteger),
    Column("error", Words),
    Column("warnings", Lines),
    Column("base", Words),
    Column("subvolume_id", BigInteger),
    Column("uuid", Words),
    Column("outcome", Text),
    Column("held", Words),
    Column("expired", Moment),
    _one_of("state", BACKUP_STATES),
    Index("backup_by_start", "host", "started", "name"),
)

# Apart from `backup`, because it is some kilobytes: a list of all backups must not read it.
backup_detail = Table(
    "backup_detail",
    metadata,
    Column("host", Words, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("detail", Document, nullable=False),
    ForeignKeyConstraint(["host", "name"], ["backup.host", "backup.name"], ondelete="CASCADE"),
)

# `backup` is no foreign key: the run is remembered when the backup has long been deleted.
run = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("host", Words, ForeignKey("host.name"), nullable=False),
    Column("started", Moment, nullable=False),
    Column("finished", Moment),
    Column("outcome", Text),
    Column("backup", Words),
    Column("attempts", Integer, nullable=False),
    Column("exit_code", Integer),
    Column("meaning", Words),
    Column("error", Words),
    Column("last_lines", Lines),
    Column("literal_bytes", BigInteger),
    Column("matched_bytes", BigInteger),
    Column("received_bytes", BigInteger),
    Column("rsync_version", Words),
    Column("protocol", Integer),
    Column("pid", Integer, nullable=False),
    Column("pid_started", Words),
    Column("night", Boolean, nullable=False),
    _one_of("outcome", RUN_OUTCOMES),
    Index("run_by_host", "host", "id"),
    Index("run_by_end", "finished"),
    sqlite_autoincrement=True,
)

progress = Table(
    "progress",
    metadata,
    Column("host", Words, ForeignKey("host.name"), primary_key=True),
    Column("run_id", Integer, ForeignKey("run.id", ondelete="CASCADE"), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("pid_started", Words),
    Column("path", Words, nullable=False),
    Column("files_done", BigInteger, nullable=False),
    Column("files_total", BigInteger),
    Column("bytes", BigInteger, nullable=False),
    Column("rate", Float),
    Column("share", Float),
    Column("updated", Moment, nullable=False),
)

expiry = Table(
    "expiry",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("started", Moment, nullable=False),
    Column("finished", Moment),
    Column("outcome", Text),
    Column("pid", Integer, nullable=False),
    Column("pid_started", Words),
    Column("planned", Integer, nullable=False),
    Column("marked", Integer, nullable=False),
    Column("revived", Integer, nullable=False),
    Column("deleted", Integer, nullable=False),
    Column("left_out", Integer, nullable=False),
    Column("waiting", Integer),
    Column("most_waiting", Integer),
    Column("rate", Float),
    Column("eta", Float),
    Column("written_bytes", BigInteger),
    Column("mount_option", Words),
    Column("paused", Words),
    Column("error", Words),
    Column("updated", Moment, nullable=False),
    _one_of("outcome", EXPIRY_OUTCOMES),
    sqlite_autoincrement=True,
)

score = Table(
    "score",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("filesystem", Text, nullable=False),
    Column("taken", Moment, nullable=False),
    Column("block_groups", Integer, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("used", BigInteger, nullable=False),
    Column("unallocated", BigInteger, nullable=False),
    Column("fragments", BigInteger, nullable=False),
    Column("score", Float, nullable=False),
    Column("bad", Integer, nullable=False),
    Column("largest_free", BigInteger, nullable=False),
    Column("free_in_large", BigInteger, nullable=False),
    Column("histogram", Rows, nullable=False),
    Index("score_by_time", "filesystem", "taken", "id"),
    sqlite_autoincrement=True,
)

balance = Table(
    "balance",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("filesystem", Text, nullable=False),
    Column("mountpoint", Words, nullable=False),
    Column("started", Moment, nullable=False),
    Column("finished", Moment),
    Column("outcome", Text),
    Column("why", Words),
    Column("policy", Text, nullable=False),
    Column("budget", BigInteger),
    Column("pid", Integer, nullable=False),
    Column("pid_started", Words),
    Column("block_groups", Integer, nullable=False),
    Column("moved", BigInteger, nullable=False),
    Column("written", BigInteger),
    Column("gained", Float, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("current", BigInteger),
    Column("before", Document),
    Column("after", Document),
    Column("updated", Moment, nullable=False),
    _one_of("outcome", BALANCE_OUTCOMES),
    Index("balance_by_filesystem", "filesystem", "id"),
    sqlite_autoincrement=True,
)

balance_step = Table(
    "balance_step",
    metadata,
    Column("balance", Integer, ForeignKey("balance.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("vaddr", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("used", BigInteger, nullable=False),
    Column("extents", BigInteger),
    Column("refs", BigInteger),
    Column("fragments", BigInteger, nullable=False),
    Column("score", Float, nullable=False),
    Column("started", Moment, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("moved", BigInteger, nullable=False),
    Column("written", BigInteger),
    Column("estimate_written", BigInteger),
    Column("estimate_seconds", Float),
    Column("gained", Float, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("error", Words),
    _one_of("outcome", STEP_OUTCOMES),
)

sample = Table(
    "sample",
    metadata,
    Column("filesystem", Text, nullable=False),
    Column("taken", Moment, nullable=False),
    Column("span", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("allocated", BigInteger, nullable=False),
    Column("used", BigInteger, nullable=False),
    Column("spaces", Document, nullable=False),
    Column("devices", Document, nullable=False),
    Column("orphans", Integer),
    Column("score", Float),
    Column("scored", Moment),
    Column("options", Words, nullable=False),
    Column("activity", Words, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("read", BigInteger, nullable=False),
    Column("written", BigInteger, nullable=False),
    Column("peak_read", Float, nullable=False),
    Column("peak_written", Float, nullable=False),
    Column("pressure", Document, nullable=False),
    Column("counters", Document, nullable=False),
    Column("id", Integer, primary_key=True),
    _one_of("span", SPANS),
    Index("sample_by_time", "filesystem", "taken", "id"),
    Index("sample_by_span", "filesystem", "span", "taken"),
    sqlite_autoincrement=True,
)

alarm = Table(
    "alarm",
    metadata,
    Column("what", Text, primary_key=True),
    Column("subject", Words, primary_key=True),
    Column("text", Words, nullable=False),
    Column("grade", BigInteger, nullable=False),
    Column("since", Moment, nullable=False),
    Column("times", Integer, nullable=False),
    Column("told", Moment),
    Column("recovered", Moment),
    Column("cleared", Moment),
)
