"""Seals: the last change of a final backup (ctransid), and `altered`, the state of one that was changed afterwards.

SQLite cannot change a check of a table. Making the table again would delete the details of all backups, which refer to it, so its
text is changed; a check has no other place, and all rows hold the wider one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_OLD, _NEW = "'suspect', 'failed', 'expired'", "'suspect', 'failed', 'altered', 'expired'"


def upgrade() -> None:
    op.add_column("backup", sa.Column("sealed", sa.BigInteger))
    bind = op.get_bind()
    (sql,) = bind.exec_driver_sql("SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = 'backup'").one()
    assert _OLD in sql
    bind.exec_driver_sql("PRAGMA writable_schema = ON")
    bind.exec_driver_sql("UPDATE sqlite_schema SET sql = ? WHERE type = 'table' AND name = 'backup'", (sql.replace(_OLD, _NEW),))
    bind.exec_driver_sql("PRAGMA writable_schema = RESET")
