"""The first schema: hosts, backups with their detail, runs, progress."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "about",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="about_key"),
    )
    op.create_table("host", sa.Column("name", sa.Text, nullable=False), sa.PrimaryKeyConstraint("name", name="host_key"))
    _create_backup()
    _create_run()
    _create_progress()


def _create_backup() -> None:
    op.create_table(
        "backup",
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("started", sa.Text, nullable=False),
        sa.Column("finished", sa.Text),
        sa.Column("duration", sa.Float),
        sa.Column("files", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("new_bytes", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.Column("warnings", sa.Text),
        sa.Column("base", sa.Text),
        sa.Column("subvolume_id", sa.BigInteger),
        sa.Column("uuid", sa.Text),
        sa.PrimaryKeyConstraint("host", "name", name="backup_key"),
        sa.ForeignKeyConstraint(["host"], ["host.name"], name="backup_of_host"),
        sa.CheckConstraint(
            "state IN ('running', 'partial', 'complete', 'suspect', 'failed', 'expired', 'deleting')",
            name=op.f("backup_state_known"),
        ),
    )
    op.create_index("backup_by_start", "backup", ["host", "started", "name"])
    op.create_table(
        "backup_detail",
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("host", "name", name="backup_detail_key"),
        sa.ForeignKeyConstraint(
            ["host", "name"], ["backup.host", "backup.name"], name="backup_detail_of_backup", ondelete="CASCADE"
        ),
    )


def _create_run() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("started", sa.Text, nullable=False),
        sa.Column("finished", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.Column("backup", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("meaning", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("last_lines", sa.Text),
        sa.Column("literal_bytes", sa.BigInteger),
        sa.Column("matched_bytes", sa.BigInteger),
        sa.Column("received_bytes", sa.BigInteger),
        sa.Column("rsync_version", sa.Text),
        sa.Column("protocol", sa.Integer),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("pid_started", sa.Text),
        sa.Column("night", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="run_key"),
        sa.ForeignKeyConstraint(["host"], ["host.name"], name="run_of_host"),
        sa.CheckConstraint("outcome IN ('complete', 'suspect', 'failed', 'partial', 'skipped')", name=op.f("run_outcome_known")),
        sqlite_autoincrement=True,  # the id of a run is never given to another one
    )
    op.create_index("run_by_host", "run", ["host", "id"])
    op.create_index("run_by_end", "run", ["finished"])


def _create_progress() -> None:
    op.create_table(
        "progress",
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("pid_started", sa.Text),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("files_done", sa.BigInteger, nullable=False),
        sa.Column("files_total", sa.BigInteger),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("rate", sa.Float),
        sa.Column("share", sa.Float),
        sa.Column("updated", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("host", name="progress_key"),
        sa.ForeignKeyConstraint(["host"], ["host.name"], name="progress_of_host"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="progress_of_run", ondelete="CASCADE"),
    )
